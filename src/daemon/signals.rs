//! SIGTERM, SIGINT and SIGHUP as bytes in a pipe.

use mio::net::UnixStream;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Read};

/// The signals that end the daemon.
pub struct Signals(UnixStream);

impl Signals {
    /// Catches them from now on.
    pub fn catch() -> io::Result<Signals> {
        let (ours, handlers) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, handlers.try_clone()?)?;
        }
        Ok(Signals(UnixStream::from_std(ours)))
    }

    /// To be registered with a poll.
    pub fn source(&mut self) -> &mut UnixStream {
        &mut self.0
    }

    /// Signals since the last call.
    pub fn take(&mut self) -> usize {
        let mut bytes = [0; 64];
        let mut count = 0;
        while let Ok(n @ 1..) = self.0.read(&mut bytes) {
            count += n;
        }
        count
    }
}
