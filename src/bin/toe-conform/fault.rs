//! Addresses that are none: EFAULT where the kernel says so, and nothing lost.

use crate::calls::{iov_mut, msg};
use crate::cases;
use crate::sys::{Addr, border, forbidden_page};
use crate::trace::T;
use libc::{IPPROTO_TCP, SOL_SOCKET, c_int, c_void, iovec};
use std::ptr::null_mut;

fn five(t: &T) -> (c_int, c_int) {
    let (c, s) = t.pair();
    c!(send(s, b"hello".as_ptr().cast(), 5, 0));
    t.until_bytes(c, 5);
    (c, s)
}

/// Two kinds of bad address.
fn bad() -> [*mut c_void; 3] {
    [null_mut(), forbidden_page(), usize::MAX as *mut c_void]
}

cases! {
    fn recv_buffer(t) {
        let (c, _s) = five(t);
        for p in bad() {
            t.r("recv", c!(recv(c, p, 5, 0)));
            t.r("read", c!(read(c, p, 5)));
            t.r("peek", c!(recv(c, p, 5, libc::MSG_PEEK)));
        }
        t.recv(c, 9, 0);
    }
    fn recv_buffer_nothing_there(t) {
        let (c, _s) = t.pair();
        t.nb(c);
        for p in bad() {
            t.r("recv", c!(recv(c, p, 5, 0)));
            t.r("nothing", c!(recv(c, p, 0, 0)));
        }
    }
    fn recv_half_buffer(t) {
        let (c, _s) = five(t);
        t.r("recv", c!(recv(c, border(3).cast(), 5, 0)));
        t.recv(c, 9, libc::MSG_DONTWAIT);
    }
    fn send_buffer(t) {
        let (c, s) = t.pair();
        for p in bad() {
            t.r("send", c!(send(c, p, 5, 0)));
            t.r("write", c!(write(c, p, 5)));
            t.r("nothing", c!(send(c, p, 0, 0)));
        }
        t.nb(s);
        t.recv(s, 9, 0);
    }
    fn send_half_buffer(t) {
        let (c, s) = t.pair();
        let p = border(3);
        t.r("send", c!(send(c, p.cast(), 5, 0)));
        t.nb(s);
        t.levels(s);
    }
    fn send_large_half_buffer(t) {
        let (c, _s) = t.pair();
        t.nb(c);
        t.r("send", c!(send(c, border(100).cast(), 100_000, 0)));
        t.send(c, b"ok", 0);
    }
    fn vectors(t) {
        let (c, _s) = five(t);
        for p in bad() {
            t.r("readv", c!(readv(c, p.cast(), 1)));
            t.r("writev", c!(writev(c, p.cast(), 1)));
            let v = [iovec { iov_base: p, iov_len: 4 }];
            t.r("readv", c!(readv(c, v.as_ptr(), 1)));
            t.r("writev", c!(writev(c, v.as_ptr(), 1)));
            let mut good = [0u8; 2];
            let v = [iov_mut(&mut good), iovec { iov_base: p, iov_len: 4 }];
            t.r("half", c!(readv(c, v.as_ptr(), 2)));
            t.r("zero", c!(readv(c, [iovec { iov_base: p, iov_len: 0 }].as_ptr(), 1)));
        }
    }
    fn headers(t) {
        let (c, _s) = five(t);
        for p in bad() {
            t.r("sendmsg", c!(sendmsg(c, p.cast(), 0)));
            t.r("recvmsg", c!(recvmsg(c, p.cast(), 0)));
            t.r("sendmmsg", c!(sendmmsg(c, p.cast(), 1, 0)));
            let mut m = msg(&mut []);
            (m.msg_iov, m.msg_iovlen) = (p.cast(), 1);
            t.r("iov", c!(sendmsg(c, &raw const m, 0)));
            t.r("iov", c!(recvmsg(c, &raw mut m, 0)));
        }
        t.recv(c, 9, 0);
    }
    fn header_fields(t) {
        let (c, _s) = five(t);
        let mut buf = [0u8; 2];
        let mut v = [iov_mut(&mut buf)];
        let mut m = msg(&mut v);
        (m.msg_name, m.msg_namelen) = (forbidden_page(), 16);
        t.r("name", c!(recvmsg(c, &raw mut m, 0)));
        let mut m = msg(&mut v);
        (m.msg_control, m.msg_controllen) = (forbidden_page(), 64);
        t.r("control", c!(recvmsg(c, &raw mut m, 0)));
        t.r("control", c!(sendmsg(c, &raw const m, 0)));
    }
    fn addresses(t) {
        for p in bad() {
            let n = t.tcp();
            t.r("bind", c!(bind(n, p.cast(), 16)));
            t.r("connect", c!(connect(n, p.cast(), 16)));
            t.r("bind0", c!(bind(n, p.cast(), 0)));
            t.r("connect0", c!(connect(n, p.cast(), 0)));
        }
    }
    fn addresses_when_bound(t) {
        let n = t.tcp();
        t.bind(n, t.addr(0));
        for p in bad() {
            t.r("bind", c!(bind(n, p.cast(), 16)));
            t.r("connect", c!(connect(n, p.cast(), 16)));
        }
    }
    fn addresses_when_connected(t) {
        let (c, _s) = t.pair();
        for p in bad() {
            t.r("connect", c!(connect(c, p.cast(), 16)));
            t.r("bind", c!(bind(c, p.cast(), 16)));
            t.r("sendto", c!(sendto(c, b"x".as_ptr().cast(), 1, 0, p.cast(), 16)));
        }
    }
    fn names(t) {
        let (c, _s) = t.pair();
        for p in bad() {
            let mut len = 28u32;
            t.r("name", c!(getsockname(c, p.cast(), &raw mut len)));
            t.r("peer", c!(getpeername(c, p.cast(), &raw mut len)));
            t.r("name-len", c!(getsockname(c, [0u8; 28].as_mut_ptr().cast(), p.cast())));
            t.r("peer-len", c!(getpeername(c, [0u8; 28].as_mut_ptr().cast(), p.cast())));
        }
    }
    fn names_of_bound(t) {
        let n = t.tcp();
        t.bind(n, t.addr(0));
        let mut len = 28u32;
        t.r("name", c!(getsockname(n, forbidden_page().cast(), &raw mut len)));
        t.r("peer", c!(getpeername(n, forbidden_page().cast(), &raw mut len)));
    }
    fn accept_address(t) {
        let l = t.listener(8);
        for p in bad() {
            t.client(l);
            t.until(l, libc::POLLIN);
            let mut len = 28u32;
            t.fd("accept", c!(accept(l, p.cast(), &raw mut len)));
            t.levels(l);
            t.client(l);
            t.until(l, libc::POLLIN);
            let mut a = Addr { raw: [0; 28], len: 28 };
            t.fd("len", c!(accept(l, a.ptr_mut(), p.cast())));
            t.nb(l);
            t.levels(l);
        }
    }
    fn options(t) {
        for fd in [t.tcp(), t.pair().0, t.listener(1)] {
            for p in bad() {
                let mut len = 4u32;
                t.r("set", c!(setsockopt(fd, SOL_SOCKET, libc::SO_REUSEADDR, p, 4)));
                t.r("set", c!(setsockopt(fd, IPPROTO_TCP, libc::TCP_NODELAY, p, 4)));
                t.r("set", c!(setsockopt(fd, IPPROTO_TCP, libc::TCP_CONGESTION, p, 4)));
                t.r("get", c!(getsockopt(fd, SOL_SOCKET, libc::SO_TYPE, p, &raw mut len)));
                t.r("get", c!(getsockopt(fd, IPPROTO_TCP, libc::TCP_NODELAY, p, &raw mut len)));
                t.r("get", c!(getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, p, &raw mut len)));
                t.r("len", c!(getsockopt(fd, SOL_SOCKET, libc::SO_TYPE, [0u8; 4].as_mut_ptr().cast(), p.cast())));
                t.r("len", c!(getsockopt(fd, IPPROTO_TCP, libc::TCP_NODELAY, [0u8; 4].as_mut_ptr().cast(), p.cast())));
            }
        }
    }
    fn ioctls(t) {
        for fd in [t.tcp(), t.pair().0] {
            for p in bad() {
                t.r("fionread", c!(ioctl(fd, libc::FIONREAD, p)));
                t.r("fionbio", c!(ioctl(fd, libc::FIONBIO, p)));
                t.r("outq", c!(ioctl(fd, libc::TIOCOUTQ, p)));
                t.r("atmark", c!(ioctl(fd, 0x8905, p)));
            }
        }
    }
    fn recvfrom_address(t) {
        let (c, _s) = five(t);
        let mut b = [0u8; 1];
        let mut len = 28u32;
        for p in bad() {
            t.r("address", c!(recvfrom(c, b.as_mut_ptr().cast(), 1, 0, p.cast(), &raw mut len)));
        }
        t.r("len", c!(recvfrom(c, b.as_mut_ptr().cast(), 1, 0, [0u8; 28].as_mut_ptr().cast(), forbidden_page().cast())));
    }
    fn poll_array(t) {
        for p in bad() {
            t.r("poll", c!(poll(p.cast(), 1, 0)));
        }
        let (c, _s) = t.pair();
        let mut tv = libc::timeval { tv_sec: 0, tv_usec: 0 };
        t.r("select", c!(select(c + 1, forbidden_page().cast(), null_mut(), null_mut(), &raw mut tv)));
    }
    fn epoll_events(t) {
        let (c, _s) = t.pair();
        let ep = c!(epoll_create1(0)) as c_int;
        for p in bad() {
            t.r("add", c!(epoll_ctl(ep, libc::EPOLL_CTL_ADD, c, p.cast())));
        }
        let mut ev = libc::epoll_event { events: 4, u64: 1 };
        t.r("add", c!(epoll_ctl(ep, libc::EPOLL_CTL_ADD, c, &raw mut ev)));
        for p in bad() {
            t.r("wait", c!(epoll_wait(ep, p.cast(), 1, 0)));
        }
    }
    fn sendfile_offset(t) {
        let (c, _s) = t.pair();
        let f = c!(memfd_create(c"f".as_ptr(), 0)) as c_int;
        c!(write(f, b"0123456789".as_ptr().cast(), 10));
        t.r("sendfile", c!(sendfile(c, f, forbidden_page().cast(), 4)));
    }
}
