//! Calls that block: what ends them, and signals.

use crate::cases;
use crate::sys::{on_signal, signals};
use crate::trace::T;
use libc::{SA_RESTART, SIGUSR1, c_int};
use std::ptr::null_mut;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Runs `call` in this thread while another waits until it sleeps, and then does `news`.
fn while_blocked(call: impl FnOnce(), news: impl FnOnce(c_int) + Send) {
    let (me, done) = (c!(gettid()) as c_int, AtomicI32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            asleep(me, &done);
            news(me);
        });
        call();
        done.store(1, SeqCst);
    });
}

/// Waits until thread `tid` sleeps, for long enough that it is no accident.
fn asleep(tid: c_int, done: &AtomicI32) {
    let mut seen = 0;
    while seen < 10 && done.load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(2));
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|s| s.split_whitespace().next()).map(String::from);
        seen = if state.as_deref() == Some("S") { seen + 1 } else { 0 };
    }
}

fn hit(tid: c_int) {
    c!(syscall(libc::SYS_tgkill, c!(getpid()), tid, SIGUSR1));
}

/// `call` is interrupted by a signal without SA_RESTART.
fn interrupted(t: &T, call: impl FnOnce()) {
    on_signal(SIGUSR1, 0);
    while_blocked(call, hit);
    t.say(format!("signals={}", signals()));
}

/// `call` goes on after a signal with SA_RESTART, and ends by `news`.
fn restarted(t: &T, call: impl FnOnce(), news: impl FnOnce() + Send) {
    on_signal(SIGUSR1, SA_RESTART);
    while_blocked(call, |tid| {
        hit(tid);
        asleep(tid, &AtomicI32::new(0));
        news();
    });
    t.say(format!("signals={}", signals()));
}

/// A socket whose buffers are full in the direction of its peer.
fn full(t: &T) -> (c_int, c_int) {
    let (c, s) = t.pair();
    let data = [7u8; 65_536];
    t.until_true("full", || {
        while c!(send(c, data.as_ptr().cast(), data.len(), libc::MSG_DONTWAIT)) > 0 {}
        std::thread::sleep(Duration::from_millis(20));
        c!(send(c, data.as_ptr().cast(), data.len(), libc::MSG_DONTWAIT)) < 0
    });
    (c, s)
}

/// Reads what there is, for a while.
fn sink(fd: c_int) {
    let mut buf = vec![0u8; 1 << 20];
    for _ in 0..100 {
        c!(recv(fd, buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT));
        std::thread::sleep(Duration::from_millis(1));
    }
}

cases! {
    fn recv_gets_data(t) {
        let (c, s) = t.pair();
        while_blocked(|| { t.recv(c, 9, 0); }, |_| { c!(send(s, b"abc".as_ptr().cast(), 3, 0)); });
    }
    fn recv_gets_end(t) {
        let (c, s) = t.pair();
        while_blocked(|| { t.recv(c, 9, 0); }, |_| { c!(close(s)); });
    }
    fn recv_gets_reset(t) {
        let (c, s) = t.pair();
        while_blocked(|| { t.recv(c, 9, 0); }, |_| { t.reset_on_close(s); c!(close(s)); });
        t.recv(c, 9, 0);
    }
    fn recv_gets_own_shutdown(t) {
        let (c, _s) = t.pair();
        while_blocked(|| { t.recv(c, 9, 0); }, |_| { c!(shutdown(c, libc::SHUT_RD)); });
    }
    fn recv_interrupted(t) {
        let (c, _s) = t.pair();
        interrupted(t, || { t.recv(c, 9, 0); });
    }
    fn recv_restarted(t) {
        let (c, s) = t.pair();
        restarted(t, || { t.recv(c, 9, 0); }, || { c!(send(s, b"abc".as_ptr().cast(), 3, 0)); });
    }
    fn recv_timeout_interrupted(t) {
        let (c, _s) = t.pair();
        t.set_bytes("timeout", c, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &[5i64, 0]);
        on_signal(SIGUSR1, SA_RESTART);
        while_blocked(|| { t.recv(c, 9, 0); }, hit);
    }
    fn recv_waitall_interrupted(t) {
        let (c, s) = t.pair();
        t.send(s, b"abc", 0);
        t.until_bytes(c, 3);
        interrupted(t, || { t.recv(c, 9, libc::MSG_WAITALL); });
    }
    fn recv_waitall_restarted(t) {
        let (c, s) = t.pair();
        t.send(s, b"abc", 0);
        t.until_bytes(c, 3);
        on_signal(SIGUSR1, SA_RESTART);
        while_blocked(|| { t.recv(c, 5, libc::MSG_WAITALL); }, hit);
        t.say(format!("signals={}", signals()));
    }
    fn read_interrupted(t) {
        let (c, _s) = t.pair();
        interrupted(t, || { t.read(c, 9); });
    }
    fn recvmsg_interrupted(t) {
        let (c, _s) = t.pair();
        interrupted(t, || { t.recvmsg(c, 9, 0); });
    }
    fn accept_gets_client(t) {
        let l = t.listener(2);
        while_blocked(|| { t.accept(l); }, |_| { t.client(l); });
    }
    fn accept_interrupted(t) {
        let l = t.listener(2);
        interrupted(t, || { t.accept(l); });
    }
    fn accept_restarted(t) {
        let l = t.listener(2);
        restarted(t, || { t.accept(l); }, || { t.client(l); });
    }
    fn accept_gets_shutdown(t) {
        let l = t.listener(2);
        while_blocked(|| { t.accept(l); }, |_| { c!(shutdown(l, libc::SHUT_RD)); });
        t.accept(l);
    }
    fn accept_gets_shutdown_both(t) {
        let l = t.listener(2);
        while_blocked(|| { t.accept(l); }, |_| { c!(shutdown(l, libc::SHUT_RDWR)); });
        t.levels(l);
        t.connect(t.tcp(), t.local(l));
        t.listen(l, 2);
        t.connect(t.tcp(), t.local(l));
    }
    fn wildcard_accept_interrupted(t) {
        let l = t.tcp();
        t.bind(l, t.any(0));
        t.listen(l, 2);
        interrupted(t, || { t.accept(l); });
    }
    fn wildcard_accept_restarted(t) {
        let l = t.tcp();
        t.bind(l, t.any(0));
        t.listen(l, 2);
        let port = t.local(l).port();
        restarted(t, || { t.fd("accept", c!(accept(l, null_mut(), null_mut()))); }, || {
            let a = t.addr(port);
            c!(connect(t.tcp(), a.ptr(), a.len));
        });
    }
    fn wildcard_accept_gets_shutdown(t) {
        let l = t.tcp();
        t.bind(l, t.any(0));
        t.listen(l, 2);
        while_blocked(|| { t.accept(l); }, |_| { c!(shutdown(l, libc::SHUT_RDWR)); });
    }
    fn send_interrupted(t) {
        let (c, _s) = full(t);
        interrupted(t, || { t.send(c, b"abc", 0); });
    }
    fn send_restarted(t) {
        let (c, s) = full(t);
        restarted(t, || { t.send(c, b"abc", 0); }, || sink(s));
    }
    fn send_part_interrupted(t) {
        let (c, s) = t.pair();
        on_signal(SIGUSR1, 0);
        let data = vec![1u8; 64 << 20];
        while_blocked(|| {
            let n = c!(send(c, data.as_ptr().cast(), data.len(), 0));
            t.say(format!("part={}", n > 0 && n < 64 << 20));
        }, hit);
        t.levels(s);
    }
    fn send_gets_reset(t) {
        let (c, s) = full(t);
        while_blocked(|| { t.send(c, b"abc", 0); }, |_| { t.reset_on_close(s); c!(close(s)); });
        t.send(c, b"abc", 0);
    }
    fn send_gets_own_shutdown(t) {
        let (c, _s) = full(t);
        while_blocked(|| { t.send(c, b"abc", 0); }, |_| { c!(shutdown(c, libc::SHUT_WR)); });
    }
    fn send_timeout(t) {
        let (c, _s) = full(t);
        t.set_bytes("timeout", c, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &[0i64, 50_000]);
        t.send(c, b"abc", 0);
        let data = vec![1u8; 64 << 20];
        let (d, _e) = t.pair();
        t.set_bytes("timeout", d, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &[0i64, 50_000]);
        let n = c!(send(d, data.as_ptr().cast(), data.len(), 0));
        t.say(format!("part={}", n > 0 && n < 64 << 20));
    }
    fn connect_interrupted(t) {
        let (c, a) = slow(t);
        interrupted(t, || { t.connect(c, a); });
        t.nb(c);
        t.connect(c, a);
        t.levels(c);
    }
    fn connect_timeout(t) {
        let (c, a) = slow(t);
        t.set_bytes("timeout", c, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &[0i64, 60_000]);
        t.connect(c, a);
        t.connect(c, a);
    }
    fn connect_gets_shutdown(t) {
        let (c, a) = slow(t);
        while_blocked(|| { t.connect(c, a); }, |_| { c!(shutdown(c, libc::SHUT_RDWR)); });
        t.levels(c);
    }
    fn recv_while_connecting(t) {
        let (c, a) = slow(t);
        t.nb(c);
        t.connect(c, a);
        t.recv(c, 1, 0);
        t.send(c, b"x", 0);
        t.levels(c);
        t.so_error(c);
    }
    fn poll_gets_own_shutdown(t) {
        let (c, _s) = t.pair();
        while_blocked(|| {
            let mut p = libc::pollfd { fd: c, events: libc::POLLIN, revents: 0 };
            t.r("poll", c!(poll(&raw mut p, 1, -1)));
            t.say(crate::trace::mask(p.revents as u16 as u32));
        }, |_| { c!(shutdown(c, libc::SHUT_RD)); });
    }
    fn epoll_gets_own_shutdown(t) {
        let (c, _s) = t.pair();
        let ep = c!(epoll_create1(0)) as c_int;
        let mut ev = libc::epoll_event { events: 1, u64: 7 };
        c!(epoll_ctl(ep, libc::EPOLL_CTL_ADD, c, &raw mut ev));
        while_blocked(|| { t.r("wait", c!(epoll_wait(ep, &raw mut ev, 1, -1))); }, |_| { c!(shutdown(c, libc::SHUT_RD)); });
    }
    fn close_does_not_wake_recv(t) {
        let (c, s) = t.pair();
        let d = c!(dup(c)) as c_int;
        while_blocked(|| { t.recv(d, 9, 0); }, |_| {
            c!(close(d));
            std::thread::sleep(Duration::from_millis(20));
            c!(send(s, b"abc".as_ptr().cast(), 3, 0));
        });
        t.levels(c);
    }
    fn closed_in_recv_still_serves(t) {
        let (c, s) = t.pair();
        while_blocked(|| { t.recv(c, 9, 0); }, |_| {
            c!(close(c));
            std::thread::sleep(Duration::from_millis(20));
            c!(send(s, b"abc".as_ptr().cast(), 3, 0));
        });
        t.recv(c, 9, 0);
        t.until(s, libc::POLLRDHUP);
    }
    fn closed_listener_in_accept(t) {
        let l = t.listener(2);
        let a = t.local(l);
        while_blocked(|| { t.accept(l); }, |_| {
            c!(close(l));
            std::thread::sleep(Duration::from_millis(20));
            let c = t.tcp();
            c!(connect(c, a.ptr(), a.len));
        });
        t.connect(t.tcp(), a);
    }
    fn alarm_ends_recv(t) {
        let (c, _s) = t.pair();
        on_signal(libc::SIGALRM, 0);
        let once = libc::itimerval { it_interval: crate::sys::zeroed(), it_value: libc::timeval { tv_sec: 0, tv_usec: 50_000 } };
        c!(setitimer(libc::ITIMER_REAL, &raw const once, null_mut()));
        t.recv(c, 9, 0);
        t.say(format!("signals={}", signals()));
    }
    fn many_signals(t) {
        let (c, s) = t.pair();
        on_signal(libc::SIGALRM, SA_RESTART);
        let every = libc::timeval { tv_sec: 0, tv_usec: 1_000 };
        let every = libc::itimerval { it_interval: every, it_value: every };
        c!(setitimer(libc::ITIMER_REAL, &raw const every, null_mut()));
        let data = crate::trace::pattern(400_000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = 0;
                while at < data.len() {
                    at += c!(send(c, data[at..].as_ptr().cast(), data.len() - at, 0)).max(0) as usize;
                }
            });
            t.drain(s, 400_000);
        });
    }
    fn handler_may_send(t) {
        let (c, s) = t.pair();
        IN_HANDLER.store(s, SeqCst);
        c!(signal(SIGUSR1, echo as *const () as usize));
        while_blocked(|| { t.recv(c, 9, 0); }, hit);
    }
    fn thread_cancelled_in_recv(t) {
        let (c, s) = t.pair();
        CANCELLED.store(c, SeqCst);
        let mut thread: libc::pthread_t = 0;
        c!(pthread_create(&raw mut thread, std::ptr::null(), reader, null_mut()));
        t.until_true("started", || READER.load(SeqCst) != 0);
        asleep(READER.load(SeqCst), &AtomicI32::new(0));
        t.r("cancel", c!(pthread_cancel(thread)));
        let mut result = null_mut();
        let mut until: libc::timespec = crate::sys::zeroed();
        c!(clock_gettime(libc::CLOCK_REALTIME, &raw mut until));
        until.tv_sec += 2;
        t.r("join", c!(pthread_timedjoin_np(thread, &raw mut result, &raw const until)));
        t.say(format!("cancelled={}", result as isize == -1));
        t.nb(c);
        t.send(s, b"abc", 0);
        t.until_bytes(c, 3);
        t.recv(c, 9, 0);
    }
}

static IN_HANDLER: AtomicI32 = AtomicI32::new(-1);
static CANCELLED: AtomicI32 = AtomicI32::new(-1);
static READER: AtomicI32 = AtomicI32::new(0);

extern "C" fn echo(_: c_int) {
    c!(send(IN_HANDLER.load(SeqCst), b"handler".as_ptr().cast(), 7, 0));
}

extern "C" fn reader(_: *mut libc::c_void) -> *mut libc::c_void {
    let mut b = 0u8;
    READER.store(c!(gettid()) as c_int, SeqCst);
    c!(recv(CANCELLED.load(SeqCst), (&raw mut b).cast(), 1, 0));
    null_mut()
}

/// A socket, and an address at which a connection attempt gets no answer because the listener's queue is full.
fn slow(t: &T) -> (c_int, crate::sys::Addr) {
    let (_, a) = t.unanswered();
    (t.tcp(), a)
}
