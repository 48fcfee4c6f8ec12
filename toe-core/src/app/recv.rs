//! ⑥ from the RX stream to the caller.

#![allow(unsafe_code)]

use super::iov::IovCursor;
use super::lock::{lock, try_lock};
use super::socket::{RELAYED, Sock};
use super::wait::{FAR, Stop, deadline_ms};
use crate::shm::{CHUNK_SIZE, STREAM_CHUNKS, SockState, app_flags, daemon_flags};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use rustix::io::Errno;

/// How a receive behaves: the `MSG_*` flags of the same names; `nonblocking` also stands for O_NONBLOCK.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct RecvHow {
    pub nonblocking: bool,
    pub peek: bool,
    pub waitall: bool,
    pub trunc: bool,
}

impl Sock<'_> {
    /// `recv(2)`: bytes received, 0 at the end of the stream.
    pub fn recv(&self, dst: &mut IovCursor, how: RecvHow) -> Result<usize, Errno> {
        let deadline = deadline_ms(self.slot.rcv_timeo_ms.load(Relaxed));
        let len = dst.left();
        let target = if how.waitall { len } else { len.min(self.low_water()) }.max(1);
        let mut done = 0;
        loop {
            if self.relayed() {
                return if done > 0 { Ok(done) } else { Err(RELAYED) };
            }
            // What is only looked at stays: wait until enough is there at once.
            let wait = how.peek && !how.nonblocking && self.available() < target as u64 && !self.ended();
            if !wait {
                let end = self.receive_end();
                match self.pull(dst, how, &mut done) {
                    Err(_) if done > 0 => return Ok(done),
                    other => other?,
                }
                if done >= target || len == 0 && self.available() > 0 {
                    return Ok(done);
                }
                match end {
                    _ if done > 0 && (how.nonblocking || how.peek) => return Ok(done),
                    // Bytes may have come between the two looks.
                    Some(_) if self.available() > 0 && len > done && !how.peek => continue,
                    Some(_) if done > 0 => return Ok(done),
                    Some(result) => return self.settle(result),
                    None if how.nonblocking => return Err(Errno::AGAIN),
                    None => {}
                }
            }
            let more = if how.peek { target as u64 } else { (target - done) as u64 };
            // A signal ends a call that has bytes, whether its handler asks for restarting or not.
            let until = if done > 0 { Some(deadline.unwrap_or(FAR)) } else { deadline };
            match self.wait_for_bytes(more, until) {
                Ok(()) | Err(Stop::Dead) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(_) if how.peek && self.available() > 0 => {
                    return self.pull(dst, how, &mut done).map(|()| done);
                }
                Err(Stop::Interrupted) => return Err(Errno::INTR),
                Err(Stop::TimedOut) => return Err(Errno::AGAIN),
            }
        }
    }

    /// As [`recv`](Self::recv), but never waits, not even for another thread's turn (EBUSY). For the daemon's relay.
    pub fn recv_at_once(&self, dst: &mut IovCursor) -> Result<usize, Errno> {
        let end = self.receive_end();
        let got = {
            let _held = try_lock(&self.slot.rx_lock).ok_or(Errno::BUSY)?;
            let mut done = 0;
            self.pull_locked(dst, RecvHow::default(), &mut done)?;
            done
        };
        match end {
            _ if got > 0 => Ok(got),
            // Bytes may have come between the two looks.
            Some(_) if self.available() > 0 => Err(Errno::BUSY),
            Some(result) => self.settle(result),
            None => Err(Errno::AGAIN),
        }
    }

    /// Bytes ready to be read.
    #[inline]
    pub fn available(&self) -> u64 {
        self.slot.rx_tail.load(Acquire).saturating_sub(self.slot.rx_head.load(Relaxed))
    }

    /// SO_RCVLOWAT, at least 1; at most half of the buffer, or it could never be reached.
    pub(super) fn low_water(&self) -> usize {
        let half = (self.slot.rx_limit.load(Relaxed) / 2).max(1);
        self.slot.opt_rcvlowat.load(Relaxed).clamp(1, half) as usize
    }

    /// Is the receiving side closed, by the peer, by us, or by a reset?
    pub(super) fn receive_shut(&self) -> bool {
        let (state, flags) = (self.state(), self.slot.daemon_flags.load(Acquire));
        state == SockState::Closed
            || flags & (daemon_flags::RX_FIN | daemon_flags::RESET) != 0
            || self.slot.app_flags.load(Relaxed) & app_flags::SHUT_RD != 0
    }

    fn ended(&self) -> bool {
        self.receive_end().is_some()
    }

    /// What a receive reports once no bytes are left; `None`: more may come. Read before looking for bytes, because what ends
    /// a stream is published after its last byte. Does not take the error.
    fn receive_end(&self) -> Option<Result<usize, Errno>> {
        let state = self.state();
        let flags = self.slot.daemon_flags.load(Acquire);
        // A FIN goes before an error that came after it (Linux: SOCK_DONE).
        if flags & daemon_flags::RX_FIN != 0 {
            return Some(Ok(0));
        }
        if self.has_error(state) {
            return Some(Err(Errno::IO));
        }
        if self.receive_shut() {
            return Some(Ok(0));
        }
        match state {
            SockState::Established | SockState::Connecting => None,
            _ => Some(Err(Errno::NOTCONN)),
        }
    }

    fn settle(&self, result: Result<usize, Errno>) -> Result<usize, Errno> {
        match result {
            // Another thread may have been faster: then this is the end without an error.
            Err(Errno::IO) => self.take_error().map_or(Ok(0), Err),
            other => other,
        }
    }

    fn wait_for_bytes(&self, count: u64, deadline: Option<u64>) -> Result<(), Stop> {
        self.link.wait(&self.slot.rx_wait, deadline, || {
            let available = self.available();
            available >= count || (available > 0 && self.window_small()) || self.ended() || self.relayed()
        })
    }

    /// Is the window that the peer sees so small that reading must be told to the owner at once?
    fn window_small(&self) -> bool {
        self.available() * 2 >= u64::from(self.slot.rx_limit.load(Relaxed))
    }

    /// Copies what is there; counts it in `done` even if it ends in an error.
    fn pull(&self, dst: &mut IovCursor, how: RecvHow, done: &mut usize) -> Result<(), Errno> {
        let _held = lock(&self.slot.rx_lock).ok_or(Errno::AGAIN)?;
        if self.relayed() {
            return Err(RELAYED);
        }
        self.pull_locked(dst, how, done)
    }

    /// With the readers' lock held.
    fn pull_locked(&self, dst: &mut IovCursor, how: RecvHow, done: &mut usize) -> Result<(), Errno> {
        let head = self.slot.rx_head.load(Relaxed);
        let small = self.window_small();
        let mut cursor = *dst;
        let mut at = head;
        let outcome = self.copy_out(&mut cursor, how.trunc, &mut at);
        *done += (at - head) as usize;
        if how.peek || at == head {
            return outcome;
        }
        *dst = cursor;
        self.slot.rx_head.store(at, Release);
        let left_a_chunk = head / CHUNK_SIZE as u64 != at / CHUNK_SIZE as u64;
        if small || left_a_chunk {
            self.link.kick(self.slot, self.id);
        }
        outcome
    }

    /// From position `at` on, which moves.
    fn copy_out(&self, cursor: &mut IovCursor, trunc: bool, at: &mut u64) -> Result<(), Errno> {
        let end = self.slot.rx_tail.load(Acquire).min(*at + cursor.left() as u64);
        let table = self.link.region.rx_table(self.id).ok_or(Errno::BADF)?;
        while *at < end {
            let offset = (*at % CHUNK_SIZE as u64) as usize;
            let chunk = table[(*at / CHUNK_SIZE as u64) as usize % STREAM_CHUNKS].load(Relaxed);
            let len = (end - *at).min((CHUNK_SIZE - offset) as u64) as usize;
            let n = if trunc {
                cursor.skip(len)
            } else {
                let base = self.link.region.rx_chunk(chunk).ok_or(Errno::IO)?;
                // SAFETY: offset + len ≤ CHUNK_SIZE; these bytes were published by `rx_tail` and stay until `rx_head`
                // moves, which we hold the lock for.
                unsafe { cursor.put(base.as_ptr().add(offset), len) }?
            };
            *at += n as u64;
            if n < len {
                break;
            }
        }
        Ok(())
    }
}
