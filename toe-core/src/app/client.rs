//! Registering with a daemon, and what a registration gives: [`Link`].

#![allow(unsafe_code)]

use super::wait::Interrupts;
use crate::control::{self, Fds, Reply, Request};
use crate::ids::{EvSetId, ProcId, SockId};
use crate::shm::{DaemonPageMap, MAX_EVSETS, MAX_PROCS, MAX_WORKERS, Region, SockSlot, VERSION};
use crate::spin::SpinPolicy;
use arrayvec::ArrayVec;
use core::sync::atomic::AtomicI32;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::time::Duration;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Path of a control socket (the longest that fits `sockaddr_un`).
pub type SocketPath = ArrayVec<u8, 107>;

/// The control socket answers within this, or counts as absent: a stopped daemon must not hang its apps.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest spin that is taken from a daemon.
const MOST_SPIN_NS: u32 = 10_000_000;
/// `proc` of a process that has no holder bit of its own.
const NO_PROC: u32 = u32::MAX;

/// Why a process uses the kernel's TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// No socket, or nobody behind it, or no answer in time.
    #[error("no daemon answers")]
    Absent,
    /// The daemon speaks another version of the shared-memory contract.
    #[error("the daemon is of another version")]
    Version,
    /// The daemon has no room for another process.
    #[error("the daemon is full")]
    Full,
    /// The daemon said no, with this errno.
    #[error("the daemon refused (errno {0})")]
    Refused(u32),
    /// The answer made no sense, or this process has no descriptors or memory left.
    #[error("registration failed")]
    Failed,
}

/// Where to look for a daemon: `explicit` (TOE_SOCKET) alone if given, else `$XDG_RUNTIME_DIR/toe/toed.sock`, then
/// `/run/toe/toed.sock`.
pub fn socket_paths(explicit: Option<&[u8]>, runtime_dir: Option<&[u8]>) -> ArrayVec<SocketPath, 2> {
    let mut paths = ArrayVec::new();
    let mut add = |parts: [&[u8]; 2]| {
        let mut path = SocketPath::new();
        if parts.iter().all(|p| path.try_extend_from_slice(p).is_ok()) {
            paths.push(path);
        }
    };
    match (explicit, runtime_dir) {
        (Some(path), _) => add([path, b""]),
        (None, dir) => {
            if let Some(dir) = dir.filter(|d| !d.is_empty()) {
                add([dir, b"/toe/toed.sock"]);
            }
            add([b"/run/toe", b"/toed.sock"]);
        }
    }
    paths
}

/// One registration with a daemon. In a forked child the same value goes on working with another control connection and
/// another holder bit, see `fork.rs`.
pub struct Link {
    /// Shared memory.
    pub region: Region,
    /// Whether the daemon lives, and who of it sleeps.
    pub page: DaemonPageMap,
    /// How long this process's threads spin: as long as the daemon found it worth.
    pub spin: SpinPolicy,
    /// What may end this link's waits early.
    pub interrupts: Option<&'static Interrupts>,
    pub(super) control: AtomicI32,
    pub(super) control_lock: AtomicU32,
    pub(super) proc: AtomicU32,
    pub(super) path: SocketPath,
    alive: u32,
    cut_off: AtomicU32,
    kick_fds: ArrayVec<AtomicI32, MAX_WORKERS>,
    /// The memfds of region and page, as long as the app has not taken their numbers (the mappings need them no more).
    map_fds: [AtomicI32; 2],
    evset_fds: [AtomicI32; MAX_EVSETS],
    pub(super) fd_base: i32,
}

impl Link {
    /// Registers with the daemon behind `path`. Bounded in time, never more than a few seconds. Descriptors are moved to numbers from
    /// `fd_base` on where there is room.
    pub fn register(path: &SocketPath, program: &[u8], fd_base: i32) -> Result<Link, Reason> {
        let control = connect(path).map_err(|_| Reason::Absent)?;
        let control = raise(control, fd_base);
        let mut request = Request::new(control::OP_HELLO);
        introduce(&mut request, program);
        let (reply, fds) = exchange(control.as_fd(), &request).map_err(|_| Reason::Absent)?;
        check(&reply)?;
        Link::assemble(control, path, &reply, fds, fd_base).ok_or(Reason::Failed)
    }

    pub(super) fn assemble(control: OwnedFd, path: &SocketPath, reply: &Reply, fds: Fds, fd_base: i32) -> Option<Link> {
        let mut fds = fds.into_iter().map(|fd| raise(fd, fd_base));
        let region = Region::open(fds.next()?).ok()?;
        let page = DaemonPageMap::open(fds.next()?).ok()?;
        let mut kick_fds = ArrayVec::new();
        let owned: ArrayVec<OwnedFd, MAX_WORKERS> = fds.take(MAX_WORKERS).collect();
        let in_range = reply.workers as usize == owned.len() && (reply.proc as usize) < MAX_PROCS;
        if !in_range || owned.is_empty() {
            return None;
        }
        kick_fds.extend(owned.into_iter().map(|fd| AtomicI32::new(fd.into_raw_fd())));
        Some(Link {
            map_fds: [region.fd(), page.fd()].map(|fd| AtomicI32::new(fd.as_raw_fd())),
            alive: page.get().alive.load(Acquire),
            spin: SpinPolicy::new(page.get().spin_ns.load(Relaxed).min(MOST_SPIN_NS)),
            cut_off: AtomicU32::new(0),
            region,
            page,
            interrupts: None,
            control: AtomicI32::new(control.into_raw_fd()),
            control_lock: AtomicU32::new(0),
            proc: AtomicU32::new(reply.proc),
            path: path.clone(),
            kick_fds,
            evset_fds: [const { AtomicI32::new(-1) }; MAX_EVSETS],
            fd_base,
        })
    }

    /// Is the daemon of this link gone?
    #[inline(always)]
    pub fn dead(&self) -> bool {
        self.page.get().alive.load(Acquire) != self.alive || self.cut_off.load(Relaxed) != 0
    }

    /// The control connection was seen to be hung up: the daemon is gone, or wants no more of us.
    pub fn cut_off(&self) {
        self.cut_off.store(1, SeqCst);
        self.pass_on_death();
    }

    /// What `alive` reads while the daemon lives.
    #[inline(always)]
    pub(super) fn alive_word(&self) -> u32 {
        self.alive
    }

    /// Wakes every thread that sleeps on the daemon's life (the kernel wakes only one).
    pub(super) fn pass_on_death(&self) {
        use rustix::thread::futex::{Flags, wake};
        let _ = wake(&self.page.get().alive, Flags::empty(), i32::MAX as u32);
    }

    /// The bit of this process in `holders`.
    #[inline]
    pub fn proc(&self) -> Option<ProcId> {
        let p = self.proc.load(Relaxed);
        (p != NO_PROC).then_some(ProcId(p))
    }

    /// This process cannot hold sockets (the daemon had no bit for it): they stay open as long as its parent's.
    pub(super) fn without_proc(&self) {
        self.proc.store(NO_PROC, Relaxed);
    }

    /// The control connection: readable or hung up when the daemon is gone. -1: none (a child without sockets).
    pub fn control_fd(&self) -> RawFd {
        self.control.load(Acquire)
    }

    /// Every descriptor of the link, for a table of those that the app must not touch.
    pub fn each_fd(&self, mut f: impl FnMut(RawFd)) {
        f(self.control_fd());
        let more = self.map_fds.iter().chain(&self.kick_fds).chain(&self.evset_fds);
        more.map(|fd| fd.load(Acquire)).filter(|&fd| fd >= 0).for_each(f);
    }

    /// Makes every event set's eventfd readable: whoever sleeps on one looks again.
    pub fn poke_all(&self) {
        for fd in self.evset_fds.iter().map(|fd| fd.load(SeqCst)).filter(|&fd| fd >= 0) {
            let _ = rustix::io::write(borrow(fd), &1u64.to_ne_bytes());
        }
    }

    /// The app wants the number `fd` for itself: if it is one of the link's, the link goes on with a copy. `None`: it is not.
    /// The old number stays open and is the app's to close or to replace. EMFILE.
    pub fn move_fd(&self, fd: RawFd) -> Result<Option<RawFd>, Errno> {
        let all = [&self.control].into_iter().chain(&self.map_fds).chain(&self.kick_fds).chain(&self.evset_fds);
        let Some(word) = all.into_iter().find(|word| word.load(Acquire) == fd) else { return Ok(None) };
        if self.map_fds.iter().any(|m| core::ptr::eq(m, word)) {
            word.store(-1, Release);
            return Ok(Some(-1));
        }
        let copy = |base| rustix::io::fcntl_dupfd_cloexec(borrow(fd), base).map(IntoRawFd::into_raw_fd);
        let new = copy(self.fd_base).or_else(|_| copy(3))?;
        word.store(new, Release);
        Ok(Some(new))
    }

    /// Tells the worker that owns `slot` to look at it.
    #[inline]
    pub fn kick(&self, slot: &SockSlot, id: SockId) {
        self.kick_worker(slot.owner.load(Acquire), id);
    }

    /// Tells `worker` to look at socket `id`; wakes it if it sleeps.
    #[inline]
    pub fn kick_worker(&self, worker: u32, id: SockId) {
        if let Some(set) = self.region.layout().kick.get(worker as usize) {
            set.set_cpu(rustix::thread::sched_getcpu());
        }
        self.region.kick(worker, id);
        let Some(fd) = self.kick_fds.get(worker as usize) else { return };
        if self.page.get().worker[worker as usize].asleep.load(SeqCst) != 0 {
            let _ = rustix::io::write(borrow(fd.load(Relaxed)), &1u64.to_ne_bytes());
        }
    }

    /// The eventfd of an event set; asks the daemon the first time.
    pub(super) fn evset_fd(&self, id: EvSetId) -> Result<RawFd, Errno> {
        let cached = self.evset_fds.get(id.index()).ok_or(Errno::NFILE)?;
        if cached.load(Acquire) >= 0 {
            return Ok(cached.load(Acquire));
        }
        let mut request = Request::new(control::OP_EVSET);
        request.region = self.region.id().0;
        request.arg = id.0;
        let (reply, mut fds) = self.request(&request)?;
        let fd = fds.pop().filter(|_| reply.errno == 0).ok_or(Errno::NFILE)?;
        let fd = raise(fd, self.fd_base).into_raw_fd();
        match cached.compare_exchange(-1, fd, AcqRel, Acquire) {
            Ok(_) => Ok(fd),
            Err(first) => {
                close_raw(fd);
                Ok(first)
            }
        }
    }

    /// One request over the control connection.
    pub(super) fn request(&self, request: &Request) -> Result<(Reply, Fds), Errno> {
        self.request_with(request, &[])
    }

    /// The same with descriptors.
    pub(super) fn request_with(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Fds), Errno> {
        let _held = super::lock::lock(&self.control_lock).ok_or(Errno::DEADLK)?;
        let fd = self.control_fd();
        if fd < 0 || self.dead() {
            return Err(Errno::CONNRESET);
        }
        exchange_with(borrow(fd), request, fds)
    }

    /// Opens one more control connection to the same daemon.
    pub(super) fn connect_again(&self) -> Result<OwnedFd, Errno> {
        Ok(raise(connect(&self.path)?, self.fd_base))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for fd in self.evset_fds.iter().chain(&self.kick_fds).chain([&self.control]) {
            close_raw(fd.swap(-1, AcqRel));
        }
    }
}

/// Says in a request who asks.
pub(super) fn introduce(request: &mut Request, program: &[u8]) {
    request.pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
    let n = program.len().min(request.program.len() - 1);
    request.program[..n].copy_from_slice(&program[..n]);
}

pub(super) fn check(reply: &Reply) -> Result<(), Reason> {
    if reply.magic != crate::shm::MAGIC || reply.version != VERSION {
        return Err(Reason::Version);
    }
    if reply.errno == 0 {
        return Ok(());
    }
    match errno_of(reply.errno) {
        Errno::PROTO => Err(Reason::Version),
        Errno::NOSPC => Err(Reason::Full),
        e => Err(Reason::Refused(e.raw_os_error() as u32)),
    }
}

/// An errno from shared memory or a packet; whatever is none becomes EIO.
pub(super) fn errno_of(word: u32) -> Errno {
    match word {
        1..=4095 => Errno::from_raw_os_error(word as i32),
        _ => Errno::IO,
    }
}

pub(super) fn connect(path: &SocketPath) -> Result<OwnedFd, Errno> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The send time-out also bounds connect(2) on a full backlog.
    set_socket_timeout(&fd, Timeout::Send, Some(CONTROL_TIMEOUT))?;
    set_socket_timeout(&fd, Timeout::Recv, Some(CONTROL_TIMEOUT))?;
    let addr = match path.split_first() {
        Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(path.as_slice())?,
    };
    retry(|| rustix::net::connect(&fd, &addr))?;
    Ok(fd)
}

/// Sends a request and takes the answer.
pub(super) fn exchange(fd: BorrowedFd<'_>, request: &Request) -> Result<(Reply, Fds), Errno> {
    exchange_with(fd, request, &[])
}

/// The same with descriptors.
pub(super) fn exchange_with(
    fd: BorrowedFd<'_>,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> Result<(Reply, Fds), Errno> {
    retry(|| control::send(fd, request, fds).map_err(to_errno))?;
    let got = retry(|| control::recv::<Reply>(fd, RecvFlags::empty()).map_err(to_errno))?;
    got.ok_or(Errno::CONNRESET)
}

fn to_errno(e: std::io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::PROTO)
}

/// Repeats an interrupted call, but not without end: 1,000 signals a second must not keep a process here.
fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..10_000 {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::INTR)
}

/// Moves a descriptor to a number from `base` on; keeps it where it is if there is no room.
pub(super) fn raise(fd: OwnedFd, base: i32) -> OwnedFd {
    if base <= fd.as_raw_fd() {
        return fd;
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, base).unwrap_or(fd)
}

/// Borrows a descriptor that the link owns for as long as it lives.
pub(super) fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: callers pass a descriptor ≥ 0 that the link keeps open; should an app have closed it behind our back, the
    // call fails with EBADF.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Closes a descriptor that we own; -1 is nothing.
pub(super) fn close_raw(fd: RawFd) {
    if fd >= 0 {
        // SAFETY: the caller gives up a descriptor it took out of the link.
        unsafe { rustix::io::close(fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_order() {
        let p = socket_paths(None, Some(b"/run/user/7"));
        assert_eq!(p[0].as_slice(), b"/run/user/7/toe/toed.sock");
        assert_eq!(p[1].as_slice(), b"/run/toe/toed.sock");
        assert_eq!(socket_paths(None, None).len(), 1);
        assert_eq!(socket_paths(Some(b"/x"), Some(b"/run")).len(), 1);
        assert!(socket_paths(Some(&[b'x'; 200]), None).is_empty());
    }

    #[test]
    fn nobody_there() {
        let path = SocketPath::try_from(b"/nonexistent/toed.sock".as_slice()).unwrap();
        assert_eq!(Link::register(&path, b"t", 0).err(), Some(Reason::Absent));
    }
}
