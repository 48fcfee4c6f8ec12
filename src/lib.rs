//! The offload engine, assembled: configuration, rules, the daemon, and the `toe` command.
//!
//! `unsafe` stands only in `daemon/robust.rs` (robust futex list), `daemon/sys.rs` (peer credentials) and
//! `bin/toe-peer/sys.rs` (a few libc calls of the test program, which links nothing of the engine); and in `bin/toe-conform/sys.rs`
//! (libc for the conformance program).

#![deny(unsafe_code)]

pub mod cli;
pub mod compare;
pub mod config;
pub mod daemon;
pub mod rules;
#[cfg(test)]
mod testing;
