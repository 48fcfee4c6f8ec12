//! The daemon's side of the stream buffers: reading TX chunks, writing RX chunks. `unsafe`: raw chunk memory.
//!
//! TX chunks can be changed by the app at any moment; the bytes are only copied onward and checksummed, never decided
//! by. An app that changes bytes under way corrupts its own stream and nothing else.

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
