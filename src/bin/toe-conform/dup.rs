//! dup and its kin, fcntl, ioctl, close_range.

use crate::cases;
use crate::sys::pipe;
use crate::trace::T;
use libc::{F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_SETFD, F_SETFL, c_int};
use std::ptr::null;

fn works(t: &T, a: c_int, b: c_int) {
    t.send(a, b"ping", 0);
    t.until_bytes(b, 4);
    t.recv(b, 9, 0);
}

cases! {
    fn dup_shares(t) {
        let (c, s) = t.pair();
        let d = t.fd("dup", c!(dup(c)));
        works(t, d, s);
        works(t, s, d);
        t.close(c);
        works(t, d, s);
        t.levels(s);
        t.close(d);
        t.until(s, libc::POLLRDHUP);
        t.levels(s);
    }
    fn dup_shares_status(t) {
        let (c, _s) = t.pair();
        let d = t.fd("dup", c!(dup(c)));
        t.nb(d);
        t.status(c);
        t.recv(c, 1, 0);
        t.r("cloexec", c!(fcntl(d, F_SETFD, libc::FD_CLOEXEC)));
        t.status(c);
        t.status(d);
    }
    fn dup_of_new(t) {
        let (l, n) = (t.listener(2), t.tcp());
        let d = t.fd("dup", c!(dup(n)));
        t.connect(n, t.local(l));
        t.peer(d);
        let s = t.accept(l);
        works(t, d, s);
        t.close(n);
        works(t, s, d);
    }
    fn dup_of_new_set_before(t) {
        let (l, n) = (t.listener(2), t.tcp());
        let d = t.fd("dup", c!(dup(n)));
        t.set("nodelay", d, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        t.set("rcvbuf", d, libc::SOL_SOCKET, libc::SO_RCVBUF, 50_000);
        t.connect(n, t.local(l));
        t.get("nodelay", n, libc::IPPROTO_TCP, libc::TCP_NODELAY);
        t.get("rcvbuf", n, libc::SOL_SOCKET, libc::SO_RCVBUF);
    }
    fn dup_of_listener(t) {
        let l = t.listener(2);
        let d = t.fd("dup", c!(dup(l)));
        t.close(l);
        let c = t.client(d);
        let s = t.accept(d);
        works(t, c, s);
        t.close(d);
        t.connect(t.tcp(), t.local(s));
    }
    fn dup2_onto_socket(t) {
        let (c, s) = t.pair();
        let (e, f) = t.pair();
        t.say(format!("{}", c!(dup2(c, e)) == e as i64));
        t.until(f, libc::POLLRDHUP);
        works(t, e, s);
        t.recv(f, 1, 0);
    }
    fn dup2_onto_pipe(t) {
        let (c, s) = t.pair();
        let (r, w) = pipe();
        t.say(format!("{}", c!(dup2(c, w)) == w as i64));
        t.read(r, 4);
        works(t, w, s);
    }
    fn dup2_pipe_onto_socket(t) {
        let (c, s) = t.pair();
        let (r, w) = pipe();
        t.say(format!("{}", c!(dup2(w, c)) == c as i64));
        t.until(s, libc::POLLRDHUP);
        t.write(c, b"pipe");
        t.read(r, 9);
        t.send(c, b"x", 0);
    }
    fn dup2_same(t) {
        let (c, s) = t.pair();
        t.say(format!("{}", c!(dup2(c, c)) == c as i64));
        t.r("dup3", c!(dup3(c, c, 0)));
        works(t, c, s);
    }
    fn dup2_wrong(t) {
        let (c, s) = t.pair();
        t.r("old", c!(dup2(499, c)));
        t.r("new", c!(dup2(c, -1)));
        t.r("high", c!(dup2(c, 100_000_000)));
        t.r("flags", c!(dup3(c, 450, 1)));
        works(t, c, s);
    }
    fn dup2_to_standard(t) {
        let (c, s) = t.pair();
        t.r("dup2", c!(dup2(c, 0)));
        t.close(c);
        t.send(s, b"stdin", 0);
        t.until_bytes(0, 5);
        t.read(0, 9);
    }
    fn dup2_every_number(t) {
        let (c, s) = t.pair();
        let bad = (20..500).chain(501..1000).filter(|&n| c!(dup2(c, n)) != i64::from(n)).count();
        t.say(format!("refused={bad}"));
        works(t, 700, s);
        works(t, c, s);
    }
    fn dup3_cloexec(t) {
        let (c, s) = t.pair();
        t.r("dup3", c!(dup3(c, 450, libc::O_CLOEXEC)));
        t.status(450);
        works(t, 450, s);
    }
    fn dupfd(t) {
        let (c, s) = t.pair();
        t.r("dupfd", c!(fcntl(c, F_DUPFD, 400)));
        t.status(400);
        t.r("dupfd", c!(fcntl(c, F_DUPFD, 400)));
        t.r("cloexec", c!(fcntl(c, F_DUPFD_CLOEXEC, 410)));
        t.status(410);
        t.r("wrong", c!(fcntl(c, F_DUPFD, -1)));
        works(t, 401, s);
    }
    fn status_flags(t) {
        for fd in [t.tcp(), t.pair().0, t.pair().1, t.listener(1)] {
            t.status(fd);
            t.r("set", c!(fcntl(fd, F_SETFL, libc::O_NONBLOCK)));
            t.status(fd);
            t.r("append", c!(fcntl(fd, F_SETFL, libc::O_APPEND)));
            t.status(fd);
            t.r("clear", c!(fcntl(fd, F_SETFL, 0)));
            t.status(fd);
        }
    }
    fn fionbio(t) {
        for fd in [t.tcp(), t.pair().0, t.listener(1)] {
            let (on, off): (c_int, c_int) = (1, 0);
            t.r("on", c!(ioctl(fd, libc::FIONBIO, &raw const on)));
            t.status(fd);
            t.recv(fd, 1, 0);
            t.r("off", c!(ioctl(fd, libc::FIONBIO, &raw const off)));
            t.status(fd);
        }
    }
    fn fioclex(t) {
        let (c, _s) = t.pair();
        t.r("on", c!(ioctl(c, libc::FIOCLEX)));
        t.status(c);
        t.r("off", c!(ioctl(c, libc::FIONCLEX)));
        t.status(c);
    }
    fn other_ioctls(t) {
        let (c, _s) = t.pair();
        t.ioctl("atmark", c, 0x8905);
        t.ioctl("outq", c, libc::TIOCOUTQ);
        t.r("tcgets", c!(ioctl(c, libc::TCGETS, [0u8; 64].as_mut_ptr())));
        t.r("isatty", c!(isatty(c)));
        t.r("unknown", c!(ioctl(c, 0x1234_5678, 0)));
        t.r("winsize", c!(ioctl(c, libc::TIOCGWINSZ, [0u8; 64].as_mut_ptr())));
        t.ioctl("pgrp", c, 0x8904);
        let mut owner: c_int = -5;
        t.r("fiogetown", c!(ioctl(c, 0x8903, &raw mut owner)));
        t.say(format!("{owner}"));
    }
    fn owner(t) {
        for fd in [t.tcp(), t.pair().0, t.listener(1)] {
            t.r("getown", c!(fcntl(fd, libc::F_GETOWN)));
            t.r("setown", c!(fcntl(fd, libc::F_SETOWN, c!(getpid()) as c_int)));
            t.say(format!("{}", c!(fcntl(fd, libc::F_GETOWN)) == c!(getpid())));
            t.r("getsig", c!(fcntl(fd, 11)));
            t.r("setsig", c!(fcntl(fd, 10, libc::SIGUSR1)));
            t.r("getsig", c!(fcntl(fd, 11)));
        }
    }
    fn locks_and_leases(t) {
        let (c, _s) = t.pair();
        t.r("getlk", c!(fcntl(c, libc::F_GETLK, [0u8; 64].as_mut_ptr())));
        t.r("setlease", c!(fcntl(c, libc::F_SETLEASE, libc::F_RDLCK)));
        t.r("pipe_sz", c!(fcntl(c, libc::F_GETPIPE_SZ)));
        t.r("seals", c!(fcntl(c, libc::F_GET_SEALS)));
        t.r("unknown", c!(fcntl(c, 7777)));
        t.r("getfd", c!(fcntl(c, F_GETFD)));
        t.say(format!("{}", c!(fcntl(c, F_GETFL)) as c_int & libc::O_ACCMODE));
    }
    fn sigio(t) {
        let (c, s) = t.pair();
        crate::sys::on_signal(libc::SIGIO, libc::SA_RESTART);
        t.r("setown", c!(fcntl(c, libc::F_SETOWN, c!(getpid()) as c_int)));
        t.r("async", c!(fcntl(c, F_SETFL, libc::O_ASYNC)));
        t.status(c);
        t.send(s, b"x", 0);
        let mut got = 0;
        t.until_true("sigio", || { got += crate::sys::signals(); got > 0 });
    }
    fn close_range_all(t) {
        let (c, s) = t.pair();
        let d = c!(dup2(c, 60)) as c_int;
        t.r("range", c!(close_range(50, 70, 0)));
        t.send(d, b"x", 0);
        works(t, c, s);
        t.r("range", c!(close_range(c as u32, c as u32, 0)));
        t.until(s, libc::POLLRDHUP);
        t.recv(s, 1, 0);
    }
    fn close_range_wrong(t) {
        t.r("backwards", c!(close_range(9, 3, 0)));
        t.r("flags", c!(close_range(400, 410, 64)));
    }
    fn close_range_cloexec(t) {
        let (c, s) = t.pair();
        t.r("cloexec", c!(close_range(c as u32, c as u32, 4)));
        t.status(c);
        works(t, c, s);
    }
    fn closefrom(t) {
        let (c, s) = t.pair();
        c!(dup2(c, 600));
        c!(dup2(s, 601));
        crate::sys::close_from(600);
        t.send(600, b"x", 0);
        t.recv(601, 1, 0);
        works(t, c, s);
    }
    fn no_descriptors_left(t) {
        let l = t.listener(4);
        let c = t.client(l);
        t.until(l, libc::POLLIN);
        let limit = libc::rlimit { rlim_cur: c as u64 + 1, rlim_max: 1024 };
        c!(setrlimit(libc::RLIMIT_NOFILE, &raw const limit));
        t.fd("socket", c!(socket(t.domain(), libc::SOCK_STREAM, 0)));
        t.fd("accept", c!(accept(l, std::ptr::null_mut(), std::ptr::null_mut())));
        t.r("dup", c!(dup(c)));
        t.levels(l);
        t.send(c, b"x", 0);
        t.close(c);
        t.fd("accept", c!(accept(l, std::ptr::null_mut(), std::ptr::null_mut())));
    }
    fn isfdtype(t) {
        let (c, _s) = t.pair();
        let mut st: libc::stat = crate::sys::zeroed();
        c!(fstat(c, &raw mut st));
        t.say(format!("{}", st.st_mode & libc::S_IFMT == libc::S_IFSOCK));
        t.r("fchmod", c!(fchmod(c, 0o600)));
        t.r("fchdir", c!(fchdir(c)));
        t.r("openat", c!(openat(c, c"x".as_ptr(), libc::O_RDONLY)));
        t.r("open-proc", c!(open(format!("/proc/self/fd/{c}\0").as_ptr().cast(), libc::O_RDONLY)));
        t.r("execveat", c!(fexecve(c, null(), null())));
    }
}
