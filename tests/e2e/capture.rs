//! A capture of a TAP session must satisfy an independent reader: tshark.

use crate::common::{Ip, Moved, RigSpec, port, program};
use crate::{Pairing, on};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// tshark's word for a checksum that is wrong.
const BAD: &str = "tcp.checksum.status == 0 || ip.checksum.status == 0 || icmpv6.checksum.status == 0";

/// Sessions over IPv4 and IPv6, a reset, a refused connection and a ping; then tshark reads what was captured.
fn session(test: &str, plain_tap: bool) {
    let needs = ["tshark", "ping"].map(|p| program(test, p));
    let [Some(tshark), Some(ping)] = needs else { return };
    let spec = RigSpec { pcap: Some("session.pcap"), plain_tap, ..RigSpec::default() };
    on(Pairing::TapServer, test, &spec, |rig, server, client| {
        let moved = Moved::both(2 * 3_000_000);
        if !rig.has_engine() {
            return moved;
        }
        for ip in [Ip::V4, Ip::V6] {
            let addr = server.addr(ip, port());
            let _serving = server.serve_for(client, ip, addr, "");
            let stream = client.peer("stream --connections 4 --up 3000000 --down 3000000 --connect").arg(addr);
            stream.run_ok(LIMIT);
            let refused = client.peer("hold --connect").arg(server.addr(ip, port())).run(LIMIT);
            assert!(refused.err.contains("ECONNREFUSED"), "{refused:?}");
            client.plain(&ping).args("-c 2 -i 0.2").arg(server.ip(ip)).run_ok(LIMIT);
        }
        let file = rig.dir.path().join("session.pcap");
        let read = |filter: &str| {
            let checks = ["tcp", "ip"].map(|p| format!(" -o {p}.check_checksum:TRUE"));
            let run = client.plain(&tshark).args("-n -r").arg(file.display()).args(&checks.concat()).arg("-Y");
            run.arg(filter).run_ok(LIMIT).out
        };
        assert!(read("tcp && ip").lines().count() > 100, "too few IPv4 segments");
        assert!(read("tcp && ipv6").lines().count() > 100, "too few IPv6 segments");
        assert!(read("icmp.type == 0 || icmpv6.type == 129").lines().count() >= 4, "echo replies");
        assert_eq!(read("_ws.malformed"), "");
        if plain_tap {
            assert_eq!(read(BAD), "");
        }
        moved
    });
}

/// Without offloads every checksum on the link is real, in both directions.
#[test]
fn plain() {
    session("capture::plain", true);
}

/// With offloads the checksums are the pseudo header's; everything else must read well.
#[test]
fn offload() {
    session("capture::offload", false);
}
