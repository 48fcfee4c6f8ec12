//! Idle connections cost no CPU: ten seconds of nothing, as the acceptance list asks for, then each one still works.

use crate::common::{Ip, Moved, RigSpec, port};
use crate::{Pairing, on};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const SPAN: Duration = Duration::from_secs(10);
/// Clock ticks (10 ms) that a process may use in [`SPAN`]: 1 % of a core.
const ALLOWED: u64 = 10;

fn idle(pairing: Pairing, test: &str, connections: u32) {
    on(pairing, test, &RigSpec::default(), |rig, server, client| {
        let addr = server.addr(Ip::V4, port());
        let serving = server.serve_for(client, Ip::V4, addr, "");
        let idler = client.peer(&format!("idle --connections {connections} --connect"));
        let mut idler = idler.arg(addr).stdin().spawn();
        idler.until("ready", LIMIT);
        let mut all = vec![("server", &serving)];
        all.extend(rig.daemons.iter().map(|d| ("toed", &d.proc)));
        let before: Vec<u64> = all.iter().map(|(_, p)| p.ticks()).collect();
        let (start, idler_before) = (Instant::now(), idler.ticks());
        while start.elapsed() < SPAN {
            std::thread::sleep(SPAN.saturating_sub(start.elapsed()));
        }
        for ((name, process), before) in all.iter().zip(before) {
            let used = process.ticks() - before;
            assert!(used <= ALLOWED, "{name} used {used} ticks in {SPAN:?}: {}", process.describe());
        }
        let used = idler.ticks() - idler_before;
        assert!(used <= ALLOWED, "the client used {used} ticks in {SPAN:?}");
        idler.end_stdin();
        assert_eq!(idler.wait_ok(LIMIT).json()["verified"], true);
        // One byte each way before and after.
        Moved::both(2 * u64::from(connections))
    });
}

#[test]
fn pcielink_1() {
    idle(Pairing::PcieLink, "idle::pcielink_1", 1);
}

#[test]
fn pcielink_1000() {
    idle(Pairing::PcieLink, "idle::pcielink_1000", 1000);
}

#[test]
fn tap_1() {
    idle(Pairing::TapServer, "idle::tap_1", 1);
}

#[test]
fn tap_1000() {
    idle(Pairing::TapClient, "idle::tap_1000", 1000);
}
