//! One relayed socket: bytes, ends and resets, both ways, without ever waiting.

use crate::daemon::sys;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Release;
use toe_core::app::socket::Shut;
use toe_core::app::{IovCursor, Sock};
use toe_core::shm::app_flags;

/// Bytes moved at once.
pub const BUF: usize = 64 * 1024;
/// Moves of one turn, so that none keeps the others waiting.
const TURN: usize = 16;

/// Turns, a millisecond apart, that a reset waits for bytes to be sent before it.
const RESET_TRIES: u32 = 50;

/// What a turn left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing to be done before something happens.
    Idle,
    /// More to be done.
    Busy,
    /// Something is in the way that will not announce its end: again in a moment.
    Blocked,
    /// The program has closed the placeholder, or the engine reset the connection.
    Over,
}

/// Bytes taken from one side and not yet given to the other.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    done: usize,
}

impl Pending {
    fn left(&mut self) -> &mut [u8] {
        &mut self.bytes[self.done..]
    }

    fn is_empty(&self) -> bool {
        self.done == self.bytes.len()
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.done = 0;
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.done = 0;
    }
}

/// One direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// The end was passed on.
    Ended,
    /// What comes is dropped: nobody can take it.
    Dropping,
}

/// See the module.
pub struct Pump {
    /// The daemon's end of the placeholder's connection.
    pub end: OwnedFd,
    to_program: Pending,
    to_engine: Pending,
    /// From the engine to the program.
    down: Way,
    /// From the program to the engine.
    up: Way,
    /// Bytes were lost by the program's close: it is told by a reset (RFC 2525 §2.17).
    lost: bool,
    /// Times that a reset had to wait.
    waited: u32,
}

/// `Ok(true)`: moved something; `Ok(false)`: nothing to move.
type Step = Result<bool, Turn>;

impl Pump {
    /// For an `end` that does not block.
    pub fn new(end: OwnedFd) -> Pump {
        let (to_program, to_engine) = (Pending::default(), Pending::default());
        Pump { end, to_program, to_engine, down: Way::Open, up: Way::Open, lost: false, waited: 0 }
    }

    /// Moves what can be moved now.
    pub fn turn(&mut self, sock: &Sock<'_>, buf: &mut [u8; BUF]) -> Turn {
        let mut blocked = false;
        for _ in 0..TURN {
            let mut moved = false;
            for step in [self.down(sock, buf), self.up(sock, buf)] {
                match step {
                    Ok(m) => moved |= m,
                    Err(Turn::Blocked) => blocked = true,
                    Err(turn) => return turn,
                }
            }
            if !moved {
                return match self.is_over() {
                    true if self.lost && self.must_wait(sock) => Turn::Blocked,
                    true => Turn::Over,
                    false if blocked => Turn::Blocked,
                    false => Turn::Idle,
                };
            }
        }
        Turn::Busy
    }

    /// Lets go of the socket, after `Turn::Over`.
    pub fn finish(self, sock: &Sock<'_>) {
        if self.lost || !self.to_program.is_empty() {
            sock.set_flag(app_flags::LINGER_RST, true, false);
        }
        sock.release();
    }

    fn down(&mut self, sock: &Sock<'_>, buf: &mut [u8; BUF]) -> Step {
        if !self.to_program.is_empty() {
            return match rustix::net::send(&self.end, self.to_program.left(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
            {
                Ok(n) => {
                    self.to_program.done += n;
                    Ok(n > 0)
                }
                Err(Errno::AGAIN) => Ok(false),
                Err(Errno::INTR) => Ok(true),
                // It will not read any more: shut down, or closed, which the other direction tells.
                Err(_) => {
                    self.lost |= self.hung_up();
                    self.down = Way::Dropping;
                    self.to_program.clear();
                    Ok(true)
                }
            };
        }
        if self.down == Way::Ended {
            return Ok(false);
        }
        match IovCursor::over(buf, |c| sock.recv_at_once(c)) {
            Ok(0) => {
                self.down = Way::Ended;
                let _ = rustix::net::shutdown(&self.end, Shutdown::Write);
                Ok(true)
            }
            Ok(_) if self.down == Way::Dropping => Ok(true),
            Ok(n) => {
                self.to_program.fill(&buf[..n]);
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(Errno::BUSY) => Err(Turn::Blocked),
            Err(e) => {
                // For those who can still read it there.
                sock.slot.error.store(e.raw_os_error() as u32, Release);
                Err(Turn::Over)
            }
        }
    }

    fn up(&mut self, sock: &Sock<'_>, buf: &mut [u8; BUF]) -> Step {
        if !self.to_engine.is_empty() {
            return match IovCursor::over(self.to_engine.left(), |c| sock.send_at_once(c)) {
                Ok(n) => {
                    self.to_engine.done += n;
                    Ok(n > 0)
                }
                Err(Errno::AGAIN) => Ok(false),
                Err(Errno::BUSY) => Err(Turn::Blocked),
                Err(_) => {
                    self.up = Way::Dropping;
                    self.to_engine.clear();
                    // The program's next write is to fail.
                    let _ = rustix::net::shutdown(&self.end, Shutdown::Read);
                    Ok(true)
                }
            };
        }
        if self.up == Way::Ended {
            return Ok(false);
        }
        match rustix::net::recv(&self.end, &mut buf[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => {
                self.up = Way::Ended;
                // With a reset to come there is no orderly end.
                if !self.lost {
                    let _ = sock.shutdown(Shut::Write);
                }
                Ok(true)
            }
            Ok(_) if self.up == Way::Dropping => Ok(true),
            Ok((_, n)) => {
                self.to_engine.fill(&buf[..n]);
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(Errno::INTR) => Ok(true),
            Err(_) => {
                // Closed with bytes unread.
                self.lost = true;
                Ok(true)
            }
        }
    }

    /// Has the program closed it, and has all that it wrote been passed on?
    fn is_over(&self) -> bool {
        self.up == Way::Ended && self.to_engine.is_empty() && self.hung_up()
    }

    /// A reset takes back what was not yet sent. The kernel would have sent it by now, as far as the window allows.
    fn must_wait(&mut self, sock: &Sock<'_>) -> bool {
        self.waited += 1;
        self.waited < RESET_TRIES && sock.unsent_and_unacked().0 > 0
    }

    fn hung_up(&self) -> bool {
        sys::hung_up(self.end.as_fd()).unwrap_or(false)
    }
}
