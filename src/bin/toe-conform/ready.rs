//! poll and select.

use crate::calls::bit;
use crate::cases;
use crate::sys::{pipe, set_bit, zeroed};
use crate::trace::{T, mask};
use libc::{POLLIN, POLLNVAL, POLLOUT, POLLPRI, c_int, pollfd, timespec, timeval};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

fn p(fd: c_int, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0x7777 }
}

fn show(t: &T, name: &str, n: i64, fds: &[pollfd]) {
    t.r(name, n);
    let all: Vec<String> = fds.iter().map(|p| mask(p.revents as u16 as u32)).collect();
    t.say(all.join(","));
}

/// select on up to three descriptors in each set.
fn sel(t: &T, fds: [&[c_int]; 3], us: i64) -> [libc::fd_set; 3] {
    let mut sets: [libc::fd_set; 3] = [zeroed(); 3];
    for (set, fds) in sets.iter_mut().zip(fds) {
        fds.iter().for_each(|&fd| set_bit(set, fd));
    }
    let top = fds.iter().flat_map(|f| f.iter()).max().map_or(0, |m| m + 1);
    let mut tv = timeval { tv_sec: 0, tv_usec: us };
    let [r, w, e] = &mut sets;
    t.r("select", c!(select(top, &raw mut *r, &raw mut *w, &raw mut *e, &raw mut tv)));
    let on: Vec<String> =
        sets.iter().zip(fds).map(|(s, f)| f.iter().map(|&fd| if bit(s, fd) { '1' } else { '0' }).collect()).collect();
    t.say(on.join("/"));
    sets
}

cases! {
    fn poll_many(t) {
        let (c, s) = t.pair();
        let (r, w) = pipe();
        t.write(w, b"x");
        t.send(c, b"abc", 0);
        t.until_bytes(s, 3);
        let mut fds = [p(c, POLLIN | POLLOUT), p(r, POLLIN), p(s, POLLIN), p(-1, POLLIN), p(w, POLLOUT), p(499, POLLIN)];
        show(t, "poll", c!(poll(fds.as_mut_ptr(), 6, 0)), &fds);
    }
    fn poll_same_twice(t) {
        let (c, _s) = t.pair();
        let mut fds = [p(c, POLLIN), p(c, POLLOUT), p(c, POLLOUT | POLLIN)];
        show(t, "poll", c!(poll(fds.as_mut_ptr(), 3, 0)), &fds);
    }
    fn poll_negative_fd(t) {
        let (c, _s) = t.pair();
        let mut fds = [p(-1, POLLIN), p(-c, POLLOUT), p(i32::MIN, POLLIN)];
        show(t, "poll", c!(poll(fds.as_mut_ptr(), 3, 0)), &fds);
    }
    fn poll_closed_fd(t) {
        let (c, _s) = t.pair();
        c!(close(c));
        let mut fds = [p(c, POLLIN)];
        show(t, "poll", c!(poll(fds.as_mut_ptr(), 1, -1)), &fds);
    }
    fn poll_none(t) {
        t.r("poll", c!(poll(null_mut(), 0, 0)));
        t.r("poll", c!(poll(null_mut(), 0, 10)));
        t.r("ppoll", c!(ppoll(null_mut(), 0, &timespec { tv_sec: 0, tv_nsec: 0 }, null())));
    }
    fn poll_too_many(t) {
        let (c, _s) = t.pair();
        let mut fds = vec![p(c, POLLOUT); 10];
        let limit = libc::rlimit { rlim_cur: 600, rlim_max: 600 };
        c!(setrlimit(libc::RLIMIT_NOFILE, &raw const limit));
        t.r("poll", c!(poll(fds.as_mut_ptr(), 10, 0)));
        let mut fds = vec![p(c, POLLOUT); 601];
        t.r("poll", c!(poll(fds.as_mut_ptr(), 601, 0)));
    }
    fn poll_timeout(t) {
        let (c, _s) = t.pair();
        let start = Instant::now();
        let mut fds = [p(c, POLLIN)];
        show(t, "poll", c!(poll(fds.as_mut_ptr(), 1, 60)), &fds);
        t.say(format!("waited={}", start.elapsed() >= Duration::from_millis(59)));
    }
    fn poll_wakes(t) {
        let (c, s) = t.pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                c!(send(s, b"abc".as_ptr().cast(), 3, 0));
            });
            let mut fds = [p(c, POLLIN)];
            show(t, "poll", c!(poll(fds.as_mut_ptr(), 1, -1)), &fds);
        });
    }
    fn poll_wakes_for_hangup(t) {
        let (c, s) = t.pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                t.reset_on_close(s);
                c!(close(s));
            });
            let mut fds = [p(c, 0)];
            show(t, "poll", c!(poll(fds.as_mut_ptr(), 1, -1)), &fds);
        });
    }
    fn poll_wakes_for_pipe(t) {
        let (c, _s) = t.pair();
        let (r, w) = pipe();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                c!(write(w, b"x".as_ptr().cast(), 1));
            });
            let mut fds = [p(c, POLLIN), p(r, POLLIN)];
            show(t, "poll", c!(poll(fds.as_mut_ptr(), 2, -1)), &fds);
        });
    }
    fn poll_listener(t) {
        let l = t.listener(4);
        t.levels(l);
        let c = t.client(l);
        t.until(l, POLLIN);
        t.levels(l);
        t.select(l);
        t.accept(l);
        t.levels(l);
        t.levels(c);
    }
    fn poll_priority_only(t) {
        let (c, s) = t.pair();
        t.send(s, b"abc", 0);
        t.until_bytes(c, 3);
        t.poll(c, POLLPRI);
        t.poll(c, POLLNVAL);
        t.poll(c, 0x40);
        t.poll(c, 0x80);
        t.poll(c, 0x100);
        t.poll(c, 0x200);
        t.poll(c, 0x400);
    }
    fn ppoll_timeouts(t) {
        let (c, _s) = t.pair();
        let mut fds = [p(c, POLLIN)];
        for ts in [(0, 0), (0, 1_000_000), (-1, 0), (0, 1_000_000_000), (0, -1)] {
            let ts = timespec { tv_sec: ts.0, tv_nsec: ts.1 };
            t.r("ppoll", c!(ppoll(fds.as_mut_ptr(), 1, &raw const ts, null())));
            t.say(format!("kept={}", ts.tv_nsec != 999));
        }
    }
    fn ppoll_mask(t) {
        let (c, _s) = t.pair();
        raise_blocked();
        let mut fds = [p(c, POLLIN)];
        t.r("blocked", c!(poll(fds.as_mut_ptr(), 1, 20)));
        unblocked_ppoll(t, &mut fds);
        t.say(format!("signals={}", crate::sys::signals()));
    }
    fn ppoll_mask_when_ready(t) {
        let (c, _s) = t.pair();
        raise_blocked();
        let mut fds = [p(c, POLLOUT)];
        unblocked_ppoll(t, &mut fds);
    }
    fn select_basic(t) {
        let (c, s) = t.pair();
        sel(t, [&[c, s], &[c, s], &[c, s]], 0);
        t.send(c, b"x", 0);
        t.until_bytes(s, 1);
        sel(t, [&[c, s], &[c], &[s]], 0);
        sel(t, [&[c], &[], &[c]], 1000);
    }
    fn select_with_pipe(t) {
        let (c, _s) = t.pair();
        let (r, w) = pipe();
        t.write(w, b"x");
        sel(t, [&[c, r], &[w], &[]], 0);
    }
    fn select_bad_fd(t) {
        let (c, s) = t.pair();
        c!(close(s));
        sel(t, [&[c, s], &[], &[]], 0);
        sel(t, [&[s], &[], &[]], 0);
    }
    fn select_null_sets(t) {
        let (c, _s) = t.pair();
        let mut w: libc::fd_set = zeroed();
        set_bit(&mut w, c);
        let mut tv = timeval { tv_sec: 1, tv_usec: 0 };
        t.r("select", c!(select(c + 1, null_mut(), &raw mut w, null_mut(), &raw mut tv)));
        t.say(format!("left={}", tv.tv_sec == 1 || tv.tv_usec > 500_000));
        let mut tv = timeval { tv_sec: 0, tv_usec: 1000 };
        t.r("none", c!(select(0, null_mut(), null_mut(), null_mut(), &raw mut tv)));
        t.say(format!("left={}.{}", tv.tv_sec, tv.tv_usec));
    }
    fn select_numbers(t) {
        let (c, _s) = t.pair();
        let mut w: libc::fd_set = zeroed();
        set_bit(&mut w, c);
        let mut tv = timeval { tv_sec: 0, tv_usec: 0 };
        t.r("negative", c!(select(-1, null_mut(), &raw mut w, null_mut(), &raw mut tv)));
        t.r("below", c!(select(c, null_mut(), &raw mut w, null_mut(), &raw mut tv)));
        t.say(format!("kept={}", bit(&w, c)));
        let mut tv = timeval { tv_sec: -1, tv_usec: 0 };
        t.r("time", c!(select(c + 1, null_mut(), &raw mut w, null_mut(), &raw mut tv)));
        let mut tv = timeval { tv_sec: 0, tv_usec: 3_000_000 };
        t.r("large", c!(select(c + 1, null_mut(), &raw mut w, null_mut(), &raw mut tv)));
    }
    fn select_timeout_left(t) {
        let (c, _s) = t.pair();
        let mut r: libc::fd_set = zeroed();
        set_bit(&mut r, c);
        let mut tv = timeval { tv_sec: 0, tv_usec: 20_000 };
        t.r("select", c!(select(c + 1, &raw mut r, null_mut(), null_mut(), &raw mut tv)));
        t.say(format!("left={}.{} set={}", tv.tv_sec, tv.tv_usec, bit(&r, c)));
    }
    fn select_write_on_dead(t) {
        let (c, s) = t.pair();
        t.reset_on_close(s);
        c!(close(s));
        t.until(c, libc::POLLHUP);
        sel(t, [&[c], &[c], &[c]], 0);
    }
    fn select_connecting(t) {
        let c = t.tcp_nb();
        let a = t.dead_port();
        t.connect(c, a);
        sel(t, [&[], &[c], &[]], 900_000);
        t.so_error(c);
    }
    fn pselect_mask(t) {
        let (c, _s) = t.pair();
        raise_blocked();
        let mut r: libc::fd_set = zeroed();
        set_bit(&mut r, c);
        let none: libc::sigset_t = zeroed();
        let ts = timespec { tv_sec: 3, tv_nsec: 0 };
        t.r("pselect", c!(pselect(c + 1, &raw mut r, null_mut(), null_mut(), &raw const ts, &raw const none)));
        t.say(format!("signals={} set={}", crate::sys::signals(), bit(&r, c)));
    }
    fn pselect_timeouts(t) {
        let (c, _s) = t.pair();
        for ts in [(0, 0), (0, 2_000_000), (-1, 0), (0, 1_000_000_000)] {
            let mut r: libc::fd_set = zeroed();
            set_bit(&mut r, c);
            let ts = timespec { tv_sec: ts.0, tv_nsec: ts.1 };
            t.r("pselect", c!(pselect(c + 1, &raw mut r, null_mut(), null_mut(), &raw const ts, null())));
        }
    }
    fn poll_eintr(t) {
        let (c, _s) = t.pair();
        crate::sys::on_signal(libc::SIGALRM, libc::SA_RESTART);
        let every = libc::itimerval { it_interval: zeroed(), it_value: timeval { tv_sec: 0, tv_usec: 30_000 } };
        let mut fds = [p(c, POLLIN)];
        c!(setitimer(libc::ITIMER_REAL, &raw const every, null_mut()));
        t.r("poll", c!(poll(fds.as_mut_ptr(), 1, -1)));
        c!(setitimer(libc::ITIMER_REAL, &raw const every, null_mut()));
        t.r("poll", c!(poll(fds.as_mut_ptr(), 1, 3000)));
        let mut r: libc::fd_set = zeroed();
        set_bit(&mut r, c);
        c!(setitimer(libc::ITIMER_REAL, &raw const every, null_mut()));
        t.r("select", c!(select(c + 1, &raw mut r, null_mut(), null_mut(), null_mut())));
    }
    fn poll_stays_level(t) {
        let (c, s) = t.pair();
        t.send(s, b"abcdef", 0);
        t.until_bytes(c, 6);
        t.poll(c, POLLIN);
        t.recv(c, 3, 0);
        t.poll(c, POLLIN);
        t.recv(c, 3, 0);
        t.poll(c, POLLIN);
    }
    fn poll_new_socket(t) {
        let n = t.tcp();
        t.levels(n);
        t.select(n);
        t.poll(n, 0);
        t.bind(n, t.addr(0));
        t.levels(n);
        t.select(n);
        t.poll(n, 0);
    }
}

/// SIGUSR1 waits to be let through.
fn raise_blocked() {
    crate::sys::on_signal(libc::SIGUSR1, 0);
    let mut block: libc::sigset_t = zeroed();
    c!(sigaddset(&raw mut block, libc::SIGUSR1));
    c!(sigprocmask(libc::SIG_BLOCK, &raw const block, null_mut()));
    c!(raise(libc::SIGUSR1));
}

/// Lets all signals through while it waits.
fn unblocked_ppoll(t: &T, fds: &mut [pollfd; 1]) {
    let none: libc::sigset_t = zeroed();
    let ts = timespec { tv_sec: 3, tv_nsec: 0 };
    t.r("ppoll", c!(ppoll(fds.as_mut_ptr(), 1, &raw const ts, &raw const none)));
}
