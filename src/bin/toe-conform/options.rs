//! getsockopt and setsockopt, on sockets in several states.

use crate::cases;
use crate::sys::zeroed;
use crate::trace::T;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int};
use std::ptr::null_mut;

/// Integer options: name, level, number, a value to set.
type Int = (&'static str, c_int, c_int, c_int);

const SOCKET: [Int; 15] = [
    ("reuseaddr", SOL_SOCKET, libc::SO_REUSEADDR, 1),
    ("reuseport", SOL_SOCKET, libc::SO_REUSEPORT, 1),
    ("keepalive", SOL_SOCKET, libc::SO_KEEPALIVE, 5),
    ("broadcast", SOL_SOCKET, libc::SO_BROADCAST, 1),
    ("oobinline", SOL_SOCKET, libc::SO_OOBINLINE, 1),
    ("dontroute", SOL_SOCKET, libc::SO_DONTROUTE, 1),
    ("priority", SOL_SOCKET, libc::SO_PRIORITY, 3),
    ("rcvlowat", SOL_SOCKET, libc::SO_RCVLOWAT, 77),
    ("timestamp", SOL_SOCKET, libc::SO_TIMESTAMP, 1),
    ("passcred", SOL_SOCKET, libc::SO_PASSCRED, 1),
    ("busy_poll", SOL_SOCKET, libc::SO_BUSY_POLL, 1),
    ("mark", SOL_SOCKET, libc::SO_MARK, 1),
    ("debug", SOL_SOCKET, libc::SO_DEBUG, 1),
    ("nofcs", SOL_SOCKET, 43, 1),
    ("rxq_ovfl", SOL_SOCKET, libc::SO_RXQ_OVFL, 1),
];

const TCP: [Int; 13] = [
    ("nodelay", IPPROTO_TCP, libc::TCP_NODELAY, 1),
    ("cork", IPPROTO_TCP, libc::TCP_CORK, 1),
    ("keepidle", IPPROTO_TCP, libc::TCP_KEEPIDLE, 100),
    ("keepintvl", IPPROTO_TCP, libc::TCP_KEEPINTVL, 11),
    ("keepcnt", IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    ("syncnt", IPPROTO_TCP, libc::TCP_SYNCNT, 4),
    ("linger2", IPPROTO_TCP, libc::TCP_LINGER2, 20),
    ("defer", IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 5),
    ("quickack", IPPROTO_TCP, libc::TCP_QUICKACK, 1),
    ("user_timeout", IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 9_000),
    ("notsent", IPPROTO_TCP, 25, 16_384),
    ("fastopen_connect", IPPROTO_TCP, 30, 1),
    ("thin", IPPROTO_TCP, 16, 1),
];

fn all(t: &T, fd: c_int, table: &[Int]) {
    for &(name, level, number, value) in table {
        t.get(name, fd, level, number);
        t.set(name, fd, level, number, value);
        t.get(name, fd, level, number);
    }
}

fn limits(t: &T, fd: c_int, name: &str, number: c_int, values: &[c_int]) {
    for &v in values {
        t.set(&format!("{name}({v})"), fd, IPPROTO_TCP, number, v);
        t.get(name, fd, IPPROTO_TCP, number);
    }
}

fn bound(t: &T) -> c_int {
    let fd = t.tcp();
    let a = t.addr(0);
    c!(bind(fd, a.ptr(), a.len));
    fd
}

cases! {
    fn socket_level_new(t) { all(t, t.tcp(), &SOCKET); }
    fn socket_level_bound(t) { all(t, bound(t), &SOCKET); }
    fn socket_level_connected(t) { all(t, t.pair().0, &SOCKET); }
    fn socket_level_accepted(t) { all(t, t.pair().1, &SOCKET); }
    fn socket_level_listening(t) { all(t, t.listener(3), &SOCKET); }
    fn tcp_level_new(t) { all(t, t.tcp(), &TCP); }
    fn tcp_level_bound(t) { all(t, bound(t), &TCP); }
    fn tcp_level_connected(t) { all(t, t.pair().0, &TCP); }
    fn tcp_level_accepted(t) { all(t, t.pair().1, &TCP); }
    fn tcp_level_listening(t) { all(t, t.listener(3), &TCP); }
    fn what_it_is(t) {
        for fd in [t.tcp(), bound(t), t.listener(2), t.pair().0, t.pair().1] {
            for (name, o) in [("type", libc::SO_TYPE), ("proto", libc::SO_PROTOCOL), ("domain", libc::SO_DOMAIN),
                ("accept", libc::SO_ACCEPTCONN), ("error", libc::SO_ERROR), ("peek_off", libc::SO_PEEK_OFF)] {
                t.get(name, fd, SOL_SOCKET, o);
            }
        }
    }
    fn read_only(t) {
        let (c, _s) = t.pair();
        for (name, o) in [("type", libc::SO_TYPE), ("proto", libc::SO_PROTOCOL), ("domain", libc::SO_DOMAIN),
            ("accept", libc::SO_ACCEPTCONN), ("error", libc::SO_ERROR)] {
            t.set(name, c, SOL_SOCKET, o, 1);
        }
        t.set("info", c, IPPROTO_TCP, libc::TCP_INFO, 1);
    }
    fn unknown(t) {
        for fd in [t.tcp(), t.pair().0, t.listener(1)] {
            t.get("socket", fd, SOL_SOCKET, 9999);
            t.set("socket", fd, SOL_SOCKET, 9999, 1);
            t.get("tcp", fd, IPPROTO_TCP, 9999);
            t.set("tcp", fd, IPPROTO_TCP, 9999, 1);
            t.get("ip", fd, IPPROTO_IP, 9999);
            t.set("ip", fd, IPPROTO_IP, 9999, 1);
            t.get("udp", fd, libc::IPPROTO_UDP, 1);
            t.set("udp", fd, libc::IPPROTO_UDP, 1, 1);
            t.get("level", fd, 9999, 1);
            t.set("level", fd, 9999, 1, 1);
        }
    }
    fn short_values(t) {
        let (c, _s) = t.pair();
        let v = 1 as c_int;
        for len in [0u32, 1, 3] {
            t.r("reuse", c!(setsockopt(c, SOL_SOCKET, libc::SO_REUSEADDR, (&raw const v).cast(), len)));
            t.r("nodelay", c!(setsockopt(c, IPPROTO_TCP, libc::TCP_NODELAY, (&raw const v).cast(), len)));
            t.r("tos", c!(setsockopt(c, IPPROTO_IP, libc::IP_TOS, (&raw const v).cast(), len)));
            t.r("timeout", c!(setsockopt(c, SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const v).cast(), len)));
            t.r("linger", c!(setsockopt(c, SOL_SOCKET, libc::SO_LINGER, (&raw const v).cast(), len)));
        }
        t.r("negative", c!(setsockopt(c, IPPROTO_TCP, libc::TCP_NODELAY, (&raw const v).cast(), u32::MAX)));
        t.r("long", c!(setsockopt(c, IPPROTO_TCP, libc::TCP_NODELAY, [1 as c_int, 2].as_ptr().cast(), 8)));
    }
    fn short_reads(t) {
        let (c, _s) = t.pair();
        for (level, o) in [(SOL_SOCKET, libc::SO_TYPE), (SOL_SOCKET, libc::SO_SNDBUF), (SOL_SOCKET, libc::SO_ERROR),
            (IPPROTO_TCP, libc::TCP_KEEPIDLE), (SOL_SOCKET, libc::SO_LINGER), (SOL_SOCKET, libc::SO_DOMAIN),
            (IPPROTO_TCP, libc::TCP_CONGESTION)] {
            for want in [0u32, 1, 2, 3] {
                let (mut v, mut len) = ([0xAAu8; 64], want);
                t.r("get", c!(getsockopt(c, level, o, v.as_mut_ptr().cast(), &raw mut len)));
                t.say(format!("{len} {}", v.iter().rposition(|&b| b != 0xAA).map_or(0, |n| n + 1) <= want as usize));
            }
        }
    }
    fn long_reads(t) {
        let (c, _s) = t.pair();
        for (level, o) in [(SOL_SOCKET, libc::SO_TYPE), (SOL_SOCKET, libc::SO_ERROR), (SOL_SOCKET, libc::SO_LINGER),
            (IPPROTO_TCP, libc::TCP_KEEPIDLE), (SOL_SOCKET, libc::SO_RCVTIMEO), (IPPROTO_TCP, libc::TCP_CONGESTION),
            (IPPROTO_IP, libc::IP_TTL), (SOL_SOCKET, libc::SO_COOKIE), (SOL_SOCKET, libc::SO_REUSEADDR)] {
            let (mut v, mut len) = ([0u8; 64], 64u32);
            t.r("get", c!(getsockopt(c, level, o, v.as_mut_ptr().cast(), &raw mut len)));
            t.say(format!("{len}"));
        }
        let mut len = u32::MAX;
        t.r("negative", c!(getsockopt(c, SOL_SOCKET, libc::SO_TYPE, [0u8; 8].as_mut_ptr().cast(), &raw mut len)));
        t.r("negative", c!(getsockopt(c, IPPROTO_TCP, libc::TCP_NODELAY, [0u8; 8].as_mut_ptr().cast(), &raw mut len)));
    }
    fn byte_values(t) {
        if t.ip.is_ipv6() { return; }
        let (c, _s) = t.pair();
        let v = 0x10u8;
        t.r("tos", c!(setsockopt(c, IPPROTO_IP, libc::IP_TOS, (&raw const v).cast(), 1)));
        let (mut b, mut len) = ([0xAAu8; 4], 1u32);
        t.r("tos", c!(getsockopt(c, IPPROTO_IP, libc::IP_TOS, b.as_mut_ptr().cast(), &raw mut len)));
        t.say(format!("{len} {b:?}"));
        t.get("tos", c, IPPROTO_IP, libc::IP_TOS);
    }
    fn linger(t) {
        for fd in [t.tcp(), t.pair().0] {
            let (mut l, mut len): (libc::linger, u32) = (zeroed(), 8);
            for (on, s) in [(1, 5), (0, 7), (2, 0)] {
                t.set_bytes("linger", fd, SOL_SOCKET, libc::SO_LINGER, &[on, s]);
                t.r("get", c!(getsockopt(fd, SOL_SOCKET, libc::SO_LINGER, (&raw mut l).cast(), &raw mut len)));
                t.say(format!("{} {} {len}", l.l_onoff, l.l_linger));
            }
        }
    }
    fn timeouts(t) {
        for fd in [t.tcp(), t.pair().0, t.listener(1)] {
            for o in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                for tv in [[2i64, 500_000], [0, 0], [-1, 0], [0, 1_000_000], [0, -1]] {
                    t.set_bytes("timeout", fd, SOL_SOCKET, o, &tv);
                    let (mut got, mut len) = ([0i64; 2], 16u32);
                    t.r("get", c!(getsockopt(fd, SOL_SOCKET, o, got.as_mut_ptr().cast(), &raw mut len)));
                    t.say(format!("{got:?}/{len}"));
                }
            }
        }
    }
    fn receive_timeout(t) {
        let (c, _s) = t.pair();
        t.set_bytes("timeout", c, SOL_SOCKET, libc::SO_RCVTIMEO, &[0i64, 40_000]);
        t.recv(c, 1, 0);
        t.read(c, 1);
        t.recvmsg(c, 1, 0);
        let l = t.listener(1);
        t.set_bytes("timeout", l, SOL_SOCKET, libc::SO_RCVTIMEO, &[0i64, 40_000]);
        t.accept(l);
    }
    fn buffers(t) {
        for fd in [t.tcp(), t.pair().0] {
            for (name, o) in [("sndbuf", libc::SO_SNDBUF), ("rcvbuf", libc::SO_RCVBUF)] {
                for v in [50_000, 100_000, 1, 0, -1] {
                    t.set(name, fd, SOL_SOCKET, o, v);
                    t.get(name, fd, SOL_SOCKET, o);
                }
            }
        }
    }
    fn buffer_defaults(t) {
        for fd in [t.tcp(), t.pair().0] {
            for o in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
                let (mut v, mut len): (c_int, u32) = (0, 4);
                t.r("get", c!(getsockopt(fd, SOL_SOCKET, o, (&raw mut v).cast(), &raw mut len)));
                t.say(format!("sane={}", v >= 16_384));
            }
        }
    }
    fn keepidle_limits(t) {
        let (c, _s) = t.pair();
        limits(t, c, "keepidle", libc::TCP_KEEPIDLE, &[0, 1, 32_767, 32_768, -1]);
        limits(t, c, "keepintvl", libc::TCP_KEEPINTVL, &[0, 1, 32_767, 32_768]);
        limits(t, c, "keepcnt", libc::TCP_KEEPCNT, &[0, 1, 127, 128]);
    }
    fn other_limits(t) {
        let (c, _s) = t.pair();
        limits(t, c, "syncnt", libc::TCP_SYNCNT, &[0, 1, 127, 128]);
        limits(t, c, "linger2", libc::TCP_LINGER2, &[-1, -5, 0, 1, 60, 1000]);
        limits(t, c, "user_timeout", libc::TCP_USER_TIMEOUT, &[-1, 0, 1, i32::MAX]);
        limits(t, c, "notsent", 25, &[0, 1, -1]);
        limits(t, c, "defer", libc::TCP_DEFER_ACCEPT, &[0, 1, 3, 10]);
        limits(t, c, "nodelay", libc::TCP_NODELAY, &[0, 2, -1]);
    }
    fn maxseg(t) {
        let c = t.tcp();
        limits(t, c, "maxseg", libc::TCP_MAXSEG, &[0, 87, 88, 1000, 32_767, 32_768, -1]);
        let (c, _s) = t.pair();
        for v in [87, 1000, 32_768] {
            t.set("maxseg-connected", c, IPPROTO_TCP, libc::TCP_MAXSEG, v);
        }
    }
    fn maxseg_works(t) {
        let l = t.listener(2);
        let c = t.tcp();
        t.set("maxseg", c, IPPROTO_TCP, libc::TCP_MAXSEG, 1000);
        t.connect(c, t.local(l));
        let s = t.accept(l);
        let (mut v, mut len): (c_int, u32) = (0, 4);
        t.r("get", c!(getsockopt(s, IPPROTO_TCP, libc::TCP_MAXSEG, (&raw mut v).cast(), &raw mut len)));
        t.say(format!("at-most={}", v <= 1000));
    }
    fn congestion(t) {
        for fd in [t.tcp(), t.pair().0, t.listener(1)] {
            for name in [&b"reno"[..], b"cubic", b"cubic\0", b"nonsense", b"reno\0junk"] {
                t.r("set", c!(setsockopt(fd, IPPROTO_TCP, libc::TCP_CONGESTION, name.as_ptr().cast(), name.len() as u32)));
                let (mut got, mut len) = ([0u8; 32], 32u32);
                t.r("get", c!(getsockopt(fd, IPPROTO_TCP, libc::TCP_CONGESTION, got.as_mut_ptr().cast(), &raw mut len)));
                t.say(format!("{:?}/{len}", String::from_utf8_lossy(&got[..8])));
            }
            t.r("empty", c!(setsockopt(fd, IPPROTO_TCP, libc::TCP_CONGESTION, b"".as_ptr().cast(), 0)));
        }
    }
    fn ulp(t) {
        for fd in [t.tcp(), t.pair().0] {
            t.r("ulp", c!(setsockopt(fd, IPPROTO_TCP, libc::TCP_ULP, b"nonsense".as_ptr().cast(), 8)));
            let (mut got, mut len) = ([0u8; 16], 16u32);
            t.r("get", c!(getsockopt(fd, IPPROTO_TCP, libc::TCP_ULP, got.as_mut_ptr().cast(), &raw mut len)));
            t.say(format!("{len}"));
        }
    }
    fn fastopen(t) {
        t.set("fastopen", t.listener(1), IPPROTO_TCP, libc::TCP_FASTOPEN, 5);
        let l = bound(t);
        t.set("fastopen", l, IPPROTO_TCP, libc::TCP_FASTOPEN, 5);
        t.listen(l, 5);
        t.set("fastopen", t.pair().0, IPPROTO_TCP, libc::TCP_FASTOPEN, 5);
    }
    fn zerocopy(t) {
        t.set("new", t.tcp(), SOL_SOCKET, 60, 1);
        t.set("connected", t.pair().0, SOL_SOCKET, 60, 1);
    }
    fn window_clamp(t) {
        for fd in [t.tcp(), t.pair().0] {
            t.set("clamp", fd, IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 20_000);
            t.get("clamp", fd, IPPROTO_TCP, libc::TCP_WINDOW_CLAMP);
        }
    }
    fn repair(t) {
        t.get("repair", t.tcp(), IPPROTO_TCP, 19);
        t.get("repair", t.pair().0, IPPROTO_TCP, 19);
    }
    fn info_lengths(t) {
        let (c, _s) = t.pair();
        for want in [0u32, 1, 104, 1000] {
            let (mut v, mut len) = ([0u8; 1000], want);
            t.r("info", c!(getsockopt(c, IPPROTO_TCP, libc::TCP_INFO, v.as_mut_ptr().cast(), &raw mut len)));
            t.say(format!("ok={}", len <= want && (want < 104 || len >= 104)));
        }
    }
    fn info_fields(t) {
        let (c, s) = t.pair();
        t.send(c, &[7; 5000], 0);
        t.until_bytes(s, 5000);
        t.until_true("acknowledged", || { let mut q = 1; c!(ioctl(c, libc::TIOCOUTQ, &raw mut q)); q == 0 });
        let (mut i, mut len): (libc::tcp_info, u32) = (zeroed(), size_of::<libc::tcp_info>() as u32);
        t.r("info", c!(getsockopt(c, IPPROTO_TCP, libc::TCP_INFO, (&raw mut i).cast(), &raw mut len)));
        t.say(format!("state={} ca={} retransmits={} probes={} backoff={}", i.tcpi_state, i.tcpi_ca_state,
            i.tcpi_retransmits, i.tcpi_probes, i.tcpi_backoff));
        t.say(format!("options={:#x} scale={}", i.tcpi_options & 7, i.tcpi_snd_rcv_wscale != 0));
        t.say(format!("rto={} mss={}/{} unacked={} lost={} retrans={}", i.tcpi_rto >= 200_000, i.tcpi_snd_mss > 500,
            i.tcpi_rcv_mss > 500, i.tcpi_unacked, i.tcpi_lost, i.tcpi_retrans));
        t.say(format!("pmtu={} rtt={} cwnd={} advmss={}", i.tcpi_pmtu > 1000, i.tcpi_rtt > 0, i.tcpi_snd_cwnd > 1, i.tcpi_advmss > 500));
        t.say(format!("rcv_space={} ssthresh={}", i.tcpi_rcv_space > 0, i.tcpi_snd_ssthresh > 2));
    }
    fn ttl_and_tos(t) {
        for fd in [t.tcp(), bound(t), t.pair().0] {
            let (ttl, tos) = if t.ip.is_ipv4() { (libc::IP_TTL, libc::IP_TOS) } else { (libc::IPV6_UNICAST_HOPS, libc::IPV6_TCLASS) };
            let level = if t.ip.is_ipv4() { IPPROTO_IP } else { IPPROTO_IPV6 };
            for v in [64, 1, 255, 256, -1] {
                t.set("ttl", fd, level, ttl, v);
                t.get("ttl", fd, level, ttl);
            }
            for v in [0x10, 0xff, 0, 256] {
                t.set("tos", fd, level, tos, v);
                t.get("tos", fd, level, tos);
            }
        }
    }
    fn ip_level(t) {
        for fd in [t.tcp(), t.pair().0] {
            for (name, o, v) in [("options", libc::IP_OPTIONS, 0), ("mtu_discover", libc::IP_MTU_DISCOVER, 2),
                ("recverr", libc::IP_RECVERR, 1), ("freebind", libc::IP_FREEBIND, 1), ("no_port", 24, 1),
                ("recvtos", libc::IP_RECVTOS, 1), ("pktinfo", libc::IP_PKTINFO, 1), ("minttl", libc::IP_MINTTL, 2)] {
                if t.ip.is_ipv4() {
                    t.set(name, fd, IPPROTO_IP, o, v);
                    t.get(name, fd, IPPROTO_IP, o);
                }
            }
        }
    }
    fn v6_level(t) {
        for fd in [t.tcp(), t.pair().0] {
            t.get("v6only", fd, IPPROTO_IPV6, libc::IPV6_V6ONLY);
            t.set("v6only", fd, IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
            t.get("recverr", fd, IPPROTO_IPV6, 25);
        }
    }
    fn inherited(t) {
        let l = t.listener(4);
        let list = [SOCKET[2], SOCKET[4], SOCKET[7], TCP[0], TCP[2], TCP[3], TCP[4], TCP[9], TCP[10]];
        for (name, level, o, v) in list {
            t.set(name, l, level, o, v);
        }
        t.set("sndbuf", l, SOL_SOCKET, libc::SO_SNDBUF, 60_000);
        t.set("rcvbuf", l, SOL_SOCKET, libc::SO_RCVBUF, 70_000);
        t.set_bytes("linger", l, SOL_SOCKET, libc::SO_LINGER, &[1 as c_int, 3]);
        t.set_bytes("timeout", l, SOL_SOCKET, libc::SO_RCVTIMEO, &[3i64, 0]);
        t.client(l);
        let s = t.fd("accept", c!(accept(l, null_mut(), null_mut())));
        for (name, level, o, _) in list {
            t.get(name, s, level, o);
        }
        t.get("sndbuf", s, SOL_SOCKET, libc::SO_SNDBUF);
        t.get("rcvbuf", s, SOL_SOCKET, libc::SO_RCVBUF);
        let (mut got, mut len) = ([0i64; 2], 16u32);
        t.r("timeout", c!(getsockopt(s, SOL_SOCKET, libc::SO_RCVTIMEO, got.as_mut_ptr().cast(), &raw mut len)));
        let (mut l, mut n) = ([0 as c_int; 2], 8u32);
        t.r("linger", c!(getsockopt(s, SOL_SOCKET, libc::SO_LINGER, l.as_mut_ptr().cast(), &raw mut n)));
        t.say(format!("{got:?} {l:?}"));
    }
    fn kept_over_connect(t) {
        let (l, c) = (t.listener(4), t.tcp());
        for (name, level, o, v) in SOCKET.iter().chain(&TCP).copied() {
            if name != "mark" && name != "debug" {
                t.set(name, c, level, o, v);
            }
        }
        t.connect(c, t.local(l));
        for (name, level, o, _) in SOCKET.iter().chain(&TCP).copied() {
            if name != "quickack" {
                t.get(name, c, level, o);
            }
        }
    }
    fn device(t) {
        for fd in [t.tcp(), t.pair().0] {
            let (mut got, mut len) = ([0u8; 16], 16u32);
            t.r("get", c!(getsockopt(fd, SOL_SOCKET, libc::SO_BINDTODEVICE, got.as_mut_ptr().cast(), &raw mut len)));
            t.say(format!("{len}"));
            t.r("none", c!(setsockopt(fd, SOL_SOCKET, libc::SO_BINDTODEVICE, c"nonesuch".as_ptr().cast(), 9)));
        }
    }
    fn cookie(t) {
        let (c, s) = t.pair();
        let get = |fd| { let (mut v, mut len) = (0u64, 8u32);
            t.r("cookie", c!(getsockopt(fd, SOL_SOCKET, libc::SO_COOKIE, (&raw mut v).cast(), &raw mut len))); v };
        let (a, b, again) = (get(c), get(s), get(c));
        t.say(format!("{} {} {}", a != 0, a != b, a == again));
    }
    fn incoming(t) {
        let (c, _s) = t.pair();
        for (name, o) in [("cpu", libc::SO_INCOMING_CPU), ("napi", 56)] {
            let (mut v, mut len): (c_int, u32) = (0, 4);
            t.r(name, c!(getsockopt(c, SOL_SOCKET, o, (&raw mut v).cast(), &raw mut len)));
        }
    }
    fn peer_credentials(t) {
        let (c, _s) = t.pair();
        let (mut cred, mut len) = ([0 as c_int; 3], 12u32);
        t.r("peercred", c!(getsockopt(c, SOL_SOCKET, libc::SO_PEERCRED, cred.as_mut_ptr().cast(), &raw mut len)));
        t.say(format!("{} {}", cred[0], len));
        t.r("peername", c!(getsockopt(c, SOL_SOCKET, libc::SO_PEERNAME, cred.as_mut_ptr().cast(), &raw mut len)));
    }
    fn peer_name_option(t) {
        let (c, _s) = t.pair();
        let (mut a, mut len) = ([0u8; 28], 28u32);
        t.r("peername", c!(getsockopt(c, SOL_SOCKET, libc::SO_PEERNAME, a.as_mut_ptr().cast(), &raw mut len)));
        t.say(format!("{}", a[0]));
    }
}
