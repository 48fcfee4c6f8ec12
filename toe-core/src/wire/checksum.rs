//! The Internet checksum (RFC 1071).

use core::net::IpAddr;

/// Adds `bytes` to a running one's-complement sum in big-endian words; `bytes` starts at an even offset.
#[inline]
pub fn add(mut sum: u64, bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(32);
    // Four independent 64-bit lanes of 32-bit words: the compiler vectorises it, and carries fit.
    let mut lanes = [0u64; 4];
    for c in &mut chunks {
        for (lane, w) in lanes.iter_mut().zip(c.chunks_exact(8)) {
            let w = u64::from_ne_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]);
            *lane += (w & 0xffff_ffff) + (w >> 32);
        }
    }
    let native = lanes.iter().fold(0u64, |a, &l| a + (l & 0xffff_ffff) + (l >> 32));
    sum += u64::from(u16::from_be(fold_native(native)));
    let mut rest = chunks.remainder().chunks_exact(2);
    for w in &mut rest {
        sum += u64::from(u16::from_be_bytes([w[0], w[1]]));
    }
    if let [last] = rest.remainder() {
        sum += u64::from(*last) << 8;
    }
    sum
}

/// Adds pieces that follow each other in one packet; odd lengths are handled.
pub fn add_pieces(mut sum: u64, pieces: &[&[u8]]) -> u64 {
    let mut odd = false;
    for piece in pieces {
        let part = u64::from(fold(add(0, piece)));
        sum += if odd { u64::from((part as u16).swap_bytes()) } else { part };
        odd ^= piece.len() % 2 == 1;
    }
    sum
}

/// The folded sum of an IPv4 header without options; 0xffff if its checksum is right.
#[inline(always)]
pub fn ipv4_header(header: &[u8; 20]) -> u16 {
    let sum: u64 = header.chunks_exact(4).map(|w| u64::from(u32::from_ne_bytes([w[0], w[1], w[2], w[3]]))).sum();
    u16::from_be(fold_native(sum))
}

#[inline(always)]
fn fold_native(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Folds a running sum to 16 bits (not complemented).
#[inline]
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The pseudo header's sum (RFC 9293 §3.1, RFC 8200 §8.1) for TCP of `len` bytes, header included.
#[inline]
pub fn pseudo(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> u64 {
    let ip = |ip: IpAddr| match ip {
        IpAddr::V4(a) => {
            let w = u32::from(a);
            u64::from(w >> 16) + u64::from(w & 0xffff)
        }
        IpAddr::V6(a) => a.segments().iter().map(|&s| u64::from(s)).sum(),
    };
    ip(src) + ip(dst) + u64::from(protocol) + len as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0u64;
        for c in bytes.chunks(2) {
            sum += u64::from(c[0]) << 8 | u64::from(*c.get(1).unwrap_or(&0));
        }
        fold(sum)
    }

    proptest! {
        #[test]
        fn equals_the_plain_sum(bytes in proptest::collection::vec(any::<u8>(), 0..5000), cut in any::<prop::sample::Index>()) {
            prop_assert_eq!(fold(add(0, &bytes)), reference(&bytes));
            if let Some(header) = bytes.first_chunk::<20>() {
                prop_assert_eq!(ipv4_header(header), reference(header));
            }
            let cut = cut.index(bytes.len() + 1);
            prop_assert_eq!(fold(add_pieces(0, &[&bytes[..cut], &bytes[cut..]])), reference(&bytes));
        }
    }
}
