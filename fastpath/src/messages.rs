//! What the slow path says.

use crate::FastPath;
use crate::flow::{Flow, How};
use crate::install::LEAST_MSS;
use crate::poll::Env;
use std::collections::VecDeque;
use toe_core::FlowId;
use toe_core::flow::FlowInit;
use toe_core::msg::{CloseKind, Down, Up};
use toe_core::shm::{SLOW_WORKER, SockState};

/// Frames of the slow path that wait for a full link; more are dropped (handshakes and ARP are repeated).
const MOST_WAITING_FRAMES: usize = 1024;

impl FastPath {
    /// Carries out one message.
    pub(crate) fn obey(&mut self, message: Down) {
        match message {
            Down::Install(init) => self.install(&init),
            Down::Attach(region) => {
                let id = region.id();
                self.env.regions.attach(id, region);
            }
            Down::Detach(region) => self.env.regions.detach(region),
            Down::Transmit { nic, frame } => {
                if self.waiting_frames.len() < MOST_WAITING_FRAMES {
                    self.waiting_frames.push_back((nic, frame));
                }
            }
            Down::Inject { nic, frame, meta } => self.receive(nic, &frame, meta),
            Down::Kick { region, sock } => {
                let Some(state) = self.env.regions.get(region) else { return };
                match state.flow_of(sock) {
                    Some(id) => self.with(id, |f, env| f.read_options(env)),
                    None => state.look_at(sock),
                }
            }
            Down::Release { region, sock } => {
                if let Some(state) = self.env.regions.get(region).filter(|s| s.flow_of(sock).is_none()) {
                    state.reuse(sock);
                }
            }
            Down::Retransmit(id) => self.with(id, |f, env| f.on_retransmit(env)),
            Down::Probe(id, kind) => self.with(id, |f, env| f.on_probe(env, kind)),
            Down::Remove { flow, errno, reset } => self.with(flow, |f, _| f.end(How::Aborted, errno, reset)),
            Down::SetMss(id, mss) => self.with(id, |f, _| f.set_mss(mss)),
            Down::SetL2(id, l2) => self.with(id, |f, _| f.l2 = l2),
            Down::SetWindow(id, cwnd) => self.with(id, |f, _| f.cc.set_cwnd(cwnd.into())),
            Down::SetCongestion(id, kind) => self.with(id, |f, _| f.cc.set_algorithm(kind)),
            Down::Report => {
                let stats = Box::new(self.stats());
                self.env.up.send(Up::Report { core: self.env.core, stats });
            }
        }
    }

    /// Does something to a flow, if it is still there, and gives it a turn.
    pub(crate) fn with(&mut self, id: FlowId, f: impl FnOnce(&mut Flow, &mut Env)) {
        if let Some(flow) = self.table.get(id) {
            f(flow, &mut self.env);
            enqueue(&mut self.ready, flow);
        }
    }

    fn install(&mut self, init: &FlowInit) {
        let region = init.region.id();
        self.env.regions.attach(region, init.region.clone());
        let known = init.region.sock(init.sock).is_some() && self.env.regions.get(region).is_some();
        let flow = Box::new(Flow::new(init, &self.env));
        let id = flow.id;
        if !known || self.table.insert(flow).is_err() {
            return self.refuse(init);
        }
        if let Some(state) = self.env.regions.get(region) {
            state.reuse(init.sock);
            state.set_flow(init.sock, Some(id));
        }
        self.with(id, |f, env| f.begin(env, init));
    }

    /// A flow that cannot be taken: number or 4-tuple in use, socket out of range.
    fn refuse(&mut self, init: &FlowInit) {
        if let Some(slot) = init.region.sock(init.sock) {
            use core::sync::atomic::Ordering::Release;
            slot.error.store(libc::ECONNABORTED as u32, Release);
            slot.state.store(SockState::Closed as u32, Release);
            slot.owner.store(SLOW_WORKER, Release);
            toe_core::notify::all(&init.region, init.sock, slot, &*self.env.waker);
        }
        self.env.up.send(Up::Closed {
            core: self.env.core,
            flow: init.id,
            key: init.key,
            nic: init.nic,
            l2: init.l2,
            region: init.region.id(),
            sock: init.sock,
            how: CloseKind::Aborted,
        });
    }
}

impl Flow {
    /// The path's MSS changed (RFC 1191, 8201). What is in flight is recut when it is resent.
    fn set_mss(&mut self, mss: u16) {
        let smaller = u32::from(mss) < self.snd.mss;
        self.snd.mss = mss.max(LEAST_MSS).into();
        self.cc.set_mss(self.mss());
        if smaller && self.snd.nxt > self.snd.una {
            // What was too large is lost: resend without waiting for a time-out, and without blaming congestion.
            self.board.too_large(self.snd.una, self.snd.nxt);
            self.snd.timed = None;
        }
    }
}

/// Gives a flow a turn in this round.
#[inline]
pub(crate) fn enqueue(ready: &mut VecDeque<FlowId>, flow: &mut Flow) {
    if !flow.queued {
        flow.queued = true;
        ready.push_back(flow.id);
    }
}
