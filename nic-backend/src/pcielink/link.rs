//! The `Nic` of PCIeLINK: one handle for each queue. Handle 0 also runs the handshake and supervises the link; the others
//! see by one atomic number that the link has changed.

use super::doorbell;
use super::geometry::Geometry;
use super::handshake::{Event, Handshake};
use super::queue::{Conn, Endpoint, SendError};
use crate::config::{PcieLinkConfig, mac_or_random};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use toe_core::Instant;
use toe_core::nic::{Nic, NicCaps, NicStats, RxMeta, TxError, TxMeta};

/// What the handles of one link share. The mutex is taken only when the link changes.
struct Shared {
    /// Incremented whenever `conn` changes.
    generation: AtomicU64,
    conn: Mutex<Option<Arc<Conn>>>,
    /// Generation whose peer turned out broken; handle 0 then resets the link.
    broken: AtomicU64,
    /// Wakes each handle when the link changes, and handle 0 when another finds the peer broken.
    wakes: Vec<OwnedFd>,
}

impl Shared {
    /// Handle 0 announces a change to the others.
    fn set(&self, conn: Option<Arc<Conn>>) {
        *self.conn.lock().unwrap_or_else(PoisonError::into_inner) = conn;
        self.generation.fetch_add(1, AcqRel);
        self.wakes.iter().skip(1).for_each(|w| doorbell::raise(w.as_fd()));
    }
}

/// One queue of a PCIeLINK.
pub struct PcieLink {
    shared: Arc<Shared>,
    index: usize,
    /// Handle 0 only.
    handshake: Option<Handshake>,
    /// Generation that `endpoint` belongs to.
    generation: u64,
    endpoint: Option<Endpoint>,
    our_mtu: usize,
    caps: NicCaps,
    stats: NicStats,
    /// Counts changes of the descriptors.
    epoch: u64,
}

/// Opens one side of a link: a handle for each queue. The link comes up by polling handle 0, when the peer is there.
pub fn open(cfg: PcieLinkConfig) -> io::Result<Vec<Box<dyn Nic>>> {
    Ok(open_links(cfg)?.into_iter().map(|l| Box::new(l) as Box<dyn Nic>).collect())
}

/// As [`open`], but with the concrete type.
pub fn open_links(cfg: PcieLinkConfig) -> io::Result<Vec<PcieLink>> {
    Geometry::new(cfg.queues, 1, cfg.ring_bytes, cfg.mtu)?;
    let mac = mac_or_random(cfg.mac)?;
    let mut handshake = Some(Handshake::new(&cfg, mac)?);
    let shared = Arc::new(Shared {
        generation: AtomicU64::new(0),
        conn: Mutex::new(None),
        broken: AtomicU64::new(u64::MAX),
        wakes: (0..cfg.queues).map(|_| doorbell::new_interrupt()).collect::<io::Result<_>>()?,
    });
    let caps = NicCaps { mac, mtu: cfg.mtu, tso_max: 0, tx_csum: true, queues: cfg.queues };
    let links = (0..cfg.queues).map(|index| PcieLink {
        shared: shared.clone(),
        index,
        handshake: handshake.take(),
        generation: 0,
        endpoint: None,
        our_mtu: cfg.mtu,
        caps: caps.clone(),
        stats: NicStats::default(),
        epoch: 0,
    });
    Ok(links.collect())
}

impl PcieLink {
    /// Counters of the copy engine since the link came up.
    pub fn dma_stats(&self) -> super::dma::DmaStats {
        self.endpoint.as_ref().map(|e| e.dma().stats).unwrap_or_default()
    }

    /// The link that is up, if one is.
    pub fn conn(&self) -> Option<&Arc<Conn>> {
        self.endpoint.as_ref().map(Endpoint::conn)
    }

    /// Handle 0: handshake and supervision.
    fn supervise(&mut self, now: Instant) -> Option<Instant> {
        let handshake = self.handshake.as_mut()?;
        let broken = self.shared.broken.load(Relaxed) == self.shared.generation.load(Relaxed);
        if !broken && !handshake.is_due(now) {
            return handshake.deadline();
        }
        let before = handshake.fds();
        let (event, deadline) = if broken {
            self.shared.broken.store(u64::MAX, Relaxed);
            (handshake.reset(now), Some(now))
        } else {
            handshake.step(now)
        };
        if handshake.fds() != before {
            self.epoch += 1;
        }
        match event {
            Event::None => {}
            Event::Up(conn) => {
                self.stats.link_ups += 1;
                self.shared.set(Some(conn));
            }
            Event::Down => self.shared.set(None),
        }
        deadline
    }

    /// The link has changed: build this queue's rings anew.
    #[cold]
    fn follow(&mut self, generation: u64) {
        self.generation = generation;
        let conn = self.shared.conn.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.caps.mtu = conn.as_ref().map_or(self.our_mtu, |c| c.mtu);
        self.endpoint = conn.map(|c| Endpoint::new(c, self.index));
        self.epoch += 1;
    }

    /// The peer wrote nonsense: stop, and let handle 0 reset the link.
    #[cold]
    fn peer_is_broken(&mut self) {
        self.stats.rx_errors += 1;
        self.endpoint = None;
        self.epoch += 1;
        self.shared.broken.store(self.generation, Relaxed);
        doorbell::raise(self.shared.wakes[0].as_fd());
    }
}

impl Nic for PcieLink {
    fn caps(&self) -> &NicCaps {
        &self.caps
    }

    fn is_up(&self) -> bool {
        self.endpoint.is_some()
    }

    fn poll(&mut self, now: Instant) -> Option<Instant> {
        let deadline = self.supervise(now);
        let generation = self.shared.generation.load(Acquire);
        if generation != self.generation {
            self.follow(generation);
        }
        deadline
    }

    fn recv(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        let Some(endpoint) = &mut self.endpoint else { return 0 };
        let (mut frames, mut bytes) = (0, 0);
        let result = endpoint.recv(budget, &mut |frame, meta| {
            frames += 1;
            bytes += frame.len() as u64;
            sink(frame, meta);
        });
        self.stats.rx_packets += frames as u64;
        self.stats.rx_bytes += bytes;
        if result.is_err() {
            self.peer_is_broken();
        }
        frames
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError> {
        let Some(endpoint) = &mut self.endpoint else { return Err(TxError::Down) };
        match endpoint.send(header, payload, meta) {
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
            Err(SendError::Nonsense) => {
                self.peer_is_broken();
                Err(TxError::Down)
            }
        }
    }

    fn flush(&mut self) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.flush();
        }
    }

    fn arm(&mut self) -> bool {
        // A change of the link after this look writes the wake-up descriptor.
        let same = self.shared.generation.load(Acquire) == self.generation;
        same && self.endpoint.as_mut().is_none_or(Endpoint::arm)
    }

    fn disarm(&mut self) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.disarm();
        }
        doorbell::acknowledge(self.shared.wakes[self.index].as_fd());
        if let Some(handshake) = &mut self.handshake {
            handshake.look_now();
        }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        let mut fds = vec![self.shared.wakes[self.index].as_raw_fd()];
        fds.extend(self.endpoint.as_ref().map(Endpoint::wait_fd));
        fds.extend(self.handshake.iter().flat_map(Handshake::fds));
        fds
    }

    fn wait_fds_epoch(&self) -> u64 {
        self.epoch
    }

    fn stats(&self) -> NicStats {
        self.stats
    }
}

impl Drop for PcieLink {
    fn drop(&mut self) {
        if self.handshake.take().is_some() {
            self.shared.broken.store(u64::MAX, Release);
            self.shared.set(None);
        }
    }
}
