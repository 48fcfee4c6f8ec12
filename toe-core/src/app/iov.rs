//! Caller memory: where sent bytes come from and received bytes go to.

#![allow(unsafe_code)]

use rustix::io::Errno;

/// Where the bytes of a send come from.
pub trait Source {
    /// Copies at most `len` bytes to `dst`; how many. 0: no more.
    ///
    /// # Safety
    /// `dst` is valid for writing `len` bytes.
    unsafe fn fill(&mut self, dst: *mut u8, len: usize) -> Result<usize, Errno>;

    /// Bytes left, as far as known: 0 ends a send.
    fn left(&self) -> usize;
}

/// Asked before a buffer's bytes are touched: are they there? EFAULT if not.
pub type Guard = fn(*mut u8, usize) -> Result<(), Errno>;

/// A walk through the buffers of one call.
#[derive(Clone, Copy)]
pub struct IovCursor {
    guard: Guard,
    iov: *const libc::iovec,
    count: usize,
    /// Bytes of the first buffer already used.
    offset: usize,
    left: usize,
}

/// Most buffers of one call (UIO_MAXIOV).
pub const MAX_IOV: usize = 1024;

impl IovCursor {
    /// Over `count` buffers. EMSGSIZE, EINVAL as the kernel: too many, or longer than `ssize_t` together.
    ///
    /// # Safety
    /// `iov` points to `count` buffers, which stay valid (for reading, or for writing if used for receiving) until the
    /// cursor's last use.
    pub unsafe fn new(iov: *const libc::iovec, count: usize) -> Result<IovCursor, Errno> {
        // SAFETY: by the caller's contract.
        unsafe { IovCursor::guarded(iov, count, |_, _| Ok(())) }
    }

    /// The same over buffers that may not be there: `guard` is asked before each is touched.
    ///
    /// # Safety
    /// As for [`new`](Self::new), but only `iov` itself must be valid, and what `guard` says is.
    pub unsafe fn guarded(iov: *const libc::iovec, count: usize, guard: Guard) -> Result<IovCursor, Errno> {
        if count > MAX_IOV {
            return Err(Errno::INVAL);
        }
        let mut left = 0usize;
        for i in 0..count {
            // SAFETY: i < count.
            let len = unsafe { (*iov.add(i)).iov_len };
            left = left.checked_add(len).filter(|&n| n <= isize::MAX as usize).ok_or(Errno::INVAL)?;
        }
        Ok(IovCursor { guard, iov, count, offset: 0, left })
    }

    /// Calls `f` with a cursor over `buf` alone.
    pub fn over<R>(buf: &mut [u8], f: impl FnOnce(&mut IovCursor) -> R) -> R {
        let iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        f(&mut IovCursor { guard: |_, _| Ok(()), iov: &iov, count: 1, offset: 0, left: buf.len() })
    }

    /// Bytes not yet used.
    #[inline]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Hands out up to `len` bytes of caller memory, piece by piece. EFAULT: one of the pieces is not there; the cursor is spent.
    #[inline]
    fn pieces(&mut self, len: usize, guard: Guard, mut f: impl FnMut(*mut u8, usize)) -> Result<usize, Errno> {
        let mut done = 0;
        let len = len.min(self.left);
        while done < len && self.count > 0 {
            // SAFETY: count > 0 buffers are left at `iov`, by the contract of `new`.
            let (base, size) = unsafe { ((*self.iov).iov_base, (*self.iov).iov_len) };
            // The caller's array may be changed under us by another thread: never beyond what it says now.
            let n = size.saturating_sub(self.offset).min(len - done);
            if n > 0 {
                let at = base.cast::<u8>().wrapping_add(self.offset);
                guard(at, n)?;
                f(at, n);
            }
            done += n;
            self.offset += n;
            if self.offset >= size {
                self.iov = self.iov.wrapping_add(1);
                self.count -= 1;
                self.offset = 0;
            }
        }
        self.left = if self.count == 0 { 0 } else { self.left - done };
        Ok(done)
    }

    /// Copies `len` bytes from `src` into the buffers; how many had room. EFAULT: part of them is not there.
    ///
    /// # Safety
    /// `src` is valid for reading `len` bytes (another process may write it meanwhile).
    #[inline]
    pub unsafe fn put(&mut self, src: *const u8, len: usize) -> Result<usize, Errno> {
        let mut at = src;
        self.pieces(len, self.guard, |dst, n| {
            // SAFETY: the pieces lie in the caller's buffers; `at` stays below src + len.
            unsafe { core::ptr::copy_nonoverlapping(at, dst, n) };
            at = at.wrapping_add(n);
        })
    }

    /// Walks over `len` bytes without touching them (MSG_TRUNC).
    #[inline]
    pub fn skip(&mut self, len: usize) -> usize {
        self.pieces(len, |_, _| Ok(()), |_, _| ()).unwrap_or(0)
    }
}

impl Source for IovCursor {
    #[inline]
    unsafe fn fill(&mut self, dst: *mut u8, len: usize) -> Result<usize, Errno> {
        let mut at = dst;
        self.pieces(len, self.guard, |src, n| {
            // SAFETY: the pieces lie in the caller's buffers; `at` stays below dst + len.
            unsafe { core::ptr::copy_nonoverlapping(src, at, n) };
            at = at.wrapping_add(n);
        })
    }

    fn left(&self) -> usize {
        self.left
    }
}
