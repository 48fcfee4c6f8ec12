//! A link between two fast paths in virtual time, with faults by seed.

use super::Rng;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use toe_core::nic::*;
use toe_core::wire::{TcpFields, emit, flags, parse};
use toe_core::{Duration, Instant};

/// What happens to frames, in permille.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u64,
    pub duplicate: u64,
    pub reorder: u64,
    pub corrupt: u64,
}

/// Frames on the way to one end, by arrival.
type Way = Arc<Mutex<BTreeMap<(u64, u64), (Vec<u8>, u16)>>>;

pub struct TestNic {
    caps: NicCaps,
    inbox: Way,
    outbox: Way,
    faults: Faults,
    rng: Rng,
    delay: Duration,
    now: Instant,
    sent: u64,
    /// Refuse every so many sends with `Full`.
    full_every: u64,
    /// Deliver segments cut by TSO merged again (GRO) instead of one by one.
    merge: bool,
    calls: u64,
    pub stats: NicStats,
}

/// Shape of a link.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub mtu: usize,
    pub tso: bool,
    pub merge: bool,
    pub delay: Duration,
    pub faults: Faults,
    pub full_every: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        let delay = Duration::from_micros(500);
        Shape { mtu: 1500, tso: false, merge: false, delay, faults: Faults::default(), full_every: 0 }
    }
}

/// Both ends of a link.
pub fn pair(shape: Shape, seed: u64) -> [TestNic; 2] {
    let (a, b) = (Way::default(), Way::default());
    let end = |mac: u8, inbox: Way, outbox: Way| TestNic {
        caps: NicCaps {
            mac: [2, 0, 0, 0, 0, mac],
            mtu: shape.mtu,
            tso_max: if shape.tso { 65_000 } else { 0 },
            // TSO needs the link to fill in checksums; this one cuts by building real segments.
            tx_csum: shape.tso,
            queues: 1,
        },
        inbox,
        outbox,
        faults: shape.faults,
        rng: Rng(seed ^ u64::from(mac) << 40),
        delay: shape.delay,
        now: Instant::ZERO,
        sent: 0,
        full_every: shape.full_every,
        merge: shape.merge,
        calls: 0,
        stats: NicStats::default(),
    };
    [end(1, a.clone(), b.clone()), end(2, b, a)]
}

impl TestNic {
    fn launch(&mut self, mut frame: Vec<u8>, gso_size: u16) {
        let f = self.faults;
        if self.rng.permille(f.loss) {
            return;
        }
        let copies = 1 + u64::from(self.rng.permille(f.duplicate));
        if self.rng.permille(f.corrupt) {
            let at = 14 + self.rng.below(frame.len() as u64 - 14) as usize;
            frame[at] ^= 1 << self.rng.below(8);
        }
        for _ in 0..copies {
            let late = if self.rng.permille(f.reorder) { self.rng.below(3000) * 1000 } else { 0 };
            let at = (self.now + self.delay).0 + late;
            self.sent += 1;
            self.outbox.lock().unwrap().insert((at, self.sent), (frame.clone(), gso_size));
        }
    }

    /// Does in software what a link with TSO does: real segments, complete checksums. `size` larger than the payload: one
    /// frame, as GRO would deliver it.
    fn cut(&mut self, frame: &[u8], size: usize, gso_size: u16) {
        let seg = parse(frame).unwrap();
        let payload = &frame[seg.payload_offset..];
        let mut l2 = [0; 14];
        l2.copy_from_slice(&frame[..14]);
        let pieces: Vec<&[u8]> =
            if payload.is_empty() { vec![payload] } else { payload.chunks(size.min(1 << 20)).collect() };
        for (i, piece) in pieces.iter().enumerate() {
            let last = i + 1 == pieces.len();
            let fields = TcpFields {
                key: seg.key.reversed(),
                seq: seg.seq + (i * size) as u32,
                ack: seg.ack,
                flags: if last { seg.flags } else { seg.flags & !(flags::FIN | flags::PSH) },
                window: seg.window,
                urgent: 0,
                options: seg.options.clone(),
                ttl: seg.ttl,
                tos: 0,
                ident: 0,
            };
            let header = emit(&l2, &fields, &[piece], false);
            let packet = header.as_slice().len() - 14 + piece.len();
            assert!(gso_size != 0 || packet <= self.caps.mtu, "{packet} bytes: larger than the link's MTU");
            self.launch([header.as_slice(), piece].concat(), gso_size);
        }
    }
}

impl Nic for TestNic {
    fn caps(&self) -> &NicCaps {
        &self.caps
    }

    fn is_up(&self) -> bool {
        true
    }

    fn poll(&mut self, now: Instant) -> Option<Instant> {
        self.now = now;
        self.inbox.lock().unwrap().keys().next().map(|k| Instant(k.0))
    }

    fn recv(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        let mut count = 0;
        while count < budget {
            let mut inbox = self.inbox.lock().unwrap();
            let Some(first) = inbox.first_entry().filter(|e| e.key().0 <= self.now.0) else { break };
            let (frame, gso_size) = first.remove();
            drop(inbox);
            self.stats.rx_packets += 1;
            sink(&frame, RxMeta { csum: RxCsum::Unchecked, gso_size });
            count += 1;
        }
        count
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError> {
        self.calls += 1;
        if self.full_every > 0 && self.calls.is_multiple_of(self.full_every) {
            return Err(TxError::Full);
        }
        let frame = [header, &payload.concat()].concat();
        self.stats.tx_packets += 1;
        if self.merge && meta.gso_size != 0 {
            self.cut(&frame, usize::MAX / 2, meta.gso_size);
        } else if meta.gso_size != 0 || meta.csum_offload {
            let size = if meta.gso_size == 0 { frame.len() } else { meta.gso_size.into() };
            self.cut(&frame, size, 0);
        } else {
            assert!(frame.len() - 14 <= self.caps.mtu, "larger than the link's MTU");
            self.launch(frame, 0);
        }
        Ok(())
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        self.inbox.lock().unwrap().is_empty()
    }

    fn disarm(&mut self) {}

    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn stats(&self) -> NicStats {
        self.stats
    }
}
