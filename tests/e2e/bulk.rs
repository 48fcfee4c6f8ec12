//! Seeded bytes both ways at once, compared at each end and by hash across, with 1, 16 and 200 connections.

use crate::common::{Ip, Moved, RigSpec, bulk_bytes, fault_bytes, port};
use crate::{Pairing, on};
use std::time::Duration;

/// The faults of the acceptance list. Between two daemons each has them on its way out, so that a frame meets them once.
const FAULT: &str =
    "{ seed = 7, tx = { loss = 0.01, duplicate = 0.01, corrupt = 0.01, reorder = 0.01, reorder_max = 20 } }";
/// On TAP the one daemon has them in both directions.
const FAULT_BOTH: &str =
    "{ seed = 7, loss = 0.01, duplicate = 0.01, corrupt = 0.01, reorder = 0.01, reorder_max = 20 }";

struct Case {
    pairing: Pairing,
    ip: Ip,
    connections: u64,
    bytes: u64,
    poll: bool,
    spec: RigSpec,
}

fn transfer(test: &str, case: Case) {
    on(case.pairing, test, &case.spec, |_, server, client| {
        let poll = if case.poll { "--poll" } else { "" };
        let addr = server.addr(case.ip, port());
        let mut serving = server.serve_for(client, case.ip, addr, poll);
        let (n, bytes) = (case.connections, case.bytes);
        // Generous: it only bounds a hang. 8 MB/s is what a link with faults may fall to.
        let limit = Duration::from_secs(120 + bytes / 8_000_000);
        let stream = client.peer("stream --seed 20260 --connect").arg(addr).args(poll);
        let got = stream.args(&format!("--connections {n} --up {bytes} --down {bytes}")).run(limit);
        assert!(got.status.success(), "{got:?}\nserver: {}", serving.describe());
        let json = got.json();
        let expect = [("bytes_up", bytes), ("bytes_down", bytes), ("connections", n)];
        assert!(expect.iter().all(|(k, v)| json[k] == *v) && json["verified"] == true, "{json}");
        assert!(serving.ended().is_none() && serving.err().is_empty(), "{}", serving.describe());
        Moved::both(bytes)
    });
}

macro_rules! bulk {
    ($($name:ident: $pairing:ident $ip:ident $n:literal $bytes:ident $poll:literal $spec:expr;)*) => { $(
        #[test]
        fn $name() {
            let mut spec: RigSpec = $spec;
            spec.v6 = Ip::$ip == Ip::V6;
            let case = Case {
                pairing: Pairing::$pairing,
                ip: Ip::$ip,
                connections: $n,
                bytes: $bytes(),
                poll: $poll,
                spec,
            };
            transfer(concat!("bulk::", stringify!($name)), case);
        }
    )* };
}

fn plain() -> RigSpec {
    RigSpec::default()
}

fn faulty() -> RigSpec {
    RigSpec { fault: Some(FAULT), ..RigSpec::default() }
}

fn faulty_both() -> RigSpec {
    RigSpec { fault: Some(FAULT_BOTH), ..RigSpec::default() }
}

fn two_cores() -> RigSpec {
    RigSpec { cores: Some("[0, 1]"), ..RigSpec::default() }
}

bulk! {
    pcielink_v4_1: PcieLink V4 1 bulk_bytes false plain();
    pcielink_v4_16: PcieLink V4 16 bulk_bytes false plain();
    pcielink_v4_200: PcieLink V4 200 bulk_bytes false plain();
    pcielink_v6_1: PcieLink V6 1 bulk_bytes false plain();
    pcielink_v6_16: PcieLink V6 16 bulk_bytes false plain();
    pcielink_v6_200: PcieLink V6 200 bulk_bytes false plain();
    pcielink_v4_16_poll: PcieLink V4 16 bulk_bytes true plain();
    pcielink_v4_16_two_cores: PcieLink V4 16 bulk_bytes false two_cores();

    tap_client_v4_1: TapClient V4 1 bulk_bytes false plain();
    tap_client_v4_16: TapClient V4 16 bulk_bytes false plain();
    tap_client_v4_200: TapClient V4 200 bulk_bytes false plain();
    tap_client_v6_1: TapClient V6 1 bulk_bytes false plain();
    tap_client_v6_16: TapClient V6 16 bulk_bytes false plain();
    tap_client_v6_200: TapClient V6 200 bulk_bytes false plain();
    tap_client_v4_16_poll: TapClient V4 16 bulk_bytes true plain();

    tap_server_v4_1: TapServer V4 1 bulk_bytes false plain();
    tap_server_v4_16: TapServer V4 16 bulk_bytes false plain();
    tap_server_v4_200: TapServer V4 200 bulk_bytes false plain();
    tap_server_v6_1: TapServer V6 1 bulk_bytes false plain();
    tap_server_v6_16: TapServer V6 16 bulk_bytes false plain();
    tap_server_v6_200: TapServer V6 200 bulk_bytes false plain();
    tap_server_v4_16_poll: TapServer V4 16 bulk_bytes true plain();

    pcielink_v4_1_faults: PcieLink V4 1 fault_bytes false faulty();
    pcielink_v4_16_faults: PcieLink V4 16 fault_bytes false faulty();
    pcielink_v4_200_faults: PcieLink V4 200 fault_bytes false faulty();
    pcielink_v6_16_faults: PcieLink V6 16 fault_bytes false faulty();
    tap_client_v4_1_faults: TapClient V4 1 fault_bytes false faulty_both();
    tap_client_v4_16_faults: TapClient V4 16 fault_bytes false faulty_both();
    tap_client_v6_16_faults: TapClient V6 16 fault_bytes false faulty_both();
    tap_server_v4_1_faults: TapServer V4 1 fault_bytes false faulty_both();
    tap_server_v4_16_faults: TapServer V4 16 fault_bytes false faulty_both();
    tap_server_v4_200_faults: TapServer V4 200 fault_bytes false faulty_both();
    tap_server_v6_16_faults: TapServer V6 16 fault_bytes false faulty_both();
}
