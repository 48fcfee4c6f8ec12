//! TIME-WAIT: finished connections, compactly, without their sockets.
//!
//! An entry answers for 2 MSL: a retransmitted FIN is acknowledged and starts the time anew; RST is ignored (RFC 1337, fix
//! F1); a new SYN that cannot be an old duplicate opens a new connection (RFC 6191, RFC 9293 §3.10.7.4).
//!
//! Invariant: each entry of `map` has exactly one item of its serial number in `queue`, at or before its expiry. A restarted
//! entry is queued again only when its old item comes up, so that a peer cannot make the queue grow; items of removed
//! entries are dropped when they come up.

use crate::hash::{Map, Secret};
use crate::reply::{self, RateLimit};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use toe_core::flow::{FlowKey, TimeWait};
use toe_core::wire::{ETH_LEN, Segment, Timestamps, flags};
use toe_core::{Duration, Instant, SeqNr};

/// Most entries (tcp_max_tw_buckets); a connection that finishes beyond it is forgotten at once.
const MAX_ENTRIES: usize = 262_144;
/// Room between the last sequence number of the old connection and the first of the new one (Linux: 65535 + 2).
const ISN_GAP: u32 = 65_537;
/// RFC 6191: age of an entry's last timestamp before we reuse its 4-tuple ourselves.
const REUSE_AFTER: Duration = Duration::from_secs(1);

/// What is kept of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    expires: Instant,
    tw: TimeWait,
    l2: [u8; ETH_LEN],
    serial: u32,
    /// SO_REUSEADDR of its socket.
    pub reuse: bool,
}

const _: () = assert!(core::mem::size_of::<Entry>() <= 64);

struct Expiry(Instant, u32, FlowKey);

impl PartialEq for Expiry {
    fn eq(&self, other: &Expiry) -> bool {
        self.0 == other.0
    }
}
impl Eq for Expiry {}
impl PartialOrd for Expiry {
    fn partial_cmp(&self, other: &Expiry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Expiry {
    fn cmp(&self, other: &Expiry) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

/// What to do with a segment for a connection in TIME-WAIT.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Ignore,
    /// Send this.
    Answer(Vec<u8>),
    /// A SYN that may open a new connection, whose ISN must be at or after this (RFC 9293 §3.10.7.4).
    NewConnection(SeqNr),
}

/// The table.
pub(crate) struct TimeWaits {
    map: Map<FlowKey, Entry>,
    queue: BinaryHeap<Reverse<Expiry>>,
    period: Duration,
    serial: u32,
}

impl TimeWaits {
    pub(crate) fn new(secret: Secret, period: Duration) -> TimeWaits {
        TimeWaits { map: Map::with_hasher(secret), queue: BinaryHeap::new(), period, serial: 0 }
    }

    /// A connection enters. `false`: the table is full.
    pub(crate) fn insert(&mut self, now: Instant, key: FlowKey, tw: TimeWait, l2: [u8; ETH_LEN], reuse: bool) -> bool {
        if self.map.len() >= MAX_ENTRIES || self.queue.len() >= 2 * MAX_ENTRIES {
            return false;
        }
        let expires = now + self.period;
        self.serial = self.serial.wrapping_add(1);
        self.map.insert(key, Entry { expires, tw, l2, serial: self.serial, reuse });
        self.queue.push(Reverse(Expiry(expires, self.serial, key)));
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn contains(&self, key: &FlowKey) -> bool {
        self.map.contains_key(key)
    }

    /// The next expiry (not later than the true one).
    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.peek().map(|e| e.0.0)
    }

    /// Takes an expired entry out.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<(FlowKey, Entry)> {
        while self.next().is_some_and(|at| at <= now) {
            let Some(Reverse(Expiry(_, serial, key))) = self.queue.pop() else { break };
            match self.map.get(&key) {
                Some(e) if e.serial != serial => {}
                Some(e) if e.expires > now => self.queue.push(Reverse(Expiry(e.expires, serial, key))),
                Some(_) => return self.map.remove_entry(&key),
                None => {}
            }
        }
        None
    }

    /// Forgets an entry whose 4-tuple is used anew; its queue item is found stale later.
    pub(crate) fn remove(&mut self, key: &FlowKey) -> Option<Entry> {
        self.map.remove(key)
    }

    /// May we open a connection over this entry (RFC 6191)? Then the least ISN.
    pub(crate) fn reusable(&self, key: &FlowKey, now: Instant) -> Option<SeqNr> {
        let e = self.map.get(key)?;
        let age = self.period.saturating_sub(e.expires.since(now));
        (e.tw.timestamps.is_some() && age >= REUSE_AFTER).then_some(e.tw.snd_nxt + ISN_GAP)
    }

    /// Judges a segment. `None`: no entry. `limit` bounds answers to segments outside the window.
    pub(crate) fn judge(&mut self, seg: &Segment, now: Instant, limit: &mut RateLimit) -> Option<Verdict> {
        let expires = now + self.period;
        let e = self.map.get_mut(&seg.key)?;
        if seg.has(flags::RST) {
            return Some(Verdict::Ignore); // RFC 1337 F1
        }
        let stamp = e.tw.timestamps.zip(seg.options.timestamps);
        let old = stamp.is_some_and(|(ours, theirs)| SeqNr(theirs.val).before(SeqNr(ours.recent)));
        let newer = stamp.is_some_and(|(ours, theirs)| SeqNr(theirs.val).after(SeqNr(ours.recent)));
        if seg.has(flags::SYN) {
            let acceptable = !seg.has(flags::ACK) && !old && (newer || seg.seq.after(e.tw.rcv_nxt));
            return Some(if acceptable {
                Verdict::NewConnection(e.tw.snd_nxt + ISN_GAP)
            } else {
                answer(e, seg, now, limit)
            });
        }
        if !seg.has(flags::ACK) {
            return Some(Verdict::Ignore);
        }
        let in_order = !old && seg.seq == e.tw.rcv_nxt && seg.is_empty();
        if let (true, Some(ts), Some((_, theirs))) = (in_order, &mut e.tw.timestamps, stamp) {
            ts.recent = theirs.val;
        }
        if in_order {
            return Some(Verdict::Ignore); // the last ACK of a simultaneous close
        }
        if seg.has(flags::FIN) && seg.end() == e.tw.rcv_nxt {
            e.expires = expires; // RFC 9293 §3.10.7.4: restart the 2 MSL time-out
        }
        Some(answer(e, seg, now, limit))
    }
}

fn answer(e: &Entry, seg: &Segment, now: Instant, limit: &mut RateLimit) -> Verdict {
    if !limit.allow(now) {
        return Verdict::Ignore;
    }
    let mut f = reply::fields(seg.key, e.tw.snd_nxt, e.tw.rcv_nxt, flags::ACK, e.tw.window);
    f.options.timestamps =
        e.tw.timestamps.map(|t| Timestamps { val: (now.millis() as u32).wrapping_add(t.offset), ecr: t.recent });
    Verdict::Answer(reply::frame(&e.l2, &f))
}
