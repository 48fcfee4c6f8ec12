//! Segments that need no socket: RST, acknowledgments out of TIME-WAIT, challenge ACKs.

use toe_core::flow::FlowKey;
use toe_core::wire::{ETH_LEN, Segment, TcpFields, TcpOptions, emit, flags};
use toe_core::{Duration, Instant, SeqNr};

/// TTL of what no socket sends (Linux: ip_default_ttl).
pub(crate) const DEFAULT_TTL: u8 = 64;

/// Ethernet header that leads back to the sender of `frame`.
pub(crate) fn back(frame: &[u8]) -> [u8; ETH_LEN] {
    let mut l2 = [0; ETH_LEN];
    l2[..6].copy_from_slice(&frame[6..12]);
    l2[6..12].copy_from_slice(&frame[..6]);
    l2[12..].copy_from_slice(&frame[12..14]);
    l2
}

/// Fields of an option-less segment.
pub(crate) fn fields(key: FlowKey, seq: SeqNr, ack: SeqNr, flags: u8, window: u16) -> TcpFields {
    let options = TcpOptions::default();
    TcpFields { key, seq, ack, flags, window, urgent: 0, options, ttl: DEFAULT_TTL, tos: 0, ident: 0 }
}

/// The whole frame, checksums complete.
pub(crate) fn frame(l2: &[u8; ETH_LEN], fields: &TcpFields) -> Vec<u8> {
    emit(l2, fields, &[], false).as_slice().to_vec()
}

/// Answer to a segment for which there is no connection (RFC 9293 §3.10.7.1). None to a RST.
pub(crate) fn reset_for(received: &[u8], seg: &Segment) -> Option<Vec<u8>> {
    if seg.has(flags::RST) {
        return None;
    }
    let f = if seg.has(flags::ACK) {
        fields(seg.key, seg.ack, SeqNr(0), flags::RST, 0)
    } else {
        fields(seg.key, SeqNr(0), seg.end(), flags::RST | flags::ACK, 0)
    };
    Some(frame(&back(received), &f))
}

/// At most so many in a second (RFC 5961 §7).
pub(crate) struct RateLimit {
    second: u64,
    left: u32,
    limit: u32,
}

impl RateLimit {
    pub(crate) fn new(limit: u32) -> RateLimit {
        RateLimit { second: 0, left: limit, limit }
    }

    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        let second = now.since(Instant::ZERO).as_secs();
        if second != self.second {
            (self.second, self.left) = (second, self.limit);
        }
        let ok = self.left > 0;
        self.left = self.left.saturating_sub(1);
        ok
    }
}

/// `base` doubled `n` times, at most `max` (RFC 6298 §5.5).
pub(crate) fn backoff(base: Duration, n: u32, max: Duration) -> Duration {
    base.checked_mul(1 << n.min(20)).unwrap_or(max).min(max)
}
