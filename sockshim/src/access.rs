//! EFAULT for pointers that cannot be any program's: the first page, and addresses above what user space has. Anything else that
//! is not mapped is a SIGSEGV, where the kernel would say EFAULT: to find out costs a system call, and the data path makes
//! none.

use rustix::io::Errno;

/// Nothing is mapped below (`vm.mmap_min_addr` is at least a page).
const FIRST: usize = 4096;
/// User space ends at or below 2^56 with five-level page tables, 2^52 on arm64.
const END: usize = 1 << 56;

/// Cannot be read or written by anybody?
#[inline(always)]
pub fn bad<T: ?Sized>(pointer: *const T) -> bool {
    !(FIRST..END).contains(&pointer.cast::<u8>().addr())
}

/// EFAULT if [`bad`].
#[inline(always)]
pub fn check<T: ?Sized>(pointer: *const T) -> Result<(), Errno> {
    if bad(pointer) { Err(Errno::FAULT) } else { Ok(()) }
}
