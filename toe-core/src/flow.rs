//! A connection's identity, and its state as the slow path hands it to a fast path.

use crate::ids::{CoreId, FlowId, NicId, SockId};
use crate::seq::SeqNr;
use crate::shm::Region;
use crate::time::Duration;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// The 4-tuple, from our side. IPv4 stays `IpAddr::V4` (a v4-mapped socket is the shim's affair).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowKey {
    /// Our address.
    pub local_ip: IpAddr,
    /// Their address.
    pub remote_ip: IpAddr,
    /// Our port.
    pub local_port: u16,
    /// Their port.
    pub remote_port: u16,
}

impl FlowKey {
    /// Our end.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local_ip, self.local_port)
    }

    /// Their end.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote_ip, self.remote_port)
    }

    /// The same connection seen from the peer.
    pub fn reversed(&self) -> FlowKey {
        FlowKey {
            local_ip: self.remote_ip,
            remote_ip: self.local_ip,
            local_port: self.remote_port,
            remote_port: self.local_port,
        }
    }

    /// Equal on both ends and unseeded: both sides of a link pick the same queue pair by it. Never used for a table that
    /// an attacker could fill.
    pub fn link_hash(&self) -> u32 {
        let fold = |ip: IpAddr| match ip {
            IpAddr::V4(a) => u32::from(a),
            IpAddr::V6(a) => {
                let w = u128::from(a);
                (w ^ (w >> 32) ^ (w >> 64) ^ (w >> 96)) as u32
            }
        };
        let ports = u32::from(self.local_port) ^ u32::from(self.remote_port);
        let x = (fold(self.local_ip) ^ fold(self.remote_ip) ^ (ports << 16 | ports)).wrapping_mul(0x9E37_79B1);
        x ^ (x >> 15)
    }
}

impl Hash for FlowKey {
    fn hash<H: Hasher>(&self, h: &mut H) {
        h.write_u32(u32::from(self.local_port) << 16 | u32::from(self.remote_port));
        for ip in [self.local_ip, self.remote_ip] {
            match ip {
                IpAddr::V4(a) => h.write_u32(u32::from(a)),
                IpAddr::V6(a) => h.write_u128(u128::from(a)),
            }
        }
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.local(), self.remote())
    }
}

/// Addresses that engine and kernel share: whoever has a listener there is reached.
pub const SHARED: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// One of [`SHARED`]?
pub fn is_shared(ip: IpAddr) -> bool {
    SHARED.contains(&ip)
}

/// Congestion control algorithms of the fast path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionControl {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681, 6582.
    Reno,
}

/// An established connection, handed from the slow path to the fast path that will own it. The slow path forgets its
/// own state of the connection in the same step; late segments of it are then the fast path's.
pub struct FlowInit {
    /// Number chosen by the slow path; unique per core while the flow lives.
    pub id: FlowId,
    /// Core that owns the flow from now on.
    pub core: CoreId,
    /// 4-tuple.
    pub key: FlowKey,
    /// Link it travels on.
    pub nic: NicId,
    /// Ethernet header of outgoing frames: destination, source, type.
    pub l2: [u8; 14],
    /// The app's region.
    pub region: Arc<Region>,
    /// The app's socket slot (state `Established`, addresses filled in).
    pub sock: SockId,
    /// Our initial sequence number: TX byte 0 is `iss + 1`.
    pub iss: SeqNr,
    /// Theirs: RX byte 0 is `irs + 1`.
    pub irs: SeqNr,
    /// Their window from the last segment of the handshake, already scaled, in bytes.
    pub snd_wnd: u32,
    /// Their window scale (0 if not agreed).
    pub snd_wscale: u8,
    /// Ours (0 if not agreed).
    pub rcv_wscale: u8,
    /// Largest payload of a segment we send: min(their MSS option, what the link carries) less nothing; TCP options are
    /// subtracted by the fast path (RFC 6691).
    pub snd_mss: u16,
    /// MSS we announced.
    pub rcv_mss: u16,
    /// SACK permitted both ways (RFC 2018).
    pub sack: bool,
    /// Timestamps agreed (RFC 7323): their last TSval, and what we add to the millisecond clock for our TSval.
    pub timestamps: Option<TsInit>,
    /// Payload that arrived with or right after the handshake, in order from RX byte 0.
    pub early_data: Vec<u8>,
    /// The peer's FIN came right after `early_data`.
    pub early_fin: bool,
    /// Round-trip time of the handshake, if it was not retransmitted (Karn).
    pub rtt: Option<Duration>,
    /// The SYN or SYN-ACK was retransmitted: initial window 1 (RFC 6298 §5.7, RFC 5681 §3.1).
    pub syn_retransmitted: bool,
    /// Congestion control.
    pub congestion: CongestionControl,
    /// The peer's SYN-ACK still waits for our ACK (active open).
    pub ack_due: bool,
}

/// See [`FlowInit::timestamps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TsInit {
    /// TS.Recent.
    pub recent: u32,
    /// Our TSval = milliseconds of engine time + this.
    pub offset: u32,
}

/// What must be remembered of a finished connection (RFC 9293 TIME-WAIT, RFC 1337, RFC 6191).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWait {
    /// Sequence number of our last ACKs.
    pub snd_nxt: SeqNr,
    /// What we acknowledge.
    pub rcv_nxt: SeqNr,
    /// Window field of our last ACK, unscaled as on the wire.
    pub window: u16,
    /// Timestamps, if agreed.
    pub timestamps: Option<TsInit>,
}
