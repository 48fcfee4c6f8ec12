//! getsockname, getpeername, addresses of both families.

use crate::cases;
use crate::sys::Addr;
use libc::{IPPROTO_IPV6, c_int};
use std::net::{IpAddr, Ipv6Addr};
use std::ptr::null_mut;

fn mapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        v6 => v6,
    }
}

fn six(t: &crate::trace::T, port: u16) -> Addr {
    Addr::new(mapped(t.ip), port)
}

fn tcp6() -> c_int {
    c!(socket(libc::AF_INET6, libc::SOCK_STREAM, 0)) as c_int
}

cases! {
    fn of_a_connection(t) {
        let (c, s) = t.pair();
        let (cn, cp, sn, sp) = (t.name(c), t.peer(c), t.name(s), t.peer(s));
        t.say(format!("{} {}", cn.raw == sp.raw, cp.raw == sn.raw));
    }
    fn of_unconnected(t) {
        let n = t.tcp();
        t.name(n);
        t.peer(n);
        t.bind(n, t.addr(0));
        t.name(n);
        t.peer(n);
        t.listen(n, 1);
        t.name(n);
        t.peer(n);
    }
    fn truncated(t) {
        let (c, _s) = t.pair();
        for n in [0u32, 1, 2, 8, 15, 16, 28, 100] {
            let (mut a, mut len) = ([0xAAu8; 128], n);
            t.r("name", c!(getsockname(c, a.as_mut_ptr().cast(), &raw mut len)));
            t.say(format!("{len} {}", a[n as usize..].iter().all(|&b| b == 0xAA)));
            len = n;
            t.r("peer", c!(getpeername(c, a.as_mut_ptr().cast(), &raw mut len)));
            t.say(format!("{len}"));
        }
        let mut len = u32::MAX;
        t.r("negative", c!(getsockname(c, [0u8; 28].as_mut_ptr().cast(), &raw mut len)));
        t.r("negative", c!(getpeername(c, [0u8; 28].as_mut_ptr().cast(), &raw mut len)));
    }
    fn padding_is_zero(t) {
        let (c, _s) = t.pair();
        let mut a = Addr { raw: [0xAA; 28], len: 28 };
        c!(getsockname(c, a.ptr_mut(), &raw mut a.len));
        t.say(format!("{:?}", &a.raw[if t.ip.is_ipv4() { 8..16 } else { 4..8 }]));
    }
    fn peer_after_shutdown(t) {
        let (c, s) = t.pair();
        t.shutdown(c, libc::SHUT_WR);
        t.peer(c);
        t.close(s);
        t.until(c, libc::POLLRDHUP);
        t.until(c, libc::POLLHUP);
        t.peer(c);
        t.name(c);
    }
    fn peer_after_reset(t) {
        let (c, s) = t.pair();
        t.reset_on_close(s);
        c!(close(s));
        t.until(c, libc::POLLHUP);
        t.peer(c);
        t.name(c);
        t.so_error(c);
        t.peer(c);
    }
    fn peer_after_peer_closed(t) {
        let (c, s) = t.pair();
        c!(close(s));
        t.until(c, libc::POLLRDHUP);
        t.peer(c);
        t.name(c);
    }
    fn name_after_failed_connect(t) {
        let c = t.tcp();
        t.connect(c, t.dead_port());
        t.name(c);
        t.peer(c);
    }
    fn name_while_connecting(t) {
        let l = t.listener(0);
        let (a, mut last) = (t.local(l), -1);
        for _ in 0..8 {
            last = t.tcp_nb();
            c!(connect(last, a.ptr(), a.len));
            let mut p = libc::pollfd { fd: last, events: libc::POLLOUT, revents: 0 };
            if c!(poll(&raw mut p, 1, 50)) == 0 {
                break;
            }
        }
        t.name(last);
        t.peer(last);
        t.levels(last);
    }
    fn after_unspec(t) {
        let mut a = t.addr(0);
        a.raw[..2].copy_from_slice(&0u16.to_ne_bytes());
        let (bound, l) = (t.tcp(), t.listener(1));
        t.bind(bound, t.addr(0));
        t.connect(bound, t.local(t.listener(1)));
        for fd in [bound, l, t.pair().0, t.pair().1] {
            let port = t.local(fd).port();
            t.connect(fd, a);
            let now = t.name(fd);
            t.say(format!("kept={}", now.port() == port));
        }
    }
    fn six_to_four(t) {
        let l = t.listener(4);
        let c = tcp6();
        t.connect(c, six(t, t.local(l).port()));
        t.name(c);
        t.peer(c);
        let s = t.accept(l);
        t.send(s, b"hello", 0);
        t.until_bytes(c, 5);
        t.recv(c, 9, 0);
    }
    fn six_bound_to_mapped(t) {
        let l = tcp6();
        t.bind(l, six(t, 0));
        t.name(l);
        t.listen(l, 4);
        let c = t.tcp();
        t.connect(c, t.addr(t.local(l).port()));
        let s = t.accept(l);
        t.name(s);
        t.peer(s);
    }
    fn six_only_refuses_mapped(t) {
        if t.ip.is_ipv6() { return; }
        let c = tcp6();
        t.set("v6only", c, IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
        t.connect(c, six(t, t.local(t.listener(1)).port()));
        let l = tcp6();
        t.set("v6only", l, IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
        t.bind(l, six(t, 0));
    }
    fn six_only_wildcard(t) {
        if t.ip.is_ipv6() { return; }
        let l = tcp6();
        t.set("v6only", l, IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
        t.bind(l, Addr::new(Ipv6Addr::UNSPECIFIED.into(), 0));
        t.listen(l, 4);
        t.connect(t.tcp(), t.addr(t.local(l).port()));
    }
    fn six_dual_wildcard(t) {
        let l = tcp6();
        t.bind(l, Addr::new(Ipv6Addr::UNSPECIFIED.into(), 0));
        t.listen(l, 4);
        t.name(l);
        let c = t.tcp();
        t.connect(c, t.addr(t.local(l).port()));
        let s = t.accept(l);
        t.name(s);
        t.peer(s);
        t.get("domain", s, libc::SOL_SOCKET, libc::SO_DOMAIN);
    }
    fn six_socket_with_four_address(t) {
        if t.ip.is_ipv6() { return; }
        let c = tcp6();
        t.connect(c, t.local(t.listener(1)));
        let b = tcp6();
        t.bind(b, t.addr(0));
        t.name(b);
    }
    fn six_renamed(t) {
        let l = t.listener(4);
        let c = tcp6();
        t.connect(c, Addr { len: 24, ..six(t, t.local(l).port()) });
        t.peer(c);
        let c = tcp6();
        t.connect(c, Addr { len: 23, ..six(t, t.local(l).port()) });
    }
    fn four_socket_with_six_address(t) {
        if t.ip.is_ipv6() { return; }
        let c = t.tcp();
        t.connect(c, six(t, t.local(t.listener(1)).port()));
        t.bind(c, six(t, 0));
    }
    fn four_with_long_address(t) {
        if t.ip.is_ipv6() { return; }
        let c = t.tcp();
        t.connect(c, Addr { len: 28, ..t.local(t.listener(1)) });
        t.peer(c);
    }
    fn accept_on_six(t) {
        let l = tcp6();
        t.bind(l, six(t, 0));
        t.listen(l, 4);
        let c = tcp6();
        t.connect(c, t.local(l));
        t.fd("accept", c!(accept(l, null_mut(), null_mut())));
        t.name(c);
        t.peer(c);
    }
}
