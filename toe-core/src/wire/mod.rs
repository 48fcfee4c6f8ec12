//! Wire formats of the hot path: one pass over Ethernet, IPv4/IPv6 and TCP, and the header the other way.
//!
//! Rare packets (ARP, ICMP, extension headers) are left to the slow path and its libraries.

pub mod checksum;
mod emit;
mod options;
mod parse;

pub use emit::{Header, MAX_HEADER, TcpFields, emit};
pub use options::{SackBlocks, TcpOptions, Timestamps};
pub use parse::{Ecn, ParseError, Segment, parse, verify_checksum};

/// Bytes of an Ethernet header.
pub const ETH_LEN: usize = 14;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IP protocol number of TCP.
pub const PROTO_TCP: u8 = 6;

/// TCP header flags.
pub mod flags {
    #![allow(missing_docs)]
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;
}

/// Big-endian 16 bits at `at`; the caller has checked the length.
#[inline(always)]
pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

/// Big-endian 32 bits at `at`; the caller has checked the length.
#[inline(always)]
pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
