//! Decisions, told on stderr with TOE_SHIM_LOG=1, and counted for `toe status --why`.

use crate::ctx;
use core::fmt::Write;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use rustix::io::Errno;
use toe_core::app::why::{self, Counts, Why};
use toe_core::app::{Link, Reason};
use toe_core::shm::{MAX_WHYS, RegionHeader};

static ON: AtomicU32 = AtomicU32::new(0);
/// What is counted while there is no registration: the next one takes it over.
static WITHOUT: Counts = [const { AtomicU32::new(0) }; MAX_WHYS];
/// Why the last registration failed: a [`Why`].
static LAST: AtomicU32 = AtomicU32::new(0);

/// Reads the environment.
pub fn init() {
    ON.store(u32::from(crate::ctx::env(c"TOE_SHIM_LOG") == Some(b"1")), Relaxed);
}

/// A registration failed: from now on sockets are the kernel's for this reason.
pub fn unregistered(reason: Reason) {
    LAST.store(Why::from(reason) as u32, Relaxed);
}

/// Why there is no registration.
pub fn without() -> Why {
    Why::ALL.get(LAST.load(Relaxed) as usize).copied().unwrap_or(Why::Absent)
}

/// A registration succeeded: it is told what happened before.
pub fn registered(link: &Link) {
    why::hand_over(&WITHOUT, header(link));
}

/// A forked child counts for itself.
pub fn forget() {
    WITHOUT.iter().for_each(|w| w.store(0, Relaxed));
}

/// One more socket is the kernel's.
pub fn kernel(reason: Why) {
    match ctx::registered() {
        Some((_, link)) => why::count(&header(link).why, reason),
        None => why::count(&WITHOUT, reason),
    }
}

/// One more socket of `link`'s went to the kernel.
pub fn kernel_of(link: &Link, reason: Why) {
    why::count(&header(link).why, reason);
}

/// The engine answered with an error for which the kernel serves instead.
pub fn fell_back(link: &Link, e: Errno) -> Why {
    header(link).why_errno.store(e.raw_os_error() as u32, Relaxed);
    Why::of_errno(e)
}

fn header(link: &Link) -> &RegionHeader {
    &link.region.layout().header
}

/// Is anybody listening?
pub fn on() -> bool {
    ON.load(Relaxed) != 0
}

/// One line, written by one system call; longer ones are cut.
pub struct Line([u8; 200], usize);

impl Line {
    /// Begins with the shim's name and the process id.
    pub fn new() -> Line {
        let mut line = Line([0; 200], 0);
        let _ = write!(line, "toe-shim[{}]: ", crate::sys::getpid());
        line
    }

    /// Writes it out.
    pub fn end(mut self) {
        let _ = self.write_str("\n");
        crate::sys::sys!(SYS_write, 2, self.0.as_ptr(), self.1);
    }
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let n = s.len().min(self.0.len() - self.1);
        self.0[self.1..self.1 + n].copy_from_slice(&s.as_bytes()[..n]);
        self.1 += n;
        Ok(())
    }
}

/// `say!("format", …)`: one line of the log.
macro_rules! say {
    ($($arg:tt)*) => {
        if $crate::log::on() {
            let mut line = $crate::log::Line::new();
            let _ = core::fmt::Write::write_fmt(&mut line, format_args!($($arg)*));
            line.end();
        }
    };
}
pub(crate) use say;
