//! What happens when somebody goes away: the peer resets, an app is killed, the daemon is killed.

use crate::common::{Ip, Moved, Proc, Rig, RigSpec, Side, port, wait_for};
use crate::{Pairing, on, on_doomed, on_each_pairing};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);
/// `toe-peer`'s first words on every connection, bytes.
const HELLO: u64 = 64;

on_each_pairing!(reset_wakes_a_blocked_read, killed_server, killed_client);

/// RFC 2525 §2.17: a close with unread data resets. The reader is asleep by then.
fn reset_wakes_a_blocked_read(pairing: Pairing, test: &str) {
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        let addr = server.addr(Ip::V4, port());
        let mut serving = server.serve_for(client, Ip::V4, addr, "");
        let mut reader = client.peer("reset --connect").arg(addr).spawn();
        reader.until("reading", LIMIT);
        serving.until("reset on a word", LIMIT);
        reader.until_asleep(LIMIT);
        serving.say("now");
        let got = reader.wait(LIMIT);
        assert_eq!(got.json()["read"], "ECONNRESET", "{got:?}");
        Moved { up: HELLO + 1, down: 0 }
    });
}

/// `kill -9` of a server: the peer learns of it, the port is free, the daemon keeps nothing.
fn killed_server(pairing: Pairing, test: &str) {
    on(pairing, test, &RigSpec::default(), |rig, server, client| {
        let addr = server.addr(Ip::V4, port());
        let before: Vec<usize> = rig.daemons.iter().map(|d| d.memfds()).collect();
        let took: Vec<Duration> = (0..5).map(|_| kill_server(server, client, addr)).collect();
        println!("{test}: from the kill to the end of the peer's read {took:?}");
        assert!(took.iter().all(|t| *t <= Duration::from_millis(200)), "the peer learned of it only after {took:?}");
        for (daemon, before) in rig.daemons.iter().zip(before) {
            wait_for("the daemon to let go of regions", LIMIT, || (daemon.memfds() == before).then_some(()));
        }
        Moved { up: 5 * HELLO, down: 0 }
    });
}

/// One round; the time from the kill to the end of the peer's read. Each round binds the same port again.
fn kill_server(server: &Side, client: &Side, addr: SocketAddr) -> Duration {
    let serving = server.serve_for(client, Ip::V4, addr, "");
    let mut reader = client.peer("hold --connect").arg(addr).spawn();
    reader.until("reading", LIMIT);
    reader.until_asleep(LIMIT);
    let start = Instant::now();
    drop(serving);
    let got = reader.wait(LIMIT);
    let took = start.elapsed();
    let how = got.json()["read"].clone();
    assert!(how == "ECONNRESET" || how == "end", "{got:?}");
    took
}

/// `kill -9` of a client with much in flight both ways: the server goes on serving others.
fn killed_client(pairing: Pairing, test: &str) {
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        let addr = server.addr(Ip::V4, port());
        let mut serving = server.serve_for(client, Ip::V4, addr, "");
        for _ in 0..3 {
            let stream = client.peer("stream --connections 8 --down 100000000000 --up 100000000000 --connect");
            let busy = stream.arg(addr).spawn();
            wait_for("the transfer to get going", LIMIT, || (busy.ticks() > 5).then_some(()));
            drop(busy);
            // Only the main thread and the reader of stdin are left.
            wait_for("the server to notice", LIMIT, || {
                let threads = std::fs::read_dir(format!("/proc/{}/task", serving.pid())).ok()?.count();
                (threads <= 2).then_some(())
            });
        }
        let small = client.peer("stream --up 1000000 --down 1000000 --connect").arg(addr).run_ok(LIMIT);
        assert_eq!(small.json()["verified"], true);
        assert!(serving.ended().is_none(), "{}", serving.describe());
        Moved::both(1_000_000)
    });
}

/// `kill -9` of `toed`: every blocked call of its apps ends within a second, new sockets are the kernel's.
#[test]
fn killed_daemon() {
    on_doomed(Pairing::PcieLink, "failure::killed_daemon", &RigSpec::default(), |rig, server, client| {
        if !rig.has_engine() {
            return;
        }
        let (addr, mine) = (server.addr(Ip::V4, port()), client.addr(Ip::V4, port()));
        let _serving = server.serve_for(client, Ip::V4, addr, "");
        let mut blocked = client.peer("block --connect").arg(addr).arg("--listen").arg(mine).spawn();
        blocked.until("blocked", LIMIT);
        blocked.until_asleep(LIMIT);
        rig.prove(server, client, Moved { up: 3 * HELLO, down: 0 });
        let start = Instant::now();
        rig.daemons[0].proc.signal(Signal::KILL);
        let got = blocked.wait(LIMIT);
        let took = start.elapsed();
        assert!(got.status.success(), "{got:?}");
        assert!(took <= Duration::from_secs(1), "the last blocked call ended after {took:?}: {got:?}");
        new_sockets_are_the_kernels(client, mine.port());
    });
}

/// A server, and a client that blocks in a read over the engine.
fn blocked_reader(rig: &Rig, server: &Side, client: &Side) -> (Proc, Proc) {
    let addr = server.addr(Ip::V4, port());
    let serving = server.serve_for(client, Ip::V4, addr, "");
    let mut reader = client.peer("hold --connect").arg(addr).spawn();
    reader.until("reading", LIMIT);
    rig.prove(server, client, Moved { up: HELLO, down: 0 });
    (serving, reader)
}

/// The peer's daemon notices, too: connections over the dead link end.
#[test]
fn killed_daemon_of_the_peer() {
    on_doomed(Pairing::PcieLink, "failure::killed_daemon_of_the_peer", &RigSpec::default(), |rig, server, client| {
        if !rig.has_engine() {
            return;
        }
        let (_serving, mut reader) = blocked_reader(rig, server, client);
        rig.daemons[1].proc.signal(Signal::KILL);
        let mut status = Default::default();
        wait_for("link down", LIMIT, || {
            status = rig.status(&rig.daemons[0].control)?;
            (status["nics"][0]["up"] == false).then_some(())
        });
        assert!(reader.ended().is_none(), "TCP outlives a link: {}", reader.describe());
    });
}

/// Programs started without a daemon behave as if there were no shim: server and client, one of them really without.
fn new_sockets_are_the_kernels(side: &Side, port: u16) {
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let _server: Proc = side.serve(addr, "");
    let args = "stream --up 1000000 --down 1000000 --connect";
    for client in [side.peer(args), side.plain(env!("CARGO_BIN_EXE_toe-peer")).args(args)] {
        assert_eq!(client.arg(addr).run_ok(LIMIT).json()["verified"], true);
    }
}

/// SIGTERM: connections are closed properly, the peer is told, the daemon ends with status 0.
#[test]
fn stopped_daemon_tells_the_peers() {
    on_doomed(
        Pairing::TapServer,
        "failure::stopped_daemon_tells_the_peers",
        &RigSpec::default(),
        |rig, server, client| {
            if !rig.has_engine() {
                return;
            }
            let (_serving, reader) = blocked_reader(rig, server, client);
            rig.daemons[0].proc.signal(Signal::TERM);
            let got = reader.wait(LIMIT);
            let how = got.json()["read"].clone();
            assert!(how == "end" || how == "ECONNRESET", "{got:?}");
        },
    );
}
