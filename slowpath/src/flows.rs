//! Hand-over: a finished handshake becomes a fast path's flow, and a finished flow becomes TIME-WAIT or nothing.

use crate::demux::Received;
use crate::engine::SlowPath;
use crate::half::{HalfOpen, Role};
use crate::ports::SockRef;
use crate::table::{Flow, Phase};
use core::net::IpAddr;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use toe_core::flow::{CongestionControl, FlowInit, FlowKey};
use toe_core::msg::{CloseKind, Down};
use toe_core::notify;
use toe_core::shm::{SockState, app_flags};
use toe_core::wire::{ETH_LEN, Segment, flags};
use toe_core::{CoreId, FlowId, Instant};

/// MSS of a peer that names none (RFC 9293 §3.7.1).
const DEFAULT_MSS_V4: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;
/// Least MSS we send with, whatever the peer says (Linux: TCP_MIN_SND_MSS).
const MIN_SND_MSS: u16 = 48;

/// IP and TCP headers without options.
pub(crate) fn headers(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 40 } else { 60 }
}

/// Payload of the largest segment that a link of this MTU carries, before TCP options (RFC 6691).
pub(crate) fn mss_for(mtu: usize, ip: IpAddr) -> u16 {
    mtu.saturating_sub(headers(ip)).clamp(usize::from(MIN_SND_MSS), 0xffff) as u16
}

impl SlowPath {
    /// The handshake is complete: `Down::Install` (the core then looks at the socket, so a kick that came too early is not
    /// lost), then whatever the last segment carried beyond it, then the news to the app.
    pub(crate) fn established(&mut self, mut half: Box<HalfOpen>, rx: Received, seg: &Segment, now: Instant) {
        half.core = rx.core;
        let sock = match half.role {
            Role::Active => Some(half.owner),
            Role::Passive => self.accepted_slot(&half),
        };
        let Some(sock) = sock else {
            // No slot: as a full accept queue.
            self.counters.listen_drops += 1;
            return self.keep(half, now);
        };
        self.timers.cancel(half.timer.take());
        self.install(&half, sock, seg, now);
        if (seg.payload_len > 0 || seg.has(flags::FIN)) && !seg.has(flags::SYN) {
            self.inject(half.core, rx);
        }
        match half.role {
            Role::Active => {
                self.counters.active_opens += 1;
                match self.half.get_mut(&half.key.reversed()) {
                    Some(peer) => peer.opener = Some(sock),
                    None => self.announce(sock),
                }
            }
            Role::Passive => {
                self.counters.passive_opens += 1;
                if let Some(l) = self.listeners.get_mut(&half.owner) {
                    l.half.remove(&half.key);
                }
                self.push_accepted(half.owner, sock);
                if let Some(opener) = half.opener {
                    self.announce(opener);
                }
            }
        }
    }

    /// Tells the app that its connect(2) is done.
    pub(crate) fn announce(&self, sock: SockRef) {
        if let Some(slot) = self.regions.get(&sock.0).and_then(|r| r.region.sock(sock.1)) {
            // Unless the flow is over already.
            let (from, to) = (SockState::Connecting as u32, SockState::Established as u32);
            let _ = slot.state.compare_exchange(from, to, AcqRel, Relaxed);
        }
        self.tell(sock);
    }

    fn install(&mut self, half: &HalfOpen, sock: SockRef, seg: &Segment, now: Instant) {
        let (key, core) = (half.key, half.core);
        let Some(r) = self.regions.get_mut(&sock.0) else { return };
        let Some(slot) = r.region.sock(sock.1) else { return };
        let region = r.region.clone();
        if let Some(s) = r.socks.get_mut(&sock.1) {
            (s.phase, s.core) = (Phase::Flow(key), Some(core));
        }
        slot.local.store(Some(key.local()));
        slot.remote.store(Some(key.remote()));
        slot.error.store(0, Relaxed);
        slot.owner.store(1 + u32::from(core.0), Release);
        if half.role == Role::Passive {
            slot.state.store(SockState::Established as u32, Release);
        }
        let reno = slot.app_flags.load(Relaxed) & app_flags::RENO != 0;
        let Some(ids) = self.ids.get_mut(core.index()) else { return };
        let id = ids.take(key);
        let nic = &self.nics[half.nic].setup;
        let default_mss = if key.remote_ip.is_ipv4() { DEFAULT_MSS_V4 } else { DEFAULT_MSS_V6 };
        let mss = half.peer.mss.unwrap_or(default_mss).min(mss_for(nic.caps.mtu, key.remote_ip)).min(half.offer.mss);
        let mss = mss.max(MIN_SND_MSS);
        let snd_wscale = half.peer.wscale.filter(|_| half.scaling()).unwrap_or(0);
        let shift = if seg.has(flags::SYN) { 0 } else { snd_wscale };
        let flow = Flow {
            core,
            id,
            sock,
            nic: half.nic,
            next: half.next,
            iss: half.iss,
            mss,
            reuse: half.reuse,
            removing: false,
        };
        self.flows.insert(key, flow);
        let init = FlowInit {
            id,
            core,
            key,
            nic: nic.id,
            l2: half.l2.unwrap_or([0; ETH_LEN]),
            region,
            sock: sock.1,
            iss: half.iss,
            irs: half.irs.unwrap_or_default(),
            snd_wnd: u32::from(seg.window) << shift,
            snd_wscale,
            rcv_wscale: half.offer.wscale.filter(|_| half.scaling()).unwrap_or(0),
            snd_mss: mss,
            rcv_mss: half.offer.mss,
            sack: half.sack(),
            timestamps: half.timestamps(),
            early_data: Vec::new(),
            early_fin: false,
            rtt: half.rtt(now),
            syn_retransmitted: half.sent > 1,
            // `run` has sent it already.
            ack_due: false,
            congestion: if reno { CongestionControl::Reno } else { self.tcp.congestion },
        };
        self.down(core, Down::Install(Box::new(init)));
    }

    /// Wakes whoever waits for a socket.
    pub(crate) fn tell(&self, sock: SockRef) {
        let Some(r) = self.regions.get(&sock.0) else { return };
        if let Some(slot) = r.region.sock(sock.1) {
            notify::all(&r.region, sock.1, slot, &*self.waker);
        }
    }

    /// A flow has left the fast path.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn closed(
        &mut self,
        core: CoreId,
        id: FlowId,
        key: FlowKey,
        l2: [u8; ETH_LEN],
        how: CloseKind,
        now: Instant,
    ) {
        let known = self.flows.get(&key).is_some_and(|f| f.core == core && f.id == id);
        let Some(flow) = self.flows.remove(&key).filter(|_| known) else { return };
        if let Some(ids) = self.ids.get_mut(core.index()) {
            ids.give(id);
        }
        let waits = match how {
            CloseKind::TimeWait(tw) => {
                let room = self.time_wait.insert(now, key, tw, l2, flow.reuse);
                self.counters.time_waits += u64::from(room);
                self.counters.time_wait_overflow += u64::from(!room);
                room
            }
            CloseKind::PeerReset => {
                self.counters.estab_resets += 1;
                false
            }
            CloseKind::Done | CloseKind::Aborted => false,
        };
        if !waits {
            self.ports.connection_over(key.local_ip, key.local_port, flow.reuse);
        }
        let (region, sock) = flow.sock;
        if let Some(r) = self.regions.get_mut(&region) {
            r.uses = r.uses.saturating_sub(1);
            if let Some(s) = r.socks.get_mut(&sock) {
                s.phase = Phase::Closed;
            }
        }
        self.free_if_unheld(flow.sock);
        self.drop_region_if_done(region);
    }

    /// Ends a flow.
    pub(crate) fn remove_flow(&mut self, key: &FlowKey, errno: i32, reset: bool) {
        let Some(f) = self.flows.get_mut(key).filter(|f| !f.removing) else { return };
        f.removing = true;
        let (core, flow) = (f.core, f.id);
        self.down(core, Down::Remove { flow, errno, reset });
    }
}
