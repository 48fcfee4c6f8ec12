//! Why a socket is the kernel's: counted by each process in its region, shown by `toe status --why`.

use super::{Errno, Reason};
use crate::shm::{MAX_WHYS, RegionHeader};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Why {
    /// No daemon answered.
    Absent = 0,
    /// The daemon was of another version.
    Version = 1,
    /// The daemon had no room for another process.
    Full = 2,
    /// The daemon refused this process.
    Refused = 3,
    /// Registration failed in the process itself (descriptors, memory), or was tried too often.
    Failed = 4,
    /// A rule of the configuration says so.
    Rule = 5,
    /// An address that no rule gives to the engine.
    Address = 6,
    /// No listener of a shim program at 127.0.0.1 or ::1, or none of a user that this one trusts.
    NoListener = 7,
    /// A listener beside the engine's took a connection from a program on the kernel's TCP.
    KernelPeer = 8,
    /// No socket slot, ring or descriptor left.
    Sockets = 9,
    /// The engine answered with an error (the last one is told).
    Engine = 10,
    /// Not TCP over IPv4 or IPv6 (MPTCP, SCTP, SMC).
    Protocol = 11,
}

impl Why {
    /// All, by number.
    pub const ALL: [Why; 12] = [
        Why::Absent,
        Why::Version,
        Why::Full,
        Why::Refused,
        Why::Failed,
        Why::Rule,
        Why::Address,
        Why::NoListener,
        Why::KernelPeer,
        Why::Sockets,
        Why::Engine,
        Why::Protocol,
    ];

    /// Its name in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Why::Absent => "daemon_absent",
            Why::Version => "daemon_version",
            Why::Full => "daemon_full",
            Why::Refused => "daemon_refused",
            Why::Failed => "registration_failed",
            Why::Rule => "rule",
            Why::Address => "address",
            Why::NoListener => "no_listener",
            Why::KernelPeer => "kernel_peer",
            Why::Sockets => "no_room",
            Why::Engine => "engine_error",
            Why::Protocol => "protocol",
        }
    }

    /// Its name for people.
    pub fn text(self) -> &'static str {
        match self {
            Why::Absent => "no daemon answered",
            Why::Version => "the daemon was of another version",
            Why::Full => "the daemon was full",
            Why::Refused => "the daemon refused the program",
            Why::Failed => "registration failed",
            Why::Rule => "a rule says kernel",
            Why::Address => "an address of the kernel's",
            Why::NoListener => "loopback, and no listener on the engine",
            Why::KernelPeer => "accepted from a program on the kernel's TCP",
            Why::Sockets => "no socket, ring or descriptor left",
            Why::Engine => "the engine answered with an error",
            Why::Protocol => "not TCP (MPTCP, SCTP ...)",
        }
    }

    /// The reason behind an errno of the engine.
    pub fn of_errno(e: Errno) -> Why {
        match e {
            Errno::NOBUFS | Errno::NFILE | Errno::MFILE | Errno::NOMEM => Why::Sockets,
            _ => Why::Engine,
        }
    }
}

impl From<Reason> for Why {
    fn from(r: Reason) -> Why {
        match r {
            Reason::Absent => Why::Absent,
            Reason::Version => Why::Version,
            Reason::Full => Why::Full,
            Reason::Refused(_) => Why::Refused,
            Reason::Failed => Why::Failed,
        }
    }
}

/// A process's counters, before it has a region and in it.
pub type Counts = [AtomicU32; MAX_WHYS];

/// Counts one socket.
pub fn count(counts: &Counts, why: Why) {
    counts[why as usize].fetch_add(1, Relaxed);
}

/// Moves what was counted without a region into one.
pub fn hand_over(from: &Counts, header: &RegionHeader) {
    for (to, from) in header.why.iter().zip(from) {
        to.fetch_add(from.swap(0, Relaxed), Relaxed);
    }
}

const _: () = assert!(Why::ALL.len() <= MAX_WHYS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_distinct() {
        let mut keys = std::collections::HashSet::new();
        for (i, why) in Why::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, i);
            assert!(keys.insert(why.key()) && keys.insert(why.text()));
        }
    }
}
