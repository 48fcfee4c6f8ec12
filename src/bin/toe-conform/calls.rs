//! The calls of a case, each of which writes its outcome down.

use crate::sys::{Addr, bytes_of, set_bit, zeroed};
use crate::trace::{T, mask, text};
use libc::{c_int, iovec, msghdr};

/// An iovec over bytes that are only read.
pub fn iov(bytes: &[u8]) -> iovec {
    iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// An iovec over bytes to be filled.
pub fn iov_mut(bytes: &mut [u8]) -> iovec {
    iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// A message header over buffers.
pub fn msg(iovs: &mut [iovec]) -> msghdr {
    let mut m: msghdr = zeroed();
    m.msg_iov = iovs.as_mut_ptr();
    m.msg_iovlen = iovs.len();
    m
}

impl T {
    /// send.
    pub fn send(&self, fd: c_int, bytes: &[u8], flags: c_int) -> i64 {
        self.r("send", c!(send(fd, bytes.as_ptr().cast(), bytes.len(), flags)))
    }

    /// recv of up to `n` bytes, with what came.
    pub fn recv(&self, fd: c_int, n: usize, flags: c_int) -> i64 {
        let mut buf = vec![0xEEu8; n];
        let got = c!(recv(fd, buf.as_mut_ptr().cast(), n, flags));
        self.got("recv", got, &buf)
    }

    /// An outcome with the bytes that came.
    pub fn got(&self, name: &str, got: i64, buf: &[u8]) -> i64 {
        self.r(name, got);
        if got > 0 {
            self.say(text(&buf[..(got as usize).min(buf.len())]));
        }
        got
    }

    /// write.
    pub fn write(&self, fd: c_int, bytes: &[u8]) -> i64 {
        self.r("write", c!(write(fd, bytes.as_ptr().cast(), bytes.len())))
    }

    /// read of up to `n` bytes.
    pub fn read(&self, fd: c_int, n: usize) -> i64 {
        let mut buf = vec![0xEEu8; n];
        let got = c!(read(fd, buf.as_mut_ptr().cast(), n));
        self.got("read", got, &buf)
    }

    /// recvmsg with room for an address and control data.
    pub fn recvmsg(&self, fd: c_int, n: usize, flags: c_int) -> i64 {
        let (mut buf, mut name, mut control) = (vec![0xEEu8; n], [0u8; 28], [0u8; 256]);
        let mut iovs = [iov_mut(&mut buf)];
        let mut m = msg(&mut iovs);
        (m.msg_name, m.msg_namelen) = (name.as_mut_ptr().cast(), 28);
        (m.msg_control, m.msg_controllen) = (control.as_mut_ptr().cast(), 256);
        m.msg_flags = 0x55;
        let got = c!(recvmsg(fd, &raw mut m, flags));
        self.got("recvmsg", got, &buf);
        self.say(format!("name={} control={} flags={:#x}", m.msg_namelen, m.msg_controllen, m.msg_flags));
        got
    }

    /// Reads until `n` bytes or the end came; says whether they are [`pattern`](crate::trace::pattern)'s.
    pub fn drain(&self, fd: c_int, n: usize) {
        let (mut buf, mut have) = (vec![0u8; n], 0);
        while have < n {
            match c!(recv(fd, buf[have..].as_mut_ptr().cast(), n - have, 0)) {
                got if got > 0 => have += got as usize,
                got => {
                    self.r("drain", got);
                    break;
                }
            }
        }
        self.say(format!("drained={have} same={}", buf[..have] == crate::trace::pattern(have)));
    }

    /// poll without waiting.
    pub fn poll(&self, fd: c_int, events: i16) {
        let mut p = libc::pollfd { fd, events, revents: 0 };
        let n = c!(poll(&raw mut p, 1, 0));
        if n < 0 {
            self.r("poll", n);
        } else {
            self.say(format!("poll={n}:{}", mask(p.revents as u16 as u32)));
        }
    }

    /// poll for all there is.
    pub fn levels(&self, fd: c_int) {
        self.poll(fd, 0x1 | 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x2000);
    }

    /// select for reading, writing and exceptions, without waiting.
    pub fn select(&self, fd: c_int) {
        let mut sets: [libc::fd_set; 3] = [zeroed(); 3];
        sets.iter_mut().for_each(|s| set_bit(s, fd));
        let mut tv = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let [r, w, e] = &mut sets;
        let n = c!(select(fd + 1, &raw mut *r, &raw mut *w, &raw mut *e, &raw mut tv));
        if n < 0 {
            self.r("select", n);
            return;
        }
        let on = |s: &libc::fd_set, c: &'static str| if bit(s, fd) { c } else { "-" };
        self.say(format!("select={n}:{}{}{}", on(r, "r"), on(w, "w"), on(e, "e")));
    }

    /// A fresh epoll set with this one descriptor, without waiting.
    pub fn epoll(&self, fd: c_int, events: u32) {
        let ep = c!(epoll_create1(libc::EPOLL_CLOEXEC)) as c_int;
        let mut ev = libc::epoll_event { events, u64: 7 };
        let added = c!(epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, &raw mut ev));
        if added < 0 {
            self.r("epoll_add", added);
        } else {
            let n = c!(epoll_wait(ep, &raw mut ev, 1, 0));
            let events = ev.events;
            self.say(format!("epoll={n}:{}", mask(if n > 0 { events } else { 0 })));
        }
        c!(close(ep));
    }

    /// SO_ERROR, which it takes.
    pub fn so_error(&self, fd: c_int) {
        let (mut e, mut len): (c_int, u32) = (0, 4);
        let r = c!(getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut e).cast(), &raw mut len));
        if r < 0 {
            self.r("so_error", r);
        } else {
            self.say(format!("so_error={}", if e == 0 { "0".into() } else { crate::trace::error_name(e) }));
        }
    }

    /// An integer option, with the length that came back.
    pub fn get(&self, name: &str, fd: c_int, level: c_int, option: c_int) -> Option<c_int> {
        let (mut v, mut len): (c_int, u32) = (-77, 4);
        let r = c!(getsockopt(fd, level, option, (&raw mut v).cast(), &raw mut len));
        if r < 0 {
            self.r(name, r);
            return None;
        }
        self.say(format!("{name}={v}/{len}"));
        Some(v)
    }

    /// Sets an integer option.
    pub fn set(&self, name: &str, fd: c_int, level: c_int, option: c_int, value: c_int) -> i64 {
        self.r(&format!("set-{name}"), c!(setsockopt(fd, level, option, (&raw const value).cast(), 4)))
    }

    /// Sets any option.
    pub fn set_bytes<V>(&self, name: &str, fd: c_int, level: c_int, option: c_int, value: &V) -> i64 {
        let b = bytes_of(value);
        self.r(&format!("set-{name}"), c!(setsockopt(fd, level, option, b.as_ptr().cast(), b.len() as u32)))
    }

    /// connect.
    pub fn connect(&self, fd: c_int, a: Addr) -> i64 {
        self.r("connect", c!(connect(fd, a.ptr(), a.len)))
    }

    /// bind.
    pub fn bind(&self, fd: c_int, a: Addr) -> i64 {
        self.r("bind", c!(bind(fd, a.ptr(), a.len)))
    }

    /// listen.
    pub fn listen(&self, fd: c_int, backlog: c_int) -> i64 {
        self.r("listen", c!(listen(fd, backlog)))
    }

    /// accept, with the peer's address.
    pub fn accept(&self, fd: c_int) -> c_int {
        let mut a = Addr { raw: [0; 28], len: 28 };
        let new = self.fd("accept", c!(accept(fd, a.ptr_mut(), &raw mut a.len)));
        if new >= 0 {
            self.say(self.show(&a));
        }
        new
    }

    /// shutdown.
    pub fn shutdown(&self, fd: c_int, how: c_int) -> i64 {
        self.r("shutdown", c!(shutdown(fd, how)))
    }

    /// close.
    pub fn close(&self, fd: c_int) -> i64 {
        self.r("close", c!(close(fd)))
    }

    /// getsockname.
    pub fn name(&self, fd: c_int) -> Addr {
        let mut a = Addr { raw: [0; 28], len: 28 };
        match c!(getsockname(fd, a.ptr_mut(), &raw mut a.len)) {
            0 => self.say(format!("name={}", self.show(&a))),
            e => {
                self.r("name", e);
            }
        }
        a
    }

    /// getpeername.
    pub fn peer(&self, fd: c_int) -> Addr {
        let mut a = Addr { raw: [0; 28], len: 28 };
        match c!(getpeername(fd, a.ptr_mut(), &raw mut a.len)) {
            0 => self.say(format!("peer={}", self.show(&a))),
            e => {
                self.r("peer", e);
            }
        }
        a
    }

    /// An ioctl that gives an int.
    pub fn ioctl(&self, name: &str, fd: c_int, request: u64) -> c_int {
        let mut v: c_int = -77;
        let r = c!(ioctl(fd, request, &raw mut v));
        if r < 0 {
            self.r(name, r);
        } else {
            self.say(format!("{name}={v}"));
        }
        v
    }

    /// The status flags that a program cares for.
    pub fn status(&self, fd: c_int) {
        let fl = c!(fcntl(fd, libc::F_GETFL)) as c_int;
        let fd_flags = c!(fcntl(fd, libc::F_GETFD));
        let names = [(libc::O_NONBLOCK, "NONBLOCK"), (libc::O_APPEND, "APPEND"), (libc::O_ASYNC, "ASYNC")];
        let on: Vec<&str> = names.iter().filter(|(b, _)| fl & b != 0).map(|(_, n)| *n).collect();
        self.say(format!("mode={} fl=[{}] fd={fd_flags}", fl & libc::O_ACCMODE, on.join(",")));
    }

    /// What is left to see of a socket after a case.
    pub fn after(&self, fd: c_int) {
        self.levels(fd);
        self.so_error(fd);
        self.poll(fd, libc::POLLIN | libc::POLLOUT);
    }
}

/// Is `fd` in the set?
pub fn bit(set: &libc::fd_set, fd: c_int) -> bool {
    let words = bytes_of(set);
    words[fd as usize / 8] & (1 << (fd % 8)) != 0
}
