//! ⑥ Copying on the receiving side: payload goes from the link's memory straight to its place in the stream's chunks, in order
//! or not, and once only: bytes already here are not written again.

use crate::alloc::CHUNK;
use crate::flow::Flow;
use crate::poll::Env;
use crate::validate::{Arrival, Refusal};
use core::sync::atomic::Ordering::Release;
use toe_core::notify;
use toe_core::shm::{STREAM_CHUNKS, app_flags};
use toe_core::stream;

/// Sleeping readers are woken in the middle of a batch when this much has arrived for them.
const ANNOUNCE_BYTES: u64 = 64 * 1024;

impl Flow {
    /// RFC 9293 §3.10.7.4, seventh: process the segment text.
    pub fn take_data(&mut self, env: &mut Env, a: &Arrival) -> Result<(), Refusal> {
        let len = a.payload.len() as u64;
        if len == 0 {
            return Ok(());
        }
        let (nxt, data_end) = (self.rcv.nxt as i64, a.start + len as i64);
        // As Linux: after a whole shutdown, as after a close, what still comes is refused.
        let deaf = self.app.flags & app_flags::SHUT_RD != 0 && self.fin_sent();
        if (self.app.orphan || deaf) && data_end > nxt {
            return Err(Refusal::NobodyReads);
        }
        self.learn_segment_size(a);
        let limit = self.rcv.fin.map_or(self.rcv.edge, |fin| fin.min(self.rcv.edge)) as i64;
        let (start, end) = (a.start.max(nxt), data_end.min(limit));
        if a.start < nxt {
            self.rcv.ooo.note_duplicate(a.start.max(0) as u64, data_end.clamp(0, nxt) as u64);
        }
        if self.rcv.fin_done || start >= end {
            // All of it was here, or none of it fits (a window probe): answer at once (RFC 9293 §3.10.7.4, RFC 5681 §4.2).
            env.stats.duplicate_segs += u64::from(data_end <= nxt);
            self.ack.now = true;
            return Ok(());
        }
        let skip = (start - a.start) as usize;
        let bytes = &a.payload[skip..skip + (end - start) as usize];
        if start == nxt && self.rcv.ooo.is_empty() {
            self.take_in_order(env, start as u64, bytes)
        } else {
            self.take_out_of_order(env, start as u64, bytes)
        }
    }

    fn take_in_order(&mut self, env: &mut Env, start: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let end = start + bytes.len() as u64;
        if !self.allocate(&mut env.regions, start, end) {
            return Err(Refusal::NoChunk);
        }
        self.write(start, bytes);
        self.rcv.nxt = end;
        self.publish_received(env, end - start);
        Ok(())
    }

    fn take_out_of_order(&mut self, env: &mut Env, start: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let end = start + bytes.len() as u64;
        let nxt = self.rcv.nxt;
        env.stats.out_of_order += u64::from(start > nxt);
        // RFC 5681 §4.2: at once, for a gap as for what fills it.
        self.ack.now = true;
        if start > nxt {
            self.ack.extra += 1;
        }
        if !self.allocate(&mut env.regions, start, end) {
            return Err(Refusal::NoChunk);
        }
        let mut at = start;
        while let Some((from, to)) = self.rcv.ooo.gap(at, end) {
            if at == start && from > start {
                self.rcv.ooo.note_duplicate(start, from);
            }
            self.write(from, &bytes[(from - start) as usize..(to - start) as usize]);
            at = to;
        }
        if at == start {
            env.stats.duplicate_segs += 1;
            self.rcv.ooo.note_duplicate(start, end);
            return Ok(());
        }
        if !self.rcv.ooo.insert(start, end) {
            return Err(Refusal::TooManyRanges);
        }
        self.rcv.nxt = self.rcv.ooo.advance(nxt);
        if self.rcv.nxt > nxt {
            self.publish_received(env, self.rcv.nxt - nxt);
        }
        Ok(())
    }

    /// What counts as a full-sized segment for delayed ACKs (RFC 5681 §4.2): the largest the peer has sent so far.
    fn learn_segment_size(&mut self, a: &Arrival) {
        let size = if a.gso_size != 0 { u32::from(a.gso_size) } else { a.payload.len() as u32 };
        if size > self.rcv.seg_size {
            self.rcv.seg_size = size.min(self.rcv.mss);
        }
    }

    /// Payload to its place; the chunks are there.
    fn write(&mut self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let offset = (at % CHUNK) as usize;
            let (now, rest) = bytes.split_at(bytes.len().min(CHUNK as usize - offset));
            let chunk = self.rcv.chunks[(at / CHUNK) as usize % STREAM_CHUNKS];
            stream::rx_write(&self.region, chunk, offset, now);
            at += now.len() as u64;
            bytes = rest;
        }
    }

    /// New in-order bytes: a spinning reader sees them at once, sleepers are woken now and then.
    pub fn publish_received(&mut self, env: &mut Env, bytes: u64) {
        env.stats.bytes_received += bytes;
        self.rcv.published = self.data_received();
        self.slot().rx_tail.store(self.rcv.published, Release);
        self.rcv.unannounced += bytes;
        if self.rcv.unannounced >= ANNOUNCE_BYTES {
            self.announce(env);
        }
    }

    /// Wakes whoever sleeps for bytes or for the end of the stream.
    pub fn announce(&mut self, env: &Env) {
        if core::mem::take(&mut self.rcv.unannounced) > 0 {
            notify::readable(&self.region, self.sock, self.slot(), &*env.waker);
        }
    }
}
