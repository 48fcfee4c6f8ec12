//! What every part of the offload engine shares. Every other crate imports this one and no sibling.
//!
//! `unsafe` stands only in `shm/region.rs` (mmap), `stream.rs` (chunk copies), `wire/checksum.rs` (SIMD),
//! `control/` (descriptor passing) and `app/` files that say so.

pub mod app;
pub mod control;
pub mod flow;
pub mod ids;
pub mod msg;
pub mod nic;
pub mod notify;
pub mod pathq;
pub mod seq;
pub mod shm;
pub mod stream;
pub mod tcp;
pub mod time;
pub mod wire;

pub use ids::*;
pub use seq::SeqNr;
pub use time::{Duration, Instant};
