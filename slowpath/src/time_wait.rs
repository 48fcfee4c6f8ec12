//! TIME-WAIT without a control block: what RFC 9293 §3.10.7.4, RFC 1337 and RFC 6191 need and no more.

use std::collections::{HashMap, VecDeque};
use toe_core::flow::{FlowKey, TimeWait};
use toe_core::wire::{self, Segment, TcpFields, TcpOptions, Timestamps, flags};
use toe_core::{Duration, Instant};

/// One remembered connection.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Numbers and timestamps.
    pub tw: TimeWait,
    /// Ethernet header of answers.
    pub l2: [u8; 14],
    expires: Instant,
}

/// What a segment for a remembered connection leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Ignore,
    /// Send this frame.
    Send(Vec<u8>),
    /// A SYN that may open the connection anew (RFC 6191): the entry is gone, treat the segment as in LISTEN.
    Reopen,
}

/// All of them. Entries expire in the order of `queue`; one whose time was restarted is found not yet due and goes back in.
#[derive(Default)]
pub struct Table {
    entries: HashMap<FlowKey, Entry>,
    queue: VecDeque<(Instant, FlowKey)>,
}

impl Table {
    /// Remembers a connection for `time`.
    pub fn insert(&mut self, key: FlowKey, l2: [u8; 14], tw: TimeWait, expires: Instant) {
        self.entries.insert(key, Entry { tw, l2, expires });
        self.queue.push_back((expires, key));
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Remembered?
    pub fn contains(&self, key: &FlowKey) -> bool {
        self.entries.contains_key(key)
    }

    /// The entry.
    pub fn get(&self, key: &FlowKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Forgets a connection.
    pub fn remove(&mut self, key: &FlowKey) -> Option<Entry> {
        self.entries.remove(key)
    }

    /// When `expire` is due.
    pub fn next(&self) -> Option<Instant> {
        self.queue.front().map(|e| e.0)
    }

    /// Forgets what is over; hands each to `gone`.
    pub fn expire(&mut self, now: Instant, mut gone: impl FnMut(FlowKey)) {
        while let Some(&(at, key)) = self.queue.front().filter(|e| e.0 <= now) {
            self.queue.pop_front();
            match self.entries.get(&key) {
                Some(e) if e.expires <= now => {
                    self.entries.remove(&key);
                    gone(key);
                }
                Some(e) if e.expires > at => self.queue.push_back((e.expires, key)),
                _ => {}
            }
        }
    }

    /// A segment of a remembered connection.
    pub fn segment(&mut self, seg: &Segment, now: Instant, lifetime: Duration) -> Answer {
        let Some(e) = self.entries.get_mut(&seg.key) else { return Answer::Ignore };
        if seg.has(flags::RST) {
            return Answer::Ignore; // RFC 1337 §4: TIME-WAIT is not to be assassinated
        }
        let newer = match (e.tw.timestamps, seg.options.timestamps) {
            (Some(ours), Some(ts)) => (ts.val.wrapping_sub(ours.recent) as i32) > 0,
            _ => false,
        };
        if seg.has(flags::SYN) && !seg.has(flags::ACK) && (newer || seg.seq.after(e.tw.rcv_nxt)) {
            self.entries.remove(&seg.key);
            return Answer::Reopen;
        }
        if seg.has(flags::FIN) {
            // RFC 9293 §3.10.7.4: acknowledge a retransmitted FIN, restart the 2 MSL time.
            e.expires = now + lifetime;
        }
        Answer::Send(ack(&seg.key, e, now))
    }
}

fn ack(key: &FlowKey, e: &Entry, now: Instant) -> Vec<u8> {
    let timestamps =
        e.tw.timestamps.map(|t| Timestamps { val: (now.millis() as u32).wrapping_add(t.offset), ecr: t.recent });
    let fields = TcpFields {
        key: *key,
        seq: e.tw.snd_nxt,
        ack: e.tw.rcv_nxt,
        flags: flags::ACK,
        window: e.tw.window,
        urgent: 0,
        options: TcpOptions { timestamps, ..Default::default() },
        ttl: 64,
        tos: 0,
        ident: 0,
    };
    wire::emit(&e.l2, &fields, &[], false).as_slice().to_vec()
}
