//! The app side of the contract: sockets over shared memory, without any hook. `sockshim` puts libc's names on it, tests
//! and a later library use it as it is.
//!
//! A [`Link`] is one registration with a daemon: a mapped region, the daemon page, the eventfds that wake workers, and
//! the control connection that tells the daemon that this process lives. A [`Sock`] is one slot of a region, cheap to copy;
//! who owns it (a descriptor table, a test) calls [`Sock::release`] once for each process that lets go of it.
//!
//! `unsafe` stands in `iov.rs`, `send.rs`, `recv.rs` (copies between caller memory and chunks), `client.rs` (borrowing raw
//! descriptors), `wait.rs` (clock_gettime), `options.rs` (a zeroed tcp_info) and `testing/flows.rs`.

pub mod adopt;
pub mod client;
pub mod evset;
pub mod fork;
pub mod iov;
pub mod lock;
pub mod options;
pub mod ready;
pub mod recv;
pub mod rules;
pub mod send;
pub mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod wait;
pub mod why;

pub use client::{Link, Reason, SocketPath};
pub use evset::EventSet;
pub use iov::{IovCursor, Source};
pub use recv::RecvHow;
pub use rules::{Action, Role};
pub use socket::Sock;
pub use why::Why;

/// Errors are errno values, as the calls that end up in libc need them.
pub use rustix::io::Errno;
