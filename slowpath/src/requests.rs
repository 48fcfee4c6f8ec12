//! What apps ask for: bind, listen, connect, and letting go. Every word of a slot is untrusted and read once.

use crate::SlowPath;
use crate::handshake::{HalfOpen, Opener, Start};
use crate::link::contains;
use crate::ports::Binding;
use crate::sockets::{Kind, Sock, is_held};
use core::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use toe_core::flow::FlowKey;
use toe_core::msg::Down;
use toe_core::notify;
use toe_core::shm::{MAX_LISTENERS, ReqOp, SockSlot, SockState, app_flags};
use toe_core::{CoreId, Instant, RegionId, SockId};

type Errno = i32;

impl SlowPath {
    /// A socket was kicked, or somebody let go of it.
    pub fn look_at(&mut self, now: Instant, id: RegionId, sock: SockId) {
        let Some(entry) = self.regions.get_mut(&id) else { return };
        let region = entry.region.clone();
        let Some(slot) = region.sock(sock) else { return };
        if slot.state.load(Acquire) == SockState::Free as u32 {
            return;
        }
        let s = entry.socks.entry(sock).or_insert(Sock { kind: Kind::Idle, bound: None, answered: 0, core: None });
        let seq = slot.req_seq.load(Acquire);
        if seq != s.answered {
            s.answered = seq;
            let errno = self.request(now, id, sock, slot).err().unwrap_or(0);
            slot.resp_err.store(errno as u32, Relaxed);
            slot.resp_seq.store(seq, Release);
            notify::all(&region, sock, slot, &*self.waker);
        }
        if !is_held(sock, slot) {
            self.release_if_unheld(now, id, sock);
        } else if let Some(Kind::Flow(key)) = self.regions.get(&id).and_then(|e| e.socks.get(&sock)).map(|s| s.kind)
            && let Some(flow) = self.flows.get(&key)
        {
            self.downs[flow.core.index()].send(Down::Kick { region: id, sock });
        }
    }

    fn request(&mut self, now: Instant, id: RegionId, sock: SockId, slot: &SockSlot) -> Result<(), Errno> {
        if self.shutting_down {
            return Err(libc::ENETDOWN);
        }
        let flags = slot.app_flags.load(Acquire);
        let kind = self.kind(id, sock);
        match ReqOp::from_word(slot.req_op.load(Relaxed)).ok_or(libc::EINVAL)? {
            ReqOp::Bind => {
                let addr = slot.req_addr.load().ok_or(libc::EINVAL)?;
                if kind != Kind::Idle || slot.state.load(Relaxed) != SockState::New as u32 {
                    return Err(libc::EINVAL);
                }
                self.bind(id, sock, slot, addr, flags)?;
                slot.state.store(SockState::Bound as u32, Release);
                Ok(())
            }
            ReqOp::Listen => self.listen(id, sock, slot, kind, flags),
            ReqOp::Connect => {
                let addr = slot.req_addr.load().ok_or(libc::EINVAL)?;
                match kind {
                    Kind::Connecting(_) => Err(libc::EALREADY),
                    Kind::Flow(_) | Kind::Listening { .. } => Err(libc::EISCONN),
                    Kind::Idle | Kind::Bound => self.connect(now, id, sock, slot, addr, flags),
                }
            }
        }
    }

    fn kind(&self, id: RegionId, sock: SockId) -> Kind {
        self.regions.get(&id).and_then(|e| e.socks.get(&sock)).map_or(Kind::Idle, |s| s.kind)
    }

    fn set_kind(&mut self, id: RegionId, sock: SockId, kind: Kind) {
        if let Some(s) = self.regions.get_mut(&id).and_then(|e| e.socks.get_mut(&sock)) {
            s.kind = kind;
        }
    }

    fn bind(&mut self, id: RegionId, sock: SockId, slot: &SockSlot, addr: SocketAddr, flags: u32) -> Result<(), Errno> {
        if !addr.ip().is_unspecified() && !self.is_ours(addr.ip()) {
            return Err(libc::EADDRNOTAVAIL);
        }
        let uid = self.regions.get(&id).map_or(u32::MAX, |e| e.owner.uid);
        if (1..1024).contains(&addr.port()) && uid != 0 && !addr.ip().is_loopback() {
            return Err(libc::EACCES);
        }
        let binding =
            |port| Binding { addr: SocketAddr::new(addr.ip(), port), region: id, sock, flags, listening: false };
        let port = match addr.port() {
            0 => {
                let offset = self.secret.port_offset(addr.ip(), addr.ip(), sock.0 as u16);
                self.ephemeral(offset, |s, port| !s.ports.is_bound(port) && s.ports.bind(binding(port)))
                    .ok_or(libc::EADDRINUSE)?
            }
            port if self.ports.bind(binding(port)) => port,
            _ => return Err(libc::EADDRINUSE),
        };
        let addr = SocketAddr::new(addr.ip(), port);
        slot.local.store(Some(addr));
        if let Some(s) = self.regions.get_mut(&id).and_then(|e| e.socks.get_mut(&sock)) {
            s.bound = Some(addr);
            s.kind = Kind::Bound;
        }
        Ok(())
    }

    /// The first port that `take` accepts, from a secret place on (RFC 6056 §3.3.3).
    fn ephemeral(&mut self, offset: u32, mut take: impl FnMut(&mut SlowPath, u16) -> bool) -> Option<u16> {
        let (low, high) = self.tcp.port_range;
        let count = u32::from(high.saturating_sub(low)) + 1;
        for _ in 0..count {
            self.next_port = self.next_port.wrapping_add(1);
            let port = low + (offset.wrapping_add(self.next_port) % count) as u16;
            if take(self, port) {
                return Some(port);
            }
        }
        None
    }

    fn listen(&mut self, id: RegionId, sock: SockId, slot: &SockSlot, kind: Kind, flags: u32) -> Result<(), Errno> {
        let backlog = slot.req_arg.load(Relaxed).clamp(1, self.tcp.somaxconn.clamp(1, 65_535));
        match kind {
            Kind::Listening { ring, tail, .. } => {
                self.set_kind(id, sock, Kind::Listening { ring, tail, backlog });
                return Ok(());
            }
            Kind::Idle => self.bind(id, sock, slot, SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0), flags)?,
            Kind::Bound => {}
            Kind::Connecting(_) | Kind::Flow(_) => return Err(libc::EINVAL),
        }
        let ring = slot.accept_ring.load(Relaxed);
        let taken = |e: &crate::sockets::RegionEntry| {
            e.socks.values().any(|s| matches!(s.kind, Kind::Listening { ring: r, .. } if r == ring))
        };
        if ring as usize >= MAX_LISTENERS || self.regions.get(&id).is_none_or(taken) {
            return Err(libc::EINVAL);
        }
        let port = slot.local.load().ok_or(libc::EINVAL)?.port();
        if !self.ports.listen(id, sock, port, flags) {
            return Err(libc::EADDRINUSE);
        }
        if let Some(r) = self.regions.get(&id).and_then(|e| e.ring(ring)) {
            r.head.store(0, Relaxed);
            r.tail.store(0, Release);
        }
        self.set_kind(id, sock, Kind::Listening { ring, tail: 0, backlog });
        slot.state.store(SockState::Listening as u32, Release);
        Ok(())
    }

    fn connect(
        &mut self,
        now: Instant,
        id: RegionId,
        sock: SockId,
        slot: &SockSlot,
        mut remote: SocketAddr,
        flags: u32,
    ) -> Result<(), Errno> {
        if remote.ip().is_unspecified() || remote.port() == 0 || remote.ip().is_multicast() {
            return Err(if remote.port() == 0 { libc::ECONNREFUSED } else { libc::ENETUNREACH });
        }
        let (link, source) = self.route(remote.ip()).ok_or(libc::ENETUNREACH)?;
        remote.set_port(remote.port());
        let bound = self.regions.get(&id).and_then(|e| e.socks.get(&sock)).and_then(|s| s.bound);
        let local_ip = bound.map(|b| b.ip()).filter(|ip| !ip.is_unspecified()).unwrap_or(source);
        if local_ip.is_ipv4() != remote.is_ipv4() {
            return Err(libc::EINVAL);
        }
        let key = |port| FlowKey { local_ip, remote_ip: remote.ip(), local_port: port, remote_port: remote.port() };
        let port = match bound {
            Some(b) if !self.is_used(&key(b.port()), flags) => b.port(),
            Some(_) => return Err(libc::EADDRNOTAVAIL),
            None => {
                let offset = self.secret.port_offset(local_ip, remote.ip(), remote.port());
                self.ephemeral(offset, |s, port| !s.ports.is_bound(port) && !s.is_used(&key(port), 0))
                    .ok_or(libc::EADDRNOTAVAIL)?
            }
        };
        let key = key(port);
        self.forget_time_wait(&key);
        slot.local.store(Some(key.local()));
        slot.remote.store(Some(remote));
        let start = self.start(link, key, Opener::Active(id, sock), slot, now);
        let mut half = HalfOpen::new(&self.tcp, &mut self.links[link], start, now).ok_or(libc::EADDRNOTAVAIL)?;
        slot.error.store(0, Relaxed);
        slot.state.store(SockState::Connecting as u32, Release);
        self.set_kind(id, sock, Kind::Connecting(key));
        let frames = half.poll(&mut self.links[link], now, None);
        self.ports.use_addr(key.local());
        self.send_frames(half.core, link, frames);
        self.add_half_open(now, half);
        Ok(())
    }

    /// What every half-open connection is made of.
    pub fn start(&self, link: usize, key: FlowKey, opener: Opener, slot: &SockSlot, now: Instant) -> Start {
        let asked = slot.opt_maxseg.load(Relaxed);
        let mss = self.links[link].mss(key.remote_ip);
        let ttl = slot.opt_ttl.load(Relaxed);
        Start {
            key,
            link,
            opener,
            core: CoreId((key.link_hash() as usize % self.downs.len()) as u8),
            iss: self.secret.isn(&key, now),
            ts_offset: self.secret.ts_offset(&key),
            mss: if asked == 0 { mss } else { mss.min(asked.clamp(88, 65_535) as u16) },
            rcvbuf: slot.rx_limit.load(Relaxed),
            ttl: if ttl == 0 { 64 } else { ttl.min(255) as u8 },
            tos: slot.opt_tos.load(Relaxed) as u8 & !3,
        }
    }

    /// Is the 4-tuple taken? TIME-WAIT counts only if its timestamps do not protect a new incarnation (RFC 6191).
    fn is_used(&self, key: &FlowKey, flags: u32) -> bool {
        let waits = self
            .time_wait
            .get(key)
            .is_some_and(|e| e.tw.timestamps.is_none() || flags & app_flags::REUSEADDR == 0 && !self.tcp.timestamps);
        self.flows.contains_key(key) || self.half_open.contains_key(key) || waits
    }

    /// One of our addresses?
    pub fn is_ours(&self, ip: IpAddr) -> bool {
        self.links.iter().any(|l| l.addrs.iter().any(|a| a.0 == ip))
    }

    /// Link and source address towards `ip`: ourselves, a link's own network, a route; the longest prefix wins.
    pub fn route(&self, ip: IpAddr) -> Option<(usize, IpAddr)> {
        if self.is_ours(ip) {
            let local = self.links.iter().position(|l| l.local)?;
            return Some((local, ip));
        }
        let direct = |ip: IpAddr| {
            let nets = self.links.iter().enumerate().filter(|(_, l)| !l.local);
            nets.flat_map(|(i, l)| l.addrs.iter().map(move |&a| (i, a)))
                .filter(|&(_, a)| contains(a, ip))
                .max_by_key(|(_, a)| a.1)
                .map(|(i, a)| (i, a.0))
        };
        direct(ip).or_else(|| {
            let best = self.routes.iter().filter(|r| contains(r.prefix, ip)).max_by_key(|r| r.prefix.1)?;
            direct(best.via)
        })
    }
}
