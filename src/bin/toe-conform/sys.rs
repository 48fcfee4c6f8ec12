//! libc, as a macro and a few functions that look at memory.

#![allow(unsafe_code)]

use libc::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// A call of libc by name, its result as an `i64`.
macro_rules! c {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        #[allow(unsafe_code, unused_unsafe, clippy::unnecessary_cast)]
        // SAFETY: the arguments are those of the C function; buffers live through the call. Where a case passes an address that is
        // no buffer, the kernel is to refuse it, and a crash is an outcome of the case, caught in a process of its own.
        let result = unsafe { crate::sys::f::$name($($arg),*) } as i64;
        result
    }};
}

/// What cases may call: the libc crate's functions, and a few that it does not have.
pub mod f {
    pub use libc::*;
    unsafe extern "C" {
        pub fn sockatmark(fd: c_int) -> c_int;
        pub fn closefrom(first: c_int);
        pub fn pthread_timedjoin_np(thread: pthread_t, value: *mut *mut c_void, until: *const timespec) -> c_int;
        pub fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
    }
}

/// closefrom.
pub fn close_from(first: c_int) {
    // SAFETY: takes no memory.
    unsafe { f::closefrom(first) };
}

/// Ends the process here and now.
pub fn quit() -> ! {
    // SAFETY: takes no memory.
    unsafe { libc::_exit(0) }
}

/// The thread's errno.
pub fn errno() -> c_int {
    // SAFETY: libc gives the address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets the thread's errno.
pub fn set_errno(e: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = e };
}

/// A pipe, closed on exec: (read, write).
pub fn pipe() -> (c_int, c_int) {
    let mut fds = [0; 2];
    c!(pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC));
    (fds[0], fds[1])
}

/// Reads to the end, at most until `deadline`. `false`: that came first.
pub fn read_all(fd: c_int, into: &mut Vec<u8>, deadline: Instant) -> bool {
    let mut buf = [0u8; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis() as c_int;
        let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        if c!(poll(&raw mut p, 1, left)) <= 0 {
            return false;
        }
        match c!(read(fd, buf.as_mut_ptr().cast(), buf.len())) {
            n if n > 0 => into.extend_from_slice(&buf[..n as usize]),
            _ => return true,
        }
    }
}

/// Waits for a child: its exit code, or the signal that ended it.
pub fn wait_status(pid: c_int) -> (Option<c_int>, Option<c_int>) {
    let mut status = 0;
    while c!(waitpid(pid, &raw mut status, 0)) < 0 && errno() == libc::EINTR {}
    let exited = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    (exited, libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)))
}

/// Is anything of the group running, its leader aside?
pub fn alive_group(pid: c_int) -> bool {
    c!(kill(-pid, 0)) == 0
}

/// Ends a process group.
pub fn kill_group(pid: c_int) {
    c!(kill(-pid, libc::SIGKILL));
}

static SIGPIPES: AtomicU32 = AtomicU32::new(0);
static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_sigpipe(_: c_int) {
    SIGPIPES.fetch_add(1, SeqCst);
}

extern "C" fn count_signal(_: c_int) {
    SIGNALS.fetch_add(1, SeqCst);
}

/// How many SIGPIPEs came since the last question.
pub fn sigpipes() -> u32 {
    SIGPIPES.swap(0, SeqCst)
}

/// How many signals of [`on_signal`] came since the last question.
pub fn signals() -> u32 {
    SIGNALS.swap(0, SeqCst)
}

/// SIGPIPE is counted instead of deadly.
pub fn on_sigpipe() {
    handle(libc::SIGPIPE, count_sigpipe, libc::SA_RESTART);
}

/// `signal` is counted; `flags`: SA_RESTART or 0.
pub fn on_signal(signal: c_int, flags: c_int) {
    handle(signal, count_signal, flags);
}

fn handle(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    // SAFETY: all zero is a sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    c!(sigaction(signal, &raw const action, std::ptr::null_mut()));
}

/// A socket address as bytes.
#[derive(Clone, Copy)]
pub struct Addr {
    /// `struct sockaddr_in` or `sockaddr_in6`.
    pub raw: [u8; 28],
    /// Bytes of it in use.
    pub len: u32,
}

impl Addr {
    /// From its parts.
    pub fn new(ip: IpAddr, port: u16) -> Addr {
        let mut raw = [0; 28];
        raw[2..4].copy_from_slice(&port.to_be_bytes());
        match ip {
            IpAddr::V4(ip) => {
                raw[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                raw[4..8].copy_from_slice(&ip.octets());
                Addr { raw, len: 16 }
            }
            IpAddr::V6(ip) => {
                raw[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                raw[8..24].copy_from_slice(&ip.octets());
                Addr { raw, len: 28 }
            }
        }
    }

    /// For C.
    pub fn ptr(&self) -> *const libc::sockaddr {
        self.raw.as_ptr().cast()
    }

    /// For C to fill.
    pub fn ptr_mut(&mut self) -> *mut libc::sockaddr {
        self.raw.as_mut_ptr().cast()
    }

    /// Family.
    pub fn family(&self) -> c_int {
        u16::from_ne_bytes([self.raw[0], self.raw[1]]).into()
    }

    /// Port.
    pub fn port(&self) -> u16 {
        u16::from_be_bytes([self.raw[2], self.raw[3]])
    }

    /// Address.
    pub fn ip(&self) -> IpAddr {
        if self.family() == libc::AF_INET6 {
            let octets: [u8; 16] = self.raw[8..24].try_into().expect("16 bytes");
            Ipv6Addr::from(octets).into()
        } else {
            Ipv4Addr::new(self.raw[4], self.raw[5], self.raw[6], self.raw[7]).into()
        }
    }
}

/// A page that may not be touched.
pub fn forbidden_page() -> *mut libc::c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping wherever the kernel likes.
    unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0) }
}

/// Two pages, the second of which may not be touched; a pointer to `before` bytes before the border.
pub fn border(before: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping wherever the kernel likes; its second page is ours to forbid.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), 8192, both, flags, -1, 0).cast::<u8>();
        libc::mprotect(base.add(4096).cast(), 4096, libc::PROT_NONE);
        base.add(4096 - before)
    }
}

/// The bytes of a plain C structure.
pub fn bytes_of<V>(value: &V) -> &[u8] {
    // SAFETY: as many bytes as the value has; used only for structures without padding.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<V>()) }
}

/// A structure of zeros, as C programs begin with.
pub fn zeroed<V: Copy>() -> V {
    // SAFETY: used only for plain C structures, of which all zero is a value.
    unsafe { std::mem::zeroed() }
}

/// FD_SET.
pub fn set_bit(set: &mut libc::fd_set, fd: c_int) {
    // SAFETY: cases use descriptors below FD_SETSIZE.
    unsafe { libc::FD_SET(fd, set) };
}
