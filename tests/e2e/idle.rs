//! Idle connections cost no CPU: ten seconds of nothing, as the acceptance list asks for, then each one still works.

use crate::common::{Ip, Moved, Proc, RigSpec, port, wait_for};
use crate::{Pairing, on};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const SPAN: Duration = Duration::from_secs(10);
/// Clock ticks (10 ms) that a process may use in [`SPAN`]: what a tick of the clock that happens to find it running adds up to.
const ALLOWED: u64 = 1;

/// Times that all processes together may wake up in a second and still count as asleep: links are looked at now and then.
const NOW_AND_THEN: u64 = 10;

fn idle(pairing: Pairing, test: &str, connections: u32) {
    on(pairing, test, &RigSpec::default(), |rig, server, client| {
        let addr = server.addr(Ip::V4, port());
        let serving = server.serve_for(client, Ip::V4, addr, "");
        let idler = client.peer(&format!("idle --connections {connections} --connect"));
        let mut idler = idler.arg(addr).stdin().spawn();
        idler.until("ready", LIMIT);
        let mut all = vec![("server", &serving), ("client", &idler)];
        all.extend(rig.daemons.iter().map(|d| ("toed", &d.proc)));
        until_timers_are_through(&all);
        let before: Vec<_> = all.iter().map(|(_, p)| (p.ticks(), p.switches())).collect();
        let start = Instant::now();
        while start.elapsed() < SPAN {
            std::thread::sleep(SPAN.saturating_sub(start.elapsed()));
        }
        for ((name, process), (ticks, switches)) in all.iter().zip(before) {
            let (ticks, switches) = (process.ticks() - ticks, process.switches() - switches);
            println!("{test}: {name}: {ticks} ticks, {switches} times awake");
            let what = format!("{name} used {ticks} ticks and woke up {switches} times in {SPAN:?}");
            assert!(ticks <= ALLOWED, "{what}: {}", process.describe());
        }
        idler.end_stdin();
        assert_eq!(idler.wait_ok(LIMIT).json()["verified"], true);
        // One byte each way before and after.
        Moved::both(2 * u64::from(connections))
    });
}

/// What opening the connections has set going, such as delayed ACKs and retransmission timers that have nothing left to do,
/// is over when a second passes in which nobody wakes up more than now and then.
fn until_timers_are_through(all: &[(&str, &Proc)]) {
    let awake = || all.iter().map(|(_, p)| p.switches()).sum::<u64>();
    let (mut since, mut count) = (Instant::now(), awake());
    wait_for("everybody to sleep", LIMIT, || {
        let now = awake();
        if now > count + NOW_AND_THEN {
            (since, count) = (Instant::now(), now);
        }
        (since.elapsed() >= Duration::from_secs(1)).then_some(())
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
