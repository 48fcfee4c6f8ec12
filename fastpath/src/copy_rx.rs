//! ⑥ Received payload: from the link's memory into the stream's chunks, in order or not; from there the app copies it out.

use crate::alloc::RegionState;
use crate::engine::Engine;
use crate::flow::Flow;
use crate::ranges::Pos;
use crate::validate::Arrival;
use std::sync::atomic::Ordering::Release;
use toe_core::shm::{CHUNK_SIZE, app_flags, daemon_flags};
use toe_core::stream;

const C: i64 = CHUNK_SIZE as i64;

impl Flow {
    /// The payload of an acceptable segment (RFC 9293 §3.10.7.4 seventh step).
    #[inline]
    pub fn on_data(&mut self, eng: &mut Engine, regions: &mut RegionState, a: &Arrival, payload: &[u8]) {
        if self.rcv.fin || payload.is_empty() {
            self.rcv.ack_now |= self.rcv.fin && !payload.is_empty();
            return;
        }
        self.rcv.mss = self.rcv.mss.max((payload.len() as u32).min(u32::from(self.snd.mss).max(536)));
        let limit = self.rcv.fin_at.unwrap_or(Pos::MAX).min(self.rcv.adv);
        let (start, end) = (a.start.max(self.rcv.nxt), a.end.min(limit));
        if a.start < self.rcv.nxt {
            eng.stats.duplicate_segs += 1;
            self.rcv.dsack = Some((a.start, a.end.min(self.rcv.nxt)));
            self.rcv.ack_now = true;
        }
        if end <= start {
            self.rcv.ack_now = true;
            return;
        }
        let bytes = &payload[(start - a.start) as usize..(end - a.start) as usize];
        let stored = self.store(eng, regions, start, bytes);
        if start == self.rcv.nxt { self.advance(stored) } else { self.keep_out_of_order(eng, start, stored) }
    }

    /// Copies `bytes` to their place; returns the end of what was stored (less than all only without chunks).
    #[inline]
    fn store(&mut self, eng: &mut Engine, regions: &mut RegionState, start: Pos, bytes: &[u8]) -> Pos {
        let mut pos = start;
        let mut rest = bytes;
        if self.asked(app_flags::SHUT_RD) {
            return start + bytes.len() as Pos;
        }
        while !rest.is_empty() {
            let offset = (pos % C) as usize;
            let (now, later) = rest.split_at(rest.len().min(CHUNK_SIZE - offset));
            let Some(chunk) = self.rx_chunk(regions, pos / C) else {
                eng.stats.rx_chunk_shortage += 1;
                break;
            };
            stream::rx_write(&self.region, chunk, offset, now);
            pos += now.len() as Pos;
            rest = later;
        }
        pos
    }

    /// RCV.NXT moves to `end`, and over what waits right behind.
    fn advance(&mut self, end: Pos) {
        let before = self.rcv.nxt;
        self.rcv.nxt = self.rcv.nxt.max(end);
        if !self.rcv.ooo.is_empty() {
            // A gap is filled, wholly or in part: tell at once (RFC 5681 §4.2).
            self.rcv.ack_now = true;
            if let Some((_, range_end)) = self.rcv.ooo.containing(self.rcv.nxt) {
                self.rcv.nxt = range_end;
            }
            let nxt = self.rcv.nxt;
            self.rcv.ooo.remove_below(nxt);
            self.rcv.recent.retain(|p| *p >= nxt);
        }
        let new = (self.rcv.nxt - before) as u32;
        self.rcv.unacked = self.rcv.unacked.saturating_add(new);
        if new > 0 {
            if self.asked(app_flags::SHUT_RD) {
                self.discard();
            }
            self.slot().rx_tail.store(self.rcv.nxt as u64, Release);
            self.rx_news = true;
        }
    }

    /// shutdown(SHUT_RD): what arrives is acknowledged and dropped.
    fn discard(&mut self) {
        self.rcv.head = self.rcv.nxt;
        self.slot().rx_head.store(self.rcv.nxt as u64, Release);
    }

    fn keep_out_of_order(&mut self, eng: &mut Engine, start: Pos, end: Pos) {
        eng.stats.out_of_order += 1;
        self.rcv.ack_now = true;
        if self.rcv.ooo.insert(start, end) == 0 {
            self.rcv.dsack = self.rcv.dsack.or(Some((start, end)));
        }
        // RFC 2018 §4: the block with the newest segment first, then those reported last.
        let newest = self.rcv.ooo.containing(start).map_or(start, |r| r.0);
        self.rcv.recent.retain(|p| *p != newest);
        if self.rcv.recent.is_full() {
            self.rcv.recent.pop();
        }
        self.rcv.recent.insert(0, newest);
    }

    /// The peer's FIN (RFC 9293 §3.10.7.4 eighth step), remembered until everything before it is here.
    pub fn on_fin(&mut self, at: Pos) {
        if at <= self.rcv.adv && at >= self.rcv.nxt {
            self.rcv.fin_at.get_or_insert(at);
        }
        self.rcv.ack_now = true;
    }

    /// Passes the FIN when RCV.NXT has come to it.
    #[inline]
    pub fn pass_fin(&mut self) {
        if self.rcv.fin || self.rcv.fin_at != Some(self.rcv.nxt) {
            return;
        }
        self.rcv.fin = true;
        self.rcv.nxt += 1;
        self.rcv.adv = self.rcv.adv.max(self.rcv.nxt);
        self.passive_close = !self.fin_sent();
        self.slot().daemon_flags.fetch_or(daemon_flags::RX_FIN, Release);
        self.rx_news = true;
        self.rcv.ack_now = true;
    }
}
