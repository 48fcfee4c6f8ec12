//! The copy engine: 32-byte descriptors in a ring, executed by the submitting thread.
//!
//! A descriptor moves bytes into the peer's window, or writes an immediate value there (an index, a header word). Below
//! [`DMA_THRESHOLD`] the CPU copies, above it the engine does: here both are the same memcpy, accounted separately, so that
//! a device's engine can take the second kind over.

use super::window::Window;
use core::sync::atomic::Ordering::{Relaxed, Release};

/// Copies shorter than this, bytes, are the CPU's: a descriptor costs more than they do.
pub const DMA_THRESHOLD: usize = 1024;

/// Descriptors in a channel's ring.
const RING: usize = 64;

/// What a descriptor does, and (once executed) that it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Control {
    /// Never used.
    #[default]
    Empty = 0,
    /// Move `len` bytes from `src` to `dst`.
    Move = 1,
    /// Write the value in `src` (`len` bytes of it: 4 or 8) to `dst`.
    Immediate = 2,
    /// Executed.
    Done = 0x8000_0000,
}

/// One element of the ring.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub struct Descriptor {
    /// Kind and status.
    pub control: Control,
    /// Bytes.
    pub len: u32,
    /// Source address, or the immediate value.
    pub src: u64,
    /// Offset in the peer's window.
    pub dst: u64,
}

const _: () = assert!(size_of::<Descriptor>() == 32);

/// What a channel has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaStats {
    /// Copies by the CPU.
    pub cpu_copies: u64,
    /// Bytes copied by the CPU.
    pub cpu_bytes: u64,
    /// Copies by the engine.
    pub dma_copies: u64,
    /// Bytes copied by the engine.
    pub dma_bytes: u64,
    /// Immediate writes.
    pub immediates: u64,
}

/// One DMA channel; each queue handle has its own.
pub struct Channel {
    ring: [Descriptor; RING],
    next: usize,
    /// Counters.
    pub stats: DmaStats,
}

impl Default for Channel {
    fn default() -> Self {
        Channel { ring: [Descriptor::default(); RING], next: 0, stats: DmaStats::default() }
    }
}

impl Channel {
    #[inline(always)]
    fn slot(&mut self) -> &mut Descriptor {
        let slot = self.next % RING;
        self.next = self.next.wrapping_add(1);
        &mut self.ring[slot]
    }

    /// Moves `src` into `window` at `dst`.
    #[inline(always)]
    pub fn copy(&mut self, window: &Window, dst: usize, src: &[u8]) {
        if src.len() < DMA_THRESHOLD {
            self.stats.cpu_copies += 1;
            self.stats.cpu_bytes += src.len() as u64;
            return window.write(dst, src);
        }
        self.stats.dma_copies += 1;
        self.stats.dma_bytes += src.len() as u64;
        let d = self.slot();
        *d = Descriptor {
            control: Control::Move,
            len: src.len() as u32,
            src: src.as_ptr().addr() as u64,
            dst: dst as u64,
        };
        window.write(dst, src);
        d.control = Control::Done;
    }

    /// Writes a header word; ordered by a later [`post_index`](Self::post_index).
    #[inline(always)]
    pub fn post_word(&mut self, window: &Window, dst: usize, value: u64) {
        self.immediate(dst, value);
        window.word64(dst).store(value, Relaxed);
    }

    /// Writes an index; all writes before it are visible to whoever sees it.
    #[inline(always)]
    pub fn post_index(&mut self, window: &Window, dst: usize, value: u64) {
        self.immediate(dst, value);
        window.word64(dst).store(value, Release);
    }

    #[inline(always)]
    fn immediate(&mut self, dst: usize, value: u64) {
        self.stats.immediates += 1;
        *self.slot() = Descriptor { control: Control::Done, len: 8, src: value, dst: dst as u64 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_accounted_by_size() {
        let w = Window::create(c"toe-test", 8192).unwrap();
        let mut c = Channel::default();
        c.copy(&w, 64, &[1; 100]);
        c.copy(&w, 1024, &[2; 1024]);
        c.post_index(&w, 0, 77);
        assert_eq!(w.lend(163, 2), [1, 0]);
        assert_eq!(w.lend(1023, 1026)[..2], [0, 2]);
        assert_eq!(w.word64(0).load(Relaxed), 77);
        let want = DmaStats { cpu_copies: 1, cpu_bytes: 100, dma_copies: 1, dma_bytes: 1024, immediates: 1 };
        assert_eq!(c.stats, want);
        assert_eq!((c.ring[0].control, c.ring[0].len, c.ring[1].src), (Control::Done, 1024, 77));
    }
}
