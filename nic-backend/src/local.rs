//! Frames to ourselves: a link from a daemon's queues to the same queues. The rings are PCIeLINK's, in a window of our
//! own that nobody else maps; so are the doorbells.

use crate::config::{DEFAULT_MTU, LocalConfig, mac_or_random};
use crate::pcielink::doorbell;
use crate::pcielink::geometry::Geometry;
use crate::pcielink::queue::{Conn, Endpoint, SendError};
use crate::pcielink::window::Window;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use toe_core::Instant;
use toe_core::nic::{Nic, NicCaps, NicStats, RxMeta, TxError, TxMeta};

/// One queue of the local link. Always up; vouches for checksums.
pub struct Local {
    endpoint: Endpoint,
    caps: NicCaps,
    stats: NicStats,
}

/// Opens the local link: a handle for each queue.
pub fn open(cfg: &LocalConfig) -> io::Result<Vec<Box<dyn Nic>>> {
    Ok(open_queues(cfg)?.into_iter().map(|q| Box::new(q) as Box<dyn Nic>).collect())
}

fn open_queues(cfg: &LocalConfig) -> io::Result<Vec<Local>> {
    let geo = Geometry::new(cfg.queues, cfg.queues, cfg.ring_bytes, DEFAULT_MTU)?;
    let window = Arc::new(Window::create(c"toe-local", geo.window_len())?);
    let my_bells = (0..cfg.queues).map(|_| doorbell::new_interrupt()).collect::<io::Result<Vec<_>>>()?;
    let peer_bells = my_bells.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
    let conn = Arc::new(Conn {
        mine: window.clone(),
        mine_geo: geo,
        peer: window,
        peer_geo: geo,
        mtu: DEFAULT_MTU,
        my_bells,
        peer_bells,
    });
    let mac = mac_or_random(cfg.mac)?;
    let caps = NicCaps { mac, mtu: DEFAULT_MTU, tso_max: 0, tx_csum: true, queues: cfg.queues };
    let handle = |index| Local {
        endpoint: Endpoint::new(conn.clone(), index),
        caps: caps.clone(),
        stats: NicStats { link_ups: u64::from(index == 0), ..NicStats::default() },
    };
    Ok((0..cfg.queues).map(handle).collect())
}

impl Nic for Local {
    fn caps(&self) -> &NicCaps {
        &self.caps
    }

    fn is_up(&self) -> bool {
        true
    }

    fn poll(&mut self, _now: Instant) -> Option<Instant> {
        None
    }

    fn recv(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        let (mut frames, mut bytes) = (0, 0);
        let result = self.endpoint.recv(budget, &mut |frame, meta| {
            frames += 1;
            bytes += frame.len() as u64;
            sink(frame, meta);
        });
        self.stats.rx_packets += frames as u64;
        self.stats.rx_bytes += bytes;
        // Only our own mistake could do this: nobody else maps the window.
        self.stats.rx_errors += u64::from(result.is_err());
        frames
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError> {
        match self.endpoint.send(header, payload, meta) {
            Ok(len) => {
                self.stats.tx_packets += 1;
                self.stats.tx_bytes += len as u64;
                Ok(())
            }
            Err(SendError::Full) => Err(TxError::Full),
            Err(SendError::TooLarge) => {
                self.stats.tx_dropped += 1;
                Err(TxError::TooLarge)
            }
            Err(SendError::Nonsense) => Err(TxError::Down),
        }
    }

    fn flush(&mut self) {
        self.endpoint.flush();
    }

    fn arm(&mut self) -> bool {
        self.endpoint.arm()
    }

    fn disarm(&mut self) {
        self.endpoint.disarm();
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        vec![self.endpoint.wait_fd()]
    }

    fn stats(&self) -> NicStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_core::nic::RxCsum;

    #[test]
    fn frames_reach_the_queue_of_their_hash() {
        let mut queues = open(&LocalConfig { queues: 3, ..LocalConfig::default() }).unwrap();
        for hash in 0..9u32 {
            let meta = TxMeta { flow_hash: hash, csum_offload: hash % 2 == 0, ..TxMeta::default() };
            let from = hash as usize / 3;
            queues[from].send(&[hash as u8; 54], &[&[7; 100], &[8; 60_000]], meta).unwrap();
            queues[from].flush();
        }
        for (j, queue) in queues.iter_mut().enumerate() {
            assert!(!queue.arm(), "frames are waiting");
            let mut seen = vec![];
            let got = queue.recv(10, &mut |f, m| {
                assert_eq!((f.len(), f[53], f[54], f[154]), (60_154, f[0], 7, 8));
                assert_eq!(m.csum == RxCsum::Good, f[0] % 2 == 0);
                seen.push(usize::from(f[0]));
            });
            seen.sort();
            assert_eq!((got, seen), (3, vec![j, j + 3, j + 6]));
            assert!(queue.arm());
            queue.disarm();
            assert_eq!(queue.stats().rx_bytes, 3 * 60_154);
        }
    }

    #[test]
    fn a_full_ring_wakes_its_sender() {
        let mut queues = open_queues(&LocalConfig { queues: 2, ..LocalConfig::default() }).unwrap();
        let meta = TxMeta { flow_hash: 1, ..TxMeta::default() };
        while queues[0].send(&[0; 54], &[&[1; 65_000]], meta).is_ok() {}
        assert_eq!(queues[0].send(&[0; 54], &[&[1; 65_000]], meta), Err(TxError::Full));
        assert!(queues[0].arm());
        while queues[1].recv(16, &mut |_, _| ()) > 0 {}
        let bell = &queues[0].endpoint.conn().my_bells[0];
        assert_eq!(rustix::io::read(bell, &mut [0u8; 8]), Ok(8), "the bell rings");
        queues[0].disarm();
        queues[0].send(&[0; 54], &[&[1; 65_000]], meta).unwrap();
        assert_eq!(queues[0].send(&[0; 13], &[], meta), Err(TxError::TooLarge));
        assert_eq!(queues[0].send(&[0; 54], &[&[1; 65_530]], meta), Err(TxError::TooLarge));
    }
}
