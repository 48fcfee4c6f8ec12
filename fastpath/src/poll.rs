//! The poll loop: one round of everything, in bounded batches, on one screen.

use crate::FastPath;
use crate::alloc::{RegionState, Regions};
use crate::messages::enqueue;
use crate::output::{Port, Turn};
use crate::validate::ChallengeLimit;
use std::sync::Arc;
use toe_core::msg::{CoreStats, Up};
use toe_core::nic::{RxCsum, RxMeta, TxError, TxMeta};
use toe_core::pathq::{Polled, Sender};
use toe_core::tcp::TcpConfig;
use toe_core::wire::{self, ParseError};
use toe_core::{CoreId, Duration, FlowId, Instant, NicId, SockId, notify};

/// Batches of one round.
const MESSAGES: usize = 256;
const FRAMES: usize = 64;
const TIMERS: usize = 256;
const TURNS: usize = 512;
/// How soon a full link is tried again if nothing else happens.
const RETRY: Duration = Duration::from_micros(100);

/// What flows need besides themselves.
pub(crate) struct Env {
    pub now: Instant,
    pub core: CoreId,
    pub tcp: TcpConfig,
    pub stats: CoreStats,
    pub regions: Regions,
    pub up: Sender<Up>,
    pub waker: Arc<dyn notify::Waker>,
    pub challenge: ChallengeLimit,
}

/// A kick for a socket without a flow. An app waits for the answer to a request: the slow path has it. Anything else can only
/// be about a flow that has ended.
fn misdirected(state: &RegionState, worker: usize, sock: SockId, up: &mut Sender<Up>) {
    let Some(slot) = state.region.sock(sock) else { return };
    // A full queue: the bit stays set for the next round.
    if slot.pending_request().is_some() && up.offer(Up::Kick { region: state.region.id(), sock }).is_err() {
        state.region.kick(worker as u32, sock);
    }
}

impl FastPath {
    /// One round: take in what the slow path, the apps, the links and the clock bring, then give each flow that any of them
    /// touched one turn to send. However much came for a flow, it is answered once.
    pub fn poll(&mut self, now: Instant) -> Polled {
        self.env.now = now;
        self.env.regions.now = now;
        let next_nic = self.poll_nics();
        let work = self.take_messages() + self.take_kicks() + self.take_frames() + self.take_timers();
        let stalled = self.send_frames() | self.give_turns();
        let unsaid = !self.flush();

        let left = unsaid || (!stalled && !self.ready.is_empty());
        self.env.stats.polls += 1;
        self.env.stats.idle_polls += u64::from(work == 0);
        let retry = stalled.then(|| now + RETRY);
        Polled { busy: work > 0 || left, next: [self.wheel.next(), next_nic, retry].into_iter().flatten().min() }
    }

    fn poll_nics(&mut self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for at in 0..self.nics.len() {
            let nic = &mut self.nics[at];
            let wants = nic.poll(self.env.now);
            next = next.into_iter().chain(wants).min();
            if nic.is_up() != self.links_up[at] {
                self.links_up[at] = nic.is_up();
                let (core, caps) = (self.env.core, nic.caps().clone());
                self.env.up.send(Up::Link { core, nic: NicId(at as u8), up: nic.is_up(), caps });
            }
        }
        next
    }

    fn take_messages(&mut self) -> usize {
        let mut count = 0;
        while count < MESSAGES
            && let Some(message) = self.down.recv()
        {
            self.obey(message);
            count += 1;
        }
        count
    }

    fn take_kicks(&mut self) -> usize {
        let worker = 1 + self.env.core.index();
        let mut count = 0;
        self.kicker_cpu = None;
        let mut kicked = core::mem::take(&mut self.kicked);
        let Env { regions, up, .. } = &mut self.env;
        for state in regions.iter() {
            let Some(set) = state.region.layout().kick.get(worker) else { continue };
            let drained = set.drain(|sock| match state.flow_of(SockId(sock)) {
                Some(flow) => kicked.push(flow),
                None => misdirected(state, worker, SockId(sock), up),
            });
            if drained > 0 {
                self.kicker_cpu = set.cpu();
            }
            count += drained;
        }
        self.env.stats.kicks += count as u64;
        for id in kicked.drain(..) {
            self.with(id, |flow, env| {
                flow.answer_request(env);
                flow.read_options(env);
            });
        }
        self.kicked = kicked;
        count
    }

    fn take_frames(&mut self) -> usize {
        // The links lend frames to a callback that needs the rest of `self`: they step aside for that long.
        let mut nics = core::mem::take(&mut self.nics);
        let mut count = 0;
        for (at, nic) in nics.iter_mut().enumerate() {
            count += nic.recv(FRAMES, &mut |frame, meta| self.receive(NicId(at as u8), frame, meta));
        }
        self.nics = nics;
        count
    }

    fn take_timers(&mut self) -> usize {
        let mut count = 0;
        while count < TIMERS
            && let Some(key) = self.wheel.pop(self.env.now)
        {
            self.with(FlowId(key), |flow, env| flow.expire(env));
            count += 1;
        }
        count
    }

    /// One received frame: a segment of one of our flows, or the slow path's.
    pub(crate) fn receive(&mut self, nic: NicId, frame: &[u8], meta: RxMeta) {
        let seg = match wire::parse(frame) {
            Ok(seg) => seg,
            Err(ParseError::NotTcp) => return self.punt(nic, frame, meta),
            Err(ParseError::Malformed) => {
                self.env.stats.in_errs += 1;
                return;
            }
        };
        let Some(flow) = self.table.lookup(&seg.key).and_then(|id| self.table.get(id)) else {
            return self.punt(nic, frame, meta);
        };
        if meta.csum == RxCsum::Unchecked && !wire::verify_checksum(frame, &seg) {
            self.env.stats.in_csum_errs += 1;
            return;
        }
        let payload = &frame[seg.payload_offset..seg.payload_offset + seg.payload_len];
        flow.input(&mut self.env, &seg, payload, meta.gso_size);
        enqueue(&mut self.ready, flow);
    }

    fn punt(&mut self, nic: NicId, frame: &[u8], meta: RxMeta) {
        self.env.stats.punts += 1;
        let punt = Up::Punt { core: self.env.core, nic, frame: frame.to_vec(), meta };
        if self.env.up.offer(punt).is_err() {
            self.env.stats.punts_dropped += 1;
        }
    }

    /// The slow path's own frames. `true`: a link was full, they wait.
    fn send_frames(&mut self) -> bool {
        while let Some((id, frame)) = self.waiting_frames.front() {
            if let Some(nic) = self.nics.get_mut(id.index()) {
                // The queue of its flow's data: a handshake stays in order with them, and the peer meets the flow at the
                // core where all the rest of it will come.
                let flow_hash = wire::parse(frame).map_or(0, |seg| seg.key.link_hash());
                if let Err(TxError::Full) = nic.send(frame, &[], TxMeta { flow_hash, ..TxMeta::default() }) {
                    return true;
                }
                self.links_used[id.index()] = true;
            }
            self.waiting_frames.pop_front();
        }
        false
    }

    /// Turns, oldest claim first. `true`: a link was full, its flows wait.
    fn give_turns(&mut self) -> bool {
        let mut stalled = false;
        for _ in 0..self.ready.len().min(TURNS) {
            let Some(id) = self.ready.pop_front() else { break };
            let Some(flow) = self.table.get(id) else { continue };
            flow.queued = false;
            let link = flow.nic.index();
            let mut port = Port::new(self.nics.get_mut(link));
            let turn = flow.turn(&mut self.env, &mut port);
            if port.used {
                self.links_used[link] = true;
            }
            stalled |= turn == Turn::Full;
            match turn {
                Turn::Over => self.remove(id),
                Turn::Full | Turn::More => enqueue(&mut self.ready, flow),
                Turn::Done => {}
            }
            if let Some(flow) = self.table.get(id)
                && let Some(at) = flow.timers.next()
            {
                self.wheel.schedule(id.0, at);
            }
        }
        stalled
    }

    fn remove(&mut self, id: FlowId) {
        let Some(flow) = self.table.remove(id) else { return };
        self.wheel.cancel(id.0);
        if let Some(state) = self.env.regions.get(flow.region_id) {
            state.set_flow(flow.sock, None);
        }
        flow.finish(&mut self.env);
    }

    /// Doorbells and wake-ups for all that was sent. `false`: the slow path's queue is full.
    fn flush(&mut self) -> bool {
        for (nic, used) in self.nics.iter_mut().zip(&mut self.links_used) {
            if core::mem::take(used) {
                nic.flush();
            }
        }
        self.env.up.flush()
    }
}
