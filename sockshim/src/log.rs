//! Decisions, told on stderr with TOE_SHIM_LOG=1, and counted for `toe status --why`.

use core::fmt::Write;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use toe_core::app::Reason;

static ON: AtomicU32 = AtomicU32::new(0);
/// Why the kernel was used: absent, version, full, refused, failed.
pub static REASONS: [AtomicU32; 5] = [const { AtomicU32::new(0) }; 5];
/// Sockets that became the engine's.
pub static OFFLOADED: AtomicU32 = AtomicU32::new(0);

/// Reads the environment.
pub fn init() {
    ON.store(u32::from(crate::ctx::env(c"TOE_SHIM_LOG") == Some(b"1")), Relaxed);
}

/// Counts a registration that failed.
pub fn count(reason: Reason) {
    let i = match reason {
        Reason::Absent => 0,
        Reason::Version => 1,
        Reason::Full => 2,
        Reason::Refused(_) => 3,
        Reason::Failed => 4,
    };
    REASONS[i].fetch_add(1, Relaxed);
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
