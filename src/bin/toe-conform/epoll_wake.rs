//! epoll_wait that sleeps: what wakes it.

use crate::cases;
use crate::epoll::{ET, IN, OUT, add, set, wait};
use crate::sys::pipe;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, epoll_event};
use std::ptr::null_mut;
use std::time::Duration;

cases! {
    fn mixed_wakes(t) {
        let (c, _s) = t.pair();
        let ((r, w), ep) = (pipe(), set());
        add(t, ep, c, IN, 1);
        add(t, ep, r, IN, 2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                c!(write(w, b"x".as_ptr().cast(), 1));
            });
            wait(t, ep, -1);
        });
    }
    fn wakes(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, IN, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                c!(write(s, b"x".as_ptr().cast(), 1));
            });
            wait(t, ep, -1);
        });
    }
    fn wakes_for_added(t) {
        let (c, s) = t.pair();
        t.send(s, b"x", 0);
        t.until_bytes(c, 1);
        let ep = set();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                let mut ev = epoll_event { events: IN, u64: 5 };
                c!(epoll_ctl(ep, EPOLL_CTL_ADD, c, &raw mut ev));
            });
            wait(t, ep, -1);
        });
    }
    fn wakes_for_modified(t) {
        let (c, _s) = t.pair();
        let ep = set();
        add(t, ep, c, IN, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                let mut ev = epoll_event { events: OUT, u64: 5 };
                c!(epoll_ctl(ep, EPOLL_CTL_MOD, c, &raw mut ev));
            });
            wait(t, ep, -1);
        });
    }
    fn pwait_mask(t) {
        let (c, _s) = t.pair();
        let ep = set();
        add(t, ep, c, IN, 1);
        crate::sys::on_signal(libc::SIGUSR1, 0);
        let mut block: libc::sigset_t = crate::sys::zeroed();
        c!(sigaddset(&raw mut block, libc::SIGUSR1));
        c!(sigprocmask(libc::SIG_BLOCK, &raw const block, null_mut()));
        c!(raise(libc::SIGUSR1));
        let none: libc::sigset_t = crate::sys::zeroed();
        let mut ev = epoll_event { events: 0, u64: 0 };
        t.r("blocked", c!(epoll_pwait(ep, &raw mut ev, 1, 20, &raw const block)));
        t.r("pwait", c!(epoll_pwait(ep, &raw mut ev, 1, 3000, &raw const none)));
        t.say(format!("signals={}", crate::sys::signals()));
    }
    fn eintr(t) {
        let (c, _s) = t.pair();
        let ep = set();
        add(t, ep, c, IN, 1);
        crate::sys::on_signal(libc::SIGALRM, libc::SA_RESTART);
        let once = libc::itimerval {
            it_interval: crate::sys::zeroed(),
            it_value: libc::timeval { tv_sec: 0, tv_usec: 30_000 },
        };
        c!(setitimer(libc::ITIMER_REAL, &raw const once, null_mut()));
        wait(t, ep, -1);
        c!(setitimer(libc::ITIMER_REAL, &raw const once, null_mut()));
        wait(t, ep, 3000);
    }
    fn two_threads_one_event(t) {
        let (c, s) = t.pair();
        let ep = set();
        add(t, ep, c, IN | ET, 1);
        let counts: Vec<i64> = std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| {
                    let mut ev = epoll_event { events: 0, u64: 0 };
                    c!(epoll_wait(ep, &raw mut ev, 1, 300))
                }))
                .collect();
            std::thread::sleep(Duration::from_millis(50));
            c!(send(s, b"x".as_ptr().cast(), 1, 0));
            waiters.into_iter().map(|w| w.join().expect("a thread")).collect()
        });
        t.say(format!("sum={}", counts.iter().sum::<i64>()));
    }
}
