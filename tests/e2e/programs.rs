//! Programs as users have them: iperf3, redis, memcached, NetPIPE.

use crate::common::{Ip, Moved, RigSpec, Side, port, program, script, wait_for};
use crate::{Pairing, on, on_each_pairing};
use std::net::SocketAddr;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

on_each_pairing!(iperf3, redis, memcached, netpipe);

/// iperf3's client ends the test at the wanted number, sent or (`-R`) received: what is in flight by then, or sent beyond
/// it, is never received. So each run has a bound for what may be missing, bytes.
const IPERF3_RUNS: [(&str, u64); 5] = [
    ("", 48 << 20), // the largest buffers of both ends
    ("-R", 48 << 20),
    ("-P 8 -w 256K", 8 << 20), // each end has twice as much as it asked for, for each stream
    ("-P 8 -R", 8 * (48 << 20)),
    ("--bidir -w 256K", 2 << 20),
];
const IPERF3_BYTES: u64 = 256 << 20;

fn iperf3(pairing: Pairing, test: &str) {
    let Some(iperf) = program(test, "iperf3") else { return };
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        let (ip, port) = (server.ip(Ip::V4), port());
        let serve = server.cmd(&iperf).args(&format!("--forceflush -s -B {ip} -p {port}"));
        let mut serving = serve.spawn();
        serving.until("Server listening", LIMIT);
        let mut moved = Moved::default();
        for (options, missing) in IPERF3_RUNS {
            let run = client.cmd(&iperf).args(&format!("-c {ip} -p {port} -J -n {IPERF3_BYTES} {options}"));
            let got = run.run(LIMIT);
            let json: serde_json::Value = serde_json::from_str(&got.out).unwrap_or_default();
            assert!(got.status.success() && json.get("error").is_none(), "{options}: {got:?}");
            moved += iperf3_moved(&json["end"], options, missing);
        }
        assert!(serving.ended().is_none(), "{}", serving.describe());
        moved
    });
}

/// What arrived; all that was sent must have, but for `missing` bytes.
fn iperf3_moved(end: &serde_json::Value, options: &str, missing: u64) -> Moved {
    let way = |way: &str| {
        let bytes = |which: &str| end[format!("{which}{way}")]["bytes"].as_u64().unwrap_or(0);
        let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
        let in_flight = sent.checked_sub(received);
        assert!(in_flight.is_some_and(|n| n <= missing), "{options}: {sent} sent, {received} received: {end}");
        (sent, received)
    };
    let (main, other) = (way(""), way("_bidir_reverse"));
    let reverse = options.contains("-R");
    let counted = if reverse { main.1 } else { main.0.max(other.0) };
    assert!(counted >= IPERF3_BYTES, "{options}: {counted} of {IPERF3_BYTES}: {end}");
    match reverse {
        true => Moved { up: 0, down: main.1 },
        false => Moved { up: main.1, down: other.1 },
    }
}

fn redis(pairing: Pairing, test: &str) {
    let needs = ["redis-server", "redis-benchmark", "redis-cli"].map(|p| program(test, p));
    let [Some(server_bin), Some(bench), Some(cli)] = needs else { return };
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        let (ip, port) = (server.ip(Ip::V4), port());
        let serve = server
            .cmd(&server_bin)
            .args(&format!("--bind {ip} --port {port} --protected-mode no --appendonly no --save"));
        let mut serving = serve.arg("").spawn();
        serving.until("Ready to accept connections", LIMIT);
        let mut moved = Moved::default();
        for (requests, options) in [(100_000, "-c 50"), (400_000, "-c 50 -P 16"), (5_000, "-c 1")] {
            let run = client.cmd(&bench).args(&format!("-h {ip} -p {port} --csv -t set,get -d 100"));
            let run = run.args(&format!("-n {requests} {options}"));
            let got = run.run_ok(LIMIT);
            for op in ["\"SET\"", "\"GET\""] {
                let line = got.out.lines().find(|l| l.starts_with(op)).unwrap_or_else(|| panic!("no {op}: {got:?}"));
                let rate: f64 = line.split('"').nth(3).and_then(|r| r.parse().ok()).unwrap_or(0.0);
                assert!(rate > 0.0, "{line}");
            }
            assert!(!got.err.contains("Error"), "{got:?}");
            // Each SET carries its 100 bytes up, each GET down.
            moved += Moved::both(100 * requests);
        }
        let value = "0123456789abcdef".repeat(4096);
        let ask = || client.cmd(&cli).args(&format!("-h {ip} -p {port}"));
        assert_eq!(ask().args("set key").arg(&value).run_ok(LIMIT).out.trim(), "OK");
        assert_eq!(ask().args("get key").run_ok(LIMIT).out.trim(), value);
        assert!(serving.ended().is_none(), "{}", serving.describe());
        moved += Moved::both(value.len() as u64);
        moved
    });
}

fn memcached(pairing: Pairing, test: &str) {
    let needs = ["memcached", "python3"].map(|p| program(test, p));
    let [Some(memcached), Some(python)] = needs else { return };
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        let (ip, port) = (server.ip(Ip::V4), port());
        let serving = server.cmd(&memcached).args(&format!("-l {ip} -p {port} -U 0 -t 2 -u root")).spawn();
        client.probe(SocketAddr::new(ip, port));
        let run = client.cmd(&python).arg(script("memcache.py")).args(&format!("{ip} {port}"));
        let got = run.run(LIMIT);
        let told: Vec<u64> = got.out.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        let [2000, up, down] = told[..] else { panic!("{got:?}\n{}", serving.describe()) };
        assert!(got.status.success(), "{got:?}");
        Moved { up, down }
    });
}

/// With its own integrity check, then as a measurement.
fn netpipe(pairing: Pairing, test: &str) {
    let Some(netpipe) = program(test, "NPtcp") else { return };
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        for options in ["-i -n 3 -u 1048576", "-n 5 -u 1048576"] {
            one_netpipe(&netpipe, server, client, options);
        }
        // Three and five times there and back, of the largest size alone.
        Moved::both(8 << 20)
    });
}

fn one_netpipe(netpipe: &std::path::Path, server: &Side, client: &Side, options: &str) {
    let (ip, port) = (server.ip(Ip::V4), port());
    let mut serving = server.cmd(netpipe).args(&format!("-P {port} -o np-server {options}")).spawn();
    // It takes one connection, so that it cannot be probed: the client itself tries until the server is there.
    let got = wait_for("NPtcp", LIMIT, || {
        assert!(serving.ended().is_none(), "{}", serving.describe());
        let run = client.cmd(netpipe).args(&format!("-h {ip} -P {port} -o np-client {options}"));
        let got = run.run(LIMIT);
        let text = format!("{} {}", got.out, got.err);
        (!text.contains("errno=111")).then_some(got)
    });
    assert!(got.status.success(), "{got:?}\n{}", serving.describe());
    let sizes = got.err.lines().filter(|l| l.contains("bytes") && l.contains("-->")).count();
    let checked = got.err.matches("Integrity check").count() + got.out.matches("Integrity check").count();
    assert!(sizes > 30 || checked > 0, "{got:?}");
    serving.wait_ok(LIMIT);
}
