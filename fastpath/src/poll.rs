//! The poll loop. One round: messages, frames, kicks, timers; then every flow that was touched is finished once: output,
//! acknowledgment, news for the app, timers, end.

use crate::FastPath;
use crate::flow::{Ending, Flow};
use crate::segment::Stop;
use std::sync::atomic::Ordering::Relaxed;
use toe_core::msg::Up;
use toe_core::nic::RxMeta;
use toe_core::pathq::Polled;
use toe_core::wire::{self, ParseError, Segment};
use toe_core::{FlowId, Instant, NicId, notify};

/// Frames taken from one link in one round.
const BURST: usize = 64;
/// Messages taken from the slow path in one round.
const MESSAGES: usize = 64;

impl FastPath {
    /// One round, bounded in work.
    pub fn poll(&mut self, now: Instant) -> Polled {
        self.eng.now = now;
        self.eng.stats.polls += 1;
        let link_timer = self.supervise_links(now);
        let mut work = self.take_messages(MESSAGES);
        work += self.receive(BURST);
        work += self.take_kicks();
        self.run_timers(now);
        let again = self.finish_flows();
        for nic in &mut self.nics {
            nic.flush();
        }
        let told = self.eng.up.flush();
        self.eng.stats.idle_polls += u64::from(work == 0);
        let next = [link_timer, self.eng.wheel.next()].into_iter().flatten().min();
        Polled { busy: work > 0 || again || !told || !self.transmit_backlog.is_empty(), next }
    }

    fn supervise_links(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for (i, nic) in self.nics.iter_mut().enumerate() {
            let timer = nic.poll(now);
            next = [next, timer].into_iter().flatten().min();
            let up = nic.is_up();
            if self.link_up[i] != Some(up) {
                self.link_up[i] = Some(up);
                let caps = nic.caps().clone();
                self.eng.up.send(Up::Link { core: self.eng.core, nic: NicId(i as u8), up, caps });
            }
        }
        next
    }

    fn receive(&mut self, budget: usize) -> usize {
        let mut nics = core::mem::take(&mut self.nics);
        let mut frames = 0;
        for (i, nic) in nics.iter_mut().enumerate() {
            frames += nic.recv(budget, &mut |frame, meta| self.receive_frame(NicId(i as u8), frame, meta));
        }
        self.nics = nics;
        frames
    }

    /// One frame: parse, find the flow, validate, acknowledge, copy.
    pub(crate) fn receive_frame(&mut self, nic: NicId, frame: &[u8], meta: RxMeta) {
        let seg = match wire::parse(frame) {
            Ok(seg) => seg,
            Err(ParseError::NotTcp) => return self.punt(nic, frame, meta),
            Err(ParseError::Malformed) => {
                self.eng.stats.in_errs += 1;
                return;
            }
        };
        if meta.csum == toe_core::nic::RxCsum::Unchecked && !wire::verify_checksum(frame, &seg) {
            self.eng.stats.in_csum_errs += 1;
            return;
        }
        let Some(id) = self.flows.find(&seg.key) else { return self.punt(nic, frame, meta) };
        self.eng.stats.in_segs += 1;
        let payload = &frame[seg.payload_offset..seg.payload_offset + seg.payload_len];
        self.receive_segment(id, &seg, payload);
    }

    #[inline]
    fn receive_segment(&mut self, id: FlowId, seg: &Segment, payload: &[u8]) {
        let (eng, Some(flow)) = (&mut self.eng, self.flows.get(id)) else { return };
        let Some(regions) = self.regions.get_mut(&flow.region.id()) else { return };
        if flow.ending != Ending::No {
            return;
        }
        eng.touch(flow);
        flow.segs_in = flow.segs_in.wrapping_add(1);
        flow.heard = eng.now;
        flow.keepalive_probes = 0;
        let a = flow.arrival(seg);
        if flow.predicted(seg, &a) {
            eng.stats.header_prediction_hits += 1;
        } else if flow.validate(eng, seg, &a).is_err() {
            return;
        }
        flow.update_ts_recent(seg, &a);
        flow.on_ack(eng, seg, &a);
        if flow.orphan && a.end > flow.rcv.nxt {
            // Data for a socket that nobody can read any more (RFC 9293 §3.10.4, as Linux): RST.
            flow.ending = Ending::Aborted;
            flow.reset_peer = true;
            return;
        }
        flow.on_data(eng, regions, &a, payload);
        if seg.has(wire::flags::FIN) {
            flow.on_fin(a.end);
        }
        flow.pass_fin();
    }

    /// To the slow path, if it has room; frames may be lost, messages not.
    fn punt(&mut self, nic: NicId, frame: &[u8], meta: RxMeta) {
        self.eng.stats.punts += 1;
        let up = Up::Punt { core: self.eng.core, nic, frame: frame.to_vec(), meta };
        if self.eng.up.offer(up).is_err() {
            self.eng.stats.punts_dropped += 1;
        }
    }

    fn take_kicks(&mut self) -> usize {
        let mut kicks = 0;
        let worker = 1 + self.eng.core.index();
        for state in self.regions.values_mut() {
            let region = state.region.clone();
            kicks += region.layout().kick[worker].drain(|sock| {
                let id = state.flow_of(toe_core::SockId(sock));
                if let Some(flow) = id.and_then(|id| self.flows.get(id)) {
                    flow.take_kick(&mut self.eng, state);
                }
            });
        }
        self.eng.stats.kicks += kicks as u64;
        kicks
    }

    fn run_timers(&mut self, now: Instant) {
        let mut due = core::mem::take(&mut self.due);
        self.eng.wheel.advance(now, |id| due.push(id));
        for id in due.drain(..) {
            if let Some(flow) = self.flows.get(id) {
                flow.run_timers(&mut self.eng);
            }
        }
        self.due = due;
    }

    /// Returns whether a flow has more to send at once.
    fn finish_flows(&mut self) -> bool {
        let mut touched = core::mem::replace(&mut self.eng.dirty, core::mem::take(&mut self.finishing));
        let mut again = false;
        for id in touched.drain(..) {
            let Some(flow) = self.flows.get(id) else { continue };
            flow.dirty = false;
            let nic = &mut *self.nics[flow.nic.index()];
            if flow.output(&mut self.eng, nic) == Stop::Again {
                again = true;
                self.eng.touch(flow);
            } else {
                flow.check_end(&self.eng);
            }
            flow.settle(&mut self.eng);
            if flow.ending != Ending::No {
                self.end_flow(id);
            }
        }
        self.finishing = touched;
        again
    }

    fn end_flow(&mut self, id: FlowId) {
        let Some(flow) = self.flows.remove(id) else { return };
        let nic = &mut *self.nics[flow.nic.index()];
        if let Some(regions) = self.regions.get_mut(&flow.region.id()) {
            flow.finish(&mut self.eng, nic, regions);
        }
    }
}

impl Flow {
    /// After output: news for the app, figures, timers.
    fn settle(&mut self, eng: &mut Engine) {
        if core::mem::take(&mut self.rx_news) {
            notify::readable(&self.region, self.sock, self.slot(), &*eng.waker);
        }
        if core::mem::take(&mut self.tx_news) {
            notify::writable(&self.region, self.sock, self.slot(), &*eng.waker);
        }
        if self.rcv.unacked > 0 && self.timers.ack.is_none() {
            self.timers.ack = Some(eng.now + toe_core::Duration::from_millis(eng.tcp.delayed_ack_ms));
        }
        self.publish_info();
        self.arm_wheel(eng);
    }

    /// TCP_INFO.
    fn publish_info(&self) {
        let info = &self.slot().info;
        let us = |d: toe_core::Duration| d.as_micros() as u32;
        self.slot().tx_sent.store(self.snd.nxt.min(self.snd.tail) as u64, Relaxed);
        info.cwnd.store(self.cc.cwnd, Relaxed);
        info.ssthresh.store(self.cc.ssthresh, Relaxed);
        info.srtt_us.store(us(self.rtt.srtt().unwrap_or_default()), Relaxed);
        info.rttvar_us.store(us(self.rtt.rttvar()), Relaxed);
        info.rto_us.store(us(self.rtt.backed_off(self.backoff)), Relaxed);
        info.mss.store(self.mss(), Relaxed);
        info.rcv_mss.store(self.rcv.mss, Relaxed);
        info.snd_wnd.store(self.snd.wnd, Relaxed);
        info.rcv_wnd.store((self.rcv.adv - self.rcv.nxt).max(0) as u32, Relaxed);
        info.total_retrans.store(self.retrans, Relaxed);
        info.retransmits.store(self.backoff, Relaxed);
        info.tcp_state.store(self.linux_state(), Relaxed);
        info.segs_out.store(self.segs_out, Relaxed);
        info.segs_in.store(self.segs_in, Relaxed);
    }
}

use crate::engine::Engine;
