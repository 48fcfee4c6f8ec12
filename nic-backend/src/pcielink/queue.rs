//! One queue's end of a link that is up: its rings to and from each of the peer's queues, its DMA channel, its doorbells.
//!
//! Waking: a queue that goes to sleep posts what it waits for ("armed") into the peer's window, fences, and looks at
//! its own window once more; a sender posts its index, fences, and looks at the armed word in *its* own window. One of the two
//! sees the other (Dekker), and nobody reads across the link.

use super::dma::Channel;
use super::doorbell::{self, Register};
use super::geometry::{Geometry, max_frame};
use super::ring::{Nonsense, PushError, RxRing, TxRing};
use super::window::Window;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use toe_core::nic::{RxCsum, RxMeta, TxMeta};

/// Armed bit: wake me when frames arrive.
const WAKE_FRAMES: u32 = 1;
/// Armed bit: wake me when a ring that was full has room.
const WAKE_CREDIT: u32 = 2;

/// Frames between two looks at whether credit is due.
const BATCH: usize = 8;

/// One generation of a link: what both sides have mapped. Replaced as a whole when the link comes up again.
pub struct Conn {
    /// Our window, which the peer writes.
    pub mine: Arc<Window>,
    /// Shape of our window.
    pub mine_geo: Geometry,
    /// The peer's window, which we write.
    pub peer: Arc<Window>,
    /// Shape of the peer's window.
    pub peer_geo: Geometry,
    /// Smaller of both sides' MTUs.
    pub mtu: usize,
    /// Interrupts of our queues.
    pub my_bells: Vec<OwnedFd>,
    /// Interrupts of the peer's queues.
    pub peer_bells: Vec<OwnedFd>,
}

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The ring is full.
    Full,
    /// Larger than the link's MTU, or without an Ethernet header.
    TooLarge,
    /// The peer is broken.
    Nonsense,
}

/// One queue's end.
pub struct Endpoint {
    conn: Arc<Conn>,
    index: usize,
    tx: Vec<TxRing>,
    rx: Vec<RxRing>,
    dma: Channel,
    /// Where the next `recv` starts, so that each of the peer's queues gets its turn.
    next_rx: usize,
    /// Bit j: frames were written for the peer's queue j since the last flush.
    dirty: u32,
    max_frame: usize,
    is_armed: bool,
}

impl Endpoint {
    /// Queue `index` of `conn`, which has just come up.
    pub fn new(conn: Arc<Conn>, index: usize) -> Endpoint {
        let (mine, peer) = (conn.mine_geo, conn.peer_geo);
        let max_frame = max_frame(conn.mtu);
        let tx = (0..peer.owner)
            .map(|j| TxRing::new(peer.ring(index, j), peer.producer(index, j), mine.credit(index, j), peer.ring_bytes));
        let rx = (0..mine.peer).map(|j| {
            RxRing::new(mine.ring(j, index), mine.producer(j, index), peer.credit(j, index), mine.ring_bytes, max_frame)
        });
        let (tx, rx) = (tx.collect(), rx.collect());
        let dma = Channel::default();
        Endpoint { index, tx, rx, dma, next_rx: 0, dirty: 0, max_frame, is_armed: false, conn }
    }

    /// The link this belongs to.
    pub fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    /// The copy engine, for its counters.
    pub fn dma(&self) -> &Channel {
        &self.dma
    }

    /// Sends one frame to the peer's queue that `meta.flow_hash` picks; returns its length.
    pub fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<usize, SendError> {
        let len = crate::frame::gathered_len(header, payload);
        if len > self.max_frame || len < 14 {
            return Err(SendError::TooLarge);
        }
        let j = meta.flow_hash as usize % self.tx.len();
        let Conn { mine, peer, .. } = &*self.conn;
        match self.tx[j].push(mine, peer, &mut self.dma, header, payload, meta.csum_offload) {
            Ok(len) => {
                self.dirty |= 1 << j;
                Ok(len)
            }
            Err(PushError::Full) => {
                self.flush(); // the receiver must see what fills the ring
                Err(SendError::Full)
            }
            Err(PushError::Nonsense) => Err(SendError::Nonsense),
        }
    }

    /// Posts the producer indices and rings the doorbells of sleepers.
    pub fn flush(&mut self) {
        if self.dirty == 0 {
            return;
        }
        let mut dirty = core::mem::take(&mut self.dirty);
        for (j, ring) in self.tx.iter_mut().enumerate() {
            if dirty & 1 << j != 0 {
                ring.publish(&self.conn.peer, &mut self.dma);
            }
        }
        fence(SeqCst);
        while dirty != 0 {
            self.wake_if_armed(dirty.trailing_zeros() as usize, WAKE_FRAMES);
            dirty &= dirty - 1;
        }
    }

    /// Rings the peer's queue `j` if it sleeps and waits for any of `bits`. The caller has posted and fenced.
    #[inline(always)]
    fn wake_if_armed(&self, j: usize, bits: u32) {
        let conn = &*self.conn;
        if conn.mine.word32(conn.mine_geo.armed(j)).load(SeqCst) & bits != 0 {
            let geo = conn.peer_geo;
            let register = Register { window: &conn.peer, status: geo.doorbell_status(j), mask: geo.doorbell_mask(j) };
            if register.set(1 << self.index) {
                doorbell::raise(conn.peer_bells[j].as_fd());
            }
        }
    }

    /// Lends up to `budget` frames to `sink`; returns how many. `Err`: the peer is broken (frames already lent count).
    pub fn recv(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> Result<usize, Nonsense> {
        let rings = self.rx.len();
        let mut left = budget;
        let mut lend = |f: super::ring::Frame<'_>| {
            // A frame sent with its checksum complete comes from someone who wants it verified (the `fault` middleware).
            let csum = if f.partial_csum { RxCsum::Good } else { RxCsum::Unchecked };
            sink(f.bytes, RxMeta { csum, gso_size: 0 });
        };
        for k in 0..rings {
            let j = (self.next_rx + k) % rings;
            if !self.rx[j].is_pending(&self.conn.mine) {
                continue;
            }
            // Credit goes back piece by piece, so that a sender with a full ring goes on meanwhile.
            while left > 0 {
                let got = self.rx[j].drain(&self.conn.mine, left.min(BATCH), &mut lend)?;
                left -= got;
                if self.rx[j].post_credit(&self.conn.peer, &mut self.dma) {
                    fence(SeqCst);
                    self.wake_if_armed(j, WAKE_CREDIT);
                }
                if got < BATCH {
                    break;
                }
            }
        }
        self.next_rx = (self.next_rx + 1) % rings;
        Ok(budget - left)
    }

    fn register(&self) -> Register<'_> {
        let geo = self.conn.mine_geo;
        let (status, mask) = (geo.doorbell_status(self.index), geo.doorbell_mask(self.index));
        Register { window: &self.conn.mine, status, mask }
    }

    fn post_armed(&self, bits: u32) {
        self.conn.peer.word32(self.conn.peer_geo.armed(self.index)).store(bits, SeqCst);
    }

    /// Asks for an interrupt. `false`: something is there already.
    pub fn arm(&mut self) -> bool {
        self.flush();
        let blocked = self.tx.iter().any(TxRing::is_blocked);
        self.register().clear(u32::MAX);
        self.register().set_mask(0);
        self.post_armed(WAKE_FRAMES | if blocked { WAKE_CREDIT } else { 0 });
        self.is_armed = true;
        fence(SeqCst);
        let Conn { mine, .. } = &*self.conn;
        let unblocked = self.tx.iter_mut().any(|t| t.take_unblocked(mine));
        let pending = unblocked || self.rx.iter().any(|r| r.is_pending(mine));
        if pending {
            self.mask();
        }
        !pending
    }

    fn mask(&mut self) {
        self.is_armed = false;
        self.register().set_mask(u32::MAX);
        self.post_armed(0);
    }

    /// Takes `arm` back and acknowledges the interrupt.
    pub fn disarm(&mut self) {
        if self.is_armed {
            self.mask();
            doorbell::acknowledge(self.conn.my_bells[self.index].as_fd());
            self.register().clear(u32::MAX);
        }
    }

    /// The descriptor that becomes readable with an interrupt.
    pub fn wait_fd(&self) -> RawFd {
        self.conn.my_bells[self.index].as_raw_fd()
    }
}
