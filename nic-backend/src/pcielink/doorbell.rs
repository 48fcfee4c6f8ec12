//! The doorbell register of a queue, as on an NTB: 32 bits, set by the peer, read and cleared (write 1 to clear) by the
//! owner, with a mask. An interrupt is raised only when an unmasked bit is set in an all-zero register.
//!
//! The register stands in its owner's window; the interrupt is an eventfd that the owner passed to the peer. `set` is
//! the device's own doing (in hardware a posted write to the set register), and is only called for a sleeper: whether the
//! owner sleeps, it has posted into the peer's window beforehand.

use super::window::Window;
use core::sync::atomic::Ordering::SeqCst;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// The words of one register.
#[derive(Clone, Copy)]
pub struct Register<'a> {
    /// The window it stands in.
    pub window: &'a Window,
    /// Offset of the status word.
    pub status: usize,
    /// Offset of the mask word (1 bits are masked).
    pub mask: usize,
}

impl Register<'_> {
    /// Sets bits (NTB register 0x420); is an interrupt to be raised?
    pub fn set(&self, bits: u32) -> bool {
        let before = self.window.word32(self.status).fetch_or(bits, SeqCst);
        before == 0 && bits & !self.window.word32(self.mask).load(SeqCst) != 0
    }

    /// The bits set now (0x428, read).
    pub fn status(&self) -> u32 {
        self.window.word32(self.status).load(SeqCst)
    }

    /// Clears bits (0x428, write 1 to clear).
    pub fn clear(&self, bits: u32) {
        self.window.word32(self.status).fetch_and(!bits, SeqCst);
    }

    /// Writes the mask (0x42C). Unmasking raises no interrupt for bits set before: look at the rings afterwards.
    pub fn set_mask(&self, mask: u32) {
        self.window.word32(self.mask).store(mask, SeqCst);
    }
}

/// A new interrupt line.
pub fn new_interrupt() -> io::Result<OwnedFd> {
    use rustix::event::EventfdFlags;
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Raises the interrupt. A full counter means that it is raised already.
pub fn raise(interrupt: BorrowedFd<'_>) {
    let _ = rustix::io::write(interrupt, &1u64.to_ne_bytes());
}

/// Acknowledges the interrupt.
pub fn acknowledge(interrupt: BorrowedFd<'_>) {
    let _ = rustix::io::read(interrupt, &mut [0u8; 8]);
}

/// Takes an interrupt line received from the peer: it must be an eventfd, and is made non-blocking.
pub fn check_interrupt(fd: &OwnedFd) -> io::Result<()> {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    if name.as_os_str() != "anon_inode:[eventfd]" {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer's doorbell is not an eventfd"));
    }
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn interrupts_only_out_of_all_zero() {
        let w = Window::create(c"toe-test", 4096).unwrap();
        let r = Register { window: &w, status: 64, mask: 68 };
        r.set_mask(0b10);
        assert!(!r.set(0b10), "masked");
        assert!(!r.set(0b01), "not all zero");
        r.clear(0b10);
        assert!(!r.set(0b01), "still set");
        r.clear(u32::MAX);
        assert!(r.set(0b01) && r.status() == 1);
        r.clear(u32::MAX);
        r.set_mask(0);
        assert!(r.set(0b10));
    }

    #[test]
    fn only_eventfds_are_doorbells() {
        let good = new_interrupt().unwrap();
        check_interrupt(&good).unwrap();
        (0..3).for_each(|_| raise(good.as_fd()));
        acknowledge(good.as_fd());
        assert!(rustix::io::read(&good, &mut [0u8; 8]).is_err(), "drained");
        assert!(check_interrupt(&std::fs::File::open("/dev/null").unwrap().into()).is_err());
    }
}
