//! Bytes in and out of stream chunks. `unsafe`: chunks are shared with another process and reached by raw pointer.
//!
//! A chunk's bytes may change under us at any time if the other side misbehaves. Nothing here or above relies on their
//! value: they are payload, handed on as they are, and an app that scribbles over bytes in flight spoils only its own
//! stream. Index, offset and length are checked on every call.
#![allow(unsafe_code)]

use crate::shm::{CHUNK_SIZE, Region};
use core::ptr::NonNull;

/// Daemon: `len` bytes of a TX chunk, to be sent or retransmitted. `None`: out of range (the app lied in its table).
#[inline]
pub fn tx_bytes(region: &Region, chunk: u32, offset: usize, len: usize) -> Option<&[u8]> {
    let base = within(region.tx_chunk(chunk), offset, len)?;
    // SAFETY: `within` checked that the bytes lie inside one chunk of the mapping, which lives as long as `region`. `u8`
    // has no invalid values. The app owns these bytes until they are acknowledged and has promised not to write them; if
    // it does, the link sends a mixture of old and new bytes, and no decision of ours depends on which.
    Some(unsafe { core::slice::from_raw_parts(base.as_ptr(), len) })
}

/// Daemon: writes received bytes into an RX chunk. `false`: out of range, nothing written.
#[inline]
pub fn rx_write(region: &Region, chunk: u32, offset: usize, bytes: &[u8]) -> bool {
    put(region.rx_chunk(chunk), offset, bytes)
}

/// App: writes bytes to be sent into a TX chunk. `false`: out of range, nothing written.
#[inline]
pub fn tx_write(region: &Region, chunk: u32, offset: usize, bytes: &[u8]) -> bool {
    put(region.tx_chunk(chunk), offset, bytes)
}

/// App: copies received bytes out of an RX chunk. `false`: out of range, nothing copied.
#[inline]
pub fn rx_read(region: &Region, chunk: u32, offset: usize, out: &mut [u8]) -> bool {
    let Some(base) = within(region.rx_chunk(chunk), offset, out.len()) else { return false };
    // SAFETY: the source lies inside one chunk of the mapping (`within`); `out` is our own memory and cannot overlap it.
    unsafe { core::ptr::copy_nonoverlapping(base.as_ptr(), out.as_mut_ptr(), out.len()) };
    true
}

#[inline]
fn put(chunk: Option<NonNull<u8>>, offset: usize, bytes: &[u8]) -> bool {
    let Some(base) = within(chunk, offset, bytes.len()) else { return false };
    // SAFETY: the destination lies inside one chunk of the mapping (`within`). A received frame, or the app's own buffer, never
    // overlaps a stream chunk that is being filled.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), base.as_ptr(), bytes.len()) };
    true
}

/// First byte at `offset` of a chunk, if `len` bytes from there stay inside it.
#[inline]
fn within(chunk: Option<NonNull<u8>>, offset: usize, len: usize) -> Option<NonNull<u8>> {
    let base = chunk?;
    if offset > CHUNK_SIZE || len > CHUNK_SIZE - offset {
        return None;
    }
    // SAFETY: offset <= CHUNK_SIZE, and the chunk has CHUNK_SIZE bytes inside one mapping.
    Some(unsafe { base.add(offset) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RegionId;
    use crate::shm::ARENA_CHUNKS;

    #[test]
    fn bytes_stay_inside_their_chunk() {
        let r = Region::create(RegionId(1), 2).unwrap();
        assert!(tx_write(&r, 3, CHUNK_SIZE - 4, b"last"));
        assert!(!tx_write(&r, 3, CHUNK_SIZE - 3, b"last"));
        assert_eq!(tx_bytes(&r, 3, CHUNK_SIZE - 4, 4), Some(&b"last"[..]));
        assert_eq!(tx_bytes(&r, 3, usize::MAX, 1), None);
        assert_eq!(tx_bytes(&r, ARENA_CHUNKS as u32, 0, 1), None);
        let mut out = [0; 3];
        assert!(rx_write(&r, 0, 10, b"abc") && rx_read(&r, 0, 10, &mut out));
        assert_eq!(&out, b"abc");
        assert!(!rx_read(&r, 0, CHUNK_SIZE - 2, &mut out));
    }
}
