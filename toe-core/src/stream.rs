//! The daemon's side of the stream buffers: reading TX chunks, writing RX chunks. `unsafe`: raw chunk memory.
//!
//! TX chunks can be changed by the app at any moment; the bytes are only copied onward and checksummed, never decided
//! by. An app that changes bytes under way corrupts its own stream and nothing else.

#![allow(unsafe_code)]

use crate::ids::SockId;
use crate::nic::MAX_TX_PIECES;
use crate::shm::{CHUNK_SIZE, Region, STREAM_CHUNKS};
use arrayvec::ArrayVec;
use core::sync::atomic::Ordering::Relaxed;

/// Payload pieces of one frame.
pub type Pieces<'a> = ArrayVec<&'a [u8], MAX_TX_PIECES>;

/// The chunk table's index for stream position `pos`.
#[inline(always)]
pub fn table_index(pos: u64) -> usize {
    (pos / CHUNK_SIZE as u64) as usize % STREAM_CHUNKS
}

/// The TX bytes `[pos, pos + len)` of a socket, chunk by chunk. `None`: the app's chunk table makes no sense.
#[inline]
pub fn tx_pieces(region: &Region, sock: SockId, mut pos: u64, mut len: usize) -> Option<Pieces<'_>> {
    let table = region.tx_table(sock)?;
    let mut pieces = Pieces::new();
    while len > 0 {
        let offset = (pos % CHUNK_SIZE as u64) as usize;
        let take = len.min(CHUNK_SIZE - offset);
        let chunk = region.tx_chunk(table[table_index(pos)].load(Relaxed))?;
        // SAFETY: `tx_chunk` checked the index, so CHUNK_SIZE bytes from `chunk` are mapped while `region` lives, and
        // offset + take <= CHUNK_SIZE. The app may write them concurrently; see the module's comment.
        let piece = unsafe { core::slice::from_raw_parts(chunk.as_ptr().add(offset), take) };
        pieces.try_push(piece).ok()?;
        pos += take as u64;
        len -= take;
    }
    Some(pieces)
}

/// Copies `bytes` into an RX chunk at `offset`. Out of range is ignored (the caller's private table never is).
#[inline]
pub fn rx_write(region: &Region, chunk: u32, offset: usize, bytes: &[u8]) {
    let Some(base) = region.rx_chunk(chunk) else { return };
    if offset + bytes.len() <= CHUNK_SIZE {
        // SAFETY: in bounds of a mapped chunk by the checks above; `bytes` is link or heap memory, never this chunk.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), base.as_ptr().add(offset), bytes.len()) };
    }
}

/// App: writes bytes to be sent into a TX chunk at `offset`. `false`: out of range, nothing written.
pub fn tx_write(region: &Region, chunk: u32, offset: usize, bytes: &[u8]) -> bool {
    let Some(base) = region.tx_chunk(chunk).filter(|_| offset + bytes.len() <= CHUNK_SIZE) else { return false };
    // SAFETY: in bounds of a mapped chunk by the checks above; `bytes` is the caller's own memory, never this chunk.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), base.as_ptr().add(offset), bytes.len()) };
    true
}

/// App: copies received bytes out of an RX chunk at `offset`. `false`: out of range, nothing copied.
pub fn rx_read(region: &Region, chunk: u32, offset: usize, out: &mut [u8]) -> bool {
    let Some(base) = region.rx_chunk(chunk).filter(|_| offset + out.len() <= CHUNK_SIZE) else { return false };
    // SAFETY: in bounds of a mapped chunk by the checks above; `out` is the caller's own memory, never this chunk.
    unsafe { core::ptr::copy_nonoverlapping(base.as_ptr().add(offset), out.as_mut_ptr(), out.len()) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RegionId;
    use crate::shm::ARENA_CHUNKS;

    #[test]
    fn bytes_stay_inside_their_chunk() {
        let r = Region::create(RegionId(1), 2).unwrap();
        let table = r.tx_table(SockId(0)).unwrap();
        table[0].store(3, Relaxed);
        assert!(tx_write(&r, 3, CHUNK_SIZE - 4, b"last"));
        assert!(!tx_write(&r, 3, CHUNK_SIZE - 3, b"last"));
        assert_eq!(tx_pieces(&r, SockId(0), CHUNK_SIZE as u64 - 4, 4).unwrap()[0], b"last");
        table[0].store(ARENA_CHUNKS as u32, Relaxed);
        assert!(tx_pieces(&r, SockId(0), 0, 1).is_none());
        let mut out = [0; 3];
        rx_write(&r, 0, 10, b"abc");
        assert!(rx_read(&r, 0, 10, &mut out));
        assert_eq!(&out, b"abc");
        rx_write(&r, 0, CHUNK_SIZE - 2, b"xyz");
        assert!(!rx_read(&r, 0, CHUNK_SIZE - 2, &mut out));
    }
}
