//! A connection between its first SYN and its hand-over: one smoltcp socket in a set of its own, and what we know better.
//!
//! smoltcp sees plain segments: no option but MSS, no payload, acknowledgment numbers in its own sequence space. What it
//! emits leaves with our initial sequence number (RFC 6528), our window and our options in Linux's order. Its timers are
//! not used: we retransmit by Linux's schedule.

use crate::ports::SockRef;
use crate::reply;
use crate::timers::TimerId;
use core::net::IpAddr;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::wire::{IpEndpoint, IpListenEndpoint};
use toe_core::flow::{FlowKey, TsInit};
use toe_core::wire::{ETH_LEN, Segment, TcpFields, TcpOptions, Timestamps, flags};
use toe_core::{CoreId, Duration, Instant, SeqNr};

/// smoltcp's buffers hold no payload; it only needs a window that is not zero.
const SMOL_BUFFER: usize = 64;

/// Who began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// connect(2): `owner` is the socket.
    Active,
    /// A listener: `owner` is the listener.
    Passive,
}

/// What we offer in our SYN or SYN-ACK.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    /// MSS option.
    pub mss: u16,
    /// Window scale option.
    pub wscale: Option<u8>,
    /// SACK permitted.
    pub sack: bool,
    /// Timestamps.
    pub timestamps: bool,
    /// Our TSval = milliseconds + this.
    pub ts_offset: u32,
    /// Receive buffer, bytes.
    pub rx_limit: u32,
    /// TTL or hop limit.
    pub ttl: u8,
    /// TOS or traffic class.
    pub tos: u8,
}

/// One handshake under way.
pub(crate) struct HalfOpen {
    pub key: FlowKey,
    pub role: Role,
    pub owner: SockRef,
    /// SO_REUSEADDR of the socket, for the port table.
    pub reuse: bool,
    /// Index of the link, and of smoltcp's interface on it.
    pub nic: usize,
    pub port: usize,
    /// Neighbour that the frames go to.
    pub next: IpAddr,
    pub core: CoreId,
    pub offer: Offer,
    pub iss: SeqNr,
    /// smoltcp's ISS, once it has sent its SYN.
    pub smol_iss: Option<SeqNr>,
    /// Their ISS and SYN options, once their SYN has come.
    pub irs: Option<SeqNr>,
    pub peer: TcpOptions,
    /// TS.Recent (RFC 7323 §4.3).
    pub ts_recent: u32,
    /// Ethernet header, once the neighbour is known.
    pub l2: Option<[u8; ETH_LEN]>,
    pub born: Instant,
    /// When the SYN (or SYN-ACK) last left, and how often it did.
    pub sent_at: Instant,
    pub sent: u32,
    pub max_retries: u32,
    /// A SYN-ACK was repeated for a duplicate SYN.
    pub repeated: bool,
    pub timer: Option<TimerId>,
    /// The socket at the other end, if it is one of ours: it learns that it is connected once we can be accepted, so that an
    /// accept(2) after its connect(2) finds us, as over the kernel's loopback.
    pub opener: Option<SockRef>,
    /// ICMP error seen meanwhile (errno).
    pub soft_error: i32,
    pub set: SocketSet<'static>,
    handle: SocketHandle,
}

/// What a new [`HalfOpen`] starts from.
pub(crate) struct Start {
    pub key: FlowKey,
    pub role: Role,
    pub owner: SockRef,
    pub reuse: bool,
    pub nic: usize,
    pub port: usize,
    pub next: IpAddr,
    pub core: CoreId,
    pub offer: Offer,
    pub iss: SeqNr,
    pub max_retries: u32,
}

impl HalfOpen {
    pub(crate) fn new(s: Start, now: Instant) -> HalfOpen {
        let buffer = || tcp::SocketBuffer::new(vec![0; SMOL_BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_ack_delay(None);
        let mut set = SocketSet::new(Vec::with_capacity(1));
        let handle = set.add(socket);
        HalfOpen {
            key: s.key,
            role: s.role,
            owner: s.owner,
            reuse: s.reuse,
            nic: s.nic,
            port: s.port,
            next: s.next,
            core: s.core,
            offer: s.offer,
            iss: s.iss,
            smol_iss: None,
            irs: None,
            peer: TcpOptions::default(),
            ts_recent: 0,
            l2: None,
            born: now,
            sent_at: now,
            sent: 0,
            max_retries: s.max_retries,
            repeated: false,
            timer: None,
            opener: None,
            soft_error: 0,
            set,
            handle,
        }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.set.get_mut(self.handle)
    }

    /// Lets smoltcp wait for the SYN. `false`: it refused.
    pub(crate) fn listen(&mut self) -> bool {
        let at = IpListenEndpoint { addr: Some(self.key.local_ip.into()), port: self.key.local_port };
        self.socket().listen(at).is_ok()
    }

    /// Lets smoltcp open the connection. `false`: it refused.
    pub(crate) fn connect(&mut self, cx: &mut smoltcp::iface::Context) -> bool {
        let local = IpListenEndpoint { addr: Some(self.key.local_ip.into()), port: self.key.local_port };
        let remote = IpEndpoint::new(self.key.remote_ip.into(), self.key.remote_port);
        self.socket().connect(cx, remote, local).is_ok()
    }

    /// Has smoltcp's state machine reached ESTABLISHED?
    pub(crate) fn established(&mut self) -> bool {
        self.socket().state() == tcp::State::Established
    }

    /// Their SYN: remember its numbers and options.
    pub(crate) fn take_syn(&mut self, seg: &Segment) {
        self.irs = Some(seg.seq);
        self.peer = seg.options.clone();
        self.ts_recent = seg.options.timestamps.map_or(0, |t| t.val);
    }

    /// Window scaling agreed (RFC 7323 §2.2: both sides sent the option)?
    pub(crate) fn scaling(&self) -> bool {
        self.offer.wscale.is_some() && self.peer.wscale.is_some()
    }

    /// Timestamps agreed?
    pub(crate) fn timestamps(&self) -> Option<TsInit> {
        let agreed = self.offer.timestamps && self.peer.timestamps.is_some();
        agreed.then_some(TsInit { recent: self.ts_recent, offset: self.offer.ts_offset })
    }

    /// SACK agreed?
    pub(crate) fn sack(&self) -> bool {
        self.offer.sack && self.peer.sack_permitted
    }

    /// RCV.NXT after their SYN.
    pub(crate) fn rcv_nxt(&self) -> SeqNr {
        self.irs.unwrap_or_default() + 1
    }

    /// Our TSval now.
    pub(crate) fn tsval(&self, now: Instant) -> u32 {
        (now.millis() as u32).wrapping_add(self.offer.ts_offset)
    }

    /// Our SYN, or SYN-ACK once theirs has come.
    pub(crate) fn syn(&self, now: Instant) -> TcpFields {
        let answer = self.irs.is_some();
        // RFC 7323 §2.2: the window of a SYN is never scaled.
        let window = self.offer.rx_limit.min(0xffff) as u16;
        let (ack, bits) = if answer { (self.rcv_nxt(), flags::SYN | flags::ACK) } else { (SeqNr(0), flags::SYN) };
        let mut f = reply::fields(self.key, self.iss, ack, bits, window);
        f.options.mss = Some(self.offer.mss);
        f.options.wscale = self.offer.wscale.filter(|_| !answer || self.peer.wscale.is_some());
        f.options.sack_permitted = self.offer.sack && (!answer || self.peer.sack_permitted);
        if self.offer.timestamps && (!answer || self.peer.timestamps.is_some()) {
            f.options.timestamps = Some(Timestamps { val: self.tsval(now), ecr: self.ts_recent });
        }
        (f.ttl, f.tos) = (self.offer.ttl, self.offer.tos);
        f
    }

    /// An empty acknowledgment of their SYN: the third segment of the handshake, or a challenge ACK (RFC 5961).
    pub(crate) fn ack(&self, now: Instant) -> TcpFields {
        let shift = self.offer.wscale.filter(|_| self.scaling()).unwrap_or(0);
        let window = (self.offer.rx_limit >> shift).min(0xffff) as u16;
        let mut f = reply::fields(self.key, self.iss + 1, self.rcv_nxt(), flags::ACK, window);
        f.options.timestamps = self.timestamps().map(|t| Timestamps { val: self.tsval(now), ecr: t.recent });
        (f.ttl, f.tos) = (self.offer.ttl, self.offer.tos);
        f
    }

    /// A received segment as smoltcp may see it: flags SYN and ACK, MSS, and its own acknowledgment number. `None`: it has sent
    /// nothing yet that could be acknowledged.
    pub(crate) fn plain(&self, seg: &Segment, mac: [u8; 6], l2: &[u8]) -> Option<Vec<u8>> {
        let bits = seg.flags & (flags::SYN | flags::ACK);
        let ack = match seg.has(flags::ACK) {
            false => SeqNr(0),
            true => SeqNr(seg.ack.0.wrapping_sub(self.iss.0).wrapping_add(self.smol_iss?.0)),
        };
        // Payload may have arrived ahead of it: smoltcp needs the next byte expected.
        let seq = if seg.has(flags::SYN) { seg.seq } else { self.rcv_nxt() };
        let mut f = reply::fields(seg.key.reversed(), seq, ack, bits, seg.window);
        f.options.mss = seg.options.mss.filter(|&m| m > 0 && seg.has(flags::SYN));
        let mut header = [0; ETH_LEN];
        header[..6].copy_from_slice(&mac);
        header[6..].copy_from_slice(l2.get(6..ETH_LEN)?);
        Some(reply::frame(&header, &f))
    }

    /// Round-trip time, if the SYN went out once (Karn).
    pub(crate) fn rtt(&self, now: Instant) -> Option<Duration> {
        (self.sent == 1 && !self.repeated).then(|| now.since(self.sent_at))
    }
}
