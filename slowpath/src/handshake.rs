//! The steps of a handshake: what each received segment and each timer does to a [`HalfOpen`] (RFC 9293 §3.10.7.3-4).

use crate::demux::Received;
use crate::engine::SlowPath;
use crate::errno;
use crate::half::{HalfOpen, Role, Start};
use crate::nic::ASK_AGAIN;
use crate::ports::SockRef;
use crate::reply::{self, backoff};
use crate::timers::Due;
use toe_core::flow::FlowKey;
use toe_core::tcp::TcpConfig;
use toe_core::wire::{self, ETH_LEN, Segment, flags};
use toe_core::{CoreId, Duration, Instant, SeqNr};

/// A neighbour that does not answer for so long is not there (Linux: three questions, one a second).
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(3);
/// Handshakes that a listener may always have under way, however small its backlog.
const MIN_HALF_OPEN: usize = 16;

/// What becomes of a handshake after a segment.
enum Next {
    /// It goes on.
    Wait,
    /// It is over, silently for passive ones, with this errno for active ones.
    Over(i32),
    /// Established; our last ACK has been sent if there had to be one.
    Done,
}

impl SlowPath {
    /// A SYN for a listener.
    pub(crate) fn open_passive(
        &mut self,
        rx: &Received,
        seg: &Segment,
        listener: SockRef,
        floor: Option<SeqNr>,
        now: Instant,
    ) {
        let key = seg.key;
        // A SYN with FIN is nobody's, a SYN from ourselves to ourselves is a LAND attack.
        if self.shutting_down || seg.has(flags::FIN) || key.local() == key.remote() {
            return;
        }
        let full = self.accept_queue_full(listener);
        let Some(l) = self.listeners.get(&listener) else { return };
        if full {
            self.counters.listen_overflows += 1;
            self.counters.listen_drops += 1;
            return;
        }
        if l.half.len() >= (l.backlog as usize).max(MIN_HALF_OPEN) {
            self.counters.req_q_full_drop += 1;
            self.counters.listen_drops += 1;
            return;
        }
        let Some(port) = self.nics[rx.nic].port_of(key.local_ip) else { return };
        let Some((offer, reuse)) = self.offer(listener, rx.nic, &key) else { return };
        if floor.is_some() {
            self.recycle_time_wait(&key);
        }
        let iss = self.isn(&key, floor, now);
        let next = self.next_hop(&key, rx.nic);
        let (owner, max_retries) = (listener, self.tcp.synack_retries);
        let (nic, core, role) = (rx.nic, rx.core, Role::Passive);
        let start = Start { key, role, owner, reuse, nic, port, next, core, offer, iss, max_retries };
        let mut half = Box::new(HalfOpen::new(start, now));
        half.take_syn(seg);
        let plain = half.plain(seg, self.nics[nic].setup.caps.mac, &rx.frame);
        if !half.listen() || plain.is_none() {
            return;
        }
        self.begin(&half);
        self.run(&mut half, plain, now);
        self.keep(half, now);
    }

    /// Counts a new handshake in.
    pub(crate) fn begin(&mut self, half: &HalfOpen) {
        self.ports.connection(half.key.local_ip, half.key.local_port, half.reuse);
        if let Some(r) = self.regions.get_mut(&half.owner.0) {
            r.uses += 1;
        }
        if let Some(l) = self.listeners.get_mut(&half.owner).filter(|_| half.role == Role::Passive) {
            l.half.insert(half.key);
        }
    }

    /// An ISN by RFC 6528, but not before `floor` (RFC 6191).
    pub(crate) fn isn(&self, key: &FlowKey, floor: Option<SeqNr>, now: Instant) -> SeqNr {
        let isn = self.secret.isn(key, now);
        floor.map_or(isn, |f| isn.max(f))
    }

    fn next_hop(&self, key: &FlowKey, nic: usize) -> core::net::IpAddr {
        let hop = self.routing.find(key.remote_ip, Some(key.local_ip), |_| true);
        hop.filter(|h| h.nic == nic).map_or(key.remote_ip, |h| h.next)
    }

    /// The 4-tuple of a TIME-WAIT entry lives again.
    pub(crate) fn recycle_time_wait(&mut self, key: &FlowKey) {
        if let Some(e) = self.time_wait.remove(key) {
            self.counters.time_waits_recycled += 1;
            self.ports.connection_over(key.local_ip, key.local_port, e.reuse);
        }
    }

    /// Polls smoltcp for one handshake and sends what it says, rewritten. Tells whether an ACK went out.
    pub(crate) fn run(&mut self, half: &mut HalfOpen, rx: Option<Vec<u8>>, now: Instant) -> bool {
        if half.l2.is_none() {
            self.nics[half.nic].introduce(half.key.local_ip, half.next, now, &mut self.scratch);
        }
        self.nics[half.nic].poll_half(half, rx, now, &mut self.scratch);
        let mut acked = false;
        let mut out = core::mem::take(&mut self.scratch.tx);
        for frame in out.drain(..) {
            match wire::parse(&frame) {
                Ok(seg) if seg.key == half.key.reversed() && !seg.has(flags::RST) => {
                    self.note_l2(half, &frame);
                    if seg.has(flags::SYN) {
                        half.smol_iss = Some(seg.seq);
                        // Its own retransmissions follow another schedule than ours.
                        if half.sent == 0 {
                            self.send_syn(half, now);
                        }
                    } else if !acked {
                        acked = true;
                        self.send_ack(half, now);
                    }
                }
                Ok(_) => {}
                Err(_) => {
                    self.nics[half.nic].note_asked(half.next, now);
                    self.transmit(half.core, half.nic, frame);
                }
            }
        }
        self.scratch.tx = out;
        if half.l2.is_none() {
            self.ask(half, now);
        }
        acked
    }

    fn note_l2(&mut self, half: &mut HalfOpen, frame: &[u8]) {
        let mut l2 = [0; ETH_LEN];
        l2.copy_from_slice(&frame[..ETH_LEN]);
        half.l2 = Some(l2);
        let mut mac = [0; 6];
        mac.copy_from_slice(&l2[..6]);
        self.nics[half.nic].note_mac(half.next, mac);
    }

    fn ask(&mut self, half: &HalfOpen, now: Instant) {
        let nic = &mut self.nics[half.nic];
        nic.waiting.insert(half.key);
        if !nic.may_ask(half.next, now) {
            return;
        }
        if let Some(question) = nic.question(half.key.local_ip, half.next) {
            self.transmit(half.core, half.nic, question);
        }
    }

    /// Sends our SYN or SYN-ACK (again).
    pub(crate) fn send_syn(&mut self, half: &mut HalfOpen, now: Instant) {
        if let Some(l2) = half.l2 {
            half.sent += 1;
            half.sent_at = now;
            self.transmit(half.core, half.nic, reply::frame(&l2, &half.syn(now)));
        }
    }

    fn send_ack(&mut self, half: &HalfOpen, now: Instant) {
        if let Some(l2) = half.l2 {
            self.transmit(half.core, half.nic, reply::frame(&l2, &half.ack(now)));
        }
    }

    /// A challenge ACK (RFC 5961 §3-5), within the limit.
    fn challenge(&mut self, half: &HalfOpen, now: Instant) {
        if self.challenge.allow(now) {
            self.counters.challenge_acks += 1;
            self.send_ack(half, now);
        }
    }

    /// Puts a handshake (back) into the table with its timer running.
    pub(crate) fn keep(&mut self, mut half: Box<HalfOpen>, now: Instant) {
        if half.sent == 0 && half.timer.is_some() {
            self.half.insert(half.key, half);
            return;
        }
        self.timers.cancel(half.timer);
        let ms = TcpConfig::ms;
        let at = match half.sent {
            0 => now + ASK_AGAIN,
            // The first waits one RTO, each further one twice as long (RFC 6298 §5.5).
            n => half.sent_at + backoff(ms(self.tcp.rto_initial_ms), n - 1, ms(self.tcp.rto_max_ms)),
        };
        // Never at once, whatever the configuration says.
        let at = at.max(now + Duration::from_millis(1));
        half.timer = Some(self.timers.add(at, Due::HalfOpen(half.key)));
        self.half.insert(half.key, half);
    }

    /// A handshake's timer ran out.
    pub(crate) fn half_timer(&mut self, key: FlowKey, now: Instant) {
        let Some(mut half) = self.half.remove(&key) else { return };
        half.timer = None;
        if half.sent == 0 {
            if now.since(half.born) >= NEIGHBOUR_TIMEOUT {
                return self.over(half, errno::EHOSTUNREACH);
            }
            self.run(&mut half, None, now);
        } else if half.sent > half.max_retries {
            self.counters.abort_on_timeout += 1;
            let why = if half.soft_error != 0 { half.soft_error } else { errno::ETIMEDOUT };
            return self.over(half, why);
        } else {
            self.counters.syn_retrans += 1;
            self.send_syn(&mut half, now);
        }
        self.keep(half, now);
    }

    /// Handshakes of a link that waited for a neighbour try again.
    pub(crate) fn wake_waiting(&mut self, nic: usize, now: Instant) {
        let waiting: Vec<FlowKey> = self.nics[nic].waiting.drain().collect();
        for key in waiting {
            let Some(mut half) = self.half.remove(&key) else { continue };
            if half.sent == 0 {
                self.run(&mut half, None, now);
            }
            self.keep(half, now);
        }
    }

    /// A segment for a handshake under way.
    pub(crate) fn half_segment(&mut self, rx: Received, seg: &Segment, now: Instant) {
        let Some(mut half) = self.half.remove(&seg.key) else { return };
        let next = match half.irs {
            None => self.syn_sent(&mut half, &rx, seg, now),
            Some(_) => self.syn_received(&mut half, &rx, seg, now),
        };
        match next {
            Next::Wait => self.keep(half, now),
            Next::Over(why) => self.over(half, why),
            Next::Done => self.established(half, rx, seg, now),
        }
    }

    /// RFC 9293 §3.10.7.3.
    fn syn_sent(&mut self, half: &mut HalfOpen, rx: &Received, seg: &Segment, now: Instant) -> Next {
        let acks_syn = seg.has(flags::ACK) && half.sent > 0 && seg.ack == half.iss + 1;
        if seg.has(flags::ACK) && !acks_syn {
            self.reset(rx, seg);
            return Next::Wait;
        }
        if seg.has(flags::RST) {
            return if acks_syn { Next::Over(errno::ECONNREFUSED) } else { Next::Wait };
        }
        if !seg.has(flags::SYN) || half.smol_iss.is_none() {
            return Next::Wait;
        }
        half.take_syn(seg);
        half.core = rx.core;
        let plain = half.plain(seg, self.nics[half.nic].setup.caps.mac, &rx.frame);
        let acked = self.run(half, plain, now);
        if acks_syn {
            if !half.established() {
                half.irs = None;
                return Next::Wait;
            }
            if !acked {
                self.send_ack(half, now);
            }
            return Next::Done;
        }
        // Simultaneous open (RFC 9293 §3.5, MUST-10): both in SYN-RECEIVED now.
        self.send_syn(half, now);
        Next::Wait
    }

    /// RFC 9293 §3.10.7.4 for SYN-RECEIVED, with RFC 5961.
    fn syn_received(&mut self, half: &mut HalfOpen, rx: &Received, seg: &Segment, now: Instant) -> Next {
        let (expected, window) = (half.rcv_nxt(), half.offer.rx_limit.clamp(1, 0xffff));
        let in_window = seg.seq.in_window(expected, window);
        if seg.has(flags::RST) {
            if seg.seq == expected {
                return Next::Over(errno::ECONNREFUSED);
            }
            if in_window {
                self.challenge(half, now); // RFC 5961 §3.2
            }
            return Next::Wait;
        }
        let good_ack = seg.has(flags::ACK) && seg.ack == half.iss + 1;
        let crossing = half.role == Role::Active && seg.has(flags::SYN) && good_ack && Some(seg.seq) == half.irs;
        if seg.has(flags::SYN) && !crossing {
            if Some(seg.seq) == half.irs && !seg.has(flags::ACK) {
                self.repeat_syn_ack(half, now);
            } else {
                self.challenge(half, now); // RFC 5961 §4.2
            }
            return Next::Wait;
        }
        let overlaps = !seg.is_empty() && (seg.end() - 1).in_window(expected, window);
        if !(in_window || overlaps || crossing) || self.stale(half, seg) {
            self.challenge(half, now);
            return Next::Wait;
        }
        if !seg.has(flags::ACK) {
            return Next::Wait;
        }
        if !good_ack {
            self.reset(rx, seg);
            return Next::Wait;
        }
        self.last_ack(half, rx, seg, now)
    }

    /// The acknowledgment of our SYN-ACK.
    fn last_ack(&mut self, half: &mut HalfOpen, rx: &Received, seg: &Segment, now: Instant) -> Next {
        if half.role == Role::Passive && self.accept_queue_full(half.owner) {
            // tcp_abort_on_overflow = 0: as if it had been lost; the SYN-ACK goes out again.
            self.counters.listen_overflows += 1;
            self.counters.listen_drops += 1;
            if let Some(opener) = half.opener.take() {
                self.announce(opener);
            }
            return Next::Wait;
        }
        let ack_only = Segment { flags: flags::ACK, ..seg.clone() };
        let plain = half.plain(&ack_only, self.nics[half.nic].setup.caps.mac, &rx.frame);
        self.run(half, plain, now);
        if let Some(ts) = seg.options.timestamps.filter(|_| seg.seq.before_eq(half.rcv_nxt())) {
            half.ts_recent = ts.val;
        }
        if half.established() { Next::Done } else { Next::Wait }
    }

    /// A duplicate SYN: the SYN-ACK may have been lost. Its timer keeps its schedule.
    fn repeat_syn_ack(&mut self, half: &mut HalfOpen, now: Instant) {
        half.repeated = true;
        if let Some(l2) = half.l2.filter(|_| self.challenge.allow(now)) {
            self.transmit(half.core, half.nic, reply::frame(&l2, &half.syn(now)));
        }
    }

    /// PAWS (RFC 7323 §5.3).
    fn stale(&mut self, half: &HalfOpen, seg: &Segment) -> bool {
        let ts = half.timestamps().and(seg.options.timestamps);
        let old = ts.is_some_and(|t| SeqNr(t.val).before(SeqNr(half.ts_recent)));
        self.counters.paws_rejected += u64::from(old);
        old
    }

    /// A handshake that came to nothing.
    pub(crate) fn over(&mut self, half: Box<HalfOpen>, why: i32) {
        self.counters.attempt_fails += 1;
        self.forget(&half);
        if half.role == Role::Active {
            self.connect_failed(half.owner, why);
        }
        self.drop_region_if_done(half.owner.0);
    }

    /// Counts a handshake out that does not become a flow.
    pub(crate) fn forget(&mut self, half: &HalfOpen) {
        self.timers.cancel(half.timer);
        if let Some(opener) = half.opener {
            self.announce(opener);
        }
        self.ports.connection_over(half.key.local_ip, half.key.local_port, half.reuse);
        if let Some(r) = self.regions.get_mut(&half.owner.0) {
            r.uses = r.uses.saturating_sub(1);
        }
        if let Some(l) = self.listeners.get_mut(&half.owner) {
            l.half.remove(&half.key);
        }
    }

    /// Core for what begins here.
    pub(crate) fn core_for(&self, key: &FlowKey) -> CoreId {
        CoreId((key.link_hash() as usize % self.downs.len().max(1)) as u8)
    }
}
