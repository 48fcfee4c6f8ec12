//! Two links joined in memory, for engine tests in virtual time: frames are there as soon as they are flushed, in order,
//! up to a bound.

use crate::frame;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toe_core::Instant;
use toe_core::nic::{Nic, NicCaps, NicStats, RxCsum, RxMeta, TxError, TxMeta};

struct Wire {
    frames: VecDeque<(Vec<u8>, RxMeta)>,
    /// How many of them have been flushed.
    visible: usize,
}

/// One end of the pair.
pub struct MemNic {
    caps: NicCaps,
    bound: usize,
    inbound: Arc<Mutex<Wire>>,
    outbound: Arc<Mutex<Wire>>,
    up: bool,
    stats: NicStats,
}

/// Two ends with the same capabilities (the second end's MAC differs in its last bit); at most `bound` frames are under
/// way in each direction.
pub fn pair(caps: NicCaps, bound: usize) -> (MemNic, MemNic) {
    let wire = || Arc::new(Mutex::new(Wire { frames: VecDeque::new(), visible: 0 }));
    let (ab, ba) = (wire(), wire());
    let mut other = caps.clone();
    other.mac[5] ^= 1;
    let end = |caps, inbound: &Arc<Mutex<Wire>>, outbound: &Arc<Mutex<Wire>>| MemNic {
        caps,
        bound,
        inbound: inbound.clone(),
        outbound: outbound.clone(),
        up: true,
        stats: NicStats { link_ups: 1, ..NicStats::default() },
    };
    (end(caps, &ba, &ab), end(other, &ab, &ba))
}

fn lock(wire: &Mutex<Wire>) -> MutexGuard<'_, Wire> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemNic {
    /// Takes this end of the link down, or up again.
    pub fn set_up(&mut self, up: bool) {
        self.stats.link_ups += u64::from(up && !self.up);
        self.up = up;
    }

    /// Frames waiting to be received here.
    pub fn pending(&self) -> usize {
        lock(&self.inbound).visible
    }
}

impl Nic for MemNic {
    fn caps(&self) -> &NicCaps {
        &self.caps
    }

    fn is_up(&self) -> bool {
        self.up
    }

    fn poll(&mut self, _now: Instant) -> Option<Instant> {
        None
    }

    fn recv(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        let mut count = 0;
        while count < budget {
            let mut wire = lock(&self.inbound);
            if wire.visible == 0 {
                break;
            }
            let Some((bytes, meta)) = wire.frames.pop_front() else { break };
            wire.visible -= 1;
            drop(wire); // the sink may send
            self.stats.rx_packets += 1;
            self.stats.rx_bytes += bytes.len() as u64;
            sink(&bytes, meta);
            count += 1;
        }
        count
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError> {
        if !self.up {
            return Err(TxError::Down);
        }
        let len = frame::gathered_len(header, payload);
        let limit = if meta.gso_size > 0 { header.len() + self.caps.tso_max } else { self.caps.mtu + 18 };
        if len > limit {
            self.stats.tx_dropped += 1;
            return Err(TxError::TooLarge);
        }
        let mut wire = lock(&self.outbound);
        if wire.frames.len() >= self.bound {
            return Err(TxError::Full);
        }
        let mut bytes = Vec::with_capacity(len);
        frame::gather(&mut bytes, header, payload);
        let csum = if meta.csum_offload { RxCsum::Good } else { RxCsum::Unchecked };
        wire.frames.push_back((bytes, RxMeta { csum, gso_size: meta.gso_size }));
        self.stats.tx_packets += 1;
        self.stats.tx_bytes += len as u64;
        Ok(())
    }

    fn flush(&mut self) {
        let mut wire = lock(&self.outbound);
        wire.visible = wire.frames.len();
    }

    fn arm(&mut self) -> bool {
        self.pending() == 0
    }

    fn disarm(&mut self) {}

    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn stats(&self) -> NicStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_cross_when_flushed() {
        let caps = NicCaps { mac: [2, 0, 0, 0, 0, 2], mtu: 1500, tso_max: 60_000, tx_csum: true, queues: 1 };
        let (mut a, mut b) = pair(caps, 2);
        let meta = TxMeta { csum_offload: true, gso_size: 1448, ..TxMeta::default() };
        a.send(&[1; 54], &[&[2; 30_000]], meta).unwrap();
        assert_eq!(a.send(&[1; 54], &[&[2; 30_000]], TxMeta::default()), Err(TxError::TooLarge));
        a.send(&[3; 60], &[], TxMeta::default()).unwrap();
        assert_eq!(a.send(&[3; 60], &[], TxMeta::default()), Err(TxError::Full));
        assert_eq!((b.pending(), b.arm()), (0, true));
        a.flush();
        assert!(!b.arm());
        let mut seen = vec![];
        b.recv(9, &mut |f, m| seen.push((f.len(), m.csum, m.gso_size)));
        assert_eq!(seen, [(30_054, RxCsum::Good, 1448), (60, RxCsum::Unchecked, 0)]);
        assert_ne!(a.caps().mac, b.caps().mac);
        a.set_up(false);
        assert_eq!(a.send(&[3; 60], &[], TxMeta::default()), Err(TxError::Down));
    }
}
