//! ② Copying on the sending side: the link gathers a frame's payload out of the stream's chunks; nothing is copied here.

use crate::alloc::CHUNK;
use toe_core::SockId;
use toe_core::nic::MAX_TX_PIECES;
use toe_core::shm::Region;
use toe_core::stream;

pub(crate) use toe_core::stream::Pieces;

/// Most payload of one frame: with a first piece of one byte, this much still fits the pieces.
pub(crate) const MOST_PAYLOAD: u64 = (MAX_TX_PIECES as u64 - 1) * CHUNK;

/// Bytes `start..end` of a socket's TX stream. `None`: the app's chunk table is nonsense.
#[inline]
pub(crate) fn gather(region: &Region, sock: SockId, start: u64, end: u64) -> Option<Pieces<'_>> {
    stream::tx_pieces(region, sock, start, (end - start) as usize)
}
