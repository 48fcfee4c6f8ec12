//! Middleware that harms frames: loss, duplication, corruption, delay, reordering, a rate limit; seeded, so that a run
//! can be repeated. It hides the link's offloads, so that the frames carry real checksums which catch the corruption.

use crate::config::{FaultConfig, FaultSpec};
use crate::frame;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use toe_core::nic::{Nic, NicCaps, NicStats, RxCsum, RxMeta, TxError, TxMeta};
use toe_core::wire::ETH_LEN;
use toe_core::{Duration, Instant};

/// A frame that is to be overtaken leaves after this at the latest, overtaken or not.
pub const MAX_HOLD: Duration = Duration::from_millis(5);

/// When the link below is full, delayed frames try again after this.
const RETRY: Duration = Duration::from_millis(1);

/// Buffers kept for reuse.
const SPARE: usize = 64;

/// SplitMix64: small, and good enough to decide about frames.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with probability `p`.
    fn hits(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.next() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// A number below `n` (which is not 0).
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// What was done so far, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Frames that came to be judged.
    pub frames: u64,
    /// Lost.
    pub lost: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// With a bit flipped.
    pub corrupted: u64,
    /// Held back to be overtaken.
    pub reordered: u64,
}

/// Where released frames go; `Err`: not now.
type Out<'a, M> = dyn FnMut(&[u8], M) -> Result<(), ()> + 'a;

struct Held<M> {
    due: Instant,
    /// Place in the order of arrival.
    number: u64,
    /// Later frames that have yet to overtake it.
    behind: u32,
    meta: M,
    bytes: Vec<u8>,
}

/// One direction's frames under way.
struct Lane<M> {
    spec: FaultSpec,
    rng: Rng,
    /// In order, by time.
    fifo: VecDeque<Held<M>>,
    /// Being overtaken.
    aside: Vec<Held<M>>,
    spare: Vec<Vec<u8>>,
    /// When the last frame will have left, at the configured rate.
    line_free: Instant,
    last_due: Instant,
    numbers: u64,
    stats: FaultStats,
}

impl<M: Copy> Lane<M> {
    fn new(spec: FaultSpec, seed: u64) -> Lane<M> {
        Lane {
            spec,
            rng: Rng(seed),
            fifo: VecDeque::new(),
            aside: Vec::new(),
            spare: Vec::new(),
            line_free: Instant::ZERO,
            last_due: Instant::ZERO,
            numbers: 0,
            stats: FaultStats::default(),
        }
    }

    fn waiting(&self) -> usize {
        self.fifo.len() + self.aside.len()
    }

    fn is_full(&self) -> bool {
        self.waiting() >= self.spec.limit
    }

    /// A buffer for a new frame.
    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(bytes);
        }
    }

    /// Judges a frame.
    fn push(&mut self, now: Instant, mut bytes: Vec<u8>, meta: M) {
        self.stats.frames += 1;
        if self.rng.hits(self.spec.loss) {
            self.stats.lost += 1;
            return self.recycle(bytes);
        }
        if self.rng.hits(self.spec.duplicate) {
            self.stats.duplicated += 1;
            let mut copy = self.buffer();
            frame::gather(&mut copy, &bytes, &[]);
            self.schedule(now, copy, meta);
        }
        if bytes.len() > ETH_LEN && self.rng.hits(self.spec.corrupt) {
            self.stats.corrupted += 1;
            let bit = self.rng.below((bytes.len() - ETH_LEN) as u64 * 8) as usize;
            bytes[ETH_LEN + bit / 8] ^= 1 << (bit % 8);
        }
        self.schedule(now, bytes, meta);
    }

    fn schedule(&mut self, now: Instant, bytes: Vec<u8>, meta: M) {
        let mut start = now;
        if self.spec.rate > 0 {
            let start_of_line = start.max(self.line_free);
            let nanos = u128::from(bytes.len() as u64) * 1_000_000_000 / u128::from(self.spec.rate);
            start = start_of_line + Duration::from_nanos(nanos.min(u128::from(u64::MAX)) as u64);
            self.line_free = start;
        }
        let jitter = if self.spec.jitter_us > 0 { self.rng.below(self.spec.jitter_us + 1) } else { 0 };
        let due = start + Duration::from_micros(self.spec.delay_us + jitter);
        let number = self.numbers;
        self.numbers += 1;
        if self.rng.hits(self.spec.reorder) {
            self.stats.reordered += 1;
            let behind = 1 + self.rng.below(u64::from(self.spec.reorder_max)) as u32;
            self.aside.push(Held { due: due + MAX_HOLD, number, behind, meta, bytes });
            return;
        }
        self.last_due = self.last_due.max(due);
        self.fifo.push_back(Held { due: self.last_due, number, behind: 0, meta, bytes });
    }

    /// Hands frames that are due to `out` until it refuses (`Err(())`) or `budget` is used up; returns how many went.
    fn release(&mut self, now: Instant, budget: usize, out: &mut Out<'_, M>) -> usize {
        let mut gone = 0;
        while gone < budget {
            let aside = self.aside.iter().position(|h| h.behind == 0 || h.due <= now);
            let next = match aside {
                Some(i) => self.aside.get(i),
                None => self.fifo.front().filter(|h| h.due <= now),
            };
            let Some(next) = next else { break };
            if out(&next.bytes, next.meta).is_err() {
                break;
            }
            let sent = match aside {
                Some(i) => Some(self.aside.remove(i)),
                None => self.fifo.pop_front(),
            };
            let Some(Held { number, bytes, .. }) = sent else { break };
            for h in self.aside.iter_mut().filter(|h| h.number < number) {
                h.behind = h.behind.saturating_sub(1);
            }
            self.recycle(bytes);
            gone += 1;
        }
        gone
    }

    /// When the next frame is due.
    fn next_due(&self) -> Option<Instant> {
        let ready = |h: &Held<M>| if h.behind == 0 { Instant::ZERO } else { h.due };
        self.fifo.front().map(|h| h.due).into_iter().chain(self.aside.iter().map(ready)).min()
    }
}

/// A link with faults.
pub struct Fault {
    inner: Box<dyn Nic>,
    tx: Lane<TxMeta>,
    /// Absent: received frames pass untouched.
    rx: Option<Lane<()>>,
    caps: NicCaps,
    now: Instant,
    /// Frames have come to wait since `poll` last said when the next one is due.
    unreported: bool,
    stats: NicStats,
}

impl Fault {
    /// Puts faults around one queue; give each queue a seed of its own by `stream` (its index).
    pub fn new(inner: Box<dyn Nic>, cfg: &FaultConfig, stream: u64) -> io::Result<Fault> {
        cfg.tx.check()?;
        cfg.rx.check()?;
        let mut seeds = Rng(cfg.seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        let (tx_seed, rx_seed) = (seeds.next(), seeds.next());
        let rx = cfg.rx.is_active().then(|| Lane::new(cfg.rx.clone(), rx_seed));
        let tx = Lane::new(cfg.tx.clone(), tx_seed);
        let caps = without_offloads(inner.caps());
        Ok(Fault { inner, tx, rx, caps, now: Instant::ZERO, unreported: false, stats: NicStats::default() })
    }

    /// What was done so far to frames sent, and to frames received.
    pub fn fault_stats(&self) -> (FaultStats, FaultStats) {
        (self.tx.stats, self.rx.as_ref().map(|l| l.stats).unwrap_or_default())
    }

    fn release_tx(&mut self) {
        let (inner, stats) = (&mut self.inner, &mut self.stats);
        let gone = self.tx.release(self.now, usize::MAX, &mut |bytes, meta| match inner.send(bytes, &[], meta) {
            Ok(()) => Ok(()),
            Err(TxError::Full) => Err(()),
            Err(TxError::Down | TxError::TooLarge) => {
                stats.tx_dropped += 1;
                Ok(())
            }
        });
        if gone > 0 {
            self.inner.flush();
        }
    }

    /// Takes frames out of the link into the receive lane.
    fn fill_rx(&mut self, budget: usize) {
        let Some(lane) = &mut self.rx else { return };
        let room = lane.spec.limit.saturating_sub(lane.waiting()).min(budget);
        let now = self.now;
        self.inner.recv(room, &mut |bytes, meta| {
            let mut copy = lane.buffer();
            frame::gather(&mut copy, bytes, &[]);
            if meta.csum == RxCsum::Good {
                frame::complete_checksum(&mut copy);
            }
            lane.push(now, copy, ());
        });
        self.unreported |= lane.waiting() > 0;
    }
}

fn without_offloads(caps: &NicCaps) -> NicCaps {
    NicCaps { tx_csum: false, tso_max: 0, ..caps.clone() }
}

impl Nic for Fault {
    fn caps(&self) -> &NicCaps {
        &self.caps
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn poll(&mut self, now: Instant) -> Option<Instant> {
        self.now = now;
        self.unreported = false;
        let inner_due = self.inner.poll(now);
        let inner = self.inner.caps();
        if inner.mtu != self.caps.mtu || inner.mac != self.caps.mac {
            self.caps = without_offloads(inner);
        }
        self.release_tx();
        let tx_due = self.tx.next_due().map(|t| if t <= now { now + RETRY } else { t });
        let rx_due = self.rx.as_ref().and_then(Lane::next_due);
        [inner_due, tx_due, rx_due].into_iter().flatten().min()
    }

    fn recv(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        self.fill_rx(budget);
        let Some(lane) = &mut self.rx else { return self.inner.recv(budget, sink) };
        lane.release(self.now, budget, &mut |bytes, ()| {
            sink(bytes, RxMeta { csum: RxCsum::Unchecked, gso_size: 0 });
            Ok(())
        })
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError> {
        if !self.inner.is_up() {
            return Err(TxError::Down);
        }
        if frame::gathered_len(header, payload) > self.caps.mtu + 18 {
            return Err(TxError::TooLarge);
        }
        if self.tx.is_full() {
            self.release_tx();
            if self.tx.is_full() {
                return Err(TxError::Full);
            }
        }
        let mut bytes = self.tx.buffer();
        frame::gather(&mut bytes, header, payload);
        if meta.csum_offload {
            frame::complete_checksum(&mut bytes); // not asked for by our caps, but harmless
        }
        let meta = TxMeta { csum_offload: false, gso_size: 0, ..meta };
        self.tx.push(self.now, bytes, meta);
        self.unreported = true;
        Ok(())
    }

    fn flush(&mut self) {
        self.release_tx();
        self.inner.flush();
    }

    fn arm(&mut self) -> bool {
        self.release_tx();
        let rx_ready = self.rx.as_ref().and_then(Lane::next_due).is_some_and(|t| t <= self.now);
        let waiting = self.tx.waiting() + self.rx.as_ref().map_or(0, Lane::waiting);
        // Sleep only with a deadline from `poll` that knows of them.
        let unknown = self.unreported && waiting > 0;
        !rx_ready && !unknown && self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }

    fn wait_fds_epoch(&self) -> u64 {
        self.inner.wait_fds_epoch()
    }

    fn stats(&self) -> NicStats {
        let inner = self.inner.stats();
        let lost = self.tx.stats.lost + self.stats.tx_dropped;
        let rx_lost = self.rx.as_ref().map_or(0, |l| l.stats.lost);
        NicStats { tx_dropped: inner.tx_dropped + lost, rx_dropped: inner.rx_dropped + rx_lost, ..inner }
    }
}

#[cfg(test)]
mod tests;
