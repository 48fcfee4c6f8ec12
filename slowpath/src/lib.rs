//! The slow path: everything rare. It owns a connection until `Down::Install` and again from `Up::Closed`; in between it
//! only decides what follows when a timer runs out.
//!
//! # Who handles what
//!
//! **smoltcp** runs the state machine of every SYN handshake, active and passive (its SYN, SYN-ACK and the ACK of an active open
//! leave as it made them, renumbered and with our options), resolves neighbours (ARP, NDP), and answers ARP, neighbour
//! solicitations, ICMP and ICMPv6 echo.
//!
//! **Ours** are: the 4-tuple demultiplexer in front of it (one single-socket set for each handshake, `half.rs`); ISNs by RFC
//! 6528; SYN options, their order and the initial window; the retransmission schedule of SYN and SYN-ACK; SYN-ACK of a
//! simultaneous open; duplicate SYNs; RFC 5961 and PAWS in SYN-RECEIVED; further ARP requests and neighbour solicitations when
//! smoltcp's limit of one question a second delays a handshake to a second neighbour; RST for what belongs to nothing;
//! listeners, backlog, accept queue; bind, ports, routes; the hand-over; TIME-WAIT; decisions about time-outs; ICMP
//! errors. Data that comes with or behind the handshake's last segment goes to the new flow's core by `Down::Inject` right
//! after `Down::Install`, so neither smoltcp nor we ever hold payload.
//!
//! smoltcp never sees a TCP segment that is not of a handshake: it would answer it with RST.
//!
//! # Rules
//!
//! No clock, descriptor, environment or global: `now` and all queues are arguments. Nothing that an app can write decides
//! anything about another app; private tables (`table.rs`) say what is true.
#![forbid(unsafe_code)]

mod accept;
mod counters;
mod demux;
mod device;
mod engine;
mod errno;
mod flows;
mod half;
mod handshake;
mod hash;
mod icmp;
mod nic;
mod ports;
mod reply;
mod requests;
mod routes;
mod setup;
mod shutdown;
mod sockets;
mod status;
mod table;
mod time_wait;
mod timeouts;
mod timers;

pub use counters::Counters;
pub use engine::SlowPath;
pub use setup::{NicSetup, Owner, Route, SlowPathConfig};
pub use status::{FlowStatus, ListenerStatus, NicStatus, RegionStatus, Status, WhyCounts};

const _: () = {
    const fn send<T: Send>() {}
    send::<SlowPath>();
};
