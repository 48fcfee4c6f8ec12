//! execl, execlp, execle: a list of arguments becomes an array, as in libc, whose own versions would not come by our `execve`.
//! May run in `vfork` children: no heap.

#![allow(unsafe_code)]

use crate::dprintf::{VaList, trampoline};
use crate::poll::Space;
use crate::sys::ret;
use libc::{c_char, c_int};
use rustix::io::Errno;

/// Arguments on the stack; more are mapped.
const INLINE: usize = 256;

/// A walk through a `va_list` of pointers; the layouts are those of `dprintf.rs`.
#[derive(Clone, Copy)]
#[repr(C)]
#[cfg(target_arch = "x86_64")]
struct Pointers {
    gp_offset: u32,
    fp_offset: u32,
    overflow: *const *const c_char,
    registers: *const u8,
}

#[cfg(target_arch = "x86_64")]
impl Pointers {
    /// # Safety
    /// The caller of the function with the list has passed one more pointer.
    unsafe fn next(&mut self) -> *const c_char {
        // SAFETY: by the caller's contract; six registers of eight bytes, then the stack.
        unsafe {
            if self.gp_offset < 48 {
                self.gp_offset += 8;
                return self.registers.add(self.gp_offset as usize - 8).cast::<*const c_char>().read();
            }
            let at = self.overflow;
            self.overflow = at.add(1);
            at.read()
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
#[cfg(target_arch = "aarch64")]
struct Pointers {
    stack: *const *const c_char,
    gr_top: *const u8,
    vr_top: *const u8,
    gr_offs: i32,
    vr_offs: i32,
}

#[cfg(target_arch = "aarch64")]
impl Pointers {
    /// # Safety
    /// The caller of the function with the list has passed one more pointer.
    unsafe fn next(&mut self) -> *const c_char {
        // SAFETY: by the caller's contract; the registers' area ends at `gr_top`, then comes the stack.
        unsafe {
            if self.gr_offs < 0 {
                self.gr_offs += 8;
                return self.gr_top.offset(self.gr_offs as isize - 8).cast::<*const c_char>().read();
            }
            let at = self.stack;
            self.stack = at.add(1);
            at.read()
        }
    }
}

/// Calls `exec` with the array that `first` and the list are, and what follows its null pointer.
fn listed(first: *const c_char, list: VaList, exec: impl FnOnce(*const *const c_char, Pointers) -> c_int) -> c_int {
    // SAFETY: the trampoline's list.
    let start = unsafe { list.cast::<Pointers>().read() };
    // Arguments after the first one, the null pointer that ends the list included; none if the first one is that.
    let mut more = 0;
    let mut at = start;
    if !first.is_null() {
        loop {
            more += 1;
            // SAFETY: the list ends with a null pointer, which is not passed over.
            if unsafe { at.next() }.is_null() {
                break;
            }
        }
    }
    let Ok(mut argv) = Space::<*const c_char, INLINE>::new(more + 1) else { return ret(Err(Errno::NOMEM)) as c_int };
    let mut at = start;
    argv.push(first);
    for _ in 0..more {
        // SAFETY: as above.
        argv.push(unsafe { at.next() });
    }
    exec(argv.all().as_ptr(), at)
}

extern "C" fn execl_with(path: *const c_char, first: *const c_char, list: VaList) -> c_int {
    // SAFETY: the program's path, our array.
    listed(first, list, |argv, _| unsafe { libc::execv(path, argv) })
}

extern "C" fn execlp_with(file: *const c_char, first: *const c_char, list: VaList) -> c_int {
    // SAFETY: as above.
    listed(first, list, |argv, _| unsafe { libc::execvp(file, argv) })
}

extern "C" fn execle_with(path: *const c_char, first: *const c_char, list: VaList) -> c_int {
    // SAFETY: as above; the environment comes after the null pointer.
    listed(first, list, |argv, mut rest| unsafe { libc::execve(path, argv, rest.next().cast()) })
}

trampoline!(execl, execl_with, "2", "rdx", "x2");
trampoline!(execlp, execlp_with, "2", "rdx", "x2");
trampoline!(execle, execle_with, "2", "rdx", "x2");
