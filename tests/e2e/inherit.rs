//! Connections that outlive the process image that accepted them.

use crate::common::{Ip, RigSpec, port, program, script};
use crate::{Pairing, on, on_each_pairing};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

on_each_pairing!(over_exec);

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
    });
}
