//! Ways for a connection to end: close, shutdown and reset of both sides in every order.

use crate::cases;
use crate::trace::T;
use libc::{SHUT_RD, SHUT_RDWR, SHUT_WR, c_int};

/// What both ends see of each other.
fn both(t: &T, c: c_int, s: c_int) {
    t.levels(c);
    t.levels(s);
}

fn end(t: &T, fd: c_int) {
    t.until(fd, libc::POLLRDHUP);
    t.recv(fd, 9, 0);
}

cases! {
    fn close_unread(t) {
        let (c, s) = t.pair();
        t.send(c, b"unread", 0);
        t.until_bytes(s, 6);
        t.close(s);
        t.until(c, libc::POLLHUP);
        t.after(c);
        t.recv(c, 9, 0);
    }
    fn close_half_read(t) {
        let (c, s) = t.pair();
        t.send(c, b"unread", 0);
        t.until_bytes(s, 6);
        t.recv(s, 3, 0);
        t.close(s);
        t.until(c, libc::POLLHUP);
        t.recv(c, 9, 0);
        t.recv(c, 9, 0);
    }
    fn close_peeked(t) {
        let (c, s) = t.pair();
        t.send(c, b"unread", 0);
        t.until_bytes(s, 6);
        t.recv(s, 9, libc::MSG_PEEK);
        t.close(s);
        t.until(c, libc::POLLHUP);
        t.recv(c, 9, 0);
    }
    fn close_with_data_on_the_way(t) {
        let (c, s) = t.pair();
        t.send(c, &[9; 20_000], 0);
        t.close(c);
        let mut buf = vec![0u8; 20_000];
        t.r("recv", c!(recv(s, buf.as_mut_ptr().cast(), 20_000, libc::MSG_WAITALL)));
        end(t, s);
    }
    fn send_after_peer_closed(t) {
        let (c, s) = t.pair();
        t.close(s);
        t.until(c, libc::POLLRDHUP);
        t.send(c, b"one", 0);
        t.until(c, libc::POLLHUP);
        t.levels(c);
        t.send(c, b"two", 0);
        t.send(c, b"three", 0);
        t.recv(c, 9, 0);
        t.so_error(c);
    }
    fn recv_after_peer_closed_and_send(t) {
        let (c, s) = t.pair();
        t.close(s);
        t.until(c, libc::POLLRDHUP);
        t.send(c, b"one", 0);
        t.until(c, libc::POLLHUP);
        t.recv(c, 9, 0);
        t.recv(c, 9, 0);
        t.send(c, b"two", 0);
    }
    fn half_close_client(t) {
        let (c, s) = t.pair();
        t.send(c, b"last", 0);
        t.shutdown(c, SHUT_WR);
        t.until_bytes(s, 4);
        t.recv(s, 9, 0);
        end(t, s);
        both(t, c, s);
        t.send(s, b"answer", 0);
        t.until_bytes(c, 6);
        t.recv(c, 9, 0);
        t.shutdown(s, SHUT_WR);
        end(t, c);
        both(t, c, s);
        t.until_over(s);
        t.shutdown(s, SHUT_WR);
        t.until_over(c);
        t.shutdown(c, SHUT_RDWR);
    }
    fn half_close_server(t) {
        let (c, s) = t.pair();
        t.shutdown(s, SHUT_WR);
        end(t, c);
        t.send(c, b"more", 0);
        t.until_bytes(s, 4);
        t.recv(s, 9, 0);
        t.close(c);
        end(t, s);
        t.levels(s);
    }
    fn half_close_long_transfer(t) {
        let (c, s) = t.pair();
        t.shutdown(c, SHUT_WR);
        end(t, s);
        let data = crate::trace::pattern(500_000);
        std::thread::scope(|scope| {
            scope.spawn(|| { c!(send(s, data.as_ptr().cast(), data.len(), 0)); });
            t.drain(c, 500_000);
        });
    }
    fn both_half_close_at_once(t) {
        let (c, s) = t.pair();
        t.shutdown(c, SHUT_WR);
        t.shutdown(s, SHUT_WR);
        end(t, c);
        end(t, s);
        both(t, c, s);
        t.until_over(c);
        t.until_over(s);
        t.peer(c);
        t.shutdown(c, SHUT_WR);
        t.shutdown(s, SHUT_RD);
    }
    fn shut_rd_then_data(t) {
        let (c, s) = t.pair();
        t.shutdown(c, SHUT_RD);
        t.recv(c, 9, 0);
        t.send(s, b"late", 0);
        t.until_bytes(c, 4);
        t.recv(c, 9, 0);
        t.recv(c, 9, 0);
        t.send(c, b"works", 0);
        t.until_bytes(s, 5);
        t.recv(s, 9, 0);
    }
    fn shut_rd_with_data(t) {
        let (c, s) = t.pair();
        t.send(s, b"early", 0);
        t.until_bytes(c, 5);
        t.shutdown(c, SHUT_RD);
        t.levels(c);
        t.recv(c, 3, 0);
        t.recv(c, 9, 0);
        t.recv(c, 9, 0);
    }
    fn shut_rdwr(t) {
        let (c, s) = t.pair();
        t.shutdown(c, SHUT_RDWR);
        t.levels(c);
        end(t, s);
        t.send(c, b"x", 0);
        t.recv(c, 9, 0);
        t.send(s, b"y", 0);
        t.until_over(c);
        t.peer(c);
        t.shutdown(c, SHUT_RDWR);
    }
    fn shut_rdwr_peer_sends(t) {
        let (c, s) = t.pair();
        t.shutdown(c, SHUT_RDWR);
        end(t, s);
        t.send(s, b"late", 0);
        t.until(s, libc::POLLHUP);
        t.levels(s);
        t.recv(c, 9, 0);
        t.levels(c);
    }
    fn shut_twice(t) {
        let (c, s) = t.pair();
        for how in [SHUT_WR, SHUT_WR, SHUT_RD, SHUT_RD, SHUT_RDWR] {
            t.shutdown(c, how);
            t.levels(c);
        }
        t.close(c);
        end(t, s);
    }
    fn shut_wrong(t) {
        let (c, _s) = t.pair();
        t.shutdown(c, 3);
        t.shutdown(c, -1);
        t.shutdown(t.tcp(), 3);
        t.shutdown(t.tcp(), 0);
        t.levels(c);
    }
    fn linger_zero(t) {
        let (c, s) = t.pair();
        t.reset_on_close(c);
        t.close(c);
        t.until(s, libc::POLLHUP);
        t.levels(s);
        t.recv(s, 9, 0);
        t.recv(s, 9, 0);
        t.send(s, b"x", 0);
    }
    fn linger_zero_with_data(t) {
        let (c, s) = t.pair();
        t.send(c, b"lost?", 0);
        t.until_bytes(s, 5);
        t.reset_on_close(c);
        t.close(c);
        t.until(s, libc::POLLHUP);
        t.recv(s, 9, 0);
        t.recv(s, 9, 0);
        t.recv(s, 9, 0);
    }
    fn linger_zero_after_shutdown(t) {
        let (c, s) = t.pair();
        t.shutdown(c, SHUT_WR);
        end(t, s);
        t.reset_on_close(c);
        t.close(c);
        t.until(s, libc::POLLHUP);
        t.after(s);
        t.recv(s, 9, 0);
        t.send(s, b"x", 0);
    }
    fn linger_some(t) {
        let (c, s) = t.pair();
        t.set_bytes("linger", c, libc::SOL_SOCKET, libc::SO_LINGER, &[1 as c_int, 5]);
        t.send(c, b"all", 0);
        t.close(c);
        t.until_bytes(s, 3);
        t.recv(s, 9, 0);
        end(t, s);
    }
    fn linger_changed_back(t) {
        let (c, s) = t.pair();
        t.reset_on_close(c);
        t.set_bytes("linger", c, libc::SOL_SOCKET, libc::SO_LINGER, &[0 as c_int, 0]);
        t.close(c);
        end(t, s);
        t.levels(s);
    }
    fn linger_only_last_close(t) {
        let (c, s) = t.pair();
        let d = c!(dup(c)) as c_int;
        t.reset_on_close(c);
        t.close(c);
        t.levels(s);
        t.close(d);
        t.until(s, libc::POLLHUP);
        t.recv(s, 9, 0);
    }
    fn unspec_resets(t) {
        let (c, s) = t.pair();
        let mut a = t.addr(0);
        a.raw[..2].copy_from_slice(&0u16.to_ne_bytes());
        t.connect(c, a);
        t.until(s, libc::POLLHUP);
        t.recv(s, 9, 0);
        t.after(c);
        t.name(c);
    }
    fn unspec_stops_listening(t) {
        let l = t.listener(3);
        let (c, at) = (t.client(l), t.local(l));
        let mut a = t.addr(0);
        a.raw[..2].copy_from_slice(&0u16.to_ne_bytes());
        t.connect(l, a);
        t.until(c, libc::POLLHUP);
        t.connect(t.tcp(), at);
        t.get("accepting", l, libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
        t.say(format!("kept={}", t.local(l).port() == at.port()));
        t.listen(l, 3);
    }
    fn listener_shut_and_revived(t) {
        let l = t.listener(3);
        t.shutdown(l, SHUT_RDWR);
        t.levels(l);
        t.name(l);
        t.accept(l);
        t.get("accepting", l, libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
        t.listen(l, 3);
        t.levels(l);
        let c = t.client(l);
        t.accept(l);
        t.levels(c);
    }
    fn listener_shut_wr(t) {
        let l = t.listener(3);
        t.shutdown(l, SHUT_WR);
        let c = t.client(l);
        t.accept(l);
        t.levels(c);
    }
    fn error_is_told_once(t) {
        let (c, s) = t.pair();
        t.reset_on_close(s);
        t.close(s);
        t.until(c, libc::POLLHUP);
        t.so_error(c);
        t.so_error(c);
        t.recv(c, 1, 0);
        t.send(c, b"x", 0);
        t.levels(c);
    }
    fn error_by_send_first(t) {
        let (c, s) = t.pair();
        t.reset_on_close(s);
        t.close(s);
        t.until(c, libc::POLLHUP);
        t.send(c, b"x", 0);
        t.send(c, b"x", 0);
        t.so_error(c);
    }
    fn reset_after_end(t) {
        let (c, s) = t.pair();
        t.shutdown(s, SHUT_WR);
        end(t, c);
        t.send(c, b"x", 0);
        t.until_bytes(s, 1);
        t.close(s);
        t.until(c, libc::POLLHUP);
        t.after(c);
        t.recv(c, 9, 0);
        t.send(c, b"x", 0);
    }
    fn data_then_reset(t) {
        let (c, s) = t.pair();
        t.send(s, b"first", 0);
        t.until_bytes(c, 5);
        t.send(c, b"x", 0);
        t.until_bytes(s, 1);
        t.close(s);
        t.until(c, libc::POLLHUP);
        t.recv(c, 3, 0);
        t.recv(c, 9, 0);
        t.recv(c, 9, 0);
        t.recv(c, 9, 0);
    }
    fn exit_without_close(t) {
        let l = t.listener(2);
        let pid = c!(fork()) as c_int;
        if pid == 0 {
            let c = t.client(l);
            c!(send(c, b"bye".as_ptr().cast(), 3, 0));
            crate::sys::quit();
        }
        let s = t.accept(l);
        crate::sys::wait_status(pid);
        t.until(s, libc::POLLRDHUP);
        t.recv(s, 9, 0);
        t.recv(s, 9, 0);
    }
}
