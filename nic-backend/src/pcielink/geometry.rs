//! Where things stand in a window. The window of owner O is written by its peer P, and read by O:
//!
//! ```text
//! 0       link header: magic, queues, MTU, ring size, MAC of P, link-up word, version (written last)
//! 4096    doorbell registers, one 64-byte line for each queue of O: status, mask
//!         armed words, one line for each queue of P: what that queue wants to be woken for
//!         producer indices, one line for each ring (queue p of P -> queue o of O)
//!         credit indices, one line for each ring the other way (o -> p): how far P has consumed
//! page    rings p -> o, `ring_bytes` each
//! ```

use super::window::Window;
use crate::config::{MAX_QUEUES, invalid};
use core::sync::atomic::AtomicU32;
use std::io;

/// `"TOElnk\0\x01"` cut to 32 bits: says that a window or message is of this protocol.
pub const MAGIC: u32 = 0x544f_456c;
/// Version of the window layout and of the messages; both sides must have the same.
pub const VERSION: u32 = 1;

/// Everything in a ring is aligned to this: a cache line.
pub const ALIGN: usize = 64;
/// Bytes of a frame's header in the ring.
pub const FRAME_HEADER: usize = 16;
const LINE: usize = 64;
const PAGE: usize = 4096;

/// Smallest and largest ring, bytes.
pub const RING_BYTES: core::ops::RangeInclusive<usize> = 64 << 10..=64 << 20;

/// Words of the link header.
pub mod header {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// Queues of the writer.
    pub const QUEUES: usize = 4;
    /// MTU of the writer, bytes of an IP packet.
    pub const MTU: usize = 8;
    /// 1 while the writer's side of the link is up.
    pub const LINK_UP: usize = 64;
    /// [`super::VERSION`]; written last.
    pub const VERSION: usize = 68;
}

/// The shape of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Queues of the window's owner.
    pub owner: usize,
    /// Queues of the peer.
    pub peer: usize,
    /// Bytes of each ring; a power of two.
    pub ring_bytes: usize,
}

/// Largest frame of a link: the IP packet and an Ethernet header with one VLAN tag.
pub const fn max_frame(mtu: usize) -> usize {
    mtu + 18
}

/// Bytes that a frame of `len` bytes takes in a ring.
#[inline(always)]
pub const fn record_len(len: usize) -> usize {
    (FRAME_HEADER + len + ALIGN - 1) & !(ALIGN - 1)
}

impl Geometry {
    /// Checks numbers that came from configuration or from the peer.
    pub fn new(owner: usize, peer: usize, ring_bytes: usize, mtu: usize) -> io::Result<Geometry> {
        if !(1..=MAX_QUEUES).contains(&owner) || !(1..=MAX_QUEUES).contains(&peer) {
            return Err(invalid(format!("queues: must be 1 to {MAX_QUEUES}")));
        }
        if !(576..=65_535).contains(&mtu) {
            return Err(invalid(format!("mtu = {mtu}: must be 576 to 65,535")));
        }
        // With an eighth of the ring not yet posted as credit, a frame must fit even after padding of nearly its size.
        let least = 2 * record_len(max_frame(mtu)) * 8 / 7;
        if !ring_bytes.is_power_of_two() || !RING_BYTES.contains(&ring_bytes) || ring_bytes < least {
            return Err(invalid(format!(
                "ring_bytes = {ring_bytes}: must be a power of two from 64 KiB to 64 MiB, and at least {least} for this MTU"
            )));
        }
        Ok(Geometry { owner, peer, ring_bytes })
    }

    /// Status word of the doorbell register of the owner's queue `o`.
    pub fn doorbell_status(&self, o: usize) -> usize {
        PAGE + o * LINE
    }

    /// Mask word of the same register.
    pub fn doorbell_mask(&self, o: usize) -> usize {
        self.doorbell_status(o) + 4
    }

    /// What the peer's queue `p` wants to be woken for.
    pub fn armed(&self, p: usize) -> usize {
        PAGE + (self.owner + p) * LINE
    }

    /// Producer index of the ring from the peer's queue `p` to the owner's queue `o`.
    pub fn producer(&self, p: usize, o: usize) -> usize {
        PAGE + (self.owner + self.peer + p * self.owner + o) * LINE
    }

    /// How far the peer's queue `p` has consumed the ring that comes from the owner's queue `o`.
    pub fn credit(&self, o: usize, p: usize) -> usize {
        PAGE + (self.owner + self.peer + (self.peer + o) * self.owner.max(self.peer) + p) * LINE
    }

    /// Start of the ring from the peer's queue `p` to the owner's queue `o`.
    pub fn ring(&self, p: usize, o: usize) -> usize {
        self.rings() + (p * self.owner + o) * self.ring_bytes
    }

    fn rings(&self) -> usize {
        let words_end = self.credit(self.owner - 1, self.peer - 1) + LINE;
        words_end.next_multiple_of(PAGE)
    }

    /// Bytes of the window.
    pub fn window_len(&self) -> usize {
        self.rings() + self.owner * self.peer * self.ring_bytes
    }
}

/// The link-up word that the peer keeps in our window.
#[inline(always)]
pub fn link_up(window: &Window) -> &AtomicU32 {
    window.word32(header::LINK_UP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn nothing_overlaps() {
        for (owner, peer) in [(1, 1), (2, 3), (3, 2), (1, 16), (16, 1), (16, 16)] {
            let g = Geometry::new(owner, peer, 64 << 10, 1500).unwrap();
            let mut lines = HashSet::new();
            let mut take = |at: usize| {
                assert!(at.is_multiple_of(LINE) && at >= PAGE && at + LINE <= g.ring(0, 0));
                assert!(lines.insert(at), "{at} twice with {owner} x {peer}");
            };
            for o in 0..owner {
                take(g.doorbell_status(o));
                for p in 0..peer {
                    take(g.producer(p, o));
                    take(g.credit(o, p));
                }
            }
            (0..peer).for_each(|p| take(g.armed(p)));
            let rings: HashSet<usize> = (0..peer * owner).map(|i| g.ring(i / owner, i % owner)).collect();
            assert_eq!(rings.len(), peer * owner);
            assert_eq!(rings.iter().max().unwrap() + g.ring_bytes, g.window_len());
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Geometry::new(0, 1, 1 << 20, 1500).is_err());
        assert!(Geometry::new(1, 17, 1 << 20, 1500).is_err());
        assert!(Geometry::new(1, 1, 3 << 18, 1500).is_err());
        assert!(Geometry::new(1, 1, 1 << 17, 65_520).is_err());
        assert!(Geometry::new(1, 1, 1 << 18, 65_520).is_ok());
        assert!(Geometry::new(1, 1, 1 << 30, 65_520).is_err());
        assert!(Geometry::new(1, 1, 1 << 20, 70_000).is_err());
    }
}
