//! bind, listen, connect, with Linux's errno values. Everything read from the slot is untrusted: each word once.

use crate::engine::SlowPath;
use crate::errno::*;
use crate::half::{HalfOpen, Role, Start};
use crate::ports::{Bind, SockRef};
use crate::routes::{Hop, usable};
use crate::table::{Listener, Phase, Sock};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::collections::VecDeque;
use toe_core::flow::{FlowKey, is_shared};
use toe_core::shm::{ACCEPT_RING, MAX_LISTENERS, ReqOp, SLOW_WORKER, SockState, app_flags};
use toe_core::{Instant, SeqNr};

/// First port that needs no privilege (ip_unprivileged_port_start).
const FIRST_FREE_PORT: u16 = 1024;
/// Most SYN retransmissions (Linux: MAX_TCP_SYNCNT).
const MAX_SYNCNT: u32 = 127;

type Answer = Result<(), i32>;

impl SlowPath {
    /// Serves request `seq` of a socket and answers it.
    pub(crate) fn request(&mut self, at: SockRef, seq: u32, now: Instant) {
        let Some(r) = self.regions.get_mut(&at.0) else { return };
        let region = r.region.clone();
        let Some(slot) = region.sock(at.1) else { return };
        r.socks.entry(at.1).or_insert_with(|| Sock::new(Phase::Idle));
        let (op, arg) = (ReqOp::from_word(slot.req_op.load(Relaxed)), slot.req_arg.load(Relaxed));
        let addr = slot.req_addr.load().map(|a| SocketAddr::new(a.ip().to_canonical(), a.port()));
        let result = match op {
            _ if self.shutting_down => Err(ENETDOWN),
            Some(ReqOp::Bind) => addr.ok_or(EINVAL).and_then(|a| self.bind(at, a)),
            Some(ReqOp::Listen) => self.listen(at, addr, arg),
            Some(ReqOp::Connect) => addr.ok_or(EINVAL).and_then(|a| self.connect(at, a, now)),
            None => Err(EOPNOTSUPP),
        };
        self.counters.requests += 1;
        self.counters.requests_refused += u64::from(result.is_err());
        slot.answer_request(seq, result.err().unwrap_or(0));
        self.tell(at);
    }

    fn sock(&mut self, at: SockRef) -> Option<&mut Sock> {
        self.regions.get_mut(&at.0)?.socks.get_mut(&at.1)
    }

    fn phase(&self, at: SockRef) -> Phase {
        let sock = self.regions.get(&at.0).and_then(|r| r.socks.get(&at.1));
        sock.map_or(Phase::Closed, |s| s.phase)
    }

    fn app_flags(&self, at: SockRef) -> u32 {
        let slot = self.regions.get(&at.0).and_then(|r| r.region.sock(at.1));
        slot.map_or(0, |s| s.app_flags.load(Relaxed))
    }

    fn uid(&self, at: SockRef) -> u32 {
        self.regions.get(&at.0).map_or(u32::MAX, |r| r.owner.uid)
    }

    /// A reservation with the socket's options as they are now.
    fn bind_of(&self, at: SockRef, ip: IpAddr) -> Bind {
        let flags = self.app_flags(at);
        Bind {
            owner: at,
            ip,
            v6only: flags & app_flags::V6ONLY != 0,
            reuseaddr: flags & app_flags::REUSEADDR != 0,
            reuseport: (flags & app_flags::REUSEPORT != 0).then(|| self.uid(at)),
            listening: false,
        }
    }

    fn bind(&mut self, at: SockRef, addr: SocketAddr) -> Answer {
        if self.phase(at) != Phase::Idle || self.sock(at).is_none_or(|s| s.bound.is_some()) {
            return Err(EINVAL);
        }
        if !addr.ip().is_unspecified() && !self.routing.is_own(addr.ip()) {
            return Err(EADDRNOTAVAIL);
        }
        if addr.port() != 0 && addr.port() < FIRST_FREE_PORT && self.uid(at) != 0 {
            return Err(EACCES);
        }
        let bind = self.bind_of(at, addr.ip());
        let by_kernel = self.app_flags(at) & app_flags::KERNEL_BOUND != 0;
        let port = match addr.port() {
            0 => self.free_port(&bind).ok_or(EADDRINUSE)?,
            p if self.ports.conflicts(p, &bind, by_kernel) => return Err(EADDRINUSE),
            p => p,
        };
        self.ports.bind(port, bind);
        if let Some(s) = self.sock(at) {
            s.bound = Some((addr.ip(), port));
        }
        if let Some(slot) = self.regions.get(&at.0).and_then(|r| r.region.sock(at.1)) {
            slot.local.store(Some(SocketAddr::new(addr.ip(), port)));
            slot.state.store(SockState::Bound as u32, Release);
        }
        Ok(())
    }

    /// Ports of the ephemeral range, beginning behind the last one given out, `offset` further (RFC 6056 §3.3.3).
    fn ephemeral(&self, offset: u32) -> impl Iterator<Item = (u32, u16)> + use<> {
        let (lo, hi) = self.tcp.port_range;
        let (lo, hi) = (lo.min(hi).max(1), hi.max(lo).max(1));
        let count = u32::from(hi - lo) + 1;
        let begin = self.next_ephemeral.wrapping_add(offset) % count;
        (0..count).map(move |i| (i, lo + ((begin + i) % count) as u16))
    }

    /// A port for bind(port 0).
    fn free_port(&mut self, bind: &Bind) -> Option<u16> {
        let offset = self.secret.port_offset(bind.ip, bind.ip, 0);
        // Linux likewise never shares a port it chooses itself for bind.
        let alone = Bind { reuseaddr: false, reuseport: None, ..bind.clone() };
        let (tried, port) = self.ephemeral(offset).find(|&(_, p)| !self.ports.conflicts(p, &alone, false))?;
        self.next_ephemeral = self.next_ephemeral.wrapping_add(tried + 1);
        Some(port)
    }

    fn listen(&mut self, at: SockRef, family: Option<SocketAddr>, backlog: u32) -> Answer {
        let backlog = backlog.min(self.tcp.somaxconn).min(ACCEPT_RING as u32 - 1);
        match self.phase(at) {
            Phase::Listening => {
                if let Some(l) = self.listeners.get_mut(&at) {
                    l.backlog = backlog;
                }
                return Ok(());
            }
            Phase::Idle => {}
            _ => return Err(EINVAL),
        }
        let r = self.regions.get(&at.0).ok_or(EINVAL)?;
        let slot = r.region.sock(at.1).ok_or(EINVAL)?;
        let ring = slot.accept_ring.load(Relaxed);
        let taken = self.listeners.iter().any(|(s, l)| s.0 == at.0 && l.ring == ring);
        if ring as usize >= MAX_LISTENERS || taken {
            return Err(EINVAL);
        }
        if self.sock(at).is_some_and(|s| s.bound.is_none()) {
            let any = match family.map(|f| f.ip()) {
                Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            };
            self.bind(at, SocketAddr::new(any, 0))?;
        }
        let (ip, port) = self.sock(at).and_then(|s| s.bound).ok_or(EINVAL)?;
        let bind = self.bind_of(at, ip);
        if self.ports.conflicts(port, &bind, true) {
            return Err(EADDRINUSE);
        }
        self.ports.unbind(port, at);
        self.ports.bind(port, Bind { listening: true, ..bind });
        self.start_listening(at, ip, port, backlog, ring);
        self.publish_port(port);
        Ok(())
    }

    fn start_listening(&mut self, at: SockRef, ip: IpAddr, port: u16, backlog: u32, ring: u32) {
        let Some(r) = self.regions.get_mut(&at.0) else { return };
        let Some(shared) = r.region.layout().rings.get(ring as usize) else { return };
        let tail = shared.head.load(Acquire);
        shared.tail.store(tail, Release);
        let half = hashbrown::HashSet::with_hasher(self.secret);
        self.listeners.insert(at, Listener { ip, port, backlog, ring, tail, untaken: VecDeque::new(), half });
        if let Some(s) = r.socks.get_mut(&at.1) {
            s.phase = Phase::Listening;
        }
        if let Some(slot) = r.region.sock(at.1) {
            slot.owner.store(SLOW_WORKER, Relaxed);
            slot.state.store(SockState::Listening as u32, Release);
        }
    }

    fn connect(&mut self, at: SockRef, to: SocketAddr, now: Instant) -> Answer {
        match self.phase(at) {
            Phase::Idle => {}
            Phase::Connecting(_) => return Err(EALREADY),
            Phase::Listening | Phase::Flow(_) | Phase::Closed => return Err(EISCONN),
        }
        let bound = self.sock(at).and_then(|s| s.bound);
        let source = bound.map(|b| b.0).filter(|ip| !ip.is_unspecified());
        // A socket bound to 0.0.0.0 or an IPv4 address cannot reach IPv6; `::` reaches both unless V6ONLY.
        let v6only = self.app_flags(at) & app_flags::V6ONLY != 0;
        if bound.is_some_and(|b| b.0.is_ipv4() != to.is_ipv4() && !(b.0.is_ipv6() && b.0.is_unspecified() && !v6only)) {
            return Err(EINVAL);
        }
        if !usable(to.ip()) {
            return Err(ENETUNREACH);
        }
        // The one case of this errno as an answer: nothing was sent, the kernel may have the listener.
        if is_shared(to.ip()) && self.ports.listener(to.ip(), to.port(), |_| 0).is_none_or(|l| !self.trusts(at, l)) {
            return Err(ECONNREFUSED);
        }
        let hop = self.routing.find(to.ip(), source, |n| self.nics[n].setup.up).ok_or(ENETUNREACH)?;
        let (port, floor) = self.local_port(at, &hop, to, bound.map(|b| b.1), now)?;
        let key = FlowKey { local_ip: hop.src, remote_ip: to.ip(), local_port: port, remote_port: to.port() };
        self.open_active(at, key, hop, floor, now)
    }

    /// May `client` be led to `listener` at an address that engine and kernel share? There anyone could stand in the way of
    /// somebody else's kernel socket, so only to a listener of its own user or of root.
    pub(crate) fn trusts(&self, client: SockRef, listener: SockRef) -> bool {
        let uid = self.uid(listener);
        self.regions.contains_key(&listener.0) && (uid == 0 || uid == self.uid(client))
    }

    /// The local port of a connection, and the least ISN if its 4-tuple is still in TIME-WAIT.
    fn local_port(
        &mut self,
        at: SockRef,
        hop: &Hop,
        to: SocketAddr,
        bound: Option<u16>,
        now: Instant,
    ) -> Result<(u16, Option<SeqNr>), i32> {
        if to.port() == 0 {
            return Err(EADDRNOTAVAIL);
        }
        let key = |local_port| FlowKey { local_ip: hop.src, remote_ip: to.ip(), local_port, remote_port: to.port() };
        let in_use = |s: &SlowPath, k: &FlowKey| s.flows.contains_key(k) || s.half.contains_key(k);
        let over = |s: &SlowPath, k: &FlowKey| match s.time_wait.contains(k) {
            false => Some(None),
            true => s.time_wait.reusable(k, now).map(Some),
        };
        if let Some(port) = bound {
            if in_use(self, &key(port)) {
                return Err(EADDRNOTAVAIL);
            }
            return over(self, &key(port)).map(|floor| (port, floor)).ok_or(EADDRNOTAVAIL);
        }
        let _ = at;
        let offset = self.secret.port_offset(hop.src, to.ip(), to.port());
        let free = |p: u16| !self.ports.reserved(p) && !in_use(self, &key(p));
        // First a port without a past, then one whose TIME-WAIT may be cut short (RFC 6191).
        let clean = self.ephemeral(offset).find(|&(_, p)| free(p) && !self.time_wait.contains(&key(p)));
        let found = clean.map(|(tried, p)| (tried, p, None)).or_else(|| {
            let mut all = self.ephemeral(offset).filter(|&(_, p)| free(p));
            all.find_map(|(tried, p)| Some((tried, p, Some(self.time_wait.reusable(&key(p), now)?))))
        });
        let (tried, port, floor) = found.ok_or(EADDRNOTAVAIL)?;
        self.next_ephemeral = self.next_ephemeral.wrapping_add(tried + 1);
        Ok((port, floor))
    }

    fn open_active(&mut self, at: SockRef, key: FlowKey, hop: Hop, floor: Option<SeqNr>, now: Instant) -> Answer {
        let port = self.nics[hop.nic].port_of(key.local_ip).ok_or(ENETUNREACH)?;
        let (offer, reuse) = self.offer(at, hop.nic, &key).ok_or(EINVAL)?;
        let iss = self.isn(&key, floor, now);
        let r = self.regions.get(&at.0).ok_or(EINVAL)?;
        let region = r.region.clone();
        let slot = region.sock(at.1).ok_or(EINVAL)?;
        let max_retries = match slot.opt_syncnt.load(Relaxed) {
            0 => self.tcp.syn_retries,
            n => n.min(MAX_SYNCNT),
        };
        let core = self.core_for(&key);
        let (nic, next, owner, role) = (hop.nic, hop.next, at, Role::Active);
        let start = Start { key, role, owner, reuse, nic, port, next, core, offer, iss, max_retries };
        let mut half = Box::new(HalfOpen::new(start, now));
        if !self.nics[nic].connect(&mut half) {
            return Err(EADDRNOTAVAIL);
        }
        self.recycle_time_wait(&key);
        self.begin(&half);
        self.set_limits(slot);
        slot.error.store(0, Relaxed);
        slot.local.store(Some(key.local()));
        slot.remote.store(Some(key.remote()));
        slot.state.store(SockState::Connecting as u32, Release);
        if let Some(s) = self.sock(at) {
            s.phase = Phase::Connecting(key);
        }
        self.run(&mut half, None, now);
        self.keep(half, now);
        Ok(())
    }
}
