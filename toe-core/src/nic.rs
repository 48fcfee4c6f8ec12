//! The one trait between the engines and any link: TAP, PCIeLINK, AF_XDP, loopback, and the middleware around them.
//!
//! A `Nic` carries Ethernet frames. Received frames are lent to the caller for the length of one callback, so that
//! the payload goes from the link's memory to the socket's stream in one copy; sent frames are gathered from a header
//! and the stream's own chunks, likewise in one.

use crate::time::Instant;
use std::os::fd::RawFd;

/// Most payload pieces of one frame: 64 KiB out of 16 KiB chunks touches at most five.
pub const MAX_TX_PIECES: usize = 8;

/// What a link can do; fixed while it is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicCaps {
    /// Our Ethernet address on this link.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes, that the link carries (TCP segments to be cut by the link itself excepted).
    pub mtu: usize,
    /// Largest TCP payload of one `send` that the link cuts into MSS pieces itself (TSO); 0: it cannot.
    pub tso_max: usize,
    /// The link fills in TCP checksums (or needs none): leave the field zero and set [`TxMeta::csum_offload`].
    pub tx_csum: bool,
    /// Independent queues; fast path core `i` uses queue `i % queues`.
    pub queues: usize,
}

/// How the checksum of a received frame stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxCsum {
    /// Not looked at: the receiver verifies.
    Unchecked,
    /// The link vouches for it (hardware verified, or end-to-end protected by the link layer).
    Good,
}

/// What a link says of a received frame.
#[derive(Clone, Copy, Debug)]
pub struct RxMeta {
    /// Checksum status of the TCP segment.
    pub csum: RxCsum,
    /// Not 0: the link has merged several segments of this payload size into one frame (GRO/LRO).
    pub gso_size: u16,
}

/// What the sender asks of a link for one frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxMeta {
    /// The TCP checksum field holds the pseudo-header sum only (as virtio-net's NEEDS_CSUM); the link completes it or
    /// vouches for the frame. Only with [`NicCaps::tx_csum`].
    pub csum_offload: bool,
    /// Not 0: cut the payload into segments of this size. Only with [`NicCaps::tso_max`].
    pub gso_size: u16,
    /// Byte offset of the TCP header in the frame.
    pub l4_offset: u16,
    /// Symmetric hash of the flow ([`crate::flow::FlowKey::link_hash`]): a link with several queues picks by it, so that a flow
    /// stays in order.
    pub flow_hash: u32,
}

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TxError {
    /// The queue is full; nothing was taken. Try again after the next poll.
    #[error("transmit queue full")]
    Full,
    /// The link is down; the frame is dropped and counted by the caller.
    #[error("link down")]
    Down,
    /// The frame does not fit the link.
    #[error("frame larger than the link's MTU")]
    TooLarge,
}

/// Counters every link keeps; names follow `ip -s link`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NicStats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Received frames or descriptors that made no sense (a hostile or broken peer).
    pub rx_errors: u64,
    /// Frames lost on the way in.
    pub rx_dropped: u64,
    /// Frames lost on the way out.
    pub tx_dropped: u64,
    /// Times the link came up.
    pub link_ups: u64,
}

/// One queue of a link, used by one fast path core. All calls return at once.
pub trait Nic: Send {
    /// What the link can do now. May change only across a link down/up.
    fn caps(&self) -> &NicCaps;

    /// Is the link up?
    fn is_up(&self) -> bool;

    /// Housekeeping: handshake steps, link supervision, delayed frames. Called each poll round, cheap when idle.
    /// Returns the next instant it must be called again even if nothing arrives.
    fn poll(&mut self, now: Instant) -> Option<Instant>;

    /// Lends up to `budget` received frames to `sink`, one after another; returns how many.
    fn recv(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> usize;

    /// Sends one frame gathered from `header` (Ethernet to TCP options, contiguous) and `payload` (at most
    /// [`MAX_TX_PIECES`] pieces). Bytes are taken before this returns.
    fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError>;

    /// Makes all sent frames visible to the peer (one doorbell or syscall for a burst).
    fn flush(&mut self);

    /// Before sleeping: asks for a wake-up on [`wait_fds`](Self::wait_fds). `false`: something is pending, do not sleep.
    fn arm(&mut self) -> bool;

    /// After waking: takes the request of [`arm`](Self::arm) back and drains wake-up counters.
    fn disarm(&mut self);

    /// Descriptors that become readable when there is work. May change over time (a peer reconnects): when
    /// [`wait_fds_epoch`](Self::wait_fds_epoch) changes, ask again.
    fn wait_fds(&self) -> Vec<RawFd>;

    /// Changes whenever [`wait_fds`](Self::wait_fds) would answer differently.
    fn wait_fds_epoch(&self) -> u64 {
        0
    }

    /// Counters so far.
    fn stats(&self) -> NicStats;
}
