//! MSG_* flags.

use crate::cases;
use crate::trace::T;
use libc::c_int;

fn ten(t: &T) -> (c_int, c_int) {
    let (c, s) = t.pair();
    c!(send(c, b"0123456789".as_ptr().cast(), 10, 0));
    t.until_bytes(s, 10);
    (c, s)
}

cases! {
    fn peek(t) {
        let (_c, s) = ten(t);
        t.recv(s, 4, libc::MSG_PEEK);
        t.recv(s, 20, libc::MSG_PEEK);
        t.recv(s, 20, 0);
        t.nb(s);
        t.recv(s, 4, libc::MSG_PEEK);
    }
    fn peek_at_end(t) {
        let (c, s) = t.pair();
        c!(close(c));
        t.until(s, libc::POLLRDHUP);
        t.recv(s, 4, libc::MSG_PEEK);
        t.recv(s, 4, libc::MSG_PEEK);
        t.recv(s, 4, 0);
    }
    fn peek_does_not_take_the_error(t) {
        let (c, s) = t.pair();
        t.reset_on_close(c);
        c!(close(c));
        t.until(s, libc::POLLHUP);
        t.recv(s, 4, libc::MSG_PEEK);
        t.recv(s, 4, libc::MSG_PEEK);
        t.recv(s, 4, 0);
    }
    fn dontwait(t) {
        let (c, s) = t.pair();
        t.recv(s, 4, libc::MSG_DONTWAIT);
        t.send(c, b"abc", libc::MSG_DONTWAIT);
        t.until_bytes(s, 3);
        t.recv(s, 4, libc::MSG_DONTWAIT);
        t.recv(s, 4, libc::MSG_DONTWAIT);
        t.status(s);
    }
    fn waitall_there(t) {
        let (_c, s) = ten(t);
        t.recv(s, 10, libc::MSG_WAITALL);
    }
    fn waitall_end(t) {
        let (c, s) = ten(t);
        c!(shutdown(c, libc::SHUT_WR));
        t.recv(s, 20, libc::MSG_WAITALL);
        t.recv(s, 20, libc::MSG_WAITALL);
    }
    fn waitall_reset(t) {
        let (c, s) = ten(t);
        t.reset_on_close(c);
        c!(close(c));
        t.until(s, libc::POLLHUP);
        t.recv(s, 20, libc::MSG_WAITALL);
        t.recv(s, 20, libc::MSG_WAITALL);
        t.recv(s, 20, libc::MSG_WAITALL);
    }
    fn waitall_nonblocking(t) {
        let (_c, s) = ten(t);
        t.nb(s);
        t.recv(s, 20, libc::MSG_WAITALL);
        t.recv(s, 20, libc::MSG_WAITALL);
    }
    fn waitall_timeout(t) {
        let (_c, s) = ten(t);
        t.set_bytes("timeout", s, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &[0i64, 50_000]);
        t.recv(s, 20, libc::MSG_WAITALL);
        t.recv(s, 20, libc::MSG_WAITALL);
    }
    fn waitall_peek(t) {
        let (_c, s) = ten(t);
        t.recv(s, 10, libc::MSG_WAITALL | libc::MSG_PEEK);
        t.recv(s, 10, libc::MSG_WAITALL);
    }
    fn waitall_in_parts(t) {
        let (c, s) = t.pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for part in [b"ab", b"cd", b"ef"] {
                    c!(send(c, part.as_ptr().cast(), 2, 0));
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            });
            t.recv(s, 6, libc::MSG_WAITALL);
        });
    }
    fn trunc(t) {
        let (_c, s) = ten(t);
        t.recv(s, 4, libc::MSG_TRUNC);
        t.recv(s, 2, libc::MSG_TRUNC | libc::MSG_PEEK);
        t.r("null", c!(recv(s, std::ptr::null_mut(), 3, libc::MSG_TRUNC)));
        t.recv(s, 9, 0);
    }
    fn nosignal(t) {
        let (c, _s) = t.pair();
        c!(shutdown(c, libc::SHUT_WR));
        t.send(c, b"x", libc::MSG_NOSIGNAL);
        t.send(c, b"x", 0);
        t.write(c, b"x");
    }
    fn sigpipe_after_reset(t) {
        let (c, s) = t.pair();
        t.reset_on_close(s);
        c!(close(s));
        t.until(c, libc::POLLHUP);
        t.send(c, b"x", 0);
        t.send(c, b"x", 0);
        t.send(c, b"x", libc::MSG_NOSIGNAL);
        t.recv(c, 1, 0);
    }
    fn sigpipe_kills(t) {
        c!(signal(libc::SIGPIPE, libc::SIG_DFL));
        let (c, _s) = t.pair();
        c!(shutdown(c, libc::SHUT_WR));
        t.send(c, b"x", 0);
        t.say("alive");
    }
    fn more(t) {
        let (c, s) = t.pair();
        t.send(c, b"ab", libc::MSG_MORE);
        t.send(c, b"cd", 0);
        t.until_bytes(s, 4);
        t.recv(s, 9, 0);
    }
    fn more_is_sent_by_and_by(t) {
        let (c, s) = t.pair();
        t.send(c, b"ab", libc::MSG_MORE);
        t.until_bytes(s, 2);
        t.recv(s, 9, 0);
    }
    fn more_then_close(t) {
        let (c, s) = t.pair();
        t.send(c, b"ab", libc::MSG_MORE);
        t.close(c);
        t.until(s, libc::POLLRDHUP);
        t.recv(s, 9, 0);
        t.recv(s, 9, 0);
    }
    fn cork(t) {
        let (c, s) = t.pair();
        t.set("cork", c, libc::IPPROTO_TCP, libc::TCP_CORK, 1);
        t.send(c, b"ab", 0);
        t.send(c, b"cd", 0);
        t.set("cork", c, libc::IPPROTO_TCP, libc::TCP_CORK, 0);
        t.until_bytes(s, 4);
        t.recv(s, 9, 0);
    }
    fn oob_none(t) {
        let (_c, s) = ten(t);
        t.recv(s, 4, libc::MSG_OOB);
        t.ioctl("atmark", s, 0x8905);
        t.r("sockatmark", c!(sockatmark(s)));
    }
    fn oob(t) {
        let (c, s) = ten(t);
        t.send(c, b"ab!", libc::MSG_OOB);
        t.until(s, libc::POLLPRI);
        t.levels(s);
        t.recv(s, 100, 0);
        t.ioctl("atmark", s, 0x8905);
        t.recv(s, 1, libc::MSG_OOB);
        t.recv(s, 1, libc::MSG_OOB);
        t.nb(s);
        t.recv(s, 100, 0);
    }
    fn oob_inline(t) {
        let (c, s) = t.pair();
        t.set("inline", s, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1);
        t.send(c, b"ab!", libc::MSG_OOB);
        t.send(c, b"cd", 0);
        t.until_bytes(s, 2);
        t.recv(s, 2, 0);
        t.recv(s, 1, libc::MSG_OOB);
    }
    fn errqueue(t) {
        let (_c, s) = ten(t);
        t.recv(s, 4, libc::MSG_ERRQUEUE);
        t.recvmsg(s, 4, libc::MSG_ERRQUEUE);
        t.recv(s, 20, 0);
    }
    fn unknown_flags(t) {
        let (c, s) = ten(t);
        t.recv(s, 2, 0x0100_0000);
        t.recv(s, 2, libc::MSG_DONTROUTE);
        t.send(c, b"x", libc::MSG_DONTROUTE);
        t.send(c, b"x", libc::MSG_CONFIRM);
        t.send(c, b"x", libc::MSG_EOR);
        t.send(c, b"x", 0x0100_0000);
        t.send(c, b"x", libc::MSG_PEEK);
    }
    fn zerocopy_without_option(t) {
        let (c, s) = t.pair();
        t.send(c, b"zero", 0x400_0000);
        t.until_bytes(s, 4);
        t.recv(s, 9, 0);
    }
    fn fastopen(t) {
        let l = t.listener(4);
        let (c, a) = (t.tcp(), t.local(l));
        t.r("sendto", c!(sendto(c, b"early".as_ptr().cast(), 5, libc::MSG_FASTOPEN, a.ptr(), a.len)));
        let s = t.accept(l);
        t.until_bytes(s, 5);
        t.recv(s, 9, 0);
        t.r("again", c!(sendto(c, b"early".as_ptr().cast(), 5, libc::MSG_FASTOPEN, a.ptr(), a.len)));
    }
    fn fastopen_without_address(t) {
        t.send(t.tcp(), b"early", libc::MSG_FASTOPEN);
    }
    fn fastopen_nonblocking(t) {
        let l = t.listener(4);
        let (c, a) = (t.tcp_nb(), t.local(l));
        let n = c!(sendto(c, b"early".as_ptr().cast(), 5, libc::MSG_FASTOPEN, a.ptr(), a.len));
        t.r("sendto", n);
        t.until(c, libc::POLLOUT);
        t.peer(c);
    }
    fn rcvlowat(t) {
        let (_c, s) = ten(t);
        t.set("lowat", s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 11);
        t.levels(s);
        t.set("lowat", s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 10);
        t.levels(s);
        t.recv(s, 5, 0);
        t.levels(s);
        t.recv(s, 5, 0);
    }
    fn rcvlowat_waits(t) {
        let (c, s) = t.pair();
        t.set("lowat", s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 12);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for part in [&b"12345"[..], b"6789abc"] {
                    std::thread::sleep(std::time::Duration::from_millis(30));
                    c!(send(c, part.as_ptr().cast(), part.len(), 0));
                }
            });
            t.recv(s, 50, 0);
        });
    }
}
