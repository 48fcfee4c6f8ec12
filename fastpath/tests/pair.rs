//! Two fast paths back to back in virtual time, over links that lose, repeat, reorder and corrupt.

mod common;

use common::host::{Agreed, Host, flow_init, run};
use common::link::{Faults, Shape, pair};
use toe_core::Instant;
use toe_core::flow::CongestionControl;
use toe_core::msg::Down;
use toe_core::shm::SockState;
use toe_core::tcp::TcpConfig;

struct Case {
    name: String,
    agreed: Agreed,
    shape: Shape,
    bytes: [u64; 2],
    flows: u16,
    seconds: u64,
}

fn transfer(case: &Case, seed: u64) -> [Host; 2] {
    let mut hosts = pair(case.shape, seed).map(|nic| Host::new(Box::new(nic), TcpConfig::default()));
    for (me, host) in hosts.iter_mut().enumerate() {
        for flow in 0..case.flows {
            host.install(flow_init(&case.agreed, me, flow, &host.region.clone()));
            let app = host.apps.last_mut().unwrap();
            (app.seed_out, app.seed_in) = (10 + me as u64, 11 - me as u64);
            app.to_write = case.bytes[me];
            app.shut_when_done = true;
            app.step = 1 + (seed * 7919) % 90_000;
        }
    }
    let wanted = case.bytes;
    let flows = usize::from(case.flows);
    let limit = Instant::from_millis(case.seconds * 1000);
    run(&mut hosts, Instant::ZERO, limit, |hosts| hosts.iter().all(|h| h.closed.len() == flows));
    for (me, host) in hosts.iter_mut().enumerate() {
        assert_eq!(host.closed.len(), flows, "{}", case.name);
        // The app has read what was left; the slow path, about to give the slots back, says so.
        for app in &mut host.apps {
            app.run();
            host.down.send(Down::Kick { region: host.region.id(), sock: app.sock });
        }
        host.fp.poll(limit);
        for app in &host.apps {
            // Every byte was compared at its place when it was read.
            assert_eq!((app.received(), app.unread(), app.acked()), (wanted[1 - me], 0, wanted[me]), "{}", case.name);
            assert_eq!((app.state(), app.error(), app.eof()), (SockState::Closed, 0, true), "{}", case.name);
        }
        let stats = host.fp.stats();
        assert_eq!((stats.flows, stats.rx_chunks_in_use, stats.bad_app_state), (0, 0, 0), "{}", case.name);
    }
    hosts
}

fn faults(loss: u64, duplicate: u64, reorder: u64, corrupt: u64) -> Faults {
    Faults { loss, duplicate, reorder, corrupt }
}

#[test]
fn a_clean_link_needs_no_retransmission() {
    let case = Case {
        name: "clean".into(),
        agreed: Agreed::default(),
        shape: Shape::default(),
        bytes: [3_000_000, 1_000_000],
        flows: 1,
        seconds: 30,
    };
    let hosts = transfer(&case, 1);
    for h in &hosts {
        let s = h.fp.stats();
        assert_eq!((s.retrans_segs, s.timeouts, s.in_csum_errs, s.out_of_order), (0, 0, 0, 0));
        assert!(s.header_prediction_hits * 10 > s.in_segs * 8, "{s:?}");
    }
}

#[test]
fn loss_matrix() {
    let mut case_no = 0;
    for disturb in [faults(0, 0, 0, 0), faults(10, 0, 0, 0), faults(50, 10, 50, 10), faults(10, 10, 200, 0)] {
        for mss in [536u16, 1460, 65_000] {
            for (sack, timestamps) in [(true, true), (true, false), (false, true), (false, false)] {
                case_no += 1;
                let v6 = case_no % 2 == 0;
                let header = if v6 { 60 } else { 40 };
                let congestion = if case_no % 3 == 0 { CongestionControl::Reno } else { CongestionControl::Cubic };
                let iss = [u32::MAX - 300_000, 0x7fff_ffff - 200_000];
                let case = Case {
                    name: format!("{disturb:?} mss {mss} sack {sack} ts {timestamps} v6 {v6} {congestion:?}"),
                    agreed: Agreed { v6, mss, sack, timestamps, wscale: 7, iss, congestion },
                    shape: Shape { mtu: usize::from(mss) + header, faults: disturb, ..Shape::default() },
                    bytes: [700_000, 400_000],
                    flows: 1,
                    seconds: 120,
                };
                transfer(&case, case_no);
            }
        }
    }
}

#[test]
fn many_seeds_at_five_percent_loss() {
    for seed in 0..20 {
        let case = Case {
            name: format!("seed {seed}"),
            agreed: Agreed { sack: seed % 4 != 0, ..Agreed::default() },
            shape: Shape { faults: faults(50, 20, 100, 20), ..Shape::default() },
            bytes: [200_000, 200_000],
            flows: 3,
            seconds: 120,
        };
        transfer(&case, 1000 + seed);
    }
}

#[test]
fn tso_gro_and_full_queues() {
    for (seed, (merge, full_every)) in [(false, 0), (true, 0), (false, 3), (true, 5)].into_iter().enumerate() {
        let case = Case {
            name: format!("merge {merge} full {full_every}"),
            agreed: Agreed::default(),
            shape: Shape { tso: true, merge, full_every, faults: faults(5, 0, 0, 0), ..Shape::default() },
            bytes: [2_000_000, 500_000],
            flows: 2,
            seconds: 120,
        };
        transfer(&case, seed as u64);
    }
}

#[test]
fn without_window_scaling() {
    let case = Case {
        name: "no scaling".into(),
        agreed: Agreed { wscale: 0, ..Agreed::default() },
        shape: Shape { faults: faults(10, 0, 0, 0), ..Shape::default() },
        bytes: [1_000_000, 10],
        flows: 1,
        seconds: 120,
    };
    transfer(&case, 5);
}

#[test]
fn a_slow_reader_closes_the_window_and_loses_nothing() {
    let mut hosts = pair(Shape { faults: faults(20, 0, 0, 0), ..Shape::default() }, 9)
        .map(|nic| Host::new(Box::new(nic), TcpConfig { rcvbuf: 30_000, ..TcpConfig::default() }));
    for (me, host) in hosts.iter_mut().enumerate() {
        host.install(flow_init(&Agreed::default(), me, 0, &host.region.clone()));
        let app = &mut host.apps[0];
        (app.seed_out, app.seed_in) = (10 + me as u64, 11 - me as u64);
    }
    hosts[0].apps[0].to_write = 200_000;
    hosts[0].apps[0].shut_when_done = true;
    hosts[1].apps[0].reading = false;
    let mut now = Instant::ZERO;
    let limit = Instant::from_millis(3_600_000);
    while hosts[1].apps[0].slot().rx_head.load(std::sync::atomic::Ordering::Relaxed) < 200_000 {
        // Nobody reads for ten seconds at a time: the window is zero and probed.
        let pause = now + toe_core::Duration::from_secs(10);
        let mut at = now;
        while let Some(next) = hosts.iter_mut().filter_map(|h| h.round(at)).min().filter(|&t| t <= pause) {
            at = at.max(next);
        }
        now = pause;
        hosts[1].apps[0].read(25_000);
        assert!(now < limit);
    }
    assert!(hosts[1].fp.stats().zero_windows_sent > 0);
    assert!(hosts[0].fp.stats().probes_sent > 0);
    hosts[1].apps[0].shutdown();
    run(&mut hosts, now, limit, |h| h.iter().all(|h| h.closed.len() == 1));
    assert!(hosts.iter().all(|h| h.closed.len() == 1 && h.apps[0].error() == 0));
}
