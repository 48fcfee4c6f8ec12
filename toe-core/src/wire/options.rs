//! TCP options (RFC 9293 §3.2, RFC 7323, RFC 2018).

use super::be16;
use super::be32;
use crate::seq::SeqNr;
use arrayvec::ArrayVec;

/// SACK blocks of one segment: left edge, right edge; at most four fit (RFC 2018 §3).
pub type SackBlocks = ArrayVec<(SeqNr, SeqNr), 4>;

/// The timestamps option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// TSval.
    pub val: u32,
    /// TSecr.
    pub ecr: u32,
}

/// What we read of a segment's options. Unknown kinds are skipped (RFC 9293 MUST-6); a malformed list ends there.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// Maximum segment size (SYN only).
    pub mss: Option<u16>,
    /// Window scale (SYN only), already limited to 14 (RFC 7323 §2.3).
    pub wscale: Option<u8>,
    /// SACK permitted (SYN only).
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks.
    pub sack: SackBlocks,
}

impl TcpOptions {
    /// Reads the option bytes of a header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> TcpOptions {
        let mut out = TcpOptions::default();
        // The layout every stack sends in data segments: NOP NOP TS.
        if bytes.len() == 12 && bytes[..4] == [1, 1, 8, 10] {
            out.timestamps = Some(Timestamps { val: be32(bytes, 4), ecr: be32(bytes, 8) });
            return out;
        }
        out.parse_list(bytes);
        out
    }

    fn parse_list(&mut self, mut b: &[u8]) {
        while let [kind, rest @ ..] = b {
            match (*kind, rest) {
                (0, _) => return,
                (1, _) => b = rest,
                (kind, [len, ..]) if *len >= 2 && usize::from(*len) <= b.len() => {
                    let (option, next) = b.split_at(usize::from(*len));
                    self.take(kind, &option[2..]);
                    b = next;
                }
                _ => return,
            }
        }
    }

    fn take(&mut self, kind: u8, data: &[u8]) {
        match (kind, data.len()) {
            (2, 2) => self.mss = Some(be16(data, 0)),
            (3, 1) => self.wscale = Some(data[0].min(14)),
            (4, 0) => self.sack_permitted = true,
            (5, 8 | 16 | 24 | 32) => {
                self.sack = data.chunks_exact(8).map(|c| (SeqNr(be32(c, 0)), SeqNr(be32(c, 4)))).collect();
            }
            (8, 8) => self.timestamps = Some(Timestamps { val: be32(data, 0), ecr: be32(data, 4) }),
            _ => {}
        }
    }

    /// Writes the options in Linux's order (mss, sackOK, TS, nop, wscale; data segments: nop nop TS, nop nop SACK),
    /// padded to a multiple of four; returns the length. SACK blocks beyond the 40 bytes are left out, oldest last.
    pub fn emit(&self, out: &mut [u8; 40]) -> usize {
        let mut w = Writer { out, len: 0 };
        let syn = self.mss.is_some();
        if let Some(mss) = self.mss {
            w.put(&[2, 4, (mss >> 8) as u8, mss as u8]);
        }
        match (self.sack_permitted, self.timestamps) {
            (true, Some(_)) => w.put(&[4, 2]),
            (true, None) => w.put(&[1, 1, 4, 2]),
            (false, Some(_)) => w.put(&[1, 1]),
            (false, None) => {}
        }
        if let Some(ts) = self.timestamps {
            w.put(&[8, 10]);
            w.put(&ts.val.to_be_bytes());
            w.put(&ts.ecr.to_be_bytes());
        }
        if let Some(scale) = self.wscale {
            w.put(&[1, 3, 3, scale]);
        }
        if !syn && !self.sack.is_empty() {
            let fit = (40 - w.len - 4) / 8;
            let blocks = self.sack.len().min(fit);
            w.put(&[1, 1, 5, (2 + 8 * blocks) as u8]);
            for (left, right) in &self.sack[..blocks] {
                w.put(&left.0.to_be_bytes());
                w.put(&right.0.to_be_bytes());
            }
        }
        w.len
    }
}

struct Writer<'a> {
    out: &'a mut [u8; 40],
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_syn_in_linux_order() {
        let syn = TcpOptions {
            mss: Some(1460),
            sack_permitted: true,
            timestamps: Some(Timestamps { val: 1, ecr: 0 }),
            wscale: Some(7),
            ..Default::default()
        };
        let mut out = [0; 40];
        let len = syn.emit(&mut out);
        assert_eq!(out[..len], [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
        assert_eq!(TcpOptions::parse(&out[..len]), syn);
    }

    #[test]
    fn at_most_three_sack_blocks_beside_timestamps() {
        let block = |n| (SeqNr(n), SeqNr(n + 1));
        let opts = TcpOptions {
            timestamps: Some(Timestamps::default()),
            sack: (0..4).map(block).collect(),
            ..Default::default()
        };
        let mut out = [0; 40];
        let len = opts.emit(&mut out);
        assert_eq!(len, 40);
        assert_eq!(TcpOptions::parse(&out).sack.as_slice(), [block(0), block(1), block(2)]);
    }

    proptest! {
        #[test]
        fn any_bytes_parse(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = TcpOptions::parse(&bytes);
        }
    }
}
