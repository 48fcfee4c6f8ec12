//! stdio on engine sockets. libc's streams read and write by calls of its own that nobody can hook, so a stream for an engine
//! socket is made by `fopencookie`, whose functions are the hooks.
//!
//! When an engine socket is put on descriptor 0, 1 or 2 (as inetd does), `stdin`, `stdout` or `stderr` becomes such a
//! stream. Code that has kept the old pointer of its own, as C++'s `std::cout` does, does not see that.

#![allow(unsafe_code)]

use crate::points;
use crate::real::real;
use crate::table::{Entry, Kind, entry};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;
use libc::{FILE, c_char, c_int, c_void, size_t, ssize_t};

/// Offsets in glibc's `FILE`, which has not changed since 1999 (it is part of the ABI) on 64-bit systems.
mod file {
    use libc::c_int;
    pub const READ_PTR: usize = 8;
    pub const READ_END: usize = 16;
    pub const WRITE_BASE: usize = 32;
    pub const FILENO: usize = 112;
    /// What `fopencookie` puts there: a stream without a descriptor.
    pub const NO_FD: c_int = -2;
}

#[repr(C)]
struct CookieFunctions {
    read: extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut FILE;
    fn fwide(stream: *mut FILE, mode: c_int) -> c_int;
    fn __flbf(stream: *mut FILE) -> c_int;
    fn __fpending(stream: *mut FILE) -> size_t;
    fn __fbufsize(stream: *mut FILE) -> size_t;
    fn __fpurge(stream: *mut FILE);
}

extern "C-unwind" fn cookie_read(fd: *mut c_void, buf: *mut c_char, len: size_t) -> ssize_t {
    points::read(fd as usize as c_int, buf.cast(), len)
}

/// Writes everything, as libc's own streams do; how much, if there was an error.
pub fn write_all(fd: c_int, buf: *const c_void, len: usize) -> usize {
    let mut done = 0;
    while done < len {
        let n = points::write(fd, buf.wrapping_byte_add(done), len - done);
        if n <= 0 {
            break;
        }
        done += n as usize;
    }
    done
}

extern "C-unwind" fn cookie_write(fd: *mut c_void, buf: *const c_char, len: size_t) -> ssize_t {
    write_all(fd as usize as c_int, buf.cast(), len) as ssize_t
}

extern "C-unwind" fn cookie_seek(_: *mut c_void, _: *mut i64, _: c_int) -> c_int {
    crate::sys::set_errno(libc::ESPIPE);
    -1
}

extern "C-unwind" fn cookie_close(fd: *mut c_void) -> c_int {
    points::close(fd as usize as c_int)
}

/// A stream over our hooks whose `fileno` is `fd`; null and errno as `fdopen`.
fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = CookieFunctions { read: cookie_read, write: cookie_write, seek: cookie_seek, close: cookie_close };
    // SAFETY: the program's mode, our functions; the cookie is a number.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        // SAFETY: an int inside every FILE of glibc; changed only if it holds what fopencookie puts there.
        unsafe {
            let number = stream.cast::<u8>().add(file::FILENO).cast::<c_int>();
            if *number == file::NO_FD {
                *number = fd;
            }
        }
    }
    stream
}

#[unsafe(no_mangle)]
extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if matches!(entry(fd).kind(), Kind::Engine | Kind::Hybrid | Kind::Candidate) {
        return open(fd, mode);
    }
    match real!(fdopen: extern "C" fn(c_int, *const c_char) -> *mut FILE) {
        Some(call) => call(fd, mode),
        None => core::ptr::null_mut(),
    }
}

/// glibc's other name for it.
#[unsafe(no_mangle)]
extern "C" fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    fdopen(fd, mode)
}

/// The streams made by [`adopt`].
static OURS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 3];

/// `fd` has become `e`: if it is a standard descriptor and a socket that may be the engine's, its stream must go through our
/// hooks. It stays such a stream, whatever the descriptor becomes later.
pub fn adopt(fd: c_int, e: Entry) {
    if !matches!(e.kind(), Kind::Engine | Kind::Hybrid | Kind::Candidate) {
        return;
    }
    // SAFETY: the program's three variables, which programs may change; each holds an open stream or null.
    unsafe {
        match fd {
            0 => take_over(&raw mut stdin, fd, c"r"),
            1 => take_over(&raw mut stdout, fd, c"w"),
            2 => take_over(&raw mut stderr, fd, c"w"),
            _ => {}
        }
    }
}

/// # Safety
/// `variable` is one of libc's three, with an open stream or null.
unsafe fn take_over(variable: *mut *mut FILE, fd: c_int, mode: &core::ffi::CStr) {
    // SAFETY: by the caller's contract; libc's functions on open streams.
    unsafe {
        let old = *variable;
        let ours = &OURS[fd as usize];
        if old.is_null() || old == ours.load(Relaxed) || libc::fileno(old) != fd || fwide(old, 0) > 0 {
            return;
        }
        let new = open(fd, mode.as_ptr());
        if new.is_null() {
            return;
        }
        // Byte-oriented: `perror` would open a copy of an stderr without an orientation.
        fwide(new, if fd == 2 { -1 } else { fwide(old, 0) });
        if fd == 2 || __fbufsize(old) == 1 {
            libc::setvbuf(new, core::ptr::null_mut(), libc::_IONBF, 0);
        } else if __flbf(old) != 0 {
            libc::setvbuf(new, core::ptr::null_mut(), libc::_IOLBF, 0);
        }
        move_bytes(old, new);
        ours.store(new, Relaxed);
        *variable = new;
    }
}

/// What is in `old`'s buffer goes over to `new`: written but not yet flushed, or read but not yet taken.
///
/// # Safety
/// Two open streams.
unsafe fn move_bytes(old: *mut FILE, new: *mut FILE) {
    // SAFETY: the buffer pointers of an open stream; `__fpending` bytes follow the write base, and what was read ahead lies
    // between the two read pointers.
    unsafe {
        let pointer = |at: usize| *old.cast::<u8>().add(at).cast::<*const u8>();
        match __fpending(old) {
            0 => {
                let (mut end, start) = (pointer(file::READ_END), pointer(file::READ_PTR));
                while end > start {
                    end = end.sub(1);
                    libc::ungetc(c_int::from(*end), new);
                }
            }
            n => {
                libc::fwrite(pointer(file::WRITE_BASE).cast(), 1, n, new);
            }
        }
        __fpurge(old);
    }
}
