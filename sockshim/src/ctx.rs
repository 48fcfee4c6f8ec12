//! The process's registrations with daemons, and what the environment says.

#![allow(unsafe_code)]

use crate::log::{self, say};
use crate::sys::{self, Lock, sys};
use crate::table::{Entry, Kind, MAX_LINKS, tables};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
use toe_core::SockId;
use toe_core::app::adopt::Claim;
use toe_core::app::client::socket_paths;
use toe_core::app::wait::now_ns;
use toe_core::app::{Link, Reason};

/// A daemon that did not answer is asked again at most this often.
const RETRY_NS: u64 = 1_000_000_000;
/// `CURRENT` without a link for new sockets.
const NO_LINK: u32 = u32::MAX;

static LINKS: [AtomicPtr<Link>; MAX_LINKS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_LINKS];
/// Link that new sockets use.
static CURRENT: AtomicU32 = AtomicU32::new(NO_LINK);
static NEXT_TRY: AtomicU64 = AtomicU64::new(0);
/// Held while registering; `fork` takes it.
pub static REGISTERING: Lock = Lock::new();

/// Link number `n`.
#[inline]
pub fn link(n: usize) -> Option<&'static Link> {
    // SAFETY: null, or a leaked box.
    unsafe { LINKS.get(n)?.load(Acquire).as_ref() }
}

/// Is the shim at work at all? Not in set-uid programs.
pub fn enabled() -> bool {
    static STATE: AtomicU32 = AtomicU32::new(0);
    match STATE.load(Relaxed) {
        0 => {
            // SAFETY: reads the auxiliary vector.
            let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
            STATE.store(if secure { 2 } else { 1 }, Relaxed);
            !secure
        }
        s => s == 1,
    }
}

/// The link for a new socket and its number. Registers if there is none, or the daemon of the last one died; `None`: the kernel it is.
pub fn current() -> Option<(usize, &'static Link)> {
    if let Some(found) = registered() {
        return Some(found);
    }
    if now_ns() < NEXT_TRY.load(Relaxed) {
        return None;
    }
    // Not interrupted in here: a handler that opens a socket would wait for its own thread.
    let old = block_signals();
    let found = {
        let _held = REGISTERING.lock();
        registered().or_else(|| if now_ns() < NEXT_TRY.load(Relaxed) { None } else { register() })
    };
    restore_signals(old);
    found
}

/// As [`current`], but without registering.
pub fn registered() -> Option<(usize, &'static Link)> {
    let n = CURRENT.load(Acquire) as usize;
    link(n).filter(|l| !l.dead()).map(|l| (n, l))
}

/// A forked child makes new sockets on a registration of its own.
pub fn forget_current() {
    CURRENT.store(NO_LINK, Release);
    NEXT_TRY.store(0, Relaxed);
    log::forget();
}

fn register() -> Option<(usize, &'static Link)> {
    let found = try_to_register();
    if found.is_none() {
        // Not before: threads that come meanwhile wait for the outcome instead of going to the kernel.
        NEXT_TRY.store(now_ns() + RETRY_NS, Relaxed);
    }
    found
}

fn try_to_register() -> Option<(usize, &'static Link)> {
    if LINKS.iter().all(|l| !l.load(Acquire).is_null()) {
        log::unregistered(Reason::Failed);
        say!("kernel: too many registrations in one process");
        return None;
    }
    let mut name = [0u8; 256];
    let program = program_name(&mut name);
    let mut reason = Reason::Absent;
    for path in socket_paths(env(c"TOE_SOCKET"), env(c"XDG_RUNTIME_DIR")) {
        match Link::register(&path, program, fd_base()) {
            Ok(link) => {
                let (free, link) = add(link)?;
                CURRENT.store(free as u32, Release);
                log::registered(link);
                say!("registered: region {}", link.region.id().0);
                return Some((free, link));
            }
            Err(Reason::Absent) => {}
            Err(other) => reason = other,
        }
    }
    log::unregistered(reason);
    say!("kernel: {reason}");
    None
}

/// One more link, for ever. `None`: no place left. With [`REGISTERING`] held, or before any thread.
fn add(mut link: Link) -> Option<(usize, &'static Link)> {
    let free = LINKS.iter().position(|l| l.load(Acquire).is_null())?;
    link.interrupts = Some(&crate::cancel::INTERRUPTS);
    let link: &'static Link = Box::leak(Box::new(link));
    LINKS[free].store(core::ptr::from_ref(link).cast_mut(), Release);
    protect(link);
    Some((free, link))
}

/// Where the socket behind an inherited or received placeholder belongs. Asks the daemons of all links that can be asked, then
/// those that the environment names.
pub fn adopt(claim: Claim<'_>) -> Option<(usize, SockId)> {
    let old = block_signals();
    let found = {
        let _held = REGISTERING.lock();
        adopt_on_a_link(claim).or_else(|| adopt_anew(claim))
    };
    restore_signals(old);
    found
}

fn adopt_on_a_link(claim: Claim<'_>) -> Option<(usize, SockId)> {
    (0..MAX_LINKS).find_map(|n| Some((n, link(n).filter(|l| l.proc().is_some())?.adopt_too(claim).ok()?)))
}

fn adopt_anew(claim: Claim<'_>) -> Option<(usize, SockId)> {
    let mut name = [0u8; 256];
    let program = program_name(&mut name);
    for path in socket_paths(env(c"TOE_SOCKET"), env(c"XDG_RUNTIME_DIR")) {
        match Link::adopt(&path, claim, program, fd_base()) {
            Ok((link, sock)) => return add(link).map(|(n, _)| (n, sock)),
            Err(e) => say!("not adopted: {e}"),
        }
    }
    None
}

/// Marks the link's descriptors as the shim's own.
pub fn protect(link: &Link) {
    if let Some(t) = tables() {
        link.each_fd(|fd| {
            if fd >= 0 {
                t.swap(fd, Entry::new(Kind::Internal, 0));
            }
        });
    }
}

/// Number from which on the shim keeps its own descriptors: out of the way of `select` and of programs that expect small
/// numbers, yet below the limit.
fn fd_base() -> i32 {
    let mut limit = [0u64; 2];
    sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, limit.as_mut_ptr());
    match limit[0] {
        n if n > 16_384 => 8_192,
        n if n > 2_048 => (n - 512) as i32,
        n => (n / 4 * 3) as i32,
    }
}

fn program_name(buf: &mut [u8; 256]) -> &[u8] {
    let n = sys!(SYS_readlinkat, libc::AT_FDCWD, c"/proc/self/exe".as_ptr(), buf.as_mut_ptr(), buf.len());
    let path = &buf[..n.clamp(0, 256) as usize];
    let start = path.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
    &path[start..]
}

/// An environment variable. Its bytes stay valid as long as the program leaves its environment alone, which it does during
/// the one call that reads them.
pub fn env(name: &core::ffi::CStr) -> Option<&'static [u8]> {
    // SAFETY: a C string in, a C string or null out.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| core::ffi::CStr::from_ptr(value).to_bytes()).filter(|v| !v.is_empty())
    }
}

fn block_signals() -> u64 {
    let (all, mut old) = (u64::MAX, 0u64);
    sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut old, 8);
    old
}

fn restore_signals(old: u64) {
    sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const old, 0, 8);
}

/// Do all installed signal handlers ask for restarting (SA_RESTART)? For waits that the kernel itself never restarts.
pub fn handlers_restart() -> bool {
    #[repr(C)]
    struct KernelSigaction {
        handler: usize,
        flags: usize,
        restorer: usize,
        mask: u64,
    }
    // Faults do not interrupt calls, and runtimes catch them without SA_RESTART; 32 and 33 are libc's own.
    let apart = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, 32, 33];
    (1..=64).filter(|sig| !apart.contains(sig)).all(|sig| {
        let mut act = KernelSigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        let r = sys!(SYS_rt_sigaction, sig, 0, &raw mut act, 8);
        // 0 and 1: SIG_DFL, SIG_IGN.
        r < 0 || act.handler <= 1 || act.flags & libc::SA_RESTART as usize != 0
    })
}

/// The process that the tables belong to.
pub static OWNER: AtomicU32 = AtomicU32::new(0);

/// Called once before the first entry is made.
pub fn init() -> bool {
    if OWNER.load(Acquire) != 0 {
        return true;
    }
    if !enabled() || crate::table::make_tables().is_none() || !crate::fork::install() {
        return false;
    }
    log::init();
    let _ = OWNER.compare_exchange(0, sys::getpid(), AcqRel, Acquire);
    true
}
