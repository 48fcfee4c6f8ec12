//! nginx with curl and wrk, small and large files, `sendfile`, keep-alive and `Connection: close`.

use crate::common::{Ip, Moved, RigSpec, Side, port, program};
use crate::{Pairing, on, on_each_pairing};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

on_each_pairing!(nginx);

fn nginx(pairing: Pairing, test: &str) {
    let needs = ["nginx", "curl", "wrk"].map(|p| program(test, p));
    let [Some(nginx), Some(curl), Some(wrk)] = needs else { return };
    on(pairing, test, &RigSpec::default(), |rig, server, client| {
        let dir = rig.dir.path();
        let addr = SocketAddr::new(server.ip(Ip::V4), port());
        let files = [("1k", body(1 << 10)), ("1m", body(1 << 20))];
        for (name, bytes) in &files {
            std::fs::write(dir.join(name), bytes).expect("file");
        }
        std::fs::write(dir.join("nginx.conf"), configuration(dir, addr)).expect("nginx.conf");
        let run = server.cmd(&nginx).args("-e stderr -c").arg(dir.join("nginx.conf").display());
        let mut serving = run.arg("-p").arg(dir.display()).spawn();
        client.probe(addr);
        let mut down = 0;
        for (name, bytes) in &files {
            let mut fetched = fetch(&curl, client, dir, addr, name, bytes);
            for header in ["Connection: keep-alive", "Connection: close"] {
                fetched += load(&wrk, client, addr, name, header);
            }
            down += fetched * bytes.len() as u64;
        }
        assert!(serving.ended().is_none(), "{}", serving.describe());
        serving.signal(rustix::process::Signal::TERM);
        serving.wait_ok(LIMIT);
        Moved { up: 0, down }
    });
}

/// Two transfers over one connection, and one over a connection of its own: three.
fn fetch(curl: &Path, client: &Side, dir: &Path, addr: SocketAddr, name: &str, bytes: &[u8]) -> u64 {
    let url = format!("http://{addr}/{name}");
    let urls = format!("-sSf --http1.1 {url} -o got1 {url} -o got2");
    client.cmd(curl).args(&urls).run_ok(LIMIT);
    let close = client.cmd(curl).args("-sSf -H").arg("Connection: close").arg(&url).args("-o got3");
    close.run_ok(LIMIT);
    for got in ["got1", "got2", "got3"] {
        let same = std::fs::read(dir.join(got)).expect("curl's file") == bytes;
        assert!(same, "{got} of {url} is another file");
    }
    3
}

/// The number of answers.
fn load(wrk: &Path, client: &Side, addr: SocketAddr, name: &str, header: &str) -> u64 {
    let run = client.cmd(wrk).args("-t 2 -c 16 -d 2 -H").arg(header).arg(format!("http://{addr}/{name}"));
    let got = run.run_ok(LIMIT);
    let requests = got.out.lines().find_map(|l| l.trim().split_once(" requests in"));
    let count: u64 = requests.and_then(|(n, _)| n.parse().ok()).unwrap_or(0);
    assert!(count > 50, "{name}, {header}: {got:?}");
    assert!(!got.out.contains("Socket errors") && !got.out.contains("Non-2xx"), "{name}, {header}: {got:?}");
    count
}

fn configuration(dir: &Path, addr: SocketAddr) -> String {
    let dir = dir.display();
    // In a user namespace the master cannot give its workers another identity: one process then.
    let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "master_process off;\n" };
    let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|t| format!("  {t}_temp_path {dir}/{t};\n"));
    format!(
        "{user}daemon off;\nworker_processes 2;\npid {dir}/nginx.pid;\nerror_log stderr;\n\
         events {{ worker_connections 512; }}\nhttp {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n\
         {}  keepalive_requests 100000;\n  server {{ listen {addr}; root {dir}; }}\n}}\n",
        temp.concat()
    )
}

fn body(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
