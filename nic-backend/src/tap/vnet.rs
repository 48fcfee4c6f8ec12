//! The virtio-net header (virtio 1.2 §5.1.6, the 10-byte form) before each frame: what is left to do with it.

use super::mtu_limit;
use toe_core::nic::{RxCsum, RxMeta, TxMeta};

/// Bytes of the header.
pub const VNET_LEN: usize = 10;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;

/// Offset of the checksum in a TCP header.
const TCP_CSUM_OFFSET: u16 = 16;

/// The header for a frame that we send: TCP with its checksum, or its segmentation, left to the kernel.
pub fn encode(meta: TxMeta, header: &[u8], payload_len: usize) -> [u8; VNET_LEN] {
    let mut h = [0; VNET_LEN];
    if meta.csum_offload {
        h[0] = F_NEEDS_CSUM;
        h[6..8].copy_from_slice(&meta.l4_offset.to_ne_bytes());
        h[8..10].copy_from_slice(&TCP_CSUM_OFFSET.to_ne_bytes());
    }
    if is_gso(meta, payload_len) {
        h[1] = if header.get(12..14) == Some(&[0x86, 0xdd]) { GSO_TCPV6 } else { GSO_TCPV4 };
        h[2..4].copy_from_slice(&(header.len() as u16).to_ne_bytes());
        h[4..6].copy_from_slice(&meta.gso_size.to_ne_bytes());
    }
    h
}

/// Is the frame to be cut by the kernel?
pub fn is_gso(meta: TxMeta, payload_len: usize) -> bool {
    meta.gso_size != 0 && payload_len > usize::from(meta.gso_size)
}

/// Reads the header of a received frame.
pub fn decode(h: &[u8; VNET_LEN]) -> RxMeta {
    // NEEDS_CSUM: the frame never left this machine, and nobody has computed its checksum.
    let csum = if h[0] & (F_NEEDS_CSUM | F_DATA_VALID) != 0 { RxCsum::Good } else { RxCsum::Unchecked };
    let gso_size = if h[1] == GSO_NONE { 0 } else { u16::from_ne_bytes([h[4], h[5]]) };
    RxMeta { csum, gso_size }
}

/// Largest frame that may be sent with `meta`.
pub fn frame_limit(meta: TxMeta, header_len: usize, payload_len: usize, mtu: usize) -> usize {
    if is_gso(meta, payload_len) { header_len + super::TSO_MAX } else { mtu_limit(mtu) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_what_is_left_to_do() {
        let meta = TxMeta { csum_offload: true, gso_size: 1448, l4_offset: 34, flow_hash: 0 };
        let mut v4 = [0u8; 66];
        v4[12..14].copy_from_slice(&[8, 0]);
        let h = encode(meta, &v4, 3000);
        let ne = |at: usize| u16::from_ne_bytes([h[at], h[at + 1]]);
        assert_eq!((h[0], h[1], ne(2), ne(4), ne(6), ne(8)), (1, 1, 66, 1448, 34, 16));
        let got = decode(&h);
        assert_eq!((got.csum, got.gso_size), (RxCsum::Good, 1448));
        assert_eq!(encode(meta, &v4, 1448)[1], GSO_NONE, "fits one segment");
        assert_eq!(encode(TxMeta::default(), &v4, 60_000), [0; VNET_LEN]);
        v4[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert_eq!(encode(meta, &v4, 3000)[1], GSO_TCPV6);
        assert_eq!(decode(&[0; VNET_LEN]).csum, RxCsum::Unchecked);
        assert_eq!(decode(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]).csum, RxCsum::Good);
    }
}
