//! ② Copying on the sending side: the link gathers a frame's payload out of the stream's chunks; nothing is copied here.

use crate::alloc::CHUNK;
use arrayvec::ArrayVec;
use core::sync::atomic::Ordering::Relaxed;
use toe_core::SockId;
use toe_core::nic::MAX_TX_PIECES;
use toe_core::shm::{Region, STREAM_CHUNKS};
use toe_core::stream;

/// The pieces of one frame's payload.
pub(crate) type Pieces<'a> = ArrayVec<&'a [u8], MAX_TX_PIECES>;

/// Most payload of one frame: with a first piece of one byte, this much still fits the pieces.
pub(crate) const MOST_PAYLOAD: u64 = (MAX_TX_PIECES as u64 - 1) * CHUNK;

/// Bytes `start..end` of a socket's TX stream. `None`: the app's chunk table is nonsense.
#[inline]
pub(crate) fn gather(region: &Region, sock: SockId, start: u64, end: u64) -> Option<Pieces<'_>> {
    let table = region.tx_table(sock)?;
    let (mut pieces, mut at) = (Pieces::new(), start);
    while at < end {
        let offset = at % CHUNK;
        let len = (end - at).min(CHUNK - offset);
        let chunk = table[(at / CHUNK) as usize % STREAM_CHUNKS].load(Relaxed);
        pieces.try_push(stream::tx_bytes(region, chunk, offset as usize, len as usize)?).ok()?;
        at += len;
    }
    Some(pieces)
}
