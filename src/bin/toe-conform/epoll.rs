//! epoll.

use crate::cases;
use crate::sys::pipe;
use crate::trace::{T, mask};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, c_int, epoll_event};
use std::ptr::null_mut;

pub const IN: u32 = libc::EPOLLIN as u32;
pub const OUT: u32 = libc::EPOLLOUT as u32;
pub const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

pub fn set() -> c_int {
    c!(epoll_create1(libc::EPOLL_CLOEXEC)) as c_int
}

pub fn ctl(t: &T, ep: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> i64 {
    let mut ev = epoll_event { events, u64: data };
    let name = match op {
        EPOLL_CTL_ADD => "add",
        EPOLL_CTL_MOD => "mod",
        EPOLL_CTL_DEL => "del",
        _ => "ctl",
    };
    t.r(name, c!(epoll_ctl(ep, op, fd, &raw mut ev)))
}

pub fn add(t: &T, ep: c_int, fd: c_int, events: u32, data: u64) {
    ctl(t, ep, EPOLL_CTL_ADD, fd, events, data);
}

/// Waits `ms`; shows events in order of their data.
pub fn wait(t: &T, ep: c_int, ms: c_int) {
    let mut evs = [epoll_event { events: 0, u64: 0 }; 16];
    let n = c!(epoll_wait(ep, evs.as_mut_ptr(), 16, ms));
    show(t, n, &evs);
}

fn show(t: &T, n: i64, evs: &[epoll_event]) {
    if n < 0 {
        t.r("wait", n);
        return;
    }
    let mut all: Vec<(u64, String)> = evs[..n as usize].iter().map(|e| (e.u64, mask(e.events))).collect();
    all.sort();
    let all: Vec<String> = all.iter().map(|(d, m)| format!("{d}:{m}")).collect();
    t.say(format!("wait={n}[{}]", all.join(" ")));
}

cases! {
    fn level(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, IN, 7);
        wait(t, ep, 0);
        t.send(s, b"abcd", 0);
        wait(t, ep, 2000);
        wait(t, ep, 0);
        t.recv(c, 2, 0);
        wait(t, ep, 0);
        t.recv(c, 2, 0);
        wait(t, ep, 0);
    }
    fn edge(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, IN | ET, 7);
        t.send(s, b"abcd", 0);
        wait(t, ep, 2000);
        wait(t, ep, 0);
        t.recv(c, 2, 0);
        wait(t, ep, 0);
        t.send(s, b"more", 0);
        wait(t, ep, 2000);
        wait(t, ep, 0);
    }
    fn edge_out(t) {
        let (c, _s) = t.pair();
        let ep = set();
        add(t, ep, c, OUT | ET, 7);
        wait(t, ep, 0);
        wait(t, ep, 0);
        t.send(c, b"x", 0);
        wait(t, ep, 30);
        ctl(t, ep, EPOLL_CTL_MOD, c, OUT | ET, 8);
        wait(t, ep, 0);
        wait(t, ep, 0);
    }
    fn edge_both(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, IN | OUT | ET | RDHUP, 7);
        wait(t, ep, 0);
        t.send(s, b"x", 0);
        wait(t, ep, 2000);
        t.close(s);
        wait(t, ep, 2000);
        wait(t, ep, 0);
    }
    fn edge_ready_at_add(t) {
        let (c, s) = t.pair();
        t.send(s, b"x", 0);
        t.until_bytes(c, 1);
        let ep = set();
        add(t, ep, c, IN | ET, 7);
        wait(t, ep, 0);
        wait(t, ep, 0);
        ctl(t, ep, EPOLL_CTL_DEL, c, 0, 0);
        add(t, ep, c, IN | ET, 8);
        wait(t, ep, 0);
    }
    fn edge_accept(t) {
        let l = t.listener(8);
        let ep = set();
        add(t, ep, l, IN | ET, 7);
        wait(t, ep, 0);
        t.client(l);
        wait(t, ep, 2000);
        wait(t, ep, 0);
        t.client(l);
        wait(t, ep, 2000);
        t.accept(l);
        wait(t, ep, 0);
        t.accept(l);
        t.client(l);
        wait(t, ep, 2000);
    }
    fn oneshot(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, IN | ONESHOT, 7);
        t.send(s, b"x", 0);
        wait(t, ep, 2000);
        wait(t, ep, 0);
        t.send(s, b"y", 0);
        wait(t, ep, 30);
        ctl(t, ep, EPOLL_CTL_ADD, c, IN, 7);
        ctl(t, ep, EPOLL_CTL_MOD, c, IN | ONESHOT, 8);
        wait(t, ep, 0);
        wait(t, ep, 0);
        t.close(s);
        wait(t, ep, 30);
    }
    fn oneshot_edge(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, IN | OUT | ET | ONESHOT, 7);
        wait(t, ep, 0);
        t.send(s, b"x", 0);
        t.until_bytes(c, 1);
        wait(t, ep, 0);
        ctl(t, ep, EPOLL_CTL_MOD, c, IN | OUT | ET | ONESHOT, 7);
        wait(t, ep, 0);
    }
    fn rdhup(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, RDHUP, 7);
        wait(t, ep, 0);
        c!(shutdown(s, libc::SHUT_WR));
        wait(t, ep, 2000);
        ctl(t, ep, EPOLL_CTL_MOD, c, IN, 7);
        wait(t, ep, 0);
        ctl(t, ep, EPOLL_CTL_MOD, c, 0, 7);
        wait(t, ep, 0);
        c!(shutdown(c, libc::SHUT_WR));
        wait(t, ep, 2000);
    }
    fn reset(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, IN | OUT | RDHUP | ET, 7);
        wait(t, ep, 0);
        t.reset_on_close(s);
        c!(close(s));
        wait(t, ep, 2000);
        t.recv(c, 1, 0);
        wait(t, ep, 0);
    }
    fn ctl_errors(t) {
        let (c, _s) = t.pair();
        let ep = set();
        ctl(t, ep, EPOLL_CTL_MOD, c, IN, 1);
        ctl(t, ep, EPOLL_CTL_DEL, c, IN, 1);
        add(t, ep, c, IN, 1);
        add(t, ep, c, IN, 1);
        ctl(t, ep, 99, c, IN, 1);
        ctl(t, c, EPOLL_CTL_ADD, ep, IN, 1);
        ctl(t, ep, EPOLL_CTL_ADD, ep, IN, 1);
        ctl(t, ep, EPOLL_CTL_ADD, 499, IN, 1);
        ctl(t, 499, EPOLL_CTL_ADD, c, IN, 1);
        ctl(t, c, EPOLL_CTL_ADD, c, IN, 1);
        t.r("null", c!(epoll_ctl(ep, EPOLL_CTL_MOD, c, null_mut())));
        t.r("null-del", c!(epoll_ctl(ep, EPOLL_CTL_DEL, c, null_mut())));
        ctl(t, ep, EPOLL_CTL_DEL, c, 0, 0);
        t.r("null-add", c!(epoll_ctl(ep, EPOLL_CTL_ADD, c, null_mut())));
    }
    fn ctl_errors_on_new(t) {
        let c = t.tcp();
        let ep = set();
        ctl(t, ep, EPOLL_CTL_MOD, c, IN, 1);
        ctl(t, ep, EPOLL_CTL_DEL, c, IN, 1);
        add(t, ep, c, IN, 1);
        add(t, ep, c, IN, 1);
        ctl(t, ep, 99, c, IN, 1);
        t.r("null", c!(epoll_ctl(ep, EPOLL_CTL_MOD, c, null_mut())));
        wait(t, ep, 0);
    }
    fn exclusive(t) {
        let l = t.listener(8);
        let (a, b) = (set(), set());
        add(t, a, l, IN | EXCLUSIVE, 1);
        add(t, b, l, IN | EXCLUSIVE, 2);
        ctl(t, a, EPOLL_CTL_MOD, l, IN | EXCLUSIVE, 1);
        ctl(t, a, EPOLL_CTL_MOD, l, IN, 1);
        t.client(l);
        t.until(l, libc::POLLIN);
        wait(t, a, 2000);
        wait(t, b, 2000);
    }
    fn exclusive_wrong(t) {
        let (c, _s) = t.pair();
        let (a, b) = (set(), set());
        add(t, a, c, IN | EXCLUSIVE | ONESHOT, 1);
        add(t, a, c, IN | EXCLUSIVE | RDHUP, 1);
        add(t, a, b, IN | EXCLUSIVE, 1);
        add(t, a, c, IN | EXCLUSIVE | ET, 1);
        wait(t, a, 0);
    }
    fn create(t) {
        t.fd("zero", c!(epoll_create(0)));
        t.fd("negative", c!(epoll_create(-1)));
        t.fd("one", c!(epoll_create(1)));
        t.fd("flags", c!(epoll_create1(1)));
    }
    fn wait_errors(t) {
        let (c, _s) = t.pair();
        let ep = set();
        add(t, ep, c, OUT, 1);
        let mut ev = [epoll_event { events: 0, u64: 0 }; 2];
        t.r("zero", c!(epoll_wait(ep, ev.as_mut_ptr(), 0, 0)));
        t.r("negative", c!(epoll_wait(ep, ev.as_mut_ptr(), -1, 0)));
        t.r("socket", c!(epoll_wait(c, ev.as_mut_ptr(), 2, 0)));
        t.r("bad", c!(epoll_wait(499, ev.as_mut_ptr(), 2, 0)));
        t.r("null", c!(epoll_wait(ep, null_mut(), 2, 0)));
        t.r("again", c!(epoll_wait(ep, ev.as_mut_ptr(), 2, 0)));
        t.r("huge", c!(epoll_wait(ep, ev.as_mut_ptr(), i32::MAX, 0)));
    }
    fn few_at_a_time(t) {
        let ep = set();
        let pairs: Vec<_> = (0..3).map(|_| t.pair()).collect();
        for (n, (c, _)) in pairs.iter().enumerate() {
            add(t, ep, *c, OUT, n as u64);
        }
        let mut seen = vec![];
        for _ in 0..3 {
            let mut ev = [epoll_event { events: 0, u64: 99 }; 1];
            t.r("wait", c!(epoll_wait(ep, ev.as_mut_ptr(), 1, 0)));
            let event = ev[0];
            seen.push(event.u64);
        }
        seen.sort();
        t.say(format!("{seen:?}"));
    }
    fn mixed(t) {
        let (c, s) = t.pair();
        let ((r, w), ep) = (pipe(), set());
        add(t, ep, c, IN, 1);
        add(t, ep, r, IN, 2);
        add(t, ep, s, OUT, 3);
        t.write(w, b"x");
        t.send(s, b"y", 0);
        t.until_bytes(c, 1);
        wait(t, ep, 0);
        t.read(r, 9);
        wait(t, ep, 0);
    }
    fn two_sets(t) {
        let (c, s) = t.pair();
        let (a, b) = (set(), set());
        add(t, a, c, IN, 1);
        add(t, b, c, IN | ET, 2);
        t.send(s, b"x", 0);
        wait(t, a, 2000);
        wait(t, b, 2000);
        wait(t, a, 0);
        wait(t, b, 0);
        ctl(t, a, EPOLL_CTL_DEL, c, 0, 0);
        t.send(s, b"x", 0);
        wait(t, b, 2000);
        wait(t, a, 0);
    }
    fn nested(t) {
        let (c, s) = t.pair();
        let (inner, outer) = (set(), set());
        add(t, inner, c, IN, 1);
        add(t, outer, inner, IN, 2);
        wait(t, outer, 0);
        t.poll(inner, libc::POLLIN);
        t.send(s, b"x", 0);
        wait(t, outer, 2000);
        t.poll(inner, libc::POLLIN);
        wait(t, inner, 0);
        wait(t, outer, 0);
        t.recv(c, 1, 0);
        wait(t, outer, 0);
        t.poll(inner, libc::POLLIN);
        t.select(inner);
    }
    fn nested_loop(t) {
        let (a, b) = (set(), set());
        add(t, a, b, IN, 1);
        add(t, b, a, IN, 1);
    }
    fn dup_stays(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, IN, 1);
        let d = c!(dup(c)) as c_int;
        add(t, ep, d, IN, 2);
        t.send(s, b"x", 0);
        wait(t, ep, 2000);
        t.close(c);
        wait(t, ep, 0);
        ctl(t, ep, EPOLL_CTL_DEL, c, 0, 0);
        t.close(d);
        wait(t, ep, 0);
    }
    fn dup_of_set(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, IN, 1);
        let d = c!(dup(ep)) as c_int;
        t.close(ep);
        t.send(s, b"x", 0);
        wait(t, d, 2000);
        ctl(t, d, EPOLL_CTL_DEL, c, 0, 0);
        wait(t, d, 0);
        t.close(d);
        wait(t, d, 0);
    }
    fn close_removes(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, OUT, 1);
        t.close(c);
        wait(t, ep, 0);
        let n = t.client(t.listener(1));
        t.say(format!("same={}", n == c));
        wait(t, ep, 0);
        add(t, ep, n, OUT, 2);
        wait(t, ep, 0);
        t.close(s);
    }
    fn new_socket(t) {
        let c = t.tcp();
        let ep = set();
        add(t, ep, c, IN | OUT, 1);
        wait(t, ep, 0);
        t.close(c);
        wait(t, ep, 0);
    }
    fn add_then_connect(t) {
        let (l, c) = (t.listener(4), t.tcp_nb());
        let ep = set();
        add(t, ep, c, IN | OUT | ET, 1);
        wait(t, ep, 0);
        t.connect(c, t.local(l));
        wait(t, ep, 2000);
        t.so_error(c);
        let s = t.accept(l);
        t.send(s, b"x", 0);
        wait(t, ep, 2000);
    }
    fn add_then_refused(t) {
        let c = t.tcp_nb();
        let ep = set();
        t.connect(c, t.dead_port());
        add(t, ep, c, IN | OUT, 1);
        wait(t, ep, 2000);
        t.so_error(c);
        wait(t, ep, 0);
    }
    fn add_then_listen(t) {
        let l = t.tcp();
        let ep = set();
        add(t, ep, l, IN, 1);
        wait(t, ep, 0);
        t.bind(l, t.addr(0));
        t.listen(l, 4);
        wait(t, ep, 0);
        t.client(l);
        wait(t, ep, 2000);
    }
    fn shutdown_here(t) {
        let (c, _s) = t.pair();
        let ep = set();
        add(t, ep, c, IN | RDHUP | ET, 1);
        wait(t, ep, 0);
        t.shutdown(c, libc::SHUT_RD);
        wait(t, ep, 0);
        t.shutdown(c, libc::SHUT_WR);
        wait(t, ep, 0);
    }
}
