//! The offload engine, assembled: configuration, rules, the daemon, and the `toe` command.
//!
//! `unsafe` stands only in `daemon/robust.rs` (robust futex list) and `daemon/sys.rs` (peer credentials).

#![deny(unsafe_code)]

pub mod cli;
pub mod compare;
pub mod config;
pub mod daemon;
pub mod rules;
#[cfg(test)]
mod testing;
