//! 127.0.0.1 and ::1 between programs on the engine, with plain programs beside them.

use crate::common::{Cmd, Ip, Rig, RigSpec, bulk_bytes, port, program, script, wait_for};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// What the daemon counted; nothing without one.
fn status(rig: &Rig) -> Option<Value> {
    let control = rig.a.control.as_ref()?;
    Some(rig.status(control).expect("status"))
}

/// Connections that the engine carried from end to end.
fn carried(rig: &Rig) -> u64 {
    let Some(status) = status(rig) else { return 0 };
    let count = |name: &str| status["counters"][name].as_u64().unwrap_or(0);
    assert_eq!(count("TcpActiveOpens"), count("TcpPassiveOpens"));
    count("TcpActiveOpens")
}

/// A reason's count, over all programs.
fn why(rig: &Rig, reason: &str) -> u64 {
    status(rig).map_or(0, |s| s["why"][reason].as_u64().unwrap_or(0))
}

fn assert_carried(rig: &Rig, at_least: u64) {
    let n = carried(rig);
    assert!(!rig.has_engine() || n >= at_least, "{n} connections over the engine, {at_least} expected");
}

/// Nothing is left once the daemon has seen that all programs have ended.
fn assert_clean(rig: &Rig) {
    let empty =
        |s: &Value| ["flows", "listeners", "regions"].iter().all(|k| s[*k].as_array().is_some_and(Vec::is_empty));
    wait_for("nothing left in the daemon", LIMIT, || status(rig).is_none_or(|s| empty(&s)).then_some(()));
}

#[test]
fn semantics() {
    let Some(python) = program("loopback::semantics", "python3") else { return };
    let rig = Rig::loopback(&RigSpec::default());
    let run = || rig.a.cmd(&python).arg("-u").arg(script("loopback.py"));
    let got = run().run(LIMIT);
    assert!(got.status.success() && got.out.lines().count() == 9, "{got:?}");
    assert_eq!(got.out, rig.a.plain(&python).arg("-u").arg(script("loopback.py")).run_ok(LIMIT).out);
    // Each pair of addresses, the non-blocking one, the bound source, the untaken one, 40 to two listeners, the child's.
    assert_carried(&rig, 7 + 1 + 1 + 1 + 40 + 1);
    if rig.has_engine() {
        // The plain server, and the non-blocking connect to a listener just closed unless the engine itself still refuses it.
        let kernel = (why(&rig, "no_listener"), why(&rig, "kernel_peer"));
        assert!(matches!(kernel, (1..=2, 1)), "{kernel:?} {:?}", status(&rig));
    }
    assert_clean(&rig);
}

#[test]
fn redis() {
    let needs = ["redis-server", "redis-benchmark", "redis-cli"].map(|p| program("loopback::redis", p));
    let [Some(server), Some(bench), Some(cli)] = needs else { return };
    let rig = Rig::loopback(&RigSpec::default());
    let port = port();
    // On both addresses, as it comes out of the box.
    let serve = rig.a.cmd(&server).args(&format!("--bind 127.0.0.1 ::1 --port {port} --appendonly no --save")).arg("");
    let mut serving = serve.spawn();
    serving.until("Ready to accept connections", LIMIT);
    let run = rig.b.cmd(&bench).args(&format!("-p {port} --csv -t set,get -d 100 -c 20 -n 20000"));
    let got = run.run_ok(LIMIT);
    assert!(got.out.contains("\"SET\"") && got.out.contains("\"GET\"") && !got.err.contains("Error"), "{got:?}");
    assert_carried(&rig, 40);
    let before = carried(&rig);
    // The value that one stack stores the other one reads.
    let value = "0123456789abcdef".repeat(4096);
    let ask = |side: &dyn Fn() -> Cmd, host: &str| side().args(&format!("-h {host} -p {port}"));
    let (engine, kernel) = (|| rig.b.cmd(&cli), || rig.b.plain(&cli));
    assert_eq!(ask(&engine, "::1").args("set key").arg(&value).run_ok(LIMIT).out.trim(), "OK");
    assert_carried(&rig, before + 1);
    assert_eq!(ask(&kernel, "127.0.0.1").args("get key").run_ok(LIMIT).out.trim(), value);
    if rig.has_engine() {
        assert_eq!((carried(&rig), why(&rig, "kernel_peer")), (before + 1, 1));
    }
    assert!(serving.ended().is_none(), "{}", serving.describe());
}

/// Bytes in both directions at once, checked, between two processes.
#[test]
fn bulk() {
    let rig = Rig::loopback(&RigSpec::default());
    let n = bulk_bytes();
    for ip in [Ip::V4, Ip::V6] {
        let addr = rig.a.addr(ip, port());
        let serving = rig.a.serve(addr, "");
        let stream = rig.b.peer("stream --seed 20261 --connections 8 --connect").arg(addr);
        let got = stream.args(&format!("--up {n} --down {n}")).run(LIMIT);
        let json = got.json();
        assert!(got.status.success() && json["bytes_up"] == n && json["verified"] == true, "{}", serving.describe());
    }
    assert_carried(&rig, 16);
    assert_clean(&rig);
}

/// `loopback = "kernel"`: nothing of it is the engine's.
#[test]
fn left_to_the_kernel() {
    let Some(python) = program("loopback::left_to_the_kernel", "python3") else { return };
    let rig = Rig::loopback(&RigSpec { daemon: Some("loopback = \"kernel\""), ..RigSpec::default() });
    let got = rig.a.cmd(&python).arg("-u").arg(script("loopback.py")).run(LIMIT);
    assert!(got.status.success(), "{got:?}");
    assert_eq!(carried(&rig), 0);
    assert!(!rig.has_engine() || why(&rig, "address") > 50, "{:?}", status(&rig));
}
