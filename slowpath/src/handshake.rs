//! A half-open connection: smoltcp runs the state machine, we own what stands on the wire.
//!
//! smoltcp never sees the real segments. Coming in, each is rebuilt plain (no options but MSS) with the acknowledgment
//! number moved into smoltcp's numbering; going out, smoltcp's segment only says *which* segment to send, and ours is built
//! with RFC 6528 numbers and the options in Linux's order. Retransmission and giving up are ours as well: smoltcp
//! is polled when a segment has come or a neighbour was found, never by time.

use crate::link::Link;
use core::net::IpAddr;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use toe_core::flow::{FlowKey, TsInit};
use toe_core::tcp::TcpConfig;
use toe_core::wire::{self, Segment, TcpFields, TcpOptions, Timestamps, flags};
use toe_core::{CoreId, Instant, RegionId, SeqNr, SockId};

/// Options of one side's SYN, and what became of ours.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Options of the peer's SYN or SYN-ACK.
    pub options: TcpOptions,
    /// Initial sequence number.
    pub irs: SeqNr,
    /// Window of its last segment, scaled.
    pub window: u32,
    /// Source of its frames.
    pub mac: [u8; 6],
}

/// Who waits for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// A socket that called connect.
    Active(RegionId, SockId),
    /// A listener.
    Passive(RegionId, SockId),
}

/// One half-open connection.
pub struct HalfOpen {
    /// 4-tuple.
    pub key: FlowKey,
    /// Index of the link.
    pub link: usize,
    /// For whom.
    pub opener: Opener,
    /// Core that the peer's segments arrive at.
    pub core: CoreId,
    /// The peer's SYN, once seen.
    pub peer: Option<Peer>,
    /// Ethernet header of our frames, once a neighbour is known.
    pub l2: Option<[u8; 14]>,
    /// Our initial sequence number.
    pub iss: SeqNr,
    /// Our SYN or SYN-ACK, as smoltcp last asked for it: flags.
    pub syn_flags: u8,
    /// SYNs or SYN-ACKs sent.
    pub sent: u32,
    /// When the last left.
    pub sent_at: Instant,
    /// When to send again or give up.
    pub deadline: Instant,
    /// Neighbour requests so far.
    pub arp_tries: u32,
    /// Error for the app should we give up (from ICMP).
    pub soft_error: i32,
    offered: TcpOptions,
    window: u16,
    ts_offset: u32,
    ttl: u8,
    tos: u8,
    smol_iss: Option<SeqNr>,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

/// What a half-open connection starts with.
pub struct Start {
    /// 4-tuple.
    pub key: FlowKey,
    /// Index of the link.
    pub link: usize,
    /// For whom.
    pub opener: Opener,
    /// Core.
    pub core: CoreId,
    /// Our initial sequence number.
    pub iss: SeqNr,
    /// Timestamp offset.
    pub ts_offset: u32,
    /// MSS we announce.
    pub mss: u16,
    /// Receive buffer.
    pub rcvbuf: u32,
    /// IP_TTL.
    pub ttl: u8,
    /// IP_TOS.
    pub tos: u8,
}

impl HalfOpen {
    /// Opens (towards `key.remote`) or waits for the peer's SYN.
    pub fn new(tcp_config: &TcpConfig, link: &mut Link, start: Start, now: Instant) -> Option<HalfOpen> {
        let buffer = || tcp::SocketBuffer::new(vec![0; 64]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        let key = start.key;
        match start.opener {
            Opener::Active(..) => {
                let local = (smol_ip(key.local_ip), key.local_port);
                socket.connect(link.iface.context(), (smol_ip(key.remote_ip), key.remote_port), local).ok()?;
            }
            Opener::Passive(..) => socket.listen((smol_ip(key.local_ip), key.local_port)).ok()?,
        }
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        let offered = TcpOptions {
            mss: Some(start.mss),
            wscale: tcp_config.window_scaling.then(|| tcp_config.rcv_wscale()),
            sack_permitted: tcp_config.sack,
            timestamps: tcp_config.timestamps.then(Timestamps::default),
            ..Default::default()
        };
        Some(HalfOpen {
            key,
            link: start.link,
            opener: start.opener,
            core: start.core,
            peer: None,
            l2: None,
            iss: start.iss,
            syn_flags: 0,
            sent: 0,
            sent_at: now,
            deadline: now,
            arp_tries: 0,
            soft_error: 0,
            offered,
            window: start.rcvbuf.min(0xffff) as u16,
            ts_offset: start.ts_offset,
            ttl: start.ttl,
            tos: start.tos,
            smol_iss: None,
            sockets,
            handle,
        })
    }

    /// smoltcp's state.
    pub fn state(&mut self) -> tcp::State {
        self.sockets.get_mut::<tcp::Socket>(self.handle).state()
    }

    /// Gives smoltcp the segment (`None`: lets it send) and returns the frames that leave.
    pub fn poll(&mut self, link: &mut Link, now: Instant, seg: Option<&Segment>) -> Vec<Vec<u8>> {
        let frame = seg.map(|seg| self.inward(link, seg));
        let out = link.poll(now, frame.as_deref(), &mut self.sockets);
        out.into_iter().filter_map(|frame| self.outward(now, frame)).collect()
    }

    /// A received segment as smoltcp is to see it: no options but MSS, no data, no FIN, its own numbering.
    fn inward(&self, link: &Link, seg: &Segment) -> Vec<u8> {
        let delta = self.smol_iss.map_or(0, |smol| smol - self.iss);
        let syn = seg.has(flags::SYN);
        let fields = TcpFields {
            key: seg.key.reversed(),
            seq: seg.seq,
            ack: seg.ack + delta,
            flags: seg.flags & (flags::SYN | flags::ACK | flags::RST),
            window: seg.window,
            urgent: 0,
            options: TcpOptions { mss: syn.then(|| seg.options.mss.unwrap_or(536)), ..Default::default() },
            ttl: seg.ttl.max(1),
            tos: 0,
            ident: 0,
        };
        let mac = self.peer.as_ref().map_or([2, 0, 0, 0, 0, 0], |p| p.mac);
        let l2 = ethernet(link.caps.mac, mac, seg.key.local_ip);
        wire::emit(&l2, &fields, &[], false).as_slice().to_vec()
    }

    /// What smoltcp sends, as it goes out. ARP, NDP and the like pass; the ACK that ends an active open is left to the
    /// fast path.
    fn outward(&mut self, now: Instant, frame: Vec<u8>) -> Option<Vec<u8>> {
        let Ok(seg) = wire::parse(&frame) else { return Some(frame) };
        let l2: [u8; 14] = frame[..14].try_into().ok()?;
        self.l2 = Some(l2);
        if seg.has(flags::SYN) {
            self.smol_iss = Some(seg.seq);
            self.syn_flags = seg.flags & (flags::SYN | flags::ACK);
            return self.syn(now);
        }
        if seg.has(flags::RST) {
            let seq = seg.seq + self.smol_iss.map_or(0, |smol| self.iss - smol);
            return Some(self.segment(&l2, now, seq, seg.flags & (flags::RST | flags::ACK), seg.ack, false));
        }
        None
    }

    /// Our SYN or SYN-ACK, anew.
    pub fn syn(&mut self, now: Instant) -> Option<Vec<u8>> {
        let l2 = self.l2?;
        self.sent += 1;
        self.sent_at = now;
        let ack = self.peer.as_ref().map_or(SeqNr(0), |p| p.irs + 1);
        let ack = if self.syn_flags & flags::ACK != 0 { ack } else { SeqNr(0) };
        Some(self.segment(&l2, now, self.iss, self.syn_flags, ack, true))
    }

    fn segment(&self, l2: &[u8; 14], now: Instant, seq: SeqNr, fl: u8, ack: SeqNr, syn: bool) -> Vec<u8> {
        let fields = TcpFields {
            key: self.key,
            seq,
            ack,
            flags: fl,
            window: if syn { self.window } else { 0 },
            urgent: 0,
            options: if syn { self.syn_options(now) } else { TcpOptions::default() },
            ttl: self.ttl,
            tos: self.tos,
            ident: self.sent as u16,
        };
        wire::emit(l2, &fields, &[], false).as_slice().to_vec()
    }

    /// What we offer; in a SYN-ACK only what the peer has offered too (RFC 7323 §2.2, §3.2; RFC 2018 §2).
    fn syn_options(&self, now: Instant) -> TcpOptions {
        let mut options = self.offered.clone();
        let theirs = self.peer.as_ref().filter(|_| self.syn_flags & flags::ACK != 0).map(|p| &p.options);
        if let Some(theirs) = theirs {
            options.wscale = options.wscale.filter(|_| theirs.wscale.is_some());
            options.sack_permitted &= theirs.sack_permitted;
            options.timestamps = options.timestamps.filter(|_| theirs.timestamps.is_some());
        }
        if let Some(ts) = &mut options.timestamps {
            ts.val = (now.millis() as u32).wrapping_add(self.ts_offset);
            ts.ecr = theirs.and_then(|t| t.timestamps).map_or(0, |t| t.val);
        }
        options
    }

    /// What both sides have agreed on: peer's scale, our scale, SACK, timestamps, MSS to send.
    pub fn agreed(&self, link_mss: u16) -> Agreed {
        let none = TcpOptions::default();
        let theirs = self.peer.as_ref().map_or(&none, |p| &p.options);
        let (snd_wscale, rcv_wscale) = match (self.offered.wscale, theirs.wscale) {
            (Some(ours), Some(theirs)) => (theirs, ours),
            _ => (0, 0),
        };
        let timestamps = self.offered.timestamps.and(theirs.timestamps);
        Agreed {
            snd_wscale,
            rcv_wscale,
            sack: self.offered.sack_permitted && theirs.sack_permitted,
            timestamps: timestamps.map(|t| TsInit { recent: t.val, offset: self.ts_offset }),
            // RFC 9293 §3.7.1: 536 (IPv4) or 1220 (IPv6) without the option.
            snd_mss: theirs.mss.unwrap_or(if self.key.local_ip.is_ipv4() { 536 } else { 1220 }).min(link_mss).max(64),
            rcv_mss: self.offered.mss.unwrap_or(link_mss),
        }
    }
}

/// See [`HalfOpen::agreed`].
#[allow(missing_docs)]
pub struct Agreed {
    pub snd_wscale: u8,
    pub rcv_wscale: u8,
    pub sack: bool,
    pub timestamps: Option<TsInit>,
    pub snd_mss: u16,
    pub rcv_mss: u16,
}

/// An Ethernet header for `ip`'s family.
pub fn ethernet(dst: [u8; 6], src: [u8; 6], ip: IpAddr) -> [u8; 14] {
    let mut l2 = [0; 14];
    l2[..6].copy_from_slice(&dst);
    l2[6..12].copy_from_slice(&src);
    let ethertype = if ip.is_ipv4() { wire::ETHERTYPE_IPV4 } else { wire::ETHERTYPE_IPV6 };
    l2[12..].copy_from_slice(&ethertype.to_be_bytes());
    l2
}

fn smol_ip(ip: IpAddr) -> smoltcp::wire::IpAddress {
    ip.into()
}
