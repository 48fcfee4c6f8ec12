//! A wire between two hosts, with seeded faults.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use toe_core::Instant;
use toe_core::nic::{Nic, NicCaps, NicStats, RxCsum, RxMeta, TxError, TxMeta};

/// Per mille, except `reorder`: the largest number of frames that may overtake one.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub seed: u64,
    pub loss: u64,
    pub duplicate: u64,
    pub corrupt: u64,
    pub reorder: u64,
}

impl Faults {
    pub fn none() -> Faults {
        Faults { seed: 1, loss: 0, duplicate: 0, corrupt: 0, reorder: 0 }
    }
}

/// splitmix64.
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

type Queue = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// One end.
pub struct Wire {
    caps: NicCaps,
    rx: Queue,
    tx: Queue,
    faults: Faults,
    rng: u64,
    stats: NicStats,
}

/// Frames on their way in one direction before the sender sees `TxError::Full`.
const QUEUE: usize = 512;

pub fn pair(faults: Faults, mtu: usize) -> (Wire, Wire) {
    let (ab, ba) = (Queue::default(), Queue::default());
    let end = |n: u8, rx: &Queue, tx: &Queue| Wire {
        caps: NicCaps { mac: [2, 0, 0, 0, 0, n], mtu, tso_max: 0, tx_csum: false, queues: 1 },
        rx: rx.clone(),
        tx: tx.clone(),
        faults,
        rng: faults.seed * 1000 + u64::from(n),
        stats: NicStats::default(),
    };
    (end(1, &ba, &ab), end(2, &ab, &ba))
}

impl Wire {
    fn chance(&mut self, per_mille: u64) -> bool {
        per_mille > 0 && random(&mut self.rng) % 1000 < per_mille
    }

    fn deliver(&mut self, mut frame: Vec<u8>) {
        if self.chance(self.faults.corrupt) {
            let bit = random(&mut self.rng) as usize % ((frame.len() - 14) * 8);
            frame[14 + bit / 8] ^= 1 << (bit % 8);
        }
        let mut queue = self.tx.lock().unwrap();
        let overtakes = match self.faults.reorder {
            0 => 0,
            n => (random(&mut self.rng) % (n + 1)) as usize,
        };
        let at = queue.len() - overtakes.min(queue.len());
        queue.insert(at, frame);
    }
}

impl Nic for Wire {
    fn caps(&self) -> &NicCaps {
        &self.caps
    }

    fn is_up(&self) -> bool {
        true
    }

    fn poll(&mut self, _: Instant) -> Option<Instant> {
        None
    }

    fn recv(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        for n in 0..budget {
            let Some(frame) = self.rx.lock().unwrap().pop_front() else { return n };
            self.stats.rx_packets += 1;
            sink(&frame, RxMeta { csum: RxCsum::Unchecked, gso_size: 0 });
        }
        budget
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError> {
        assert!(!meta.csum_offload && meta.gso_size == 0, "offload that the link did not offer");
        let frame = [header, &payload.concat()].concat();
        assert!(frame.len() <= 14 + self.caps.mtu, "frame of {} bytes, MTU {}", frame.len(), self.caps.mtu);
        if self.tx.lock().unwrap().len() >= QUEUE {
            return Err(TxError::Full);
        }
        self.stats.tx_packets += 1;
        if self.chance(self.faults.loss) {
            return Ok(());
        }
        if self.chance(self.faults.duplicate) {
            self.deliver(frame.clone());
        }
        self.deliver(frame);
        Ok(())
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        self.rx.lock().unwrap().is_empty()
    }

    fn disarm(&mut self) {}

    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn stats(&self) -> NicStats {
        self.stats
    }
}
