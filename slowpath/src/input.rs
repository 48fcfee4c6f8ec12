//! Frames that no fast path core could place: our demultiplexer. Installed flows first, then half-open connections,
//! TIME-WAIT, listeners; what belongs nowhere is refused with RST. All but TCP is smoltcp's.

use crate::SlowPath;
use crate::handshake::{HalfOpen, Opener, Peer, ethernet};
use crate::sockets::Kind;
use crate::time_wait::Answer;
use smoltcp::iface::SocketSet;
use smoltcp::socket::tcp::State;
use std::sync::atomic::Ordering::Relaxed;
use toe_core::flow::FlowKey;
use toe_core::msg::Down;
use toe_core::nic::{RxCsum, RxMeta};
use toe_core::wire::{self, ParseError, Segment, TcpFields, TcpOptions, flags};
use toe_core::{CoreId, Duration, Instant, NicId};

impl SlowPath {
    /// `Up::Punt`.
    pub fn frame(&mut self, now: Instant, core: CoreId, nic: NicId, frame: Vec<u8>, meta: RxMeta) {
        let Some(link) = self.links.iter().position(|l| l.id == nic) else { return };
        let seg = match wire::parse(&frame) {
            Ok(seg) => seg,
            Err(ParseError::NotTcp) => return self.other_frame(now, core, link, &frame),
            Err(ParseError::Malformed) => {
                self.counters.in_errs += 1;
                return;
            }
        };
        if meta.csum == RxCsum::Unchecked && !wire::verify_checksum(&frame, &seg) {
            self.counters.in_errs += 1;
            return;
        }
        if !self.is_ours(seg.key.local_ip) {
            self.counters.not_ours += 1;
            return;
        }
        if let Some(flow) = self.flows.get(&seg.key) {
            let down = Down::Inject { nic, frame, meta };
            self.downs[flow.core.index()].send(down);
        } else if self.half_open.contains_key(&seg.key) {
            self.half_open_segment(now, core, link, frame, meta, &seg);
        } else {
            self.unknown_segment(now, core, link, &frame, &seg);
        }
    }

    /// ARP, NDP, ICMP: smoltcp answers; ICMP errors concern our connections as well.
    fn other_frame(&mut self, now: Instant, core: CoreId, link: usize, frame: &[u8]) {
        self.icmp_error(now, frame);
        let out = self.links[link].poll(now, Some(frame), &mut SocketSet::new(Vec::new()));
        self.send_frames(core, link, out);
        self.retry_neighbours(now, link);
    }

    /// Somebody may have become known: connections that wait for a neighbour try again.
    fn retry_neighbours(&mut self, now: Instant, link: usize) {
        let waiting: Vec<FlowKey> = self.unresolved.iter().copied().collect();
        for key in waiting {
            let Some(half) = self.half_open.get_mut(&key).filter(|h| h.link == link) else { continue };
            let frames = half.poll(&mut self.links[link], now, None);
            let core = half.core;
            self.resolved(now, &key);
            self.send_frames(core, link, frames);
        }
    }

    /// A connection's first SYN may have left: then its time starts.
    pub fn resolved(&mut self, now: Instant, key: &FlowKey) {
        let Some(half) = self.half_open.get_mut(key) else { return };
        if half.l2.is_some() && half.sent > 0 && self.unresolved.remove(key) {
            half.deadline = now + Duration::from_millis(self.tcp.rto_initial_ms);
            let deadline = half.deadline;
            self.schedule(deadline, *key);
        }
    }

    fn unknown_segment(&mut self, now: Instant, core: CoreId, link: usize, frame: &[u8], seg: &Segment) {
        let lifetime = Duration::from_millis(self.tcp.time_wait_ms);
        if self.time_wait.contains(&seg.key) {
            match self.time_wait.segment(seg, now, lifetime) {
                Answer::Ignore => return,
                Answer::Send(answer) => return self.send_frames(core, link, vec![answer]),
                Answer::Reopen => self.ports.unuse_addr(seg.key.local()),
            }
        }
        let opening = seg.flags & (flags::SYN | flags::ACK | flags::RST | flags::FIN) == flags::SYN;
        let hash = self.secret.spread(&seg.key);
        match self.ports.listener(seg.key.local_ip, seg.key.local_port, hash) {
            // RFC 9293 §3.10.7.2: in LISTEN a RST is ignored, an ACK refused, what is neither is dropped.
            Some(listener) if opening => self.passive_open(now, core, link, frame, seg, listener),
            Some(_) if !seg.has(flags::ACK | flags::RST) => self.counters.listen_drops += 1,
            _ => self.refuse(core, link, frame, seg),
        }
    }

    fn passive_open(
        &mut self,
        now: Instant,
        core: CoreId,
        link: usize,
        frame: &[u8],
        seg: &Segment,
        listener: crate::ports::Binding,
    ) {
        let (id, sock) = (listener.region, listener.sock);
        let Some(entry) = self.regions.get(&id) else { return };
        let Some(Kind::Listening { backlog, .. }) = entry.socks.get(&sock).map(|s| s.kind) else { return };
        let half_open = self.half_open_by_listener.get(&(id, sock)).copied().unwrap_or(0);
        if self.shutting_down || !entry.ring_has_room(sock) || half_open >= backlog.max(128) {
            // A full backlog drops the SYN: the peer will try again (Linux: ListenOverflows).
            self.counters.listen_overflows += 1;
            return;
        }
        let region = entry.region.clone();
        let Some(slot) = region.sock(sock) else { return };
        let mut start = self.start(link, seg.key, Opener::Passive(id, sock), slot, now);
        start.core = core;
        let Some(mut half) = HalfOpen::new(&self.tcp, &mut self.links[link], start, now) else { return };
        half.peer = Some(peer_of(seg, frame));
        let frames = half.poll(&mut self.links[link], now, Some(seg));
        self.ports.use_addr(seg.key.local());
        self.send_frames(core, link, frames);
        self.add_half_open(now, half);
    }

    fn half_open_segment(
        &mut self,
        now: Instant,
        core: CoreId,
        link: usize,
        frame: Vec<u8>,
        meta: RxMeta,
        seg: &Segment,
    ) {
        let key = seg.key;
        let Some(half) = self.half_open.get_mut(&key) else { return };
        half.core = core;
        let acks_syn = seg.has(flags::ACK) && seg.ack == half.iss + 1;
        if seg.has(flags::ACK) && !acks_syn {
            // RFC 9293 §3.10.7.3, .4: an ACK for something never sent.
            return self.refuse(core, link, &frame, seg);
        }
        if seg.has(flags::RST) {
            return self.half_open_reset(now, &key, seg, acks_syn);
        }
        let known = half.peer.as_ref().map(|p| p.irs);
        match known {
            None if seg.has(flags::SYN) => half.peer = Some(peer_of(seg, &frame)),
            None => return, // neither SYN nor RST in SYN-SENT
            Some(irs) if seg.has(flags::SYN) && !acks_syn => {
                // The SYN again (our SYN-ACK was lost, or is on its way).
                let again = if seg.seq == irs { half.syn(now) } else { None };
                return self.send_frames(core, link, again.into_iter().collect());
            }
            Some(_) if !acks_syn => return,
            Some(_) => {}
        }
        if let Opener::Passive(id, sock) = half.opener
            && acks_syn
            && !self.regions.get(&id).is_some_and(|e| e.ring_has_room(sock))
        {
            self.counters.listen_overflows += 1;
            return; // the SYN-ACK will be repeated, and then this ACK
        }
        self.advance_half_open(now, link, frame, meta, seg);
    }

    /// An acceptable segment: smoltcp decides what it means.
    fn advance_half_open(&mut self, now: Instant, link: usize, frame: Vec<u8>, meta: RxMeta, seg: &Segment) {
        let Some(half) = self.half_open.get_mut(&seg.key) else { return };
        let core = half.core;
        if let Some(peer) = &mut half.peer {
            let scale = if seg.has(flags::SYN) { 0 } else { half_scale(&self.tcp, &peer.options) };
            peer.window = u32::from(seg.window) << scale;
        }
        let mut plain = seg.clone();
        if let (false, Some(peer)) = (seg.has(flags::SYN), &half.peer) {
            plain.seq = peer.irs + 1; // data is the fast path's; smoltcp is to see the bare ACK
        }
        let frames = half.poll(&mut self.links[link], now, Some(&plain));
        let state = half.state();
        self.send_frames(core, link, frames);
        self.resolved(now, &seg.key);
        if matches!(state, State::Established | State::CloseWait) {
            self.establish(now, &seg.key);
            if seg.payload_len > 0 || seg.has(flags::FIN) {
                let nic = self.links[link].id;
                self.downs[core.index()].send(Down::Inject { nic, frame, meta });
            }
        }
    }

    /// RST for a half-open connection (RFC 9293 §3.10.7.3, .4; RFC 5961 §3).
    fn half_open_reset(&mut self, now: Instant, key: &FlowKey, seg: &Segment, acks_syn: bool) {
        let Some(half) = self.half_open.get(key) else { return };
        let acceptable = match &half.peer {
            None => acks_syn,
            Some(peer) => seg.seq == peer.irs + 1,
        };
        if acceptable {
            self.fail_half_open(now, key, libc::ECONNREFUSED);
        }
    }

    /// RST for a segment that belongs nowhere (RFC 9293 §3.10.7.1).
    fn refuse(&mut self, core: CoreId, link: usize, frame: &[u8], seg: &Segment) {
        if seg.has(flags::RST) {
            return;
        }
        self.counters.out_rsts += 1;
        let mut source = [0; 6];
        source.copy_from_slice(&frame[6..12]);
        let (seq, ack, fl) = if seg.has(flags::ACK) {
            (seg.ack, toe_core::SeqNr(0), flags::RST)
        } else {
            (toe_core::SeqNr(0), seg.end(), flags::RST | flags::ACK)
        };
        let fields = TcpFields {
            key: seg.key,
            seq,
            ack,
            flags: fl,
            window: 0,
            urgent: 0,
            options: TcpOptions::default(),
            ttl: 64,
            tos: 0,
            ident: 0,
        };
        let l2 = ethernet(source, self.links[link].caps.mac, seg.key.local_ip);
        let reset = wire::emit(&l2, &fields, &[], false).as_slice().to_vec();
        self.send_frames(core, link, vec![reset]);
    }

    /// ICMP errors that quote a segment of ours (RFC 9293 §3.9.2.2, RFC 5927).
    fn icmp_error(&mut self, now: Instant, frame: &[u8]) {
        let Some(error) = crate::icmp::parse(frame) else { return };
        if let Some(half) = self.half_open.get_mut(&error.key).filter(|h| h.iss == error.seq) {
            half.soft_error = error.errno;
            if half.peer.is_none() {
                self.fail_half_open(now, &error.key, error.errno);
            }
            return;
        }
        let Some(flow) = self.flows.get(&error.key) else { return };
        let (core, id, region, sock) = (flow.core, flow.id, flow.region, flow.sock);
        if let Some(mtu) = error.mtu {
            let headers = if error.key.local_ip.is_ipv4() { 40 } else { 60 };
            // RFC 1191 §3: no less than 68; Linux's floor (min_pmtu) is 552.
            let mss = mtu.max(552).saturating_sub(headers);
            self.downs[core.index()].send(Down::SetMss(id, mss));
        } else if let Some(slot) = self.regions.get(&region).and_then(|e| e.region.sock(sock)) {
            slot.soft_error.store(error.errno as u32, Relaxed);
        }
    }
}

fn half_scale(tcp: &toe_core::tcp::TcpConfig, peer: &TcpOptions) -> u8 {
    if tcp.window_scaling { peer.wscale.unwrap_or(0) } else { 0 }
}

fn peer_of(seg: &Segment, frame: &[u8]) -> Peer {
    let mut mac = [0; 6];
    mac.copy_from_slice(&frame[6..12]);
    Peer { options: seg.options.clone(), irs: seg.seq, window: u32::from(seg.window), mac }
}
