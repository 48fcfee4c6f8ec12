//! Python: the standard web server with urllib, asyncio, and bytes sent just before a long sleep.

use crate::common::{Ip, Moved, RigSpec, port, program, script};
use crate::{Pairing, on, on_each_pairing};
use std::net::SocketAddr;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

on_each_pairing!(http_server, asyncio_echo, sent_before_sleep);

fn http_server(pairing: Pairing, test: &str) {
    let Some(python) = program(test, "python3") else { return };
    on(pairing, test, &RigSpec::default(), |rig, server, client| {
        let (ip, port) = (server.ip(Ip::V4), port());
        let body: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        let www = rig.dir.path().join("www");
        std::fs::create_dir(&www).expect("www");
        std::fs::write(www.join("file"), &body).expect("file");
        let serve = server.cmd(&python).args(&format!("-u -m http.server {port} --bind {ip} --directory"));
        let serving = serve.arg(www.display()).spawn();
        client.probe(SocketAddr::new(ip, port));
        let run = client.cmd(&python).arg(script("fetch.py")).arg(format!("http://{ip}:{port}/file"));
        let got = run.arg(www.join("file").display()).args("10").run(LIMIT);
        assert!(got.status.success() && got.out.trim() == "same 10", "{got:?}\n{}", serving.describe());
        Moved { up: 0, down: 10 * body.len() as u64 }
    });
}

fn asyncio_echo(pairing: Pairing, test: &str) {
    let Some(python) = program(test, "python3") else { return };
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        let (ip, port) = (server.ip(Ip::V4), port());
        let serve = server.cmd(&python).arg("-u").arg(script("asyncio_echo.py"));
        let mut serving = serve.args(&format!("serve {ip} {port}")).spawn();
        serving.until("listening", LIMIT);
        let run = client.cmd(&python).arg(script("asyncio_echo.py")).args(&format!("connect {ip} {port} 50 200000"));
        let got = run.run(LIMIT);
        assert!(got.status.success() && got.out.trim() == "echoed 50 x 200000", "{got:?}\n{}", serving.describe());
        Moved::both(50 * 200_000)
    });
}

/// A sender that goes to sleep for ten minutes right after `send` must not keep the bytes back.
fn sent_before_sleep(pairing: Pairing, test: &str) {
    let Some(python) = program(test, "python3") else { return };
    on(pairing, test, &RigSpec::default(), |_, server, client| {
        let (ip, port) = (server.ip(Ip::V4), port());
        let serve = server.cmd(&python).arg("-u").arg(script("sleepy.py"));
        let mut serving = serve.args(&format!("serve {ip} {port}")).spawn();
        serving.until("listening", LIMIT);
        let run = client.cmd(&python).arg("-u").arg(script("sleepy.py"));
        let mut sender = run.args(&format!("connect {ip} {port}")).spawn();
        serving.until("got 300000", LIMIT);
        assert!(sender.ended().is_none(), "the sender sleeps: {}", sender.describe());
        Moved { up: 300_000, down: 0 }
    });
}
