//! Closing in all its forms.

mod common;

use common::script::Script;
use std::sync::atomic::Ordering::Relaxed;
use toe_core::msg::{CloseKind, Down, TimerKind};
use toe_core::shm::{ReqOp, SLOW_WORKER, SockState, app_flags};
use toe_core::tcp::TcpConfig;
use toe_core::{FlowId, SeqNr};

fn tcp_state(s: &Script) -> u32 {
    s.app().slot().info.tcp_state.load(Relaxed)
}

fn ended(s: &Script) -> &CloseKind {
    assert_eq!((s.app().state(), s.app().slot().owner.load(Relaxed)), (SockState::Closed, SLOW_WORKER));
    assert_eq!(s.host.fp.stats().flows, 0);
    &s.host.closed[0].1
}

#[test]
fn we_close_first() {
    let mut s = Script::new();
    s.app().write(100);
    s.app().shutdown();
    s.poll();
    s.expect(&["APF 0:100 ack 0"]);
    assert_eq!(tcp_state(&s), 4);
    s.step("A 0:0 ack 101", &[]);
    assert_eq!((tcp_state(&s), s.app().state()), (5, SockState::Established));
    // Half closed: the peer goes on as long as it likes.
    s.pass(3_600_000);
    s.step("AP 0:500 ack 101", &["A 101:101 ack 500"]);
    s.step("AF 500:500 ack 101", &["A 101:101 ack 501"]);
    let CloseKind::TimeWait(tw) = ended(&s) else { panic!() };
    assert_eq!((tw.snd_nxt, tw.rcv_nxt), (SeqNr(1001 + 101), SeqNr(2001 + 501)));
    assert_eq!((s.app().error(), s.app().eof(), s.app().read(1000)), (0, true, 500));
}

#[test]
fn they_close_first() {
    let mut s = Script::new();
    s.step("APF 0:10 ack 0", &["A 0:0 ack 11"]);
    assert_eq!((tcp_state(&s), s.app().eof(), s.app().state()), (8, true, SockState::Established));
    s.app().write(20);
    s.poll();
    s.expect(&["AP 0:20 ack 11"]);
    s.app().shutdown();
    s.poll();
    s.expect(&["AF 20:20 ack 11"]);
    assert_eq!(tcp_state(&s), 9);
    s.step("A 11:11 ack 20", &[]);
    s.step("A 11:11 ack 21", &[]);
    assert_eq!(ended(&s), &CloseKind::Done);
}

#[test]
fn both_close_at_once() {
    let mut s = Script::new();
    s.app().shutdown();
    s.poll();
    s.expect(&["AF 0:0 ack 0"]);
    s.step("AF 0:0 ack 0", &["A 1:1 ack 1"]);
    assert_eq!(tcp_state(&s), 11);
    s.step("A 1:1 ack 1", &[]);
    assert!(matches!(ended(&s), CloseKind::TimeWait(_)));
}

#[test]
fn fin_and_its_ack_in_one() {
    let mut s = Script::new();
    s.app().shutdown();
    s.poll();
    s.expect(&["AF 0:0 ack 0"]);
    s.step("AF 0:0 ack 1", &["A 1:1 ack 1"]);
    assert!(matches!(ended(&s), CloseKind::TimeWait(_)));
}

#[test]
fn an_early_fin_waits_for_the_data_before_it() {
    let mut s = Script::new();
    s.step("AF 1000:2000 ack 0", &["A 0:0 ack 0 sack 1000:2000"]);
    assert!(!s.app().eof());
    // Nothing comes after a FIN.
    s.step("A 2000:3000 ack 0", &["A 0:0 ack 0 sack 1000:2000"]);
    s.step("A 0:1000 ack 0", &["A 0:0 ack 2001"]);
    assert_eq!((s.app().eof(), s.app().received()), (true, 2000));
    // A repeated FIN is acknowledged again.
    s.step("AF 1000:2000 ack 0", &["A 0:0 ack 2001 sack 1000:2000"]);
}

#[test]
fn a_lost_fin_is_sent_again() {
    let mut s = Script::new();
    s.app().write(100);
    s.app().shutdown();
    s.poll();
    s.expect(&["APF 0:100 ack 0"]);
    s.step("A 0:0 ack 100", &[]);
    s.pass(300);
    assert_eq!(s.host.timeouts, [TimerKind::Retransmit]);
    s.down(Down::Retransmit(FlowId(0)));
    s.expect(&["AF 100:100 ack 0"]);
    s.step("A 0:0 ack 101", &[]);
    assert_eq!(tcp_state(&s), 5);
}

#[test]
fn close_sends_what_was_written() {
    let mut s = Script::new();
    s.app().write(3000);
    s.app().close();
    s.poll();
    s.expect(&["A 0:1460 ack 0", "A 1460:2920 ack 0", "APF 2920:3000 ack 0"]);
    s.step("A 0:0 ack 3001", &[]);
    s.step("AF 0:0 ack 3001", &["A 3001:3001 ack 1"]);
    assert!(matches!(ended(&s), CloseKind::TimeWait(_)));
}

#[test]
fn an_orphan_in_fin_wait_2_has_limited_time() {
    let mut s = Script::new();
    s.app().close();
    s.poll();
    s.expect(&["AF 0:0 ack 0"]);
    s.inject("A 0:0 ack 1");
    s.pass(59_000);
    assert_eq!(s.host.timeouts, []);
    s.pass(1_001);
    assert_eq!(s.host.timeouts, [TimerKind::FinWait2]);
    s.down(Down::Remove { flow: FlowId(0), errno: 0, reset: false });
    s.expect(&[]);
    assert_eq!(ended(&s), &CloseKind::Aborted);
}

#[test]
fn data_for_an_orphan_is_answered_by_a_reset() {
    let mut s = Script::new();
    s.app().close();
    s.poll();
    s.expect(&["AF 0:0 ack 0"]);
    s.step("A 0:100 ack 1", &["AR 1:1 ack 0"]);
    assert_eq!(ended(&s), &CloseKind::Aborted);
}

#[test]
fn closing_with_unread_data_resets() {
    let mut s = Script::new();
    s.step("AP 0:100 ack 0", &["A 0:0 ack 100"]);
    s.app().read(99);
    s.app().close();
    s.poll();
    s.expect(&["AR 0:0 ack 100"]);
    assert_eq!(ended(&s), &CloseKind::Aborted);
    assert_eq!(s.host.fp.stats().rx_chunks_in_use, 0);
}

#[test]
fn linger_zero_resets() {
    let mut s = Script::new();
    s.app().write(10);
    s.poll();
    s.expect(&["AP 0:10 ack 0"]);
    s.app().slot().app_flags.fetch_or(app_flags::LINGER_RST, Relaxed);
    s.app().close();
    s.poll();
    s.expect(&["AR 10:10 ack 0"]);
    ended(&s);
}

#[test]
fn an_accepted_socket_is_no_orphan_before_it_is_taken() {
    let agreed = common::host::Agreed { timestamps: false, ..Default::default() };
    let mut s = Script::with(agreed.clone(), TcpConfig::default(), 0);
    let mut init = common::host::flow_init(&agreed, 0, 1, &s.host.region.clone());
    init.sock = toe_core::SockId(40_000);
    s.host.install(init);
    let waiting = &s.host.apps[1];
    waiting.slot().holders[0].store(0, Relaxed);
    waiting.kick();
    s.poll();
    s.expect(&[]);
    let waiting = &s.host.apps[1];
    waiting.slot().app_flags.store(app_flags::TAKEN, Relaxed);
    waiting.kick();
    s.poll();
    s.expect(&["AF 0:0 ack 0"]);
}

#[test]
fn the_slow_path_can_end_a_flow_with_an_error() {
    let mut s = Script::new();
    s.down(Down::Remove { flow: FlowId(0), errno: 110, reset: true });
    s.expect(&["AR 0:0 ack 0"]);
    assert_eq!((ended(&s), s.app().error()), (&CloseKind::Aborted, 110));
    // Messages for a flow that is gone are nobody's.
    for message in
        [Down::Retransmit(FlowId(0)), Down::Probe(FlowId(0), TimerKind::Persist), Down::SetMss(FlowId(9), 500)]
    {
        s.down(message);
    }
    s.expect(&[]);
}

#[test]
fn unread_bytes_outlive_the_flow_and_are_freed_once_read() {
    let mut s = Script::new();
    s.inject("AP 0:1000 ack 0");
    s.inject("R 1000:1000 ack 0");
    assert_eq!(s.host.fp.stats().rx_chunks_in_use, 1);
    assert_eq!(s.app().read(1000), 1000);
    let (region, sock) = (s.host.region.id(), s.app().sock);
    s.down(Down::Kick { region, sock });
    assert_eq!(s.host.fp.stats().rx_chunks_in_use, 0);
}

#[test]
fn a_full_link_delays_the_farewell_and_loses_nothing() {
    let mut s = Script::new();
    s.set_full(true);
    s.inject("AF 0:10 ack 0");
    s.app().read(10);
    s.app().close();
    s.pass(1);
    s.expect(&[]);
    s.set_full(false);
    s.pass(1);
    s.expect(&["AF 0:0 ack 11"]);
    s.set_full(true);
    s.inject("A 11:11 ack 1");
    s.pass(1);
    assert_eq!(ended(&s), &CloseKind::Done);
}

#[test]
fn a_flow_can_come_with_data_and_fin_already() {
    let agreed = common::host::Agreed { timestamps: false, ..Default::default() };
    let mut s = Script::with(agreed.clone(), TcpConfig::default(), 0);
    let mut init = common::host::flow_init(&agreed, 0, 1, &s.host.region.clone());
    init.early_data = (0..500).map(|p| common::stream_byte(2, p)).collect();
    init.early_fin = true;
    s.host.install(init);
    s.host.apps[1].reading = false;
    s.poll();
    s.expect(&["A 0:0 ack 501"]);
    let app = &s.host.apps[1];
    assert_eq!((app.eof(), app.state(), app.read(1000)), (true, SockState::Established, 500));
}

#[test]
fn a_flow_that_cannot_be_taken_is_given_back() {
    let agreed = common::host::Agreed { timestamps: false, ..Default::default() };
    let mut s = Script::with(agreed.clone(), TcpConfig::default(), 0);
    let region = s.host.region.clone();
    let mut same_key = common::host::flow_init(&agreed, 0, 0, &region);
    (same_key.id, same_key.sock) = (FlowId(5), toe_core::SockId(5));
    let mut same_id = common::host::flow_init(&agreed, 0, 7, &region);
    same_id.id = FlowId(0);
    let mut huge = common::host::flow_init(&agreed, 0, 8, &region);
    huge.id = FlowId(u32::MAX);
    for init in [same_key, same_id, huge] {
        s.host.install(init);
        s.poll();
        assert_eq!(s.host.apps.last().unwrap().state(), SockState::Closed);
    }
    assert_eq!((s.host.closed.len(), s.host.fp.stats().flows), (3, 1));
}

#[test]
fn a_forgotten_region_is_gone() {
    let mut s = Script::new();
    s.down(Down::Remove { flow: FlowId(0), errno: 0, reset: false });
    let region = s.host.region.id();
    s.down(Down::Detach(region));
    s.app().region.kick(1, s.app().sock);
    s.poll();
    s.down(Down::Attach(s.host.region.clone()));
    assert_eq!(s.host.fp.stats().rx_chunks_in_use, 0);
}

#[test]
fn an_active_open_is_acknowledged_by_the_new_owner() {
    let agreed = common::host::Agreed { timestamps: false, ..Default::default() };
    let mut s = Script::with(agreed.clone(), TcpConfig::default(), 0);
    let mut init = common::host::flow_init(&agreed, 0, 1, &s.host.region.clone());
    init.ack_due = true;
    s.host.install(init);
    s.poll();
    s.expect(&["A 0:0 ack 0"]);
}

#[test]
fn a_slot_given_back_gives_back_what_was_never_read() {
    let mut s = Script::new();
    s.inject("AP 0:1000 ack 0");
    s.inject("R 1000:1000 ack 0");
    let (region, sock) = (s.host.region.id(), s.app().sock);
    s.down(Down::Kick { region, sock });
    assert_eq!(s.host.fp.stats().rx_chunks_in_use, 1, "still readable");
    s.down(Down::Release { region, sock });
    assert_eq!(s.host.fp.stats().rx_chunks_in_use, 0);
}

/// An app that asks while its connection is established, or has just ended, gets its answer.
#[test]
fn requests_are_answered_or_passed_on() {
    let mut s = Script::new();
    let sock = s.app().sock;
    let ask = |s: &mut Script, op: u32| {
        let slot = s.app().slot();
        slot.req_op.store(op, Relaxed);
        let seq = slot.req_seq.fetch_add(1, Relaxed) + 1;
        s.host.region.kick(1, sock);
        s.poll();
        let slot = s.app().slot();
        (slot.resp_seq.load(Relaxed) == seq).then(|| slot.resp_err.load(Relaxed) as i32)
    };
    let (connect, bind, listen) = (ReqOp::Connect as u32, ReqOp::Bind as u32, ReqOp::Listen as u32);
    assert_eq!(ask(&mut s, connect), Some(libc::EISCONN));
    assert_eq!((ask(&mut s, bind), ask(&mut s, listen)), (Some(libc::EINVAL), Some(libc::EINVAL)));
    assert_eq!(ask(&mut s, 77), Some(libc::EOPNOTSUPP));
    s.down(Down::Remove { flow: FlowId(0), errno: 0, reset: true });
    assert!(s.host.kicked.is_empty());
    assert_eq!((ask(&mut s, connect), s.host.kicked.as_slice()), (None, &[sock][..]));
    // Without a request there is nothing to pass on.
    let slot = s.app().slot();
    slot.resp_seq.store(slot.req_seq.load(Relaxed), Relaxed);
    s.host.region.kick(1, sock);
    s.poll();
    assert_eq!(s.host.kicked.len(), 1);
}

/// Bytes that were written just before a close that resets are on their way like any others.
#[test]
fn bytes_leave_before_the_reset() {
    let mut s = Script::new();
    s.app().write(100);
    s.app().slot().app_flags.fetch_or(app_flags::LINGER_RST, Relaxed);
    s.app().close();
    s.poll();
    s.expect(&["AP 0:100 ack 0", "AR 100:100 ack 0"]);
    assert!(matches!(ended(&s), CloseKind::Aborted));
}
