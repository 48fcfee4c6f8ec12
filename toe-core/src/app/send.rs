//! ② from the caller into the TX stream.
//!
//! A chunk is taken from the arena when the tail enters it; the fast path gives it back when the head has left it. The
//! tail is published chunk by chunk and the owner kicked early, so that the head of a large write travels while its rest
//! is being copied.

#![allow(unsafe_code)]

use super::iov::Source;
use super::lock::{lock, try_lock};
use super::socket::{RELAYED, Sock};
use super::wait::{FAR, Stop, deadline_ms};
use crate::shm::{CHUNK_SIZE, STREAM_CHUNKS, SockState, app_flags, daemon_flags};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use rustix::io::Errno;

/// Kick again after this much of one write.
const KICK_BYTES: u64 = 64 * 1024;
/// Most bytes between head and tail: every position must find its chunk in the table.
const MAX_IN_FLIGHT: u64 = ((STREAM_CHUNKS - 1) * CHUNK_SIZE) as u64;
/// With the arena empty, its chunks come back by other sockets' ACKs, which nobody announces here.
const ARENA_RETRY_NS: u64 = 5_000_000;

/// How a send behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendHow {
    /// MSG_DONTWAIT or O_NONBLOCK.
    pub nonblocking: bool,
    /// MSG_MORE.
    pub more: bool,
}

/// What stopped a copy.
enum Pushed {
    /// The source has no more.
    All,
    /// The stream has no more room.
    Full,
    /// The arena has no more chunks.
    NoChunk,
}

impl Sock<'_> {
    /// `send(2)`: how many bytes were taken. EPIPE is to raise SIGPIPE; that is the caller's.
    pub fn send(&self, src: &mut impl Source, how: SendHow) -> Result<usize, Errno> {
        let deadline = deadline_ms(self.slot.snd_timeo_ms.load(Relaxed));
        let mut done = 0;
        loop {
            let step = match self.writable_state() {
                _ if self.relayed() => Err(RELAYED),
                Ok(true) => self.push_locked(src, how, &mut done),
                Ok(false) => Ok(Pushed::Full),
                Err(e) => Err(e),
            };
            let full = match step {
                Ok(Pushed::All) => return Ok(done),
                Ok(full) => full,
                // The error stays pending for the next call, as in Linux.
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(self.stream_error(e)),
            };
            if how.nonblocking {
                self.ask_for_room();
                if matches!(full, Pushed::Full) && self.room() > 0 && self.writable_state() == Ok(true) {
                    continue;
                }
                return if done > 0 { Ok(done) } else { Err(Errno::AGAIN) };
            }
            // A signal ends a call that has sent bytes, whether its handler asks for restarting or not.
            let until = if done > 0 { Some(deadline.unwrap_or(FAR)) } else { deadline };
            match self.wait_for_room(&full, until) {
                Ok(()) | Err(Stop::Dead) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(Stop::Interrupted) => return Err(Errno::INTR),
                Err(Stop::TimedOut) => return Err(Errno::AGAIN),
            }
        }
    }

    /// As [`send`](Self::send), but never waits, not even for another thread's turn (EBUSY). For the daemon's relay.
    pub fn send_at_once(&self, src: &mut impl Source) -> Result<usize, Errno> {
        if !self.writable_state().map_err(|e| self.stream_error(e))? {
            return Err(Errno::AGAIN);
        }
        let mut done = 0;
        let _held = try_lock(&self.slot.tx_lock).ok_or(Errno::BUSY)?;
        self.ask_for_room();
        match self.push_held(src, SendHow::default(), &mut done) {
            Err(e) if done == 0 => Err(self.stream_error(e)),
            // The arena's chunks come back by other sockets' ACKs: nobody will say so here.
            Ok(Pushed::NoChunk) if done == 0 => Err(Errno::BUSY),
            Ok(Pushed::Full) if done == 0 => Err(Errno::AGAIN),
            _ => Ok(done),
        }
    }

    /// May bytes be written? `Ok(false)`: not yet connected. Does not take the pending error.
    fn writable_state(&self) -> Result<bool, Errno> {
        let state = self.state();
        match state {
            SockState::Connecting => Ok(false),
            SockState::Established if !self.send_shut() => Ok(true),
            _ => Err(Errno::PIPE),
        }
    }

    /// Linux's `sk_stream_error`: a pending error goes before EPIPE.
    fn stream_error(&self, e: Errno) -> Errno {
        if e == Errno::PIPE { self.take_error().unwrap_or(e) } else { e }
    }

    /// Is the sending side closed, by us or by a reset?
    pub(super) fn send_shut(&self) -> bool {
        self.slot.app_flags.load(Acquire) & app_flags::SHUT_WR != 0
            || self.slot.daemon_flags.load(Acquire) & daemon_flags::RESET != 0
    }

    /// Bytes the stream may hold.
    fn tx_limit(&self) -> u64 {
        let limit = u64::from(self.slot.tx_limit.load(Relaxed));
        let asked = u64::from(self.slot.opt_sndbuf.load(Relaxed));
        let limit = if asked != 0 { limit.min(asked) } else { limit };
        limit.clamp(1, MAX_IN_FLIGHT)
    }

    /// Room in the TX stream, bytes.
    pub fn room(&self) -> u64 {
        self.room_at(self.slot.tx_tail.load(Relaxed))
    }

    /// Room behind `tail`, which may be ahead of the published one.
    fn room_at(&self, tail: u64) -> u64 {
        let used = tail.saturating_sub(self.slot.tx_head.load(Acquire));
        self.tx_limit().saturating_sub(used)
    }

    /// Is a third of the stream free (Linux's `sk_stream_is_writeable`)?
    pub(super) fn roomy(&self) -> bool {
        self.room() * 3 >= self.tx_limit()
    }

    /// (not yet sent, not yet acknowledged) bytes: SIOCOUTQNSD, SIOCOUTQ.
    pub fn unsent_and_unacked(&self) -> (u64, u64) {
        let tail = self.slot.tx_tail.load(Relaxed);
        let behind = |at: u64| tail.saturating_sub(at);
        (behind(self.slot.tx_sent.load(Acquire)), behind(self.slot.tx_head.load(Acquire)))
    }

    /// Asks the daemon to tell the event sets when there is room again.
    pub(super) fn ask_for_room(&self) {
        if self.slot.app_flags.load(Relaxed) & app_flags::NOSPACE == 0 {
            self.slot.app_flags.fetch_or(app_flags::NOSPACE, SeqCst);
        }
        fence(SeqCst);
    }

    fn wait_for_room(&self, full: &Pushed, deadline: Option<u64>) -> Result<(), Stop> {
        if let Pushed::NoChunk = full {
            let retry = super::wait::now_ns() + ARENA_RETRY_NS;
            let at = deadline.map_or(retry, |d| d.min(retry));
            return match self.link.wait(&self.slot.tx_wait, Some(at), || false) {
                Err(Stop::TimedOut) if deadline.is_none_or(|d| d > at) => Ok(()),
                other => other,
            };
        }
        let connecting = SockState::Connecting as u32;
        self.link.wait(&self.slot.tx_wait, deadline, || {
            let state = self.slot.state.load(Acquire);
            self.relayed()
                || state != connecting
                    && (self.room() > 0 || self.send_shut() || state != SockState::Established as u32)
        })
    }

    fn push_locked(&self, src: &mut impl Source, how: SendHow, done: &mut usize) -> Result<Pushed, Errno> {
        let _held = lock(&self.slot.tx_lock).ok_or(Errno::AGAIN)?;
        if self.relayed() {
            return Err(RELAYED);
        }
        self.push_held(src, how, done)
    }

    /// With the writers' lock held.
    fn push_held(&self, src: &mut impl Source, how: SendHow, done: &mut usize) -> Result<Pushed, Errno> {
        // Again under the lock: FIN is after the last byte written under it.
        if self.send_shut() {
            return Err(Errno::PIPE);
        }
        self.set_more(how.more);
        let start = *done;
        let result = self.push(src, done);
        if *done > start || (how.more != self.corked()) {
            self.link.kick(self.slot, self.id);
        }
        result
    }

    fn corked(&self) -> bool {
        self.slot.app_flags.load(Relaxed) & app_flags::CORK != 0
    }

    /// MSG_MORE corks until the next send without it, unless TCP_CORK is on anyway.
    fn set_more(&self, more: bool) {
        let flags = self.slot.app_flags.load(Relaxed);
        if more && flags & app_flags::CORK == 0 {
            self.slot.app_flags.fetch_or(app_flags::CORK, SeqCst);
        } else if !more && flags & (app_flags::CORK | app_flags::USER_CORK) == app_flags::CORK {
            self.slot.app_flags.fetch_and(!app_flags::CORK, SeqCst);
        }
    }

    /// Copies what fits, and publishes all that was copied however that ends.
    fn push(&self, src: &mut impl Source, done: &mut usize) -> Result<Pushed, Errno> {
        let mut tail = self.slot.tx_tail.load(Relaxed);
        let result = self.copy(src, done, &mut tail);
        self.slot.tx_tail.store(tail, Release);
        result
    }

    fn copy(&self, src: &mut impl Source, done: &mut usize, tail: &mut u64) -> Result<Pushed, Errno> {
        let table = self.link.region.tx_table(self.id).ok_or(Errno::BADF)?;
        let pool = &self.link.region.layout().tx_pool;
        let mut kick_at = *tail;
        while src.left() > 0 {
            let room = self.room_at(*tail).min(usize::MAX as u64) as usize;
            if room == 0 {
                return Ok(Pushed::Full);
            }
            let offset = (*tail % CHUNK_SIZE as u64) as usize;
            let entry = &table[(*tail / CHUNK_SIZE as u64) as usize % STREAM_CHUNKS];
            let fresh = offset == 0;
            let chunk = if fresh {
                let Some(chunk) = pool.pop() else { return Ok(Pushed::NoChunk) };
                chunk
            } else {
                entry.load(Relaxed)
            };
            let n = match self.fill(src, chunk, offset, room.min(CHUNK_SIZE - offset)) {
                Ok(n) if n > 0 => n,
                none => {
                    if fresh {
                        pool.push(chunk);
                    }
                    return none.map(|_| Pushed::All);
                }
            };
            entry.store(chunk, Relaxed);
            *tail += n as u64;
            *done += n;
            // The first bytes of a large write leave early, the rest in large steps. A small rest is not published apart: it
            // would leave as a small segment of its own. The callers publish and kick at the end.
            if src.left() >= CHUNK_SIZE {
                self.slot.tx_tail.store(*tail, Release);
                if *tail >= kick_at {
                    self.link.kick(self.slot, self.id);
                    kick_at = *tail + KICK_BYTES;
                }
            }
        }
        Ok(Pushed::All)
    }

    fn fill(&self, src: &mut impl Source, chunk: u32, offset: usize, len: usize) -> Result<usize, Errno> {
        let base = self.link.region.tx_chunk(chunk).ok_or(Errno::PIPE)?;
        // SAFETY: offset + len ≤ CHUNK_SIZE, and the chunk is this stream's: popped by us, not yet given back.
        unsafe { src.fill(base.as_ptr().add(offset), len) }
    }
}
