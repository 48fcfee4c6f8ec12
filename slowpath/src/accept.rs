//! Listeners' accept queues: slots for new connections, the ring in shared memory, overflow.

use crate::engine::SlowPath;
use crate::flows::mss_for;
use crate::half::{HalfOpen, Offer};
use crate::ports::SockRef;
use crate::reply::DEFAULT_TTL;
use crate::table::{Phase, Sock};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use toe_core::flow::FlowKey;
use toe_core::notify;
use toe_core::shm::{ACCEPT_RING, SockSlot, app_flags};

/// Least receive buffer we work with (Linux: SOCK_MIN_RCVBUF).
const MIN_RCVBUF: u32 = 2304;
/// Least MSS of TCP_MAXSEG (Linux: TCP_MIN_MSS).
const MIN_MSS: u32 = 88;

/// Flags that an accepted socket has from its listener.
const INHERITED: u32 = app_flags::NODELAY
    | app_flags::CORK
    | app_flags::USER_CORK
    | app_flags::KEEPALIVE
    | app_flags::QUICKACK
    | app_flags::REUSEADDR
    | app_flags::REUSEPORT
    | app_flags::V6ONLY
    | app_flags::RENO
    | app_flags::LINGER_RST;

impl SlowPath {
    /// Limits for a buffer: what the app set, else the default; never beyond the configured and the layout's largest.
    fn buffer(&self, set: u32, default: u32) -> u32 {
        let max = self.tcp.buf_max.clamp(MIN_RCVBUF, 4 << 20);
        (if set == 0 { default } else { set }).clamp(MIN_RCVBUF, max)
    }

    /// What a socket (or its listener) offers on `nic`, and whether it has SO_REUSEADDR. Brings its limits into force.
    pub(crate) fn offer(&self, of: SockRef, nic: usize, key: &FlowKey) -> Option<(Offer, bool)> {
        let slot = self.regions.get(&of.0)?.region.sock(of.1)?;
        let link = mss_for(self.nics[nic].setup.caps.mtu, key.local_ip);
        let mss = match slot.opt_maxseg.load(Relaxed) {
            0 => link,
            m => link.min(m.clamp(MIN_MSS, 0xffff) as u16),
        };
        let rx_limit = self.buffer(slot.opt_rcvbuf.load(Relaxed), self.tcp.rcvbuf);
        let ttl = match slot.opt_ttl.load(Relaxed) {
            t @ 1..=255 => t as u8,
            _ => DEFAULT_TTL,
        };
        let offer = Offer {
            mss,
            wscale: self.tcp.window_scaling.then(|| self.tcp.rcv_wscale()),
            sack: self.tcp.sack,
            timestamps: self.tcp.timestamps,
            ts_offset: self.secret.timestamp_offset(key),
            rx_limit,
            ttl,
            // The two ECN bits are not the app's (RFC 3168).
            tos: slot.opt_tos.load(Relaxed) as u8 & !3,
        };
        Some((offer, slot.app_flags.load(Relaxed) & app_flags::REUSEADDR != 0))
    }

    /// Brings a socket's buffer limits into force.
    pub(crate) fn set_limits(&self, slot: &SockSlot) {
        slot.tx_limit.store(self.buffer(slot.opt_sndbuf.load(Relaxed), self.tcp.sndbuf), Relaxed);
        slot.rx_limit.store(self.buffer(slot.opt_rcvbuf.load(Relaxed), self.tcp.rcvbuf), Relaxed);
    }

    /// Is there no room for one more finished connection (Linux: more than the backlog wait)?
    pub(crate) fn accept_queue_full(&mut self, listener: SockRef) -> bool {
        self.prune_untaken(listener);
        let Some(l) = self.listeners.get(&listener) else { return true };
        l.untaken.len() > l.backlog as usize
    }

    /// Forgets connections that were taken out of the ring.
    fn prune_untaken(&mut self, listener: SockRef) {
        let Some(l) = self.listeners.get_mut(&listener) else { return };
        let Some(r) = self.regions.get(&listener.0) else { return };
        let Some(ring) = r.region.layout().rings.get(l.ring as usize) else { return };
        let head = ring.head.load(Acquire);
        while l.untaken.front().is_some_and(|&(pos, _)| (pos.wrapping_sub(head) as i32) < 0) {
            l.untaken.pop_front();
        }
    }

    /// A slot for a connection of `half`'s listener, filled but for what `install` fills.
    pub(crate) fn accepted_slot(&mut self, half: &HalfOpen) -> Option<SockRef> {
        let (region, listener) = half.owner;
        let r = self.regions.get_mut(&region).filter(|r| !r.dying)?;
        let id = r.take_slot()?;
        r.socks.insert(id, Sock { in_ring: true, ..Sock::new(Phase::Idle) });
        let region_arc = r.region.clone();
        let (slot, from) = (region_arc.sock(id)?, region_arc.sock(listener)?);
        slot.inherit_options(from);
        slot.app_flags.store(from.app_flags.load(Relaxed) & INHERITED, Relaxed);
        slot.parent.store(listener.0, Relaxed);
        self.set_limits(slot);
        Some((region, id))
    }

    /// Puts an installed connection into its listener's ring and tells the app.
    pub(crate) fn push_accepted(&mut self, listener: SockRef, sock: SockRef) {
        let Some(l) = self.listeners.get_mut(&listener) else { return };
        let Some(r) = self.regions.get(&listener.0) else { return };
        let Some(ring) = r.region.layout().rings.get(l.ring as usize) else { return };
        ring.entry[l.tail as usize % ACCEPT_RING].store(sock.1.0, Release);
        l.untaken.push_back((l.tail, sock.1));
        l.tail = l.tail.wrapping_add(1);
        ring.tail.store(l.tail, Release);
        if let Some(slot) = r.region.sock(listener.1) {
            notify::readable(&r.region, listener.1, slot, &*self.waker);
        }
    }

    /// A listener is over: handshakes under way are dropped, connections that nobody took are reset.
    pub(crate) fn close_listener(&mut self, listener: SockRef) {
        let Some(l) = self.listeners.remove(&listener) else { return };
        for key in &l.half {
            if let Some(half) = self.half.remove(key) {
                self.forget(&half);
            }
        }
        self.ports.set_listening(l.port, listener, false);
        self.publish_port(l.port);
        let Some(r) = self.regions.get_mut(&listener.0) else { return };
        let layout = r.region.layout();
        let head = layout.rings.get(l.ring as usize).map_or(l.tail, |ring| ring.head.swap(l.tail, AcqRel));
        layout.ring_pool.push(l.ring);
        let left: Vec<_> = l.untaken.iter().filter(|(pos, _)| (pos.wrapping_sub(head) as i32) >= 0).collect();
        for &&(_, id) in &left {
            if let Some(s) = r.socks.get_mut(&id) {
                s.in_ring = false;
            }
        }
        for &(_, id) in left {
            self.abort((listener.0, id));
        }
    }
}
