//! Two whole engines (slow path and fast path each) back to back in virtual time: no clock, no thread, no descriptor
//! but the regions' memory. Every run with the same seed is the same run.

mod link;
mod world;

use std::time::Duration;
use toe_core::shm::SockState;
use world::{Transfer, World};

/// One cell of the loss matrix: both directions carry `bytes`, both ends verify them.
fn transfer(faults: link::Faults, mtu: usize, v6: bool, bytes: u64) {
    let mut w = World::new(faults, mtu, v6);
    let (client, server) = w.establish(8080);
    let mut a = Transfer::new(client, bytes, 1);
    let mut b = Transfer::new(server, bytes, 2);
    w.run_until(Duration::from_secs(600), |w| {
        a.step(&w.hosts[0].app);
        b.step(&w.hosts[1].app);
        a.is_done() && b.is_done()
    });
    w.close_both(client, server);
}

#[test]
fn clean_link_both_families_and_sizes_of_mtu() {
    for v6 in [false, true] {
        for mtu in [576 + 704 * usize::from(v6), 1500, 9000, 65_520] {
            transfer(link::Faults::none(), mtu, v6, 1 << 20);
        }
    }
}

#[test]
fn seeded_loss_matrix() {
    for seed in 1..=6 {
        for (loss, duplicate, corrupt, reorder) in
            [(10, 0, 0, 0), (0, 10, 0, 0), (0, 0, 10, 0), (0, 0, 0, 20), (10, 10, 10, 20), (50, 0, 0, 5)]
        {
            let faults = link::Faults { seed, loss, duplicate, corrupt, reorder };
            transfer(faults, 1500, seed % 2 == 0, 300_000);
            transfer(faults, 65_520, seed % 2 == 1, 3_000_000);
        }
    }
}

#[test]
fn many_connections_at_once() {
    let mut w = World::new(link::Faults { seed: 3, loss: 10, duplicate: 5, corrupt: 5, reorder: 3 }, 1500, false);
    let pairs: Vec<_> = (0..50).map(|_| w.establish(80)).collect();
    let mut flows: Vec<_> =
        pairs.iter().map(|&(c, s)| (Transfer::new(c, 20_000, 1), Transfer::new(s, 20_000, 2))).collect();
    w.run_until(Duration::from_secs(600), |w| {
        let mut done = true;
        for (a, b) in &mut flows {
            a.step(&w.hosts[0].app);
            b.step(&w.hosts[1].app);
            done &= a.is_done() && b.is_done();
        }
        done
    });
    for (c, s) in pairs {
        w.close_both(c, s);
    }
    w.run_until(Duration::from_secs(300), |w| w.hosts.iter_mut().all(|h| h.slow.is_drained()));
}

#[test]
fn a_closed_port_refuses() {
    let mut w = World::new(link::Faults::none(), 1500, false);
    let sock = w.connect(0, 9);
    w.run_until(Duration::from_secs(5), |w| w.hosts[0].app.state(sock) == SockState::Closed);
    assert_eq!(w.hosts[0].app.take_error(sock), libc::ECONNREFUSED);
}

#[test]
fn a_silent_peer_times_out() {
    let mut w = World::new(link::Faults { seed: 1, loss: 1000, ..link::Faults::none() }, 1500, false);
    let sock = w.connect(0, 9);
    w.run_until(Duration::from_secs(200), |w| w.hosts[0].app.state(sock) == SockState::Closed);
    let error = w.hosts[0].app.take_error(sock);
    assert!(error == libc::EHOSTUNREACH || error == libc::ETIMEDOUT, "errno {error}");
}

#[test]
fn half_close_stays_open_as_long_as_the_app_likes() {
    let mut w = World::new(link::Faults::none(), 1500, false);
    let (client, server) = w.establish(8080);
    w.hosts[0].app.write(client, b"question");
    w.hosts[0].app.shutdown_write(client);
    w.run_until(Duration::from_secs(5), |w| w.hosts[1].app.at_eof(server, 8));
    w.advance(Duration::from_secs(3600));
    w.hosts[1].app.write(server, b"the answer, an hour later");
    w.run_until(Duration::from_secs(5), |w| w.hosts[0].app.readable(client) == 25);
    w.close_both(client, server);
}

#[test]
fn killed_process_resets_or_finishes_its_connections() {
    let mut w = World::new(link::Faults::none(), 1500, false);
    let (client, server) = w.establish(8080);
    w.hosts[1].app.write(server, b"never read");
    w.run_until(Duration::from_secs(5), |w| w.hosts[0].app.readable(client) == 10);
    w.kill_app(0);
    w.run_until(Duration::from_secs(1), |w| w.hosts[1].app.state(server) == SockState::Closed);
    assert_eq!(w.hosts[1].app.take_error(server), libc::ECONNRESET);
    let status = w.hosts[0].slow.status();
    assert!(serde_json::to_string(&status).unwrap().contains("flows"));
}

#[test]
fn idle_connections_need_no_polling() {
    let mut w = World::new(link::Faults::none(), 1500, false);
    let _ = w.establish(8080);
    w.advance(Duration::from_secs(2));
    let before = w.polls;
    w.advance(Duration::from_secs(3600));
    assert!(w.polls - before < 100, "{} polls in an idle hour", w.polls - before);
}
