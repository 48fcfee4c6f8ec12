//! The calls of the matrix in `state.rs`.

use crate::calls::{iov, iov_mut, msg};
use crate::state::Subject;
use crate::sys::Addr;
use crate::trace::T;
use libc::c_int;
use std::ptr::null_mut;

type Op = fn(&T, &Subject);

/// Each call, on the socket of the state.
pub const OPS: [(&str, Op); 47] = [
    ("nothing", |t, s| t.select(s.fd)),
    ("epoll", |t, s| t.epoll(s.fd, 0x1 | 0x2 | 0x4 | 0x2000)),
    ("epoll_none", |t, s| t.epoll(s.fd, 0)),
    ("poll_none", |t, s| t.poll(s.fd, 0)),
    ("recv", |t, s| recv_twice(t, s, 0)),
    ("recv_peek", |t, s| recv_twice(t, s, libc::MSG_PEEK)),
    ("recv_trunc", |t, s| recv_twice(t, s, libc::MSG_TRUNC)),
    ("recv_waitall", |t, s| recv_twice(t, s, libc::MSG_WAITALL | libc::MSG_DONTWAIT)),
    ("recv_oob", |t, s| _ = t.recv(s.fd, 3, libc::MSG_OOB)),
    ("recv_errqueue", |t, s| _ = t.recv(s.fd, 3, libc::MSG_ERRQUEUE)),
    ("recv_nothing", |t, s| _ = t.recv(s.fd, 0, 0)),
    ("read", |t, s| _ = t.read(s.fd, 10)),
    ("read_nothing", |t, s| _ = t.read(s.fd, 0)),
    ("readv", readv),
    ("recvmsg", |t, s| _ = t.recvmsg(s.fd, 10, 0)),
    ("recvfrom", recvfrom),
    ("send", send_twice),
    ("send_nosignal", |t, s| _ = t.send(s.fd, b"abc", libc::MSG_NOSIGNAL)),
    ("send_nothing", |t, s| _ = t.send(s.fd, b"", 0)),
    ("send_more", |t, s| _ = t.send(s.fd, b"abc", libc::MSG_MORE)),
    ("write", |t, s| _ = t.write(s.fd, b"abc")),
    ("write_nothing", |t, s| _ = t.write(s.fd, b"")),
    ("writev", writev),
    ("sendmsg", sendmsg),
    ("sendto", sendto),
    ("sendfile", sendfile),
    ("bind", |t, s| _ = t.bind(s.fd, t.addr(0))),
    ("listen", |t, s| _ = t.listen(s.fd, 5)),
    ("accept", |t, s| _ = t.accept(s.fd)),
    ("connect", |t, s| connect_twice(t, s, s.live)),
    ("connect_dead", |t, s| connect_twice(t, s, s.dead)),
    ("connect_unspec", connect_unspec),
    ("connect_short", |t, s| _ = t.connect(s.fd, Addr { len: 7, ..s.live })),
    ("connect_tiny", |t, s| _ = t.connect(s.fd, Addr { len: 1, ..s.live })),
    ("shutdown_rd", |t, s| _ = t.shutdown(s.fd, libc::SHUT_RD)),
    ("shutdown_wr", |t, s| _ = t.shutdown(s.fd, libc::SHUT_WR)),
    ("shutdown_rdwr", |t, s| _ = t.shutdown(s.fd, libc::SHUT_RDWR)),
    ("shutdown_twice", |t, s| _ = (t.shutdown(s.fd, libc::SHUT_RD), t.shutdown(s.fd, libc::SHUT_WR))),
    ("shutdown_wrong", |t, s| _ = t.shutdown(s.fd, 3)),
    ("names", |t, s| _ = (t.name(s.fd), t.peer(s.fd))),
    ("so_error", |t, s| t.so_error(s.fd)),
    ("acceptconn", |t, s| _ = t.get("acceptconn", s.fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)),
    ("fionread", |t, s| _ = t.ioctl("fionread", s.fd, libc::FIONREAD)),
    ("outq", outq),
    ("atmark", |t, s| _ = t.ioctl("atmark", s.fd, 0x8905)),
    ("tcp_state", tcp_state),
    ("renew", renew),
];

fn recv_twice(t: &T, s: &Subject, flags: c_int) {
    t.recv(s.fd, 3, flags);
    t.recv(s.fd, 10, flags);
}

fn send_twice(t: &T, s: &Subject) {
    t.send(s.fd, b"abc", 0);
    t.calm(s.fd, 0);
    t.send(s.fd, b"def", 0);
}

fn readv(t: &T, s: &Subject) {
    let (mut a, mut b) = ([0u8; 2], [0u8; 9]);
    let iovs = [iov_mut(&mut a), iov_mut(&mut b)];
    t.r("readv", c!(readv(s.fd, iovs.as_ptr(), 2)));
    t.say(format!("{:?} {:?}", a, &b[..4]));
}

fn recvfrom(t: &T, s: &Subject) {
    let (mut buf, mut a) = ([0u8; 8], Addr { raw: [0xAA; 28], len: 28 });
    let got = c!(recvfrom(s.fd, buf.as_mut_ptr().cast(), 8, 0, a.ptr_mut(), &raw mut a.len));
    t.got("recvfrom", got, &buf);
    t.say(format!("address={} untouched={}", a.len, a.raw == [0xAA; 28]));
}

fn writev(t: &T, s: &Subject) {
    let iovs = [iov(b"ab"), iov(b""), iov(b"cde")];
    t.r("writev", c!(writev(s.fd, iovs.as_ptr(), 3)));
}

fn sendmsg(t: &T, s: &Subject) {
    let mut iovs = [iov(b"ab"), iov(b"cde")];
    let m = msg(&mut iovs);
    t.r("sendmsg", c!(sendmsg(s.fd, &raw const m, 0)));
}

fn sendto(t: &T, s: &Subject) {
    let a = s.dead;
    t.r("sendto", c!(sendto(s.fd, b"abc".as_ptr().cast(), 3, 0, a.ptr(), a.len)));
}

fn sendfile(t: &T, s: &Subject) {
    let file = c!(memfd_create(c"f".as_ptr(), 0)) as c_int;
    c!(pwrite(file, b"0123456789".as_ptr().cast(), 10, 0));
    let mut at: libc::off_t = 2;
    t.r("sendfile", c!(sendfile(s.fd, file, &raw mut at, 5)));
    t.say(format!("offset={at}"));
    t.calm(s.fd, 0);
    t.r("sendfile", c!(sendfile(s.fd, file, null_mut(), 5)));
    t.say(format!("position={}", c!(lseek(file, 0, libc::SEEK_CUR))));
}

fn connect_twice(t: &T, s: &Subject, a: Addr) {
    for _ in 0..3 {
        t.connect(s.fd, a);
        t.calm(s.fd, libc::POLLOUT);
    }
}

fn connect_unspec(t: &T, s: &Subject) {
    let mut a = t.addr(0);
    a.raw[..2].copy_from_slice(&0u16.to_ne_bytes());
    t.connect(s.fd, a);
    t.peer(s.fd);
}

/// Linux counts SYN and FIN as bytes, and does not say what the number means on sockets that are not connected.
fn outq(t: &T, s: &Subject) {
    let mut v: c_int = -77;
    let r = c!(ioctl(s.fd, libc::TIOCOUTQ, &raw mut v));
    t.r("outq", r);
    t.say(format!("few={}", (0..4).contains(&v)));
}

fn tcp_state(t: &T, s: &Subject) {
    let (mut info, mut len) = ([0u8; 104], 104u32);
    // What was sent may still be under way, or about to be: FIN-WAIT-1.
    t.calm(s.fd, libc::POLLNVAL);
    t.until_true("state", || {
        c!(getsockopt(s.fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len));
        info[0] != 4
    });
    t.r("info", c!(getsockopt(s.fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)));
    t.say(format!("state={} len={len}", info[0]));
}

/// The usual way out of any state: dissolve, then use it again.
fn renew(t: &T, s: &Subject) {
    let mut a = t.addr(0);
    a.raw[..2].copy_from_slice(&0u16.to_ne_bytes());
    c!(connect(s.fd, a.ptr(), a.len));
    t.connect(s.fd, s.live);
    t.until(s.fd, libc::POLLOUT);
    t.peer(s.fd);
    t.send(s.fd, b"x", 0);
}
