//! The offload engine, assembled.
//!
//! `unsafe` stands only in `bin/toe-peer/sys.rs` (a few libc calls of the test program, which links nothing of the engine).

#![deny(unsafe_code)]

pub mod compare;
