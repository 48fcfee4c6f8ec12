//! What the slow path asks for.

use crate::FastPath;
use crate::alloc::RegionState;
use crate::flow::{Ending, Flow};
use std::sync::atomic::Ordering::Relaxed;
use toe_core::flow::FlowInit;
use toe_core::msg::{Down, Up};
use toe_core::nic::{TxError, TxMeta};
use toe_core::wire;
use toe_core::{FlowId, NicId};

/// Frames of the slow path that wait for room in a link's queue; more are dropped, as a full queue drops.
const BACKLOG: usize = 1024;

impl FastPath {
    pub(crate) fn take_messages(&mut self, budget: usize) -> usize {
        while let Some((nic, frame)) = self.transmit_backlog.pop_front() {
            if let Err(frame) = self.try_transmit(nic, frame) {
                self.transmit_backlog.push_front((nic, frame));
                break;
            }
        }
        for n in 0..budget {
            let Some(message) = self.down.recv() else { return n };
            self.take_message(message);
        }
        budget
    }

    fn take_message(&mut self, message: Down) {
        match message {
            Down::Install(init) => self.install(*init),
            Down::Attach(region) => {
                let state = RegionState::new(region, self.eng.core, self.eng.cores);
                self.regions.insert(state.region.id(), state);
            }
            Down::Detach(region) => {
                self.regions.remove(&region);
            }
            Down::Release { region, sock } => {
                if let Some(state) = self.regions.get_mut(&region) {
                    state.release(sock);
                }
            }
            Down::Transmit { nic, frame } => self.transmit(nic, frame),
            Down::Inject { nic, frame, meta } => self.receive_frame(nic, &frame, meta),
            Down::Kick { region, sock } => {
                let Some(state) = self.regions.get_mut(&region) else { return };
                let id = state.flow_of(sock);
                if let Some(flow) = id.and_then(|id| self.flows.get(id)) {
                    flow.take_kick(&mut self.eng, state);
                }
            }
            Down::Report => {
                let stats = Box::new(self.stats());
                self.eng.up.send(Up::Report { core: self.eng.core, stats });
            }
            Down::Retransmit(id) => self.with_flow(id, |flow, s| flow.retransmit(&mut s.eng)),
            Down::Probe(id, kind) => self.with_flow(id, |flow, s| {
                let nic = &mut *s.nics[flow.nic.index()];
                flow.probe(&mut s.eng, nic, kind);
            }),
            Down::Remove { flow, errno, reset } => self.with_flow(flow, |flow, _| flow.remove(errno, reset)),
            Down::SetMss(id, mss) => self.with_flow(id, |flow, _| flow.snd.mss = mss.max(64)),
            Down::SetL2(id, l2) => self.with_flow(id, |flow, _| flow.l2 = l2),
            Down::SetWindow(id, cwnd) => self.with_flow(id, |flow, _| flow.cc.cwnd = cwnd.max(flow.mss())),
            Down::SetCongestion(id, kind) => self.with_flow(id, |flow, _| flow.cc.set_algorithm(kind)),
        }
    }

    fn with_flow(&mut self, id: FlowId, f: impl FnOnce(&mut Flow, &mut Parts<'_>)) {
        if let Some(flow) = self.flows.get(id) {
            f(flow, &mut Parts { eng: &mut self.eng, nics: &mut self.nics });
            self.eng.touch(flow);
        }
    }

    fn install(&mut self, init: FlowInit) {
        let Some(state) = self.regions.get_mut(&init.region.id()) else { return };
        if init.nic.index() >= self.nics.len() {
            return;
        }
        let Some(mut flow) = Flow::new(&self.eng, &init) else { return };
        state.set_flow(init.sock, Some(init.id));
        flow.start(&mut self.eng, state, &init.early_data, init.early_fin);
        let options = u32::from(init.timestamps.is_some())
            | u32::from(init.sack) << 1
            | u32::from(init.snd_wscale > 0 || init.rcv_wscale > 0) << 2;
        let info = &flow.slot().info;
        info.options.store(options, Relaxed);
        info.wscale.store(u32::from(init.snd_wscale) | u32::from(init.rcv_wscale) << 4, Relaxed);
        self.flows.insert(Box::new(flow));
    }

    fn transmit(&mut self, nic: NicId, frame: Vec<u8>) {
        if !self.transmit_backlog.is_empty() {
            if self.transmit_backlog.len() < BACKLOG {
                self.transmit_backlog.push_back((nic, frame));
            }
        } else if let Err(frame) = self.try_transmit(nic, frame) {
            self.transmit_backlog.push_back((nic, frame));
        }
    }

    /// Gives the frame back if the link's queue is full.
    fn try_transmit(&mut self, nic: NicId, frame: Vec<u8>) -> Result<(), Vec<u8>> {
        let Some(link) = self.nics.get_mut(nic.index()) else { return Ok(()) };
        // The queue of its flow, so that a handshake and the first data stay in order.
        let flow_hash = wire::parse(&frame).map_or(0, |seg| seg.key.link_hash());
        match link.send(&frame, &[], TxMeta { flow_hash, ..Default::default() }) {
            Err(TxError::Full) => Err(frame),
            Ok(()) | Err(TxError::Down | TxError::TooLarge) => Ok(()),
        }
    }
}

/// What `with_flow` lends beside the flow.
struct Parts<'a> {
    eng: &'a mut crate::engine::Engine,
    nics: &'a mut [Box<dyn toe_core::nic::Nic>],
}

impl Flow {
    /// `Down::Remove`.
    fn remove(&mut self, errno: i32, reset: bool) {
        if self.ending == Ending::No {
            self.ending = Ending::Aborted;
            self.reset_peer = reset;
            if errno != 0 {
                self.slot().error.store(errno as u32, Relaxed);
            }
        }
    }
}
