//! Programs as users have them: iperf3, redis, memcached, NetPIPE.

use crate::common::{Ip, RigSpec, Side, port, program, script, wait_for};
use crate::{Pairing, on, on_each_pairing};
use std::net::SocketAddr;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

on_each_pairing!(iperf3, redis, memcached, netpipe);

fn iperf3(pairing: Pairing, test: &str) {
    let Some(iperf) = program(test, "iperf3") else { return };
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        let (ip, port) = (server.ip(Ip::V4), port());
        let serve = server.cmd(&iperf).args(&format!("--forceflush -s -B {ip} -p {port}"));
        let mut serving = serve.spawn();
        serving.until("Server listening", LIMIT);
        for options in ["", "-R", "-P 8", "-P 8 -R", "--bidir"] {
            let run = client.cmd(&iperf).args(&format!("-c {ip} -p {port} -J -n 256M {options}"));
            let got = run.run(LIMIT);
            let json: serde_json::Value = serde_json::from_str(&got.out).unwrap_or_default();
            assert!(got.status.success() && json.get("error").is_none(), "{options}: {got:?}");
            // It stops when one direction has sent all: what is in flight by then is not received.
            let bytes = |which: &str| json["end"][which]["bytes"].as_f64().unwrap_or(0.0);
            let both = |which: &str| bytes(which) + bytes(&format!("{which}_bidir_reverse"));
            let (sent, received) = (both("sum_sent"), both("sum_received"));
            assert!(sent >= 256e6 && received >= sent / 4.0, "{options}: {sent} sent, {received} received: {json}");
        }
        assert!(serving.ended().is_none(), "{}", serving.describe());
    });
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
        for options in ["-c 50 -n 100000", "-c 50 -n 400000 -P 16", "-c 1 -n 5000"] {
            let run = client.cmd(&bench).args(&format!("-h {ip} -p {port} --csv -t set,get -d 100 {options}"));
            let got = run.run_ok(LIMIT);
            for op in ["\"SET\"", "\"GET\""] {
                let line = got.out.lines().find(|l| l.starts_with(op)).unwrap_or_else(|| panic!("no {op}: {got:?}"));
                let rate: f64 = line.split('"').nth(3).and_then(|r| r.parse().ok()).unwrap_or(0.0);
                assert!(rate > 0.0, "{line}");
            }
            assert!(!got.err.contains("Error"), "{got:?}");
        }
        let value = "0123456789abcdef".repeat(4096);
        let ask = || client.cmd(&cli).args(&format!("-h {ip} -p {port}"));
        assert_eq!(ask().args("set key").arg(&value).run_ok(LIMIT).out.trim(), "OK");
        assert_eq!(ask().args("get key").run_ok(LIMIT).out.trim(), value);
        assert!(serving.ended().is_none(), "{}", serving.describe());
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
        assert!(got.status.success() && got.out.trim() == "ok 2000", "{got:?}\n{}", serving.describe());
    });
}

/// With its own integrity check, then as a measurement.
fn netpipe(pairing: Pairing, test: &str) {
    let Some(netpipe) = program(test, "NPtcp") else { return };
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        for options in ["-i -n 3 -u 1048576", "-n 5 -u 1048576"] {
            one_netpipe(&netpipe, server, client, options);
        }
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
