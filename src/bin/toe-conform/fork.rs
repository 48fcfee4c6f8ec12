//! Sockets over fork, and threads that share them.

use crate::cases;
use crate::trace::T;
use libc::c_int;

/// Runs `body` in a child and waits for its end.
fn child(t: &T, body: impl FnOnce()) {
    let pid = c!(fork()) as c_int;
    if pid == 0 {
        body();
        crate::sys::quit();
    }
    let (code, signal) = crate::sys::wait_status(pid);
    t.say(format!("child={code:?}{}", signal.map_or(String::new(), |s| format!("signal {s}"))));
}

cases! {
    fn child_sends(t) {
        let (c, s) = t.pair();
        child(t, || { t.send(c, b"from child", 0); });
        t.until_bytes(s, 10);
        t.recv(s, 20, 0);
        t.send(s, b"back", 0);
        t.until_bytes(c, 4);
        t.recv(c, 9, 0);
    }
    fn child_receives(t) {
        let (c, s) = t.pair();
        t.send(c, b"for the child", 0);
        t.until_bytes(s, 13);
        child(t, || { t.recv(s, 4, 0); });
        t.recv(s, 20, 0);
    }
    fn child_close_keeps(t) {
        let (c, s) = t.pair();
        child(t, || { t.close(c); });
        t.levels(s);
        t.send(c, b"alive", 0);
        t.until_bytes(s, 5);
        t.recv(s, 9, 0);
    }
    fn parent_close_keeps(t) {
        let (c, s) = t.pair();
        let (r, w) = crate::sys::pipe();
        let pid = c!(fork()) as c_int;
        if pid == 0 {
            c!(close(w));
            let mut b = [0u8; 1];
            c!(read(r, b.as_mut_ptr().cast(), 1));
            c!(send(c, b"late".as_ptr().cast(), 4, 0));
            crate::sys::quit();
        }
        c!(close(c));
        t.levels(s);
        c!(close(w));
        t.recv(s, 4, libc::MSG_WAITALL);
        t.recv(s, 4, 0);
        crate::sys::wait_status(pid);
    }
    fn child_shutdown_is_everyones(t) {
        let (c, s) = t.pair();
        child(t, || { t.shutdown(c, libc::SHUT_WR); });
        t.until(s, libc::POLLRDHUP);
        t.send(c, b"x", 0);
        t.recv(s, 1, 0);
    }
    fn child_accepts(t) {
        let l = t.listener(4);
        let c = t.client(l);
        child(t, || {
            let s = t.accept(l);
            t.send(s, b"served", 0);
        });
        t.until(c, libc::POLLRDHUP);
        t.recv(c, 20, 0);
        t.recv(c, 20, 0);
        let d = t.client(l);
        t.accept(l);
        t.levels(d);
    }
    fn child_listens_on(t) {
        let l = t.listener(4);
        let a = t.local(l);
        let (r, w) = crate::sys::pipe();
        let pid = c!(fork()) as c_int;
        if pid == 0 {
            c!(close(w));
            let mut b = [0u8; 1];
            c!(read(r, b.as_mut_ptr().cast(), 1));
            let s = c!(accept(l, std::ptr::null_mut(), std::ptr::null_mut())) as c_int;
            c!(send(s, b"hi".as_ptr().cast(), 2, 0));
            crate::sys::quit();
        }
        t.close(l);
        let c = t.tcp();
        t.connect(c, a);
        c!(close(w));
        t.recv(c, 2, libc::MSG_WAITALL);
        crate::sys::wait_status(pid);
    }
    fn child_makes_its_own(t) {
        let (c, s) = t.pair();
        child(t, || {
            let (a, b) = t.pair();
            t.send(a, b"own", 0);
            t.until_bytes(b, 3);
            t.recv(b, 9, 0);
        });
        t.send(c, b"still", 0);
        t.until_bytes(s, 5);
        t.recv(s, 9, 0);
    }
    fn child_connects_to_parent(t) {
        let l = t.listener(4);
        let pid = c!(fork()) as c_int;
        if pid == 0 {
            let c = t.client(l);
            c!(send(c, b"child".as_ptr().cast(), 5, 0));
            crate::sys::quit();
        }
        let s = t.accept(l);
        t.recv(s, 5, libc::MSG_WAITALL);
        crate::sys::wait_status(pid);
        t.until(s, libc::POLLRDHUP);
        t.recv(s, 5, 0);
    }
    fn killed_child_hangs_up(t) {
        let l = t.listener(4);
        let pid = c!(fork()) as c_int;
        if pid == 0 {
            t.client(l);
            loop { c!(pause()); }
        }
        let s = t.accept(l);
        c!(kill(pid, libc::SIGKILL));
        crate::sys::wait_status(pid);
        t.until(s, libc::POLLRDHUP);
        t.recv(s, 5, 0);
    }
    fn nonblock_is_shared(t) {
        let (c, _s) = t.pair();
        child(t, || { t.nb(c); });
        t.status(c);
        t.recv(c, 1, 0);
    }
    fn options_are_shared(t) {
        let (c, _s) = t.pair();
        child(t, || { t.set("nodelay", c, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1); });
        t.get("nodelay", c, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    }
    fn child_of_child(t) {
        let (c, s) = t.pair();
        child(t, || child(t, || { t.send(c, b"deep", 0); }));
        t.until_bytes(s, 4);
        t.recv(s, 9, 0);
    }
    fn many_children_read(t) {
        let (c, s) = t.pair();
        t.send(c, b"abcdefgh", 0);
        t.until_bytes(s, 8);
        for _ in 0..8 {
            child(t, || { t.recv(s, 1, 0); });
        }
        t.nb(s);
        t.recv(s, 1, 0);
    }
    fn new_socket_over_fork(t) {
        let (l, n) = (t.listener(4), t.tcp());
        let a = t.local(l);
        child(t, || { t.connect(n, a); t.send(n, b"x", 0); });
        let s = t.accept(l);
        t.until_bytes(s, 1);
        t.recv(s, 1, 0);
    }
    fn bound_socket_over_fork(t) {
        let (l, n) = (t.listener(4), t.tcp());
        let a = t.local(l);
        t.bind(n, t.addr(0));
        child(t, || { t.connect(n, a); });
        t.peer(n);
        let s = t.accept(l);
        t.send(n, b"x", 0);
        t.until_bytes(s, 1);
        t.recv(s, 1, 0);
    }
    fn listen_in_child(t) {
        let n = t.tcp();
        t.bind(n, t.addr(0));
        child(t, || { t.listen(n, 4); });
        t.connect(t.tcp(), t.local(n));
        t.accept(n);
    }
    fn epoll_over_fork(t) {
        let (c, s) = t.pair();
        let ep = c!(epoll_create1(0)) as c_int;
        let mut ev = libc::epoll_event { events: 1, u64: 7 };
        c!(epoll_ctl(ep, libc::EPOLL_CTL_ADD, c, &raw mut ev));
        t.send(s, b"x", 0);
        t.until_bytes(c, 1);
        child(t, || {
            let mut ev = libc::epoll_event { events: 0, u64: 0 };
            t.r("wait", c!(epoll_wait(ep, &raw mut ev, 1, 1000)));
        });
        t.r("wait", c!(epoll_wait(ep, &raw mut ev, 1, 1000)));
    }
    fn vfork_like_spawn(t) {
        let (c, s) = t.pair();
        let status = std::process::Command::new("/bin/true").status();
        t.say(format!("{:?}", status.map(|s| s.success()).unwrap_or(false)));
        t.send(c, b"after", 0);
        t.until_bytes(s, 5);
        t.recv(s, 9, 0);
    }
    fn closed_on_exec(t) {
        let (c, s) = t.pair();
        c!(fcntl(c, libc::F_SETFD, libc::FD_CLOEXEC));
        c!(fcntl(s, libc::F_SETFD, libc::FD_CLOEXEC));
        let status = std::process::Command::new("/bin/true").status();
        t.say(format!("{:?}", status.map(|s| s.success()).unwrap_or(false)));
        t.levels(s);
        t.send(c, b"after", 0);
    }
    fn threads_share(t) {
        let (c, s) = t.pair();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        c!(send(c, b"0123456789".as_ptr().cast(), 10, 0));
                    }
                });
            }
            let mut buf = vec![0u8; 4000];
            let n = c!(recv(s, buf.as_mut_ptr().cast(), 4000, libc::MSG_WAITALL));
            t.say(format!("{n} {}", buf.chunks(10).all(|p| p == b"0123456789")));
        });
    }
    fn threads_read_in_turn(t) {
        let (c, s) = t.pair();
        t.send(c, &[1; 4000], 0);
        t.until_bytes(s, 4000);
        let sum: i64 = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| {
                let mut buf = [0u8; 10];
                (0..100).map(|_| c!(recv(s, buf.as_mut_ptr().cast(), 10, 0))).sum::<i64>()
            })).collect();
            all.into_iter().map(|h| h.join().expect("a thread")).sum()
        });
        t.say(format!("{sum}"));
    }
    fn threads_accept(t) {
        let l = t.listener(16);
        let got: usize = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| {
                (0..3).filter(|_| c!(accept(l, std::ptr::null_mut(), std::ptr::null_mut())) >= 0).count()
            })).collect();
            (0..12).for_each(|_| { t.client(l); });
            all.into_iter().map(|h| h.join().expect("a thread")).sum()
        });
        t.say(format!("{got}"));
    }
}
