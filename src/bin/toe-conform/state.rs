//! Every call on a socket in every state: a matrix. The calls are in `state_ops.rs`.

use crate::Case;
use crate::state_ops::OPS;
use crate::sys::Addr;
use crate::trace::T;
use libc::c_int;

/// A socket in some state, and what it needs beside it.
pub struct Subject {
    /// The socket; it does not block.
    pub fd: c_int,
    /// A live listener's address.
    pub live: Addr,
    /// An address where nobody listens.
    pub dead: Addr,
}

type Build = fn(&T) -> c_int;

const STATES: [(&str, Build); 23] = [
    ("new", |t| t.tcp_nb()),
    ("bound", bound),
    ("listening", |t| t.nb(t.listener(4))),
    ("listening_pending", pending),
    ("listening_shut", |t| shut(t, t.nb(t.listener(4)), libc::SHUT_RD)),
    ("listening_shut_both", |t| shut(t, t.nb(t.listener(4)), libc::SHUT_RDWR)),
    ("connecting", connecting),
    ("refused", refused),
    ("refused_untold", refused_untold),
    ("connected", |t| t.nb(t.pair().0)),
    ("accepted", |t| t.nb(t.pair().1)),
    ("connected_untold", connected_untold),
    ("data", |t| data(t, t.pair())),
    ("peer_closed", peer_closed),
    ("peer_closed_data", peer_closed_data),
    ("peer_half_closed", |t| peer_shut(t, t.pair())),
    ("shut_rd", |t| shut(t, t.nb(t.pair().0), libc::SHUT_RD)),
    ("shut_wr", |t| shut(t, t.nb(t.pair().0), libc::SHUT_WR)),
    ("shut_both", |t| shut(t, t.nb(t.pair().0), libc::SHUT_RDWR)),
    ("shut_wr_data", |t| shut(t, data(t, t.pair()), libc::SHUT_WR)),
    ("both_closed", both_closed),
    ("reset", reset),
    ("reset_told", reset_told),
];

/// All cases of the matrix.
pub fn matrix() -> Vec<Case> {
    let mut all = vec![];
    for (state, build) in STATES {
        for (op, run) in OPS {
            let body = move |t: &T| {
                let listener = t.listener(8);
                let s = Subject { fd: build(t), live: t.local(listener), dead: t.dead_port() };
                crate::sys::sigpipes();
                run(t, &s);
                // A peer that is gone answers with a reset.
                if state.starts_with("peer_closed") && (op.starts_with("send") || op.starts_with("write")) {
                    t.calm(s.fd, 0);
                }
                t.after(s.fd);
            };
            all.push(Case { name: format!("state::{state}::{op}"), body: Box::new(body) });
        }
    }
    all
}

fn bound(t: &T) -> c_int {
    let (fd, a) = (t.tcp_nb(), t.addr(0));
    c!(bind(fd, a.ptr(), a.len));
    fd
}

fn pending(t: &T) -> c_int {
    let l = t.nb(t.listener(4));
    t.client(l);
    t.until(l, libc::POLLIN);
    l
}

fn shut(_: &T, fd: c_int, how: c_int) -> c_int {
    c!(shutdown(fd, how));
    fd
}

fn connecting(t: &T) -> c_int {
    t.unanswered().0
}

fn refused(t: &T) -> c_int {
    let (fd, a) = (t.tcp(), t.dead_port());
    c!(connect(fd, a.ptr(), a.len));
    t.nb(fd)
}

fn refused_untold(t: &T) -> c_int {
    let (fd, a) = (t.tcp_nb(), t.dead_port());
    c!(connect(fd, a.ptr(), a.len));
    t.until(fd, libc::POLLHUP);
    fd
}

fn connected_untold(t: &T) -> c_int {
    let (l, fd) = (t.listener(4), t.tcp_nb());
    let a = t.local(l);
    c!(connect(fd, a.ptr(), a.len));
    t.until(fd, libc::POLLOUT);
    fd
}

fn data(t: &T, (c, s): (c_int, c_int)) -> c_int {
    c!(send(s, b"hello".as_ptr().cast(), 5, 0));
    t.until_bytes(c, 5);
    t.nb(c)
}

fn peer_closed(t: &T) -> c_int {
    let (c, s) = t.pair();
    c!(close(s));
    t.until(c, libc::POLLRDHUP);
    t.nb(c)
}

fn peer_closed_data(t: &T) -> c_int {
    let (c, s) = t.pair();
    c!(send(s, b"hello".as_ptr().cast(), 5, 0));
    c!(close(s));
    t.until(c, libc::POLLRDHUP);
    t.until_bytes(c, 5);
    t.nb(c)
}

fn peer_shut(t: &T, (c, s): (c_int, c_int)) -> c_int {
    c!(shutdown(s, libc::SHUT_WR));
    t.until(c, libc::POLLRDHUP);
    t.nb(c)
}

/// FIN both ways, and the connection is over: it was the peer that closed first.
fn both_closed(t: &T) -> c_int {
    let c = peer_closed(t);
    c!(shutdown(c, libc::SHUT_WR));
    t.until_over(c);
    c
}

fn reset(t: &T) -> c_int {
    let (c, s) = t.pair();
    t.reset_on_close(s);
    c!(close(s));
    t.until(c, libc::POLLHUP);
    t.nb(c)
}

fn reset_told(t: &T) -> c_int {
    let (fd, mut byte) = (reset(t), 0u8);
    c!(recv(fd, (&raw mut byte).cast(), 1, 0));
    fd
}
