//! Connections that outlive the process image that accepted them.

use crate::common::{Ip, Moved, RigSpec, port, program, script, skip};
use crate::{Pairing, on, on_each_pairing};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// What relay.py moves each way in one of its connections.
const BULK: u64 = 16 << 20;

on_each_pairing!(over_exec, relayed);

/// subprocess, exec, posix_spawn, system: to programs that have the shim.
fn over_exec(pairing: Pairing, test: &str) {
    let Some(python) = program(test, "python3") else { return };
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        let at = format!("{} {}", server.ip(Ip::V4), port());
        let serve = server.cmd(&python).arg("-u").arg(script("inherit.py"));
        let mut serving = serve.args(&format!("serve {at}")).spawn();
        serving.until("listening", LIMIT);
        let got = client.cmd(&python).arg(script("inherit.py")).args(&format!("connect {at}")).run(LIMIT);
        assert!(got.status.success() && got.out.trim() == "answered 8", "{got:?}\n{}", serving.describe());
        serving.wait_ok(LIMIT);
        // Eight questions and answers of some words each.
        Moved::both(8 * 8)
    });
}

/// To programs without the shim, and in messages to either kind.
fn relayed(pairing: Pairing, test: &str) {
    let (Some(python), Some(cc)) = (program(test, "python3"), program(test, "cc")) else { return };
    on(pairing, test, &RigSpec::default(), |rig, server, client| {
        let Some(plain) = plain(&cc, rig.dir.path()) else {
            skip(test, "no static libc");
            return Moved::both(0);
        };
        let at = format!("{} {}", server.ip(Ip::V4), port());
        let serve = server.cmd(&python).arg("-u").arg(script("relay.py"));
        let mut serving = serve.args(&format!("serve {at}")).arg(plain).spawn();
        serving.until("listening", LIMIT);
        let got = client.cmd(&python).arg("-u").arg(script("relay.py")).args(&format!("connect {at}")).run(LIMIT);
        let last = got.out.lines().last();
        assert!(got.status.success() && last == Some("answered 9"), "{got:?}\n{}", serving.describe());
        serving.wait_ok(LIMIT);
        Moved::both(BULK)
    });
}

/// A program that no LD_PRELOAD reaches.
fn plain(cc: &Path, dir: &Path) -> Option<String> {
    let program = dir.join("plain").display().to_string();
    let built = Command::new(cc).args(["-static", "-o", &program]).arg(script("plain.c")).status();
    built.is_ok_and(|s| s.success()).then_some(program)
}
