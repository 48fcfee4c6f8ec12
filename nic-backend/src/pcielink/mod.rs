//! PCIeLINK: Ethernet frames between two daemons through memory windows and doorbells, as over the non-transparent
//! bridge (NTB) of a PCIe switch.
//!
//! - [`window`]: memory offered to the peer; [`geometry`]: what stands where in it;
//! - [`doorbell`]: interrupts; [`dma`]: the copy engine;
//! - [`ring`]: one frame ring; [`queue`]: one queue's rings to all of the peer's queues;
//! - [`handshake`], [`rendezvous`]: how the windows are joined, and when they part;
//! - [`link`]: the [`toe_core::nic::Nic`].
//!
//! Nothing reads across the link on the data path: each side reads its own window and writes the peer's. What the peer
//! writes is untrusted: indices and lengths are read once and bounded; nonsense is counted and resets the link.

pub mod dma;
pub mod doorbell;
pub mod geometry;
pub mod handshake;
pub mod link;
pub mod queue;
pub mod rendezvous;
pub mod ring;
pub mod window;

pub use link::{PcieLink, open, open_links};
