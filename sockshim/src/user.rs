//! EFAULT: is the program's memory there?
//!
//! The kernel finds out while it copies. We cannot, short of a SIGSEGV, so each page is asked for before its first use, by a futex
//! call that does nothing: FUTEX_WAIT without time reads a word, FUTEX_WAKE_OP writes one (it ORs zero, atomically, so that
//! nobody's bytes are lost). Pages found to be there are remembered; programs use the same buffers again and again, so a
//! call on the data path costs one comparison per page. A page that was there once and has been unmapped since is not
//! noticed: touching it is SIGSEGV, as in the program's own code.

#![allow(unsafe_code)]

use crate::sys::sys;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use rustix::io::Errno;

const PAGE_SHIFT: u32 = 12;
/// Pages remembered for each kind of access: 64 MiB.
const REMEMBERED: usize = 1 << 14;
/// Addresses beyond are the kernel's, whatever the number of page table levels (`access_ok`).
const END: usize = isize::MAX as usize;

/// Page number + 1 of pages that are there, by page number.
static READABLE: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];
static WRITABLE: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];

/// EFAULT unless `len` bytes at `p` can be read. An empty buffer may lie anywhere in user space.
#[inline]
pub fn readable<T>(p: *const T, len: usize) -> Result<(), Errno> {
    pages(p.addr(), len, &READABLE, can_read)
}

/// [`readable`] for a buffer that is only read, whatever its type says.
#[inline]
pub fn readable_mut(p: *mut u8, len: usize) -> Result<(), Errno> {
    readable(p, len)
}

/// EFAULT unless `len` bytes at `p` can be written.
#[inline]
pub fn writable<T>(p: *mut T, len: usize) -> Result<(), Errno> {
    pages(p.addr(), len, &WRITABLE, can_write)
}

/// EFAULT if the buffer lies outside of user space: what the kernel checks before it waits for anything.
#[inline]
pub fn in_user_space<T>(p: *const T, len: usize) -> Result<(), Errno> {
    match p.addr().checked_add(len) {
        Some(end) if end <= END => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// The value at `p`, which may be unaligned.
pub fn get<T: Copy>(p: *const T) -> Result<T, Errno> {
    readable(p, size_of::<T>())?;
    // SAFETY: the program's memory, and it is there; T is a plain C type.
    Ok(unsafe { p.read_unaligned() })
}

/// Writes the value at `p`, which may be unaligned.
pub fn put<T: Copy>(p: *mut T, value: T) -> Result<(), Errno> {
    writable(p, size_of::<T>())?;
    // SAFETY: as above.
    unsafe { p.write_unaligned(value) };
    Ok(())
}

#[inline]
fn pages(at: usize, len: usize, known: &[AtomicU64; REMEMBERED], ask: fn(usize) -> bool) -> Result<(), Errno> {
    in_user_space(core::ptr::without_provenance::<u8>(at), len)?;
    if len == 0 {
        return Ok(());
    }
    for page in at >> PAGE_SHIFT..=(at + len - 1) >> PAGE_SHIFT {
        let slot = &known[page % REMEMBERED];
        if slot.load(Relaxed) != page as u64 + 1 {
            if !ask(page << PAGE_SHIFT) {
                return Err(Errno::FAULT);
            }
            slot.store(page as u64 + 1, Relaxed);
        }
    }
    Ok(())
}

const PRIVATE: i32 = libc::FUTEX_PRIVATE_FLAG;
const EFAULT: isize = -libc::EFAULT as isize;

#[cold]
fn can_read(page: usize) -> bool {
    // No time to wait: "another value" or "timed out", or EFAULT.
    let none = [0i64; 2];
    sys!(SYS_futex, page, libc::FUTEX_WAIT | PRIVATE, 0, none.as_ptr(), 0, 0) != EFAULT
}

#[cold]
fn can_write(page: usize) -> bool {
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    // FUTEX_OP_OR with 0; wakes a waiter of that word only if it holds the odd number below, and a futex may wake for nothing.
    const OR_NOTHING: u32 = 2 << 28 | 0x7a5;
    sys!(SYS_futex, NOBODY.as_ptr(), libc::FUTEX_WAKE_OP | PRIVATE, 0, 0, page, OR_NOTHING) != EFAULT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_there_and_that_is_not() {
        static FIXED: [u8; 4] = [1, 2, 3, 4];
        let mut here = [7u8; 9000];
        assert_eq!(readable(here.as_ptr(), here.len()), Ok(()));
        assert_eq!(writable(here.as_mut_ptr(), here.len()), Ok(()));
        assert!(here.iter().all(|&b| b == 7));
        assert_eq!(readable(FIXED.as_ptr(), 4), Ok(()));
        assert_eq!(writable(FIXED.as_ptr().cast_mut(), 4), Err(Errno::FAULT));
        assert_eq!(readable(core::ptr::null::<u8>(), 1), Err(Errno::FAULT));
        assert_eq!(readable(core::ptr::null::<u8>(), 0), Ok(()));
        assert_eq!(readable(usize::MAX as *const u8, 0), Err(Errno::FAULT));
        assert_eq!(put(&mut here[1] as *mut u8 as *mut u32, 0x0102_0304), Ok(()));
        assert_eq!(get(&here[1] as *const u8 as *const u32), Ok(0x0102_0304));
        let gone = crate::sys::map(8192);
        crate::sys::unmap(gone.wrapping_add(4096), 4096);
        assert_eq!(writable(gone, 4096), Ok(()));
        assert_eq!(writable(gone, 4097), Err(Errno::FAULT));
        crate::sys::unmap(gone, 4096);
    }
}
