//! socket, bind, listen, accept, connect, close.

use crate::cases;
use crate::sys::Addr;
use crate::trace::T;
use libc::{SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET, c_int};
use std::ptr::null_mut;

cases! {
    fn socket_flags(t) {
        let fd = t.fd("socket", c!(socket(t.domain(), libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0)));
        t.status(fd);
        let fd = t.fd("socket", c!(socket(t.domain(), libc::SOCK_STREAM, libc::IPPROTO_TCP)));
        t.status(fd);
    }
    fn socket_wrong(t) {
        t.fd("protocol", c!(socket(t.domain(), libc::SOCK_STREAM, libc::IPPROTO_UDP)));
        t.fd("protocol", c!(socket(t.domain(), libc::SOCK_STREAM, 9999)));
        t.fd("type", c!(socket(t.domain(), 77, 0)));
        t.fd("flags", c!(socket(t.domain(), libc::SOCK_STREAM | 0x10000, 0)));
        t.fd("domain", c!(socket(9999, libc::SOCK_STREAM, 0)));
    }
    fn socket_others_pass(t) {
        let u = t.fd("udp", c!(socket(t.domain(), libc::SOCK_DGRAM, 0)));
        t.bind(u, t.any(0));
        t.name(u);
        let mut pair = [0; 2];
        t.r("socketpair", c!(socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr())));
        t.send(pair[0], b"hello", 0);
        t.recv(pair[1], 9, 0);
        t.r("tcp-pair", c!(socketpair(t.domain(), libc::SOCK_STREAM, 0, pair.as_mut_ptr())));
    }
    fn lowest_number(t) {
        let first = t.tcp();
        let (a, b) = (t.tcp(), t.tcp());
        t.say(format!("{} {}", a - first, b - first));
        c!(close(a));
        t.say(format!("{}", t.tcp() - first));
        let (c, s) = t.pair();
        t.say(format!("{} {}", c - first, s - first));
        t.close(first);
        t.say(format!("{}", t.listener(4) - first));
    }
    fn bind_port_zero(t) {
        let fd = t.tcp();
        t.bind(fd, t.addr(0));
        t.name(fd);
        t.bind(fd, t.addr(0));
        t.peer(fd);
    }
    fn bind_foreign(t) {
        let fd = t.tcp();
        let a = Addr::new(if t.ip.is_ipv4() { [192, 0, 2, 1].into() } else { "2001:db8::1".parse().expect("an address") }, 0);
        t.bind(fd, a);
        t.bind(fd, t.addr(0));
    }
    fn bind_lengths(t) {
        let fd = t.tcp();
        let a = t.addr(0);
        t.bind(fd, Addr { len: a.len - 1, ..a });
        t.bind(fd, Addr { len: 0, ..a });
        t.bind(fd, Addr { len: 2, ..a });
        t.r("huge", c!(bind(fd, a.ptr(), 1000)));
        t.r("negative", c!(bind(fd, a.ptr(), u32::MAX)));
        t.bind(fd, a);
    }
    fn bind_wrong_family(t) {
        let fd = t.tcp();
        let mut a = t.addr(0);
        a.raw[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        t.bind(fd, a);
        a.raw[..2].copy_from_slice(&77u16.to_ne_bytes());
        t.bind(fd, a);
        a.raw[..2].copy_from_slice(&0u16.to_ne_bytes());
        t.bind(fd, a);
    }
    fn bind_unspec_any(t) {
        let fd = t.tcp();
        let mut a = t.any(0);
        a.raw[..2].copy_from_slice(&0u16.to_ne_bytes());
        t.bind(fd, a);
        t.name(fd);
    }
    fn bind_taken(t) {
        let (a, b) = (t.tcp(), t.tcp());
        t.bind(a, t.addr(0));
        t.bind(b, t.local(a));
        t.listen(a, 1);
        t.bind(b, t.local(a));
        t.listen(b, 1);
    }
    fn bind_reuse_addr(t) {
        let (a, b) = (t.tcp(), t.tcp());
        t.set("reuse", a, SOL_SOCKET, SO_REUSEADDR, 1);
        t.set("reuse", b, SOL_SOCKET, SO_REUSEADDR, 1);
        t.bind(a, t.addr(0));
        t.bind(b, t.local(a));
        t.listen(a, 1);
        t.listen(b, 1);
        let c = t.tcp();
        t.set("reuse", c, SOL_SOCKET, SO_REUSEADDR, 1);
        t.bind(c, t.local(a));
    }
    fn bind_reuse_port(t) {
        let (a, b, c) = (t.tcp(), t.tcp(), t.tcp());
        t.set("reuse", a, SOL_SOCKET, SO_REUSEPORT, 1);
        t.set("reuse", b, SOL_SOCKET, SO_REUSEPORT, 1);
        t.bind(a, t.addr(0));
        t.listen(a, 1);
        t.bind(b, t.local(a));
        t.listen(b, 1);
        t.bind(c, t.local(a));
    }
    fn bind_after_close(t) {
        let l = t.listener(4);
        let a = t.local(l);
        t.close(l);
        let l = t.tcp();
        t.bind(l, a);
        t.listen(l, 4);
    }
    fn bind_after_service(t) {
        let l = t.listener(4);
        let a = t.local(l);
        let c = t.client(l);
        let s = t.accept(l);
        t.close(s);
        t.close(l);
        t.until(c, libc::POLLRDHUP);
        let n = t.tcp();
        t.bind(n, a);
        t.set("reuse", n, SOL_SOCKET, SO_REUSEADDR, 1);
        t.bind(n, a);
        t.listen(n, 4);
    }
    fn bind_then_connect(t) {
        let l = t.listener(4);
        let c = t.tcp();
        t.bind(c, t.addr(0));
        let port = t.local(c).port();
        t.connect(c, t.local(l));
        t.say(format!("kept={}", t.local(c).port() == port));
        let s = t.accept(l);
        t.say(format!("seen={}", t.peer(s).port() == port));
    }
    fn two_clients_of_one_port(t) {
        let (l, m) = (t.listener(4), t.listener(4));
        let (a, b) = (t.tcp(), t.tcp());
        t.set("reuse", a, SOL_SOCKET, SO_REUSEADDR, 1);
        t.set("reuse", b, SOL_SOCKET, SO_REUSEADDR, 1);
        t.bind(a, t.addr(0));
        t.bind(b, t.local(a));
        t.connect(a, t.local(l));
        t.connect(b, t.local(m));
        let c = t.tcp();
        t.set("reuse", c, SOL_SOCKET, SO_REUSEADDR, 1);
        t.bind(c, t.local(a));
        t.connect(c, t.local(l));
    }
    fn listen_unbound(t) {
        let l = t.tcp();
        t.listen(l, 4);
        t.name(l);
        let c = t.tcp();
        t.connect(c, t.addr(t.local(l).port()));
        let s = t.accept(l);
        t.send(c, b"hello", 0);
        t.until_bytes(s, 5);
        t.recv(s, 9, 0);
        t.name(s);
        t.name(l);
    }
    fn listen_wildcard(t) {
        let l = t.tcp();
        t.bind(l, t.any(0));
        t.name(l);
        t.listen(l, 4);
        let c = t.tcp();
        t.connect(c, t.addr(t.local(l).port()));
        t.until(l, libc::POLLIN);
        t.levels(l);
        let s = t.accept(l);
        t.name(s);
        t.peer(s);
        t.levels(s);
        t.close(l);
        t.connect(t.tcp(), t.addr(t.local(s).port()));
    }
    fn listen_backlogs(t) {
        for backlog in [0, -1, i32::MAX] {
            let l = t.tcp();
            t.bind(l, t.addr(0));
            t.listen(l, backlog);
            t.connect(t.tcp(), t.local(l));
            t.accept(l);
        }
    }
    fn listen_again(t) {
        let l = t.listener(1);
        t.listen(l, 8);
        let all: Vec<c_int> = (0..5).map(|_| t.client(l)).collect();
        t.say(format!("{}", all.len()));
        (0..5).for_each(|_| { t.accept(l); });
        t.nb(l);
        t.accept(l);
    }
    fn listen_close_refuses(t) {
        let l = t.listener(4);
        let a = t.local(l);
        t.close(l);
        t.connect(t.tcp(), a);
    }
    fn listen_close_resets_waiting(t) {
        let l = t.listener(4);
        let c = t.client(l);
        t.close(l);
        t.until(c, libc::POLLHUP);
        t.after(c);
        t.recv(c, 5, 0);
    }
    fn accept_order(t) {
        let l = t.listener(8);
        for n in 0..4u8 {
            let c = t.client(l);
            c!(send(c, [b'0' + n].as_ptr().cast(), 1, 0));
        }
        for _ in 0..4 {
            let s = t.accept(l);
            t.recv(s, 1, 0);
        }
    }
    fn accept4_flags(t) {
        let l = t.listener(8);
        for flags in [0, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 1] {
            t.client(l);
            let s = t.fd("accept4", c!(accept4(l, null_mut(), null_mut(), flags)));
            if s >= 0 {
                t.status(s);
            }
        }
    }
    fn accept_does_not_inherit_nonblock(t) {
        let l = t.nb(t.listener(8));
        t.client(l);
        t.until(l, libc::POLLIN);
        let s = t.accept(l);
        t.status(s);
        t.accept(l);
    }
    fn accept_lengths(t) {
        let l = t.listener(8);
        for n in [0u32, 2, 7, 100] {
            t.client(l);
            let (mut a, mut len) = ([0xAAu8; 128], n);
            t.fd("accept", c!(accept(l, a.as_mut_ptr().cast(), &raw mut len)));
            t.say(format!("len={len} touched={}", a.iter().filter(|&&b| b != 0xAA).count() > n as usize));
        }
        t.client(l);
        let mut len = u32::MAX;
        t.fd("negative", c!(accept(l, [0u8; 128].as_mut_ptr().cast(), &raw mut len)));
        t.nb(l);
        t.accept(l);
    }
    fn accept_null(t) {
        let l = t.listener(8);
        t.client(l);
        t.fd("accept", c!(accept(l, null_mut(), null_mut())));
        t.client(l);
        let mut len = 28;
        t.fd("accept", c!(accept(l, null_mut(), &raw mut len)));
        t.say(format!("len={len}"));
    }
    fn accept_gone_client(t) {
        let l = t.listener(8);
        let c = t.client(l);
        c!(send(c, b"bye".as_ptr().cast(), 3, 0));
        t.close(c);
        let s = t.accept(l);
        t.until(s, libc::POLLRDHUP);
        t.recv(s, 9, 0);
        t.recv(s, 9, 0);
        t.send(s, b"x", 0);
    }
    fn connect_refused(t) {
        let c = t.tcp();
        t.connect(c, t.dead_port());
        t.after(c);
        t.name(c);
        t.connect(c, t.dead_port());
        t.send(c, b"x", 0);
        t.recv(c, 1, 0);
    }
    fn connect_refused_then_well(t) {
        let (l, c) = (t.listener(4), t.tcp());
        t.connect(c, t.dead_port());
        t.connect(c, t.local(l));
        t.peer(c);
        t.send(c, b"x", 0);
    }
    fn connect_nonblocking(t) {
        let (l, c) = (t.listener(4), t.tcp_nb());
        t.connect(c, t.local(l));
        t.until(c, libc::POLLOUT);
        t.so_error(c);
        t.levels(c);
        t.peer(c);
        t.connect(c, t.local(l));
        t.connect(c, t.local(l));
    }
    fn connect_nonblocking_refused(t) {
        let c = t.tcp_nb();
        t.connect(c, t.dead_port());
        t.until(c, libc::POLLHUP);
        t.levels(c);
        t.so_error(c);
        t.levels(c);
        t.so_error(c);
        t.connect(c, t.dead_port());
        t.until(c, libc::POLLHUP);
        t.connect(c, t.dead_port());
    }
    fn connect_wrong_family(t) {
        let c = t.tcp();
        let mut a = t.addr(9);
        a.raw[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        t.connect(c, a);
        a.raw[..2].copy_from_slice(&77u16.to_ne_bytes());
        t.connect(c, a);
        let other = Addr::new(if t.ip.is_ipv4() { "::1".parse().expect("an address") } else { [127, 0, 0, 1].into() }, 9);
        t.connect(c, other);
    }
    fn connect_port_zero(t) {
        t.connect(t.tcp(), t.addr(0));
    }
    fn connect_self(t) {
        let c = t.tcp();
        t.bind(c, t.addr(0));
        t.connect(c, t.local(c));
        t.send(c, b"echo", 0);
        t.until_bytes(c, 4);
        t.recv(c, 9, 0);
        t.say(format!("{}", t.local(c).port() == t.peer(c).port()));
    }
    fn connect_wildcard_target(t) {
        let l = t.tcp();
        t.bind(l, t.any(0));
        t.listen(l, 4);
        let c = t.tcp();
        t.connect(c, t.any(t.local(l).port()));
        t.fd("accept", c!(accept(l, null_mut(), null_mut())));
    }
    fn connect_broadcast(t) {
        if t.ip.is_ipv4() {
            t.connect(t.tcp(), Addr::new([255, 255, 255, 255].into(), 9));
            t.connect(t.tcp(), Addr::new([224, 0, 0, 1].into(), 9));
        }
    }
    fn connect_other_loopback(t) {
        t.connect(t.tcp(), Addr::new([127, 0, 0, 1].into(), 1));
    }
    fn close_twice(t) {
        let (c, s) = t.pair();
        t.close(c);
        t.close(c);
        t.until(s, libc::POLLRDHUP);
        t.recv(s, 1, 0);
        t.send(c, b"x", 0);
        t.recv(c, 1, 0);
        t.levels(c);
    }
    fn closed_descriptor(t) {
        let fd = t.tcp();
        t.close(fd);
        socket_calls(t, fd);
        t.set("reuse", fd, SOL_SOCKET, SO_REUSEADDR, 1);
        t.ioctl("fionread", fd, libc::FIONREAD);
        t.r("fcntl", c!(fcntl(fd, libc::F_GETFL)));
        t.r("dup", c!(dup(fd)));
        t.recvmsg(fd, 4, 0);
        t.select(fd);
        t.epoll(fd, 1);
    }
    fn not_a_socket(t) {
        let (fd, _) = crate::sys::pipe();
        socket_calls(t, fd);
        t.send(fd, b"x", 0);
        t.recvmsg(fd, 4, 0);
    }
    fn number_reused(t) {
        let (c, s) = t.pair();
        t.close(c);
        let (r, w) = crate::sys::pipe();
        t.say(format!("same={}", r == c));
        t.write(w, b"pipe");
        t.read(r, 9);
        t.recv(r, 9, 0);
        t.until(s, libc::POLLRDHUP);
    }
    fn simultaneous_many(t) {
        let l = t.listener(64);
        let clients: Vec<c_int> = (0..40).map(|_| t.nb(t.client(l))).collect();
        let servers: Vec<i64> = (0..40).map(|_| c!(accept(l, null_mut(), null_mut()))).collect();
        t.say(format!("{}", servers.iter().filter(|&&s| s >= 0).count()));
        clients.iter().for_each(|&c| { c!(send(c, b"m".as_ptr().cast(), 1, 0)); });
        servers.iter().for_each(|&s| t.until(s as c_int, libc::POLLIN));
        t.levels(servers[39] as c_int);
    }
}

/// The calls of a socket's life, on what is none.
fn socket_calls(t: &T, fd: c_int) {
    t.bind(fd, t.addr(0));
    t.listen(fd, 1);
    t.accept(fd);
    t.connect(fd, t.addr(9));
    t.shutdown(fd, 2);
    t.name(fd);
    t.peer(fd);
    t.get("type", fd, SOL_SOCKET, libc::SO_TYPE);
}
