//! What every part of the offload engine shares. Every other crate imports this one and no sibling.
//!
//! `unsafe` stands only in `shm/region.rs` (mmap), `stream.rs` (chunk copies), and in `app/` in `iov.rs`, `send.rs`, `recv.rs`
//! (copies between caller memory and chunks), `client.rs` (raw descriptors), `wait.rs` (clock), `options.rs` (option values
//! as bytes), and for tests in `app/testing/flows.rs` and `app/tests.rs`.

#![deny(unsafe_code)]

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
pub mod spin;
pub mod stream;
pub mod tcp;
pub mod time;
pub mod wire;

pub use ids::*;
pub use seq::SeqNr;
pub use time::{Duration, Instant};
