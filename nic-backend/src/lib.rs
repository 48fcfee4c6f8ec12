//! The links of the offload engine, each behind [`toe_core::nic::Nic`], and middleware around any of them.
//!
//! - [`pcielink`]: two daemons joined by memory windows and doorbells, as over a PCIe non-transparent bridge;
//! - [`local`]: frames to ourselves;
//! - [`tap`]: the Linux kernel as the peer;
//! - [`memory`]: two engines in one test, in virtual time;
//! - [`fault`] and [`pcap`]: middleware.
//!
//! `unsafe` stands only in `pcielink/window.rs` (mmap, copies into and out of shared windows) and `tap/sys.rs`
//! (ioctls); in tests in `tests/common/mod.rs` and `tests/tap.rs` (namespaces).

#![deny(unsafe_code)]

pub mod config;
pub mod fault;
pub mod local;
pub mod memory;
pub mod pcap;
pub mod pcielink;
pub mod tap;

mod frame;

pub use config::{FaultConfig, FaultSpec, LocalConfig, PcapConfig, PcieLinkConfig, TapConfig};
