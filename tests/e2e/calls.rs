//! Calls that not every program makes: the C programs of `sockshim/tests`, over real daemons. Each connects to itself, and must see what
//! it sees on the kernel's TCP.

use crate::Rig;
use crate::common::{Ip, RigSpec, program};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Connections that a daemon has opened.
fn opened(rig: &Rig, control: &Path) -> u64 {
    let status = rig.status(control).expect("status");
    status["counters"]["TcpActiveOpens"].as_u64().unwrap_or_else(|| panic!("no TcpActiveOpens in {status}"))
}

fn same_as_kernel(name: &str) {
    let test = format!("calls::{name}");
    let Some(cc) = program(&test, "cc") else { return };
    let Some(rig) = Rig::pcielink(&test, &RigSpec::default()) else { return };
    let exe = rig.dir.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("sockshim/tests").join(name).with_extension("c");
    let options = ["-O2", "-D_FORTIFY_SOURCE=2", "-Wno-unused-result", "-pthread", "-o"];
    assert!(Command::new(cc).args(options).arg(&exe).arg(source).status().expect("cc").success());
    let (side, _) = rig.b_serves();
    let kernel = side.plain(&exe).arg("127.0.0.1").run_ok(LIMIT);
    let before = side.control.as_ref().map(|c| opened(&rig, c));
    let engine = side.cmd(&exe).arg(side.ip(Ip::V4)).run_ok(LIMIT);
    assert_eq!(kernel.out, engine.out);
    if let (Some(before), Some(control)) = (before, &side.control) {
        assert!(opened(&rig, control) > before, "nothing went through the engine");
    }
}

#[test]
fn stdio() {
    same_as_kernel("stdio");
}

#[test]
fn by_number() {
    same_as_kernel("calls");
}

#[test]
fn cancelled() {
    same_as_kernel("cancel");
}

#[test]
fn inetd() {
    same_as_kernel("inetd");
}
