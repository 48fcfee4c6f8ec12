//! Engine sockets that are about to leave this process image. Their placeholders are connected to the daemon, each to an end of
//! its own, so that the daemon sees how long any process has one open, and holds the socket that long.
//!
//! Runs in `vfork` children and in forked children of threaded programs: no heap, no locks but those that others release, and
//! descriptors of its own only until it returns.

#![allow(unsafe_code)]

use crate::fork::borrowed_memory;
use crate::log::say;
use crate::offload;
use crate::sys::{self, check, sys};
use crate::table::{Entry, Kind, Tables, entry, tables};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use libc::{AF_UNIX, SOL_SOCKET, c_int, sockaddr_un};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use toe_core::app::Sock;
use toe_core::app::adopt::Keep;
use toe_core::shm::kept;

/// The peer of every kept placeholder has an abstract name that begins so. It is how the next image knows one.
pub const MARK: &[u8] = b"\0toe-kept-";
/// Random bytes of a name.
const RANDOM: usize = 16;
/// Bytes before the name.
const PATH_AT: usize = core::mem::offset_of!(sockaddr_un, sun_path);
/// Another process is keeping the same socket: it needs far less than so many rounds of yielding.
const OTHERS_TURN: u32 = 10_000;

/// Gives every engine socket that `exec` would leave open, and those among `also` (which a child gets although they are marked
/// close-on-exec here), into the daemon's keeping.
pub fn at_exec(also: &[c_int], how: Keep) {
    let Some(t) = tables().filter(|t| t.any_locals()) else { return };
    let mut keeper = Keeper::new(t, how);
    each_open_fd(|fd| {
        let flags = sys!(SYS_fcntl, fd, libc::F_GETFD);
        if flags >= 0 && (flags & libc::FD_CLOEXEC as isize == 0 || also.contains(&fd)) {
            keeper.keep(fd);
        }
    });
}

/// The same for what `each` calls its argument with: the descriptors of a message.
pub fn at_send(each: impl FnOnce(&mut dyn FnMut(c_int))) {
    let Some(t) = tables().filter(|t| t.any_locals()) else { return };
    let mut keeper = Keeper::new(t, Keep::InMessage);
    each(&mut |fd| keeper.keep(fd));
}

/// Calls `f` for each open descriptor of this process, whoever made it.
pub fn each_open_fd(mut f: impl FnMut(c_int)) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let dir = sys!(SYS_openat, libc::AT_FDCWD, c"/proc/self/fd".as_ptr(), flags, 0);
    if dir < 0 {
        // Without /proc: the usual numbers, and all that the tables have seen.
        let last = tables().map_or(0, |t| t.max_fd.load(Relaxed)).max(1023);
        return (0..=last).for_each(f);
    }
    let mut buf = [0u64; 256];
    loop {
        let n = sys!(SYS_getdents64, dir, buf.as_mut_ptr(), size_of_val(&buf));
        if n <= 0 {
            break;
        }
        // SAFETY: the kernel has filled in `n` bytes of the buffer.
        let bytes = unsafe { core::slice::from_raw_parts(buf.as_ptr().cast::<u8>(), n as usize) };
        names(bytes, |fd| {
            if fd != dir as c_int {
                f(fd);
            }
        });
    }
    sys::close(dir as c_int);
}

/// Numbers among the names of `struct linux_dirent64` records: inode, offset (8 bytes each), length (2), type (1), name.
fn names(mut bytes: &[u8], mut f: impl FnMut(c_int)) {
    while bytes.len() > 19 {
        let len = usize::from(u16::from_ne_bytes([bytes[16], bytes[17]])).clamp(20, bytes.len());
        let name = bytes[19..len].split(|&b| b == 0).next().unwrap_or_default();
        if let Some(fd) = core::str::from_utf8(name).ok().and_then(|s| s.parse().ok()) {
            f(fd);
        }
        bytes = &bytes[len..];
    }
}

/// Is `fd` a stream socket of AF_UNIX?
pub fn is_placeholder(fd: c_int) -> bool {
    offload::kernel_int(fd, SOL_SOCKET, libc::SO_DOMAIN) == Some(AF_UNIX)
        && offload::kernel_int(fd, SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

struct Keeper {
    tables: &'static Tables,
    how: Keep,
    /// In a `vfork` child: its descriptors are not what the tables say.
    borrowed: bool,
    /// Listens for the placeholders; -1 until needed.
    listener: c_int,
    address: sockaddr_un,
    address_len: usize,
}

impl Keeper {
    fn new(tables: &'static Tables, how: Keep) -> Keeper {
        let address = sockaddr_un { sun_family: AF_UNIX as u16, sun_path: [0; 108] };
        Keeper { tables, how, borrowed: borrowed_memory(), listener: -1, address, address_len: 0 }
    }

    fn keep(&mut self, fd: c_int) {
        if !is_placeholder(fd) {
            return;
        }
        let Some(sock) = self.sock_of(fd) else { return };
        let now = sock.slot.kept.load(Acquire);
        // Each message is watched until it has arrived.
        let done = match self.how {
            Keep::ForShim => now & kept::KEPT != 0,
            Keep::InMessage | Keep::Relay => now & kept::RELAYED != 0,
        };
        if done {
            return;
        }
        let outcome = self.keep_sock(fd, &sock);
        say!("fd {fd}: kept by the daemon: {outcome:?}");
    }

    /// The engine socket that `fd` stands for.
    fn sock_of(&self, fd: c_int) -> Option<Sock<'static>> {
        let cookie = offload::cookie(fd);
        let e = if self.borrowed { Entry(0) } else { entry(fd) };
        match e.kind() {
            Kind::Engine => self.tables.sock_of(e),
            Kind::Hybrid | Kind::Internal => None,
            _ => self.tables.by_cookie(cookie).and_then(|l| l.sock()),
        }
        .filter(|s| cookie != 0 && s.slot.cookie.load(Relaxed) == cookie)
    }

    fn keep_sock(&mut self, fd: c_int, sock: &Sock<'static>) -> Result<(), Errno> {
        let known = sock.slot.kept.load(Acquire) & kept::KEPT != 0;
        let end = match if known { Err(Errno::ISCONN) } else { self.connect(fd) } {
            // Kept before, by another process or for a former slot.
            Err(Errno::ISCONN) => -1,
            other => other?,
        };
        // SAFETY: `end` is open until the end of this function.
        let borrowed = (end >= 0).then(|| unsafe { BorrowedFd::borrow_raw(end) });
        let mut outcome = sock.link.keep(sock, borrowed, self.how, self.borrowed);
        for _ in 0..OTHERS_TURN {
            if outcome != Err(Errno::NOENT) || sock.slot.kept.load(Acquire) & kept::KEPT != 0 {
                break;
            }
            sys!(SYS_sched_yield);
            outcome = sock.link.keep(sock, borrowed, self.how, self.borrowed);
        }
        sys::close(end);
        outcome
    }

    /// Connects a placeholder; the other end.
    fn connect(&mut self, fd: c_int) -> Result<c_int, Errno> {
        if self.listener < 0 {
            self.listen()?;
        }
        check(sys!(SYS_connect, fd, &raw const self.address, self.address_len))?;
        loop {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let end = check(sys!(SYS_accept4, self.listener, 0, 0, flags))? as c_int;
            // Anybody could have connected to the name in the meantime.
            if peer_pid(end) == sys::getpid() {
                return Ok(end);
            }
            sys::close(end);
        }
    }

    fn listen(&mut self) -> Result<(), Errno> {
        let fd = check(sys!(SYS_socket, AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0))?;
        let mut random = [0u8; RANDOM];
        sys!(SYS_getrandom, random.as_mut_ptr(), RANDOM, libc::GRND_NONBLOCK);
        let hex = random.iter().flat_map(|b| [b >> 4, b & 15]).map(|n| b"0123456789abcdef"[n as usize]);
        let name = MARK.iter().copied().chain(hex);
        self.address.sun_path.iter_mut().zip(name).for_each(|(to, from)| *to = from as libc::c_char);
        self.address_len = PATH_AT + MARK.len() + 2 * RANDOM;
        let ready = check(sys!(SYS_bind, fd, &raw const self.address, self.address_len))
            .and_then(|_| check(sys!(SYS_listen, fd, 16)));
        match ready {
            Ok(_) => self.listener = fd as c_int,
            Err(_) => sys::close(fd as c_int),
        }
        ready.map(|_| ())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        sys::close(self.listener);
    }
}

/// Process that made the other end's connection, as this namespace numbers it.
fn peer_pid(fd: c_int) -> u32 {
    let (mut cred, mut len) = ([0u32; 3], 12u32);
    sys!(SYS_getsockopt, fd, SOL_SOCKET, libc::SO_PEERCRED, cred.as_mut_ptr(), &raw mut len);
    cred[0]
}

/// Does the daemon keep the socket behind `fd`, an AF_UNIX stream socket, by its peer's name?
pub fn is_marked(fd: c_int) -> bool {
    let mut address = sockaddr_un { sun_family: 0, sun_path: [0; 108] };
    let mut len = size_of::<sockaddr_un>() as u32;
    let r = sys!(SYS_getpeername, fd, &raw mut address, &raw mut len);
    let name = address.sun_path.iter().map(|&c| c as u8);
    r == 0 && len as usize == PATH_AT + MARK.len() + 2 * RANDOM && name.take(MARK.len()).eq(MARK.iter().copied())
}
