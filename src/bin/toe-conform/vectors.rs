//! readv, writev, sendmsg, recvmsg, and their many-message forms.

use crate::calls::{iov, iov_mut, msg};
use crate::cases;
use crate::sys::{Addr, zeroed};
use libc::{c_int, iovec, mmsghdr};
use std::ptr::{null, null_mut};

fn three(t: &crate::trace::T) -> (c_int, c_int) {
    let (c, s) = t.pair();
    c!(send(c, b"0123456789".as_ptr().cast(), 10, 0));
    t.until_bytes(s, 10);
    (c, s)
}

cases! {
    fn writev_parts(t) {
        let (c, s) = t.pair();
        let v = [iov(b"one"), iov(b""), iov(b"two"), iov(b"three")];
        t.r("writev", c!(writev(c, v.as_ptr(), 4)));
        t.until_bytes(s, 11);
        t.recv(s, 100, 0);
    }
    fn readv_parts(t) {
        let (_c, s) = three(t);
        let (mut a, mut b, mut d) = ([0u8; 3], [0u8; 4], [0u8; 9]);
        let v = [iov_mut(&mut a), iov_mut(&mut b), iov_mut(&mut d)];
        t.r("readv", c!(readv(s, v.as_ptr(), 3)));
        t.say(format!("{a:?} {b:?} {d:?}"));
    }
    fn counts(t) {
        let (c, s) = three(t);
        let mut a = [0u8; 3];
        let v = [iov_mut(&mut a)];
        t.r("none", c!(readv(s, v.as_ptr(), 0)));
        t.r("none", c!(writev(c, v.as_ptr(), 0)));
        t.r("negative", c!(readv(s, v.as_ptr(), -1)));
        t.r("negative", c!(writev(c, v.as_ptr(), -1)));
        let many = vec![iovec { iov_base: a.as_mut_ptr().cast(), iov_len: 1 }; 1025];
        t.r("1024", c!(writev(c, many.as_ptr(), 1024)));
        t.r("1025", c!(writev(c, many.as_ptr(), 1025)));
        t.r("1025", c!(readv(s, many.as_ptr(), 1025)));
    }
    fn lengths(t) {
        let (c, s) = three(t);
        let mut a = [0u8; 3];
        let v = [iovec { iov_base: a.as_mut_ptr().cast(), iov_len: usize::MAX }];
        t.r("readv", c!(readv(s, v.as_ptr(), 1)));
        t.r("writev", c!(writev(c, v.as_ptr(), 1)));
        let v = [iov(b"abc"), iovec { iov_base: a.as_mut_ptr().cast(), iov_len: isize::MAX as usize + 1 }];
        t.r("writev", c!(writev(c, v.as_ptr(), 2)));
        t.levels(s);
    }
    fn preadv2_flags(t) {
        let (c, s) = three(t);
        let mut a = [0u8; 3];
        let v = [iov_mut(&mut a)];
        t.r("preadv2", c!(preadv2(s, v.as_ptr(), 1, -1, 0)));
        t.r("nowait", c!(preadv2(s, v.as_ptr(), 1, -1, libc::RWF_NOWAIT)));
        t.r("offset", c!(preadv2(s, v.as_ptr(), 1, 0, 0)));
        t.r("offset", c!(pwritev2(c, v.as_ptr(), 1, 5, 0)));
        t.r("pwritev2", c!(pwritev2(c, v.as_ptr(), 1, -1, 0)));
        t.r("wrong", c!(preadv2(s, v.as_ptr(), 1, -1, 0x4000)));
    }
    fn preadv2_nowait_empty(t) {
        let (c, _s) = t.pair();
        let mut a = [0u8; 3];
        let v = [iov_mut(&mut a)];
        t.r("nowait", c!(preadv2(c, v.as_ptr(), 1, -1, libc::RWF_NOWAIT)));
    }
    fn sendmsg_parts(t) {
        let (c, s) = t.pair();
        let mut v = [iov(b"ab"), iov(b"cd")];
        let m = msg(&mut v);
        t.r("sendmsg", c!(sendmsg(c, &raw const m, 0)));
        t.until_bytes(s, 4);
        t.recvmsg(s, 10, 0);
    }
    fn sendmsg_counts(t) {
        let (c, _s) = t.pair();
        let mut v = [iov(b"ab")];
        let mut m = msg(&mut v);
        m.msg_iovlen = 0;
        t.r("none", c!(sendmsg(c, &raw const m, 0)));
        m.msg_iovlen = 1025;
        t.r("1025", c!(sendmsg(c, &raw const m, 0)));
        t.r("1025", c!(recvmsg(c, &raw mut m, 0)));
        m.msg_iovlen = usize::MAX;
        t.r("huge", c!(sendmsg(c, &raw const m, 0)));
    }
    fn sendmsg_name(t) {
        let (c, s) = t.pair();
        let (mut v, a) = ([iov(b"ab")], t.addr(9));
        let mut m = msg(&mut v);
        (m.msg_name, m.msg_namelen) = (a.ptr().cast_mut().cast(), a.len);
        t.r("named", c!(sendmsg(c, &raw const m, 0)));
        m.msg_namelen = 4;
        t.r("short", c!(sendmsg(c, &raw const m, 0)));
        m.msg_namelen = 0;
        t.r("unnamed", c!(sendmsg(c, &raw const m, 0)));
        t.until_bytes(s, 1);
        t.levels(s);
    }
    fn sendmsg_rights(t) {
        let (c, s) = t.pair();
        let (mut v, mut control) = ([iov(b"ab")], [0u64; 3]);
        let mut m = msg(&mut v);
        // A header: length, level and type, a descriptor.
        let kinds = [
            ("rights", 20, libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32),
            ("unknown", 20, 99 | 99 << 32),
            ("malformed", 3, 99 | 99 << 32),
        ];
        for (name, len, kind) in kinds {
            (control[0], control[1]) = (len, kind);
            (m.msg_control, m.msg_controllen) = (control.as_mut_ptr().cast(), 20);
            t.r(name, c!(sendmsg(c, &raw const m, 0)));
        }
        t.until_bytes(s, 4);
        t.recvmsg(s, 10, 0);
    }
    fn recvmsg_fields(t) {
        let (_c, s) = three(t);
        t.recvmsg(s, 4, 0);
        t.recvmsg(s, 3, libc::MSG_PEEK);
        t.recvmsg(s, 2, libc::MSG_TRUNC);
        t.recvmsg(s, 1, libc::MSG_WAITALL);
        t.recvmsg(s, 1, libc::MSG_CMSG_CLOEXEC);
    }
    fn recvmsg_at_end(t) {
        let (c, s) = t.pair();
        c!(close(c));
        t.until(s, libc::POLLRDHUP);
        t.recvmsg(s, 4, 0);
        t.recvmsg(s, 4, libc::MSG_WAITALL);
    }
    fn recvmsg_no_buffers(t) {
        let (_c, s) = three(t);
        let mut m = msg(&mut []);
        t.r("recvmsg", c!(recvmsg(s, &raw mut m, 0)));
        t.say(format!("{:#x}", m.msg_flags));
        t.nb(s);
        t.recv(s, 20, 0);
        t.r("recvmsg", c!(recvmsg(s, &raw mut m, 0)));
    }
    fn recvfrom_address(t) {
        let (_c, s) = three(t);
        let (mut buf, mut a) = ([0u8; 4], Addr { raw: [0xAA; 28], len: 28 });
        t.r("recvfrom", c!(recvfrom(s, buf.as_mut_ptr().cast(), 4, 0, a.ptr_mut(), &raw mut a.len)));
        t.say(format!("len={} untouched={}", a.len, a.raw == [0xAA; 28]));
        t.r("null", c!(recvfrom(s, buf.as_mut_ptr().cast(), 4, 0, null_mut(), null_mut())));
        let mut len = u32::MAX;
        t.r("negative", c!(recvfrom(s, buf.as_mut_ptr().cast(), 1, 0, a.ptr_mut(), &raw mut len)));
        t.say(format!("len={}", len as i32));
    }
    fn sendmmsg_many(t) {
        let (c, s) = t.pair();
        let (mut v, mut w) = ([iov(b"ab")], [iov(b"cd"), iov(b"e")]);
        let mut m: [mmsghdr; 2] = [zeroed(); 2];
        (m[0].msg_hdr, m[1].msg_hdr) = (msg(&mut v), msg(&mut w));
        t.r("sendmmsg", c!(sendmmsg(c, m.as_mut_ptr(), 2, 0)));
        t.say(format!("{} {}", m[0].msg_len, m[1].msg_len));
        t.r("none", c!(sendmmsg(c, m.as_mut_ptr(), 0, 0)));
        t.until_bytes(s, 5);
        t.recv(s, 100, 0);
    }
    fn recvmmsg_many(t) {
        let (_c, s) = three(t);
        let (mut a, mut b) = ([0u8; 4], [0u8; 3]);
        let (mut v, mut w) = ([iov_mut(&mut a)], [iov_mut(&mut b)]);
        let mut m: [mmsghdr; 2] = [zeroed(); 2];
        (m[0].msg_hdr, m[1].msg_hdr) = (msg(&mut v), msg(&mut w));
        t.r("recvmmsg", c!(recvmmsg(s, m.as_mut_ptr(), 2, 0, null_mut())));
        t.say(format!("{} {}", m[0].msg_len, m[1].msg_len));
        t.r("again", c!(recvmmsg(s, m.as_mut_ptr(), 2, libc::MSG_DONTWAIT, null_mut())));
        t.say(format!("{}", m[0].msg_len));
        t.r("empty", c!(recvmmsg(s, m.as_mut_ptr(), 2, libc::MSG_DONTWAIT, null_mut())));
    }
    fn recvmmsg_wait_for_one(t) {
        let (_c, s) = three(t);
        let (mut a, mut b) = ([0u8; 20], [0u8; 3]);
        let (mut v, mut w) = ([iov_mut(&mut a)], [iov_mut(&mut b)]);
        let mut m: [mmsghdr; 2] = [zeroed(); 2];
        (m[0].msg_hdr, m[1].msg_hdr) = (msg(&mut v), msg(&mut w));
        t.r("recvmmsg", c!(recvmmsg(s, m.as_mut_ptr(), 2, libc::MSG_WAITFORONE, null_mut())));
        t.say(format!("{}", m[0].msg_len));
    }
    fn recvmmsg_timeouts(t) {
        let (_c, s) = three(t);
        let mut a = [0u8; 20];
        let mut v = [iov_mut(&mut a)];
        let mut m: [mmsghdr; 1] = [zeroed(); 1];
        m[0].msg_hdr = msg(&mut v);
        let mut ts = libc::timespec { tv_sec: -1, tv_nsec: 0 };
        t.r("negative", c!(recvmmsg(s, m.as_mut_ptr(), 1, 0, &raw mut ts)));
        ts = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000_000 };
        t.r("wrong", c!(recvmmsg(s, m.as_mut_ptr(), 1, 0, &raw mut ts)));
        ts = libc::timespec { tv_sec: 5, tv_nsec: 0 };
        t.r("there", c!(recvmmsg(s, m.as_mut_ptr(), 1, 0, &raw mut ts)));
    }
    fn recvmmsg_end(t) {
        let (c, s) = three(t);
        c!(close(c));
        t.until(s, libc::POLLRDHUP);
        let (mut a, mut b) = ([0u8; 20], [0u8; 3]);
        let (mut v, mut w) = ([iov_mut(&mut a)], [iov_mut(&mut b)]);
        let mut m: [mmsghdr; 2] = [zeroed(); 2];
        (m[0].msg_hdr, m[1].msg_hdr) = (msg(&mut v), msg(&mut w));
        t.r("recvmmsg", c!(recvmmsg(s, m.as_mut_ptr(), 2, 0, null_mut())));
        t.say(format!("{} {}", m[0].msg_len, m[1].msg_len));
    }
    fn null_messages(t) {
        let (c, _s) = t.pair();
        t.r("sendmsg", c!(sendmsg(c, null(), 0)));
        t.r("recvmsg", c!(recvmsg(c, null_mut(), 0)));
        t.r("sendmmsg", c!(sendmmsg(c, null_mut(), 1, 0)));
        t.r("recvmmsg", c!(recvmmsg(c, null_mut(), 1, libc::MSG_DONTWAIT, null_mut())));
    }
}
