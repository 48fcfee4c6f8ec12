//! What a case does to sockets: calls that write their outcome down, and quiet helpers that build what a case starts from.

use crate::sys::{self, Addr, errno};
use libc::c_int;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Longest wait for something that must come.
const PATIENCE: Duration = Duration::from_secs(4);

/// The trace of one case.
pub struct T {
    /// Address to use.
    pub ip: IpAddr,
    out: c_int,
}

/// Names of poll's bits.
pub fn mask(bits: u32) -> String {
    const NAMES: [(u32, &str); 12] = [
        (0x1, "IN"),
        (0x2, "PRI"),
        (0x4, "OUT"),
        (0x8, "ERR"),
        (0x10, "HUP"),
        (0x20, "NVAL"),
        (0x40, "RDNORM"),
        (0x80, "RDBAND"),
        (0x100, "WRNORM"),
        (0x200, "WRBAND"),
        (0x400, "MSG"),
        (0x2000, "RDHUP"),
    ];
    let names: Vec<&str> = NAMES.iter().filter(|(b, _)| bits & b != 0).map(|(_, n)| *n).collect();
    if names.is_empty() { "-".into() } else { names.join("|") }
}

/// A message's bytes, short ones in full.
pub fn text(bytes: &[u8]) -> String {
    if bytes.len() > 24 { format!("[{}]", bytes.len()) } else { format!("{:?}", String::from_utf8_lossy(bytes)) }
}

/// Fills `n` bytes that tell their position.
pub fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i % 251) as u8).collect()
}

impl T {
    /// For cases at `ip`, written to `out`.
    pub fn new(ip: IpAddr, out: c_int) -> T {
        T { ip, out }
    }

    /// Writes a word.
    pub fn say(&self, word: impl AsRef<str>) {
        let e = errno();
        let line = format!(" {}", word.as_ref());
        c!(write(self.out, line.as_ptr().cast(), line.len()));
        sys::set_errno(e);
    }

    /// Writes an outcome: the value, or errno if it is negative; and SIGPIPE if one came.
    pub fn r(&self, name: &str, value: i64) -> i64 {
        let e = errno();
        let pipe = if sys::sigpipes() > 0 { "+SIGPIPE" } else { "" };
        match value {
            v if v < 0 => self.say(format!("{name}={}{pipe}", error_name(e))),
            v => self.say(format!("{name}={v}{pipe}")),
        }
        sys::set_errno(e);
        value
    }

    /// The same for a new descriptor, whose number does not matter.
    pub fn fd(&self, name: &str, value: i64) -> c_int {
        if value < 0 {
            self.r(name, value);
        } else {
            self.say(format!("{name}=fd"));
        }
        value as c_int
    }

    /// AF_INET or AF_INET6, after the address.
    pub fn domain(&self) -> c_int {
        if self.ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
    }

    /// The address with a port.
    pub fn addr(&self, port: u16) -> Addr {
        Addr::new(self.ip, port)
    }

    /// The wildcard address with a port.
    pub fn any(&self, port: u16) -> Addr {
        let v4 = IpAddr::from([0; 4]);
        Addr::new(if self.ip.is_ipv4() { v4 } else { IpAddr::from([0u8; 16]) }, port)
    }

    /// A TCP socket.
    pub fn tcp(&self) -> c_int {
        c!(socket(self.domain(), libc::SOCK_STREAM, 0)) as c_int
    }

    /// One that does not block.
    pub fn tcp_nb(&self) -> c_int {
        c!(socket(self.domain(), libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)) as c_int
    }

    /// A connection attempt that gets no answer because the listener's queue is full (-1: it never is), and where it goes.
    pub fn unanswered(&self) -> (c_int, Addr) {
        let l = self.listener(0);
        let a = self.local(l);
        for _ in 0..8 {
            let fd = self.tcp_nb();
            c!(connect(fd, a.ptr(), a.len));
            let mut p = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
            if c!(poll(&raw mut p, 1, 50)) == 0 {
                return (fd, a);
            }
        }
        self.say("queue-never-full");
        (-1, a)
    }

    /// A listener on a port of the system's choice.
    pub fn listener(&self, backlog: c_int) -> c_int {
        let fd = self.tcp();
        let a = self.addr(0);
        c!(bind(fd, a.ptr(), a.len));
        if c!(listen(fd, backlog)) != 0 {
            self.say(format!("no-listener={}", error_name(errno())));
        }
        fd
    }

    /// getsockname, quietly.
    pub fn local(&self, fd: c_int) -> Addr {
        let mut a = Addr { raw: [0; 28], len: 28 };
        c!(getsockname(fd, a.ptr_mut(), &raw mut a.len));
        a
    }

    /// Connects a new socket to a listener, quietly.
    pub fn client(&self, listener: c_int) -> c_int {
        let (fd, a) = (self.tcp(), self.local(listener));
        if c!(connect(fd, a.ptr(), a.len)) != 0 {
            self.say(format!("no-connection={}", error_name(errno())));
        }
        fd
    }

    /// A connection: (client, server).
    pub fn pair(&self) -> (c_int, c_int) {
        let listener = self.listener(8);
        let client = self.client(listener);
        let server = c!(accept(listener, std::ptr::null_mut(), std::ptr::null_mut())) as c_int;
        if server < 0 {
            self.say(format!("no-accept={}", error_name(errno())));
        }
        c!(close(listener));
        (client, server)
    }

    /// Sets O_NONBLOCK, quietly.
    pub fn nb(&self, fd: c_int) -> c_int {
        c!(fcntl(fd, libc::F_SETFL, c!(fcntl(fd, libc::F_GETFL)) as c_int | libc::O_NONBLOCK));
        fd
    }

    /// A port on which nobody listens.
    pub fn dead_port(&self) -> Addr {
        let fd = self.tcp();
        let a = self.addr(0);
        c!(bind(fd, a.ptr(), a.len));
        let a = self.local(fd);
        c!(close(fd));
        a
    }

    /// Waits for one of `events`, quietly.
    pub fn until(&self, fd: c_int, events: i16) {
        let start = Instant::now();
        loop {
            let mut p = libc::pollfd { fd, events, revents: 0 };
            c!(poll(&raw mut p, 1, 100));
            if p.revents & events != 0 {
                return;
            }
            if start.elapsed() > PATIENCE {
                return self.say(format!("never-{}", mask(events as u16 as u32)));
            }
        }
    }

    /// Gives what may come a moment to come: one of `events`, an error or a hang-up.
    pub fn calm(&self, fd: c_int, events: i16) {
        let mut p = libc::pollfd { fd, events, revents: 0 };
        c!(poll(&raw mut p, 1, 40));
    }

    /// Waits until `n` bytes are there to be read, quietly.
    pub fn until_bytes(&self, fd: c_int, n: c_int) {
        self.until_true("bytes", || {
            let mut have: c_int = 0;
            c!(ioctl(fd, libc::FIONREAD, &raw mut have));
            have >= n
        });
    }

    /// Waits until the connection is no more.
    pub fn until_over(&self, fd: c_int) {
        self.until_true("over", || {
            let mut a = self.addr(0);
            c!(getpeername(fd, a.ptr_mut(), &raw mut a.len)) < 0
        });
    }

    /// Waits until `done`, looking again and again.
    pub fn until_true(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            if start.elapsed() > PATIENCE {
                return self.say(format!("never-{what}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next close sends a reset.
    pub fn reset_on_close(&self, fd: c_int) {
        let l = libc::linger { l_onoff: 1, l_linger: 0 };
        c!(setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const l).cast(), 8));
    }

    /// How an address looks: `IP:port`, with the case's own address and the numbers of free ports replaced.
    pub fn show(&self, a: &Addr) -> String {
        let ip = match a.ip() {
            ip if ip == self.ip => "IP".into(),
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some_and(|v4| IpAddr::V4(v4) == self.ip) => "MAPPED".into(),
            ip if ip.is_unspecified() => "ANY".into(),
            ip if ip.is_loopback() => "LO".into(),
            ip => ip.to_string(),
        };
        format!("{}/{ip}:{}/{}", a.family(), if a.port() == 0 { "0" } else { "port" }, a.len)
    }
}

/// The name of an errno.
pub fn error_name(e: c_int) -> String {
    const NAMES: [(c_int, &str); 50] = [
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::EINTR, "EINTR"),
        (libc::EIO, "EIO"),
        (libc::ENXIO, "ENXIO"),
        (libc::EBADF, "EBADF"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EACCES, "EACCES"),
        (libc::EFAULT, "EFAULT"),
        (libc::EBUSY, "EBUSY"),
        (libc::EEXIST, "EEXIST"),
        (libc::ENODEV, "ENODEV"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENFILE, "ENFILE"),
        (libc::EMFILE, "EMFILE"),
        (libc::ENOTTY, "ENOTTY"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::ESPIPE, "ESPIPE"),
        (libc::EPIPE, "EPIPE"),
        (libc::EDOM, "EDOM"),
        (libc::ERANGE, "ERANGE"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ELOOP, "ELOOP"),
        (libc::ENODATA, "ENODATA"),
        (libc::EPROTO, "EPROTO"),
        (libc::EOVERFLOW, "EOVERFLOW"),
        (libc::ENOTSOCK, "ENOTSOCK"),
        (libc::EDESTADDRREQ, "EDESTADDRREQ"),
        (libc::EMSGSIZE, "EMSGSIZE"),
        (libc::EPROTOTYPE, "EPROTOTYPE"),
        (libc::ENOPROTOOPT, "ENOPROTOOPT"),
        (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
        (libc::EADDRINUSE, "EADDRINUSE"),
        (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL"),
        (libc::ENETUNREACH, "ENETUNREACH"),
        (libc::ECONNABORTED, "ECONNABORTED"),
        (libc::ECONNRESET, "ECONNRESET"),
        (libc::ENOBUFS, "ENOBUFS"),
        (libc::EISCONN, "EISCONN"),
        (libc::ENOTCONN, "ENOTCONN"),
        (libc::ETIMEDOUT, "ETIMEDOUT"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::EHOSTUNREACH, "EHOSTUNREACH"),
        (libc::EALREADY, "EALREADY"),
        (libc::EINPROGRESS, "EINPROGRESS"),
        (libc::ECANCELED, "ECANCELED"),
    ];
    NAMES.iter().find(|(n, _)| *n == e).map_or_else(|| format!("E{e}"), |(_, name)| (*name).into())
}
