//! One frame ring, from one queue of the sender to one queue of the receiver: single producer, single consumer. The ring
//! and its producer index stand in the receiver's window, the credit index (how far the receiver has consumed) in the
//! sender's, so that each side reads its own memory only.
//!
//! A record is a 16-byte header and a frame, aligned to a cache line and contiguous; a padding record fills the rest of
//! a lap that is too short. Positions count bytes since the link came up and never wrap.
//!
//! ```text
//! credit            head                       published        tail
//!   |--- consumed ---|--- waiting to be read ---|--- written ---|--- free up to credit + ring_bytes
//! ```

use super::dma::Channel;
use super::geometry::{ALIGN, FRAME_HEADER, VERSION, record_len};
use super::window::Window;
use core::sync::atomic::Ordering::Acquire;
use core::sync::atomic::Ordering::Relaxed;

/// Record flag: filling to the end of the ring, no frame.
const PAD: u16 = 1;
/// Record flag: the frame's TCP checksum field holds the pseudo-header's sum only.
const PARTIAL_CSUM: u16 = 2;

/// Unpublished bytes at which the producer index is posted before the burst ends, so that a receiver which is awake
/// starts on it.
const PUBLISH_BYTES: u64 = 16 << 10;

/// Shortest frame: an Ethernet header.
const MIN_FRAME: usize = 14;

/// The peer wrote an index, or a header, that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room.
    Full,
    /// See [`Nonsense`].
    Nonsense,
}

fn header_word(flags: u16, len: usize) -> u64 {
    u64::from(VERSION as u16) | u64::from(flags) << 16 | (len as u64) << 32
}

/// The sending end.
pub struct TxRing {
    base: usize,
    producer_at: usize,
    credit_at: usize,
    size: u64,
    tail: u64,
    published: u64,
    credit: u64,
    /// Bytes that a refused frame was short of; 0: none was refused.
    wanted: u64,
}

impl TxRing {
    /// A ring at `base` of the peer's window with its producer index at `producer_at` there, and its credit index at
    /// `credit_at` of ours.
    pub fn new(base: usize, producer_at: usize, credit_at: usize, size: usize) -> TxRing {
        TxRing { base, producer_at, credit_at, size: size as u64, tail: 0, published: 0, credit: 0, wanted: 0 }
    }

    /// Bytes to skip so that a record of `len` bytes is contiguous, and all that it takes.
    #[inline(always)]
    fn need(&self, len: u64) -> (u64, u64) {
        let rest = self.size - (self.tail & (self.size - 1));
        if len <= rest { (0, len) } else { (rest, rest + len) }
    }

    /// Room for `need` bytes? Looks at the credit index only when it seems not.
    #[inline(always)]
    fn has_room(&mut self, mine: &Window, need: u64) -> Result<bool, Nonsense> {
        if self.tail + need - self.credit <= self.size {
            return Ok(true);
        }
        let credit = mine.word64(self.credit_at).load(Acquire);
        // Untrusted: between the last value and what has been published, else the peer is broken.
        if credit < self.credit || credit > self.published {
            return Err(Nonsense);
        }
        self.credit = credit;
        Ok(self.tail + need - credit <= self.size)
    }

    /// Writes one frame; it becomes visible with [`publish`](Self::publish).
    pub fn push(
        &mut self,
        mine: &Window,
        peer: &Window,
        dma: &mut Channel,
        header: &[u8],
        payload: &[&[u8]],
        partial_csum: bool,
    ) -> Result<usize, PushError> {
        let len = crate::frame::gathered_len(header, payload);
        let record = record_len(len) as u64;
        let (pad, need) = self.need(record);
        match self.has_room(mine, need) {
            Ok(true) => {}
            Ok(false) => {
                self.wanted = record;
                return Err(PushError::Full);
            }
            Err(Nonsense) => return Err(PushError::Nonsense),
        }
        self.wanted = 0;
        if pad != 0 {
            self.write_header(peer, dma, PAD, pad as usize);
            self.tail += pad;
        }
        // Payload first, then the header, then (by `publish`) the index.
        let mut at = self.base + (self.tail & (self.size - 1)) as usize + FRAME_HEADER;
        for piece in core::iter::once(&header).chain(payload) {
            dma.copy(peer, at, piece);
            at += piece.len();
        }
        self.write_header(peer, dma, if partial_csum { PARTIAL_CSUM } else { 0 }, len);
        self.tail += record;
        if self.tail - self.published >= PUBLISH_BYTES {
            self.publish(peer, dma);
        }
        Ok(len)
    }

    #[inline(always)]
    fn write_header(&self, peer: &Window, dma: &mut Channel, flags: u16, len: usize) {
        let at = self.base + (self.tail & (self.size - 1)) as usize;
        dma.post_word(peer, at, header_word(flags, len));
        dma.post_word(peer, at + 8, self.tail);
    }

    /// Posts the producer index.
    #[inline(always)]
    pub fn publish(&mut self, peer: &Window, dma: &mut Channel) {
        if self.published != self.tail {
            self.published = self.tail;
            dma.post_index(peer, self.producer_at, self.tail);
        }
    }

    /// Was a frame refused for lack of room?
    pub fn is_blocked(&self) -> bool {
        self.wanted != 0
    }

    /// Is there room now for the frame that was refused? Says so once: the sender may have lost interest in it. (A broken
    /// index counts as room: `push` will find out.)
    pub fn take_unblocked(&mut self, mine: &Window) -> bool {
        let (_, need) = self.need(self.wanted);
        let room = self.wanted != 0 && self.has_room(mine, need).unwrap_or(true);
        if room {
            self.wanted = 0;
        }
        room
    }
}

/// A received frame, still in the ring.
pub struct Frame<'a> {
    /// The bytes; untrusted.
    pub bytes: &'a [u8],
    /// The sender left the TCP checksum to the link.
    pub partial_csum: bool,
}

/// The receiving end.
pub struct RxRing {
    base: usize,
    producer_at: usize,
    credit_at: usize,
    size: u64,
    max_frame: usize,
    head: u64,
    posted: u64,
}

impl RxRing {
    /// A ring at `base` of our window with its producer index at `producer_at` there, and its credit index at `credit_at` of
    /// the peer's.
    pub fn new(base: usize, producer_at: usize, credit_at: usize, size: usize, max_frame: usize) -> RxRing {
        RxRing { base, producer_at, credit_at, size: size as u64, max_frame, head: 0, posted: 0 }
    }

    /// Has the peer published anything that we have not consumed?
    #[inline(always)]
    pub fn is_pending(&self, mine: &Window) -> bool {
        mine.word64(self.producer_at).load(Acquire) != self.head
    }

    /// Lends up to `budget` frames to `sink`; returns how many.
    pub fn drain(&mut self, mine: &Window, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> Result<usize, Nonsense> {
        // Untrusted: read once, then bounded.
        let end = mine.word64(self.producer_at).load(Acquire);
        let waiting = end.wrapping_sub(self.head);
        if waiting > self.size || !end.is_multiple_of(ALIGN as u64) {
            return Err(Nonsense);
        }
        let mut count = 0;
        while self.head != end && count < budget {
            let offset = self.head & (self.size - 1);
            let at = self.base + offset as usize;
            let (word, position) = (mine.word64(at).load(Relaxed), mine.word64(at + 8).load(Relaxed));
            let (version, flags, len) = (word as u16, (word >> 16) as u16, (word >> 32) as usize);
            if u32::from(version) != VERSION || position != self.head {
                return Err(Nonsense);
            }
            let rest = self.size - offset;
            // At most one padding record a lap: it always ends at the end of the ring.
            let record = if flags == PAD { len as u64 } else { record_len(len.min(self.max_frame + 1)) as u64 };
            let wrong = if flags == PAD { record != rest } else { !(MIN_FRAME..=self.max_frame).contains(&len) };
            if wrong || record > rest || record > end - self.head || flags & !(PAD | PARTIAL_CSUM) != 0 {
                return Err(Nonsense);
            }
            if flags != PAD {
                let bytes = mine.lend(at + FRAME_HEADER, len);
                sink(Frame { bytes, partial_csum: flags & PARTIAL_CSUM != 0 });
                count += 1;
            }
            self.head += record;
        }
        Ok(count)
    }

    /// Posts the credit index, if an eighth of the ring has been consumed since the last time. True: posted (the sender
    /// may wait for it).
    #[inline(always)]
    pub fn post_credit(&mut self, peer: &Window, dma: &mut Channel) -> bool {
        if self.head - self.posted < self.size / 8 {
            return false;
        }
        self.posted = self.head;
        dma.post_index(peer, self.credit_at, self.head);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 64 << 10;

    fn ends(max_frame: usize) -> (Window, TxRing, RxRing) {
        let w = Window::create(c"toe-test", 4096 + SIZE).unwrap();
        (w, TxRing::new(4096, 0, 64, SIZE), RxRing::new(4096, 0, 64, SIZE, max_frame))
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(sizes in proptest::collection::vec(14usize..9000, 1..300), burst in 1usize..20) {
            let (w, mut tx, mut rx) = ends(9000);
            let (mut dma, mut seen, mut sent) = (Channel::default(), 0, 0);
            let body = |n: usize, i: usize| (0..n).map(|b| (b * 7 + i) as u8).collect::<Vec<u8>>();
            while seen < sizes.len() {
                for _ in 0..burst {
                    let Some(&n) = sizes.get(sent) else { break };
                    let b = body(n, sent);
                    match tx.push(&w, &w, &mut dma, &b[..14], &[&b[14..n / 2 + 7], &b[n / 2 + 7..]], sent % 2 == 0) {
                        Ok(len) => prop_assert_eq!(len, n),
                        Err(e) => { prop_assert_eq!(e, PushError::Full); break }
                    }
                    sent += 1;
                }
                tx.publish(&w, &mut dma);
                let before = seen;
                rx.drain(&w, burst, &mut |f| {
                    assert_eq!(f.bytes, body(sizes[seen], seen));
                    assert_eq!(f.partial_csum, seen % 2 == 0);
                    seen += 1;
                }).unwrap();
                rx.post_credit(&w, &mut dma);
                prop_assert!(seen > before, "stuck");
            }
        }

        #[test]
        fn a_scribbling_peer_is_found_out(words in proptest::collection::vec((0usize..(4096 + SIZE) / 8, any::<u64>(), 0u8..4), 1..60)) {
            let (w, mut tx, mut rx) = ends(2000);
            let mut dma = Channel::default();
            for (at, value, kind) in words {
                // Half of the time the words that matter, with values near those that would be right.
                let at = match kind { 0 => 0, 1 => 8, 2 => 512 + at % 64, _ => at };
                let value = if value % 2 == 0 { (value % (2 * SIZE as u64)) & !63 } else { value };
                w.word64(at * 8).store(value, Relaxed);
                let mut frames = 0;
                let got = rx.drain(&w, 64, &mut |f| { assert!(f.bytes.len() <= 2000); frames += 1 });
                prop_assert!(frames <= 64 && got.is_ok_and(|n| n == frames) || got.is_err());
                let _ = tx.push(&w, &w, &mut dma, &[3; 60], &[&[4; 1000]], false);
                tx.publish(&w, &mut dma);
                rx.post_credit(&w, &mut dma);
            }
        }
    }

    #[test]
    fn a_full_ring_recovers() {
        let (w, mut tx, mut rx) = ends(2000);
        let mut dma = Channel::default();
        let mut push = |tx: &mut TxRing| tx.push(&w, &w, &mut dma, &[1; 14], &[&[2; 1986]], false);
        let mut sent = 0;
        while push(&mut tx).is_ok() {
            sent += 1;
        }
        assert!(sent == SIZE / record_len(2000) && tx.is_blocked() && !tx.take_unblocked(&w));
        tx.publish(&w, &mut Channel::default());
        assert_eq!(rx.drain(&w, usize::MAX, &mut |_| ()), Ok(sent));
        assert!(rx.post_credit(&w, &mut Channel::default()) && tx.take_unblocked(&w));
        assert!(!tx.take_unblocked(&w), "once");
        assert_eq!(push(&mut tx), Ok(2000));
        assert!(!tx.is_blocked());
    }

    #[test]
    fn impossible_credit_is_nonsense() {
        for credit in [64, u64::MAX] {
            let (w, mut tx, _) = ends(2000);
            let mut dma = Channel::default();
            w.word64(64).store(credit, Relaxed);
            let end = loop {
                if let Err(e) = tx.push(&w, &w, &mut dma, &[1; 14], &[], false) {
                    break e;
                }
            };
            assert_eq!(end == PushError::Nonsense, credit == u64::MAX, "{credit}: {end:?}");
        }
    }
}
