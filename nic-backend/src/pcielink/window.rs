//! A memory window: memory that we offer to the peer, or that the peer offers to us. Today a sealed memfd; whatever can
//! be mmapped will do (a PCI BAR's `resourceN` file). `unsafe`: mmap and copies.
//!
//! Own windows are read and written; the peer's windows are only written (posted writes): nothing reads across the
//! link. Offsets come from [`super::geometry::Geometry`], never from the peer, so that an offset out of range is our own
//! mistake and panics.

#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

const SEALS: libc::c_int = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;

/// Linux `TMPFS_MAGIC`: the file system of plain memfds (and not hugetlbfs, whose pages may be missing: SIGBUS).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A shared mapping of a whole window.
pub struct Window {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: plain shared memory, reached through atomics and through copies whose ranges the ring protocol keeps apart; it
// may be used and unmapped from any thread.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// A new zeroed window of `len` bytes, sealed against growing and shrinking. Pages come into being when touched.
    pub fn create(name: &CStr, len: usize) -> io::Result<Window> {
        // SAFETY: plain system call with a valid C string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd was just returned to us and is owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system calls on an fd we own.
        unsafe {
            if libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) != 0
                || libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS | libc::F_SEAL_SEAL) != 0
            {
                return Err(io::Error::last_os_error());
            }
        }
        Window::map(fd, len)
    }

    /// Maps a window received from the peer, if it is a sealed plain memfd of exactly `len` bytes, which cannot fault.
    pub fn open(fd: OwnedFd, len: usize) -> io::Result<Window> {
        // SAFETY: plain system calls on an fd we own; `stat` and `statfs` are plain old data.
        let (seals, size, kind) = unsafe {
            let mut st: libc::stat = core::mem::zeroed();
            let mut fs: libc::statfs = core::mem::zeroed();
            if libc::fstat(fd.as_raw_fd(), &mut st) != 0 || libc::fstatfs(fd.as_raw_fd(), &mut fs) != 0 {
                return Err(io::Error::last_os_error());
            }
            (libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS), st.st_size, fs.f_type as u64)
        };
        if seals < 0 || seals & SEALS != SEALS || size != len as libc::off_t || kind != TMPFS_MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "window of another size or kind, or not sealed"));
        }
        Window::map(fd, len)
    }

    fn map(fd: OwnedFd, len: usize) -> io::Result<Window> {
        // SAFETY: a fresh shared mapping at an address of the kernel's choice; sealed, so it cannot shrink under us.
        let base = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(core::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice on the mapping just made; failure is harmless.
        unsafe {
            libc::madvise(base, len, libc::MADV_DONTDUMP);
            libc::madvise(base, len, libc::MADV_DONTFORK)
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave the null address"))?;
        Ok(Window { base, len, fd })
    }

    /// The file behind the window, to be passed to the peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The 32-bit word at `at` (4-byte aligned).
    #[inline(always)]
    pub fn word32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.len, "window offset");
        // SAFETY: in range and aligned by the check above (the base is page-aligned); lives as long as the mapping; all
        // other accesses to protocol words are atomic as well.
        unsafe { self.base.add(at).cast::<AtomicU32>().as_ref() }
    }

    /// The 64-bit word at `at` (8-byte aligned).
    #[inline(always)]
    pub fn word64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "window offset");
        // SAFETY: as in `word32`.
        unsafe { self.base.add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Copies `src` into the window at `at`: one memcpy.
    #[inline(always)]
    pub fn write(&self, at: usize, src: &[u8]) {
        assert!(at <= self.len && src.len() <= self.len - at, "window range");
        // SAFETY: in range by the check above; `src` is private memory or a stream chunk, which never overlaps a window;
        // the bytes written are raw and belong to the sender until the producer index is posted.
        unsafe { core::ptr::copy_nonoverlapping(src.as_ptr(), self.base.as_ptr().add(at), src.len()) }
    }

    /// Lends bytes of an own window, as the sender left them.
    ///
    /// A well-behaved peer leaves them alone until it gets credit for them. A hostile one may scribble: whoever reads
    /// them must take each value once into a local before checking and using it.
    #[inline(always)]
    pub(crate) fn lend(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= self.len && len <= self.len - at, "window range");
        // SAFETY: in range by the check above and mapped as long as `self`. Bytes have no invalid values; readers treat
        // them as untrusted (see above), as all packet contents.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(at), len) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: base and len are those of our own mapping; nothing borrowed from it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;
    use std::fs::File;

    #[test]
    fn both_sides_see_one_memory() {
        let mine = Window::create(c"toe-test", 8192).unwrap();
        let theirs = Window::open(mine.fd().try_clone_to_owned().unwrap(), 8192).unwrap();
        theirs.write(4090, b"across");
        theirs.word64(0).store(5, Relaxed);
        assert_eq!((mine.lend(4090, 6), mine.word64(0).load(Relaxed)), (&b"across"[..], 5));
    }

    #[test]
    fn windows_that_could_fault_are_refused() {
        let mine = Window::create(c"toe-test", 8192).unwrap();
        assert!(Window::open(mine.fd().try_clone_to_owned().unwrap(), 4096).is_err());
        assert!(Window::open(File::open("/dev/null").unwrap().into(), 0).is_err());
        assert!(File::from(mine.fd().try_clone_to_owned().unwrap()).set_len(4096).is_err());
        let loose = rustix::fs::memfd_create("toe-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&loose, 8192).unwrap();
        assert!(Window::open(loose, 8192).is_err());
    }

    #[test]
    #[should_panic(expected = "window range")]
    fn no_write_past_the_end() {
        Window::create(c"toe-test", 4096).unwrap().write(4095, b"ab");
    }
}
