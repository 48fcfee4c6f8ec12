//! Segmentation: what to send next, how much of it, and whether it should wait (RFC 9293 §3.7.4 Nagle, §3.8.6.2.1 silly windows).

use crate::copy_tx::MOST_PAYLOAD;
use crate::flow::Flow;
use crate::output::Port;
use crate::poll::Env;
use crate::timers::Timer;
use toe_core::Duration;
use toe_core::shm::app_flags;

/// A corked rest leaves after this (Linux).
const CORK_TIME: Duration = Duration::from_millis(200);

/// A stretch of the TX stream to become one frame (cut further by the link if it is longer than `size`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// First position.
    pub start: u64,
    /// After the last position, the FIN's included.
    pub end: u64,
    /// Payload of a full segment.
    pub size: u64,
    /// Sent before.
    pub again: bool,
    /// Sent before, not thought to be lost: a tail loss probe.
    pub probe: bool,
}

/// Why nothing is sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nothing to send.
    Idle,
    /// Congestion window.
    Congestion,
    /// The peer's window.
    Window,
    /// A short segment waits for more data or for an ACK.
    Nagle,
    /// As `Nagle`, by the app's wish.
    Cork,
}

impl Flow {
    /// What to send next: what is lost, then what is new, then what might be lost (RFC 6675 §4, NextSeg).
    pub fn next_segment(&mut self, port: &Port) -> Result<Plan, Hold> {
        let size = self.full_size(port);
        if self.snd.tail_probe {
            return self.tail_probe(size);
        }
        let most = port.most_payload(size).min(MOST_PAYLOAD);
        let pipe = self.board.pipe(self.snd.una, self.snd.nxt);
        let room = self.cc.cwnd().saturating_sub(pipe);
        if let Some(lost) = self.board.next_lost(self.snd.una, self.snd.nxt) {
            return self.resend(lost, room, size, most).ok_or(Hold::Congestion);
        }
        self.new_data(room, size, most).or_else(|hold| {
            let hole = self.board.next_hole(self.snd.una, self.snd.nxt, size);
            match hole.filter(|_| hold != Hold::Congestion) {
                Some(hole) => self.resend(hole, room, size, size).ok_or(Hold::Congestion),
                None => Err(hold),
            }
        })
    }

    /// RFC 8985 §7.3: one segment whatever the congestion window says, a new one if there is any, else the last once more.
    fn tail_probe(&mut self, size: u64) -> Result<Plan, Hold> {
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        if let Some(lost) = self.board.next_lost(una, nxt) {
            return self.resend(lost, size, size, size).ok_or(Hold::Congestion);
        }
        self.new_data(size, size, size).or_else(|hold| {
            let (start, end) = self.board.probe(una, nxt, size).ok_or(hold)?;
            Ok(Plan { start, end, size, again: true, probe: true })
        })
    }

    /// Payload of a full segment beside the options that the next one carries.
    fn full_size(&self, port: &Port) -> u64 {
        let options = self.options_len() as u64;
        u64::from(self.snd.mss).min(port.most_mss(&self.key)).saturating_sub(options).max(1)
    }

    fn resend(&self, (start, end): (u64, u64), room: u64, size: u64, most: u64) -> Option<Plan> {
        let whole = match room / size * size {
            0 if self.board.force => size,
            whole => whole,
        };
        (whole > 0).then(|| Plan { start, end: end.min(start + whole.min(most)), size, again: true, probe: false })
    }

    fn new_data(&mut self, room: u64, size: u64, most: u64) -> Result<Plan, Hold> {
        let start = self.snd.nxt;
        let data_end = self.snd.fin.unwrap_or(self.app.tail);
        if start > data_end || (start == data_end && self.snd.fin.is_none()) {
            return Err(Hold::Idle);
        }
        let available = data_end - start;
        let plan = |end| Plan { start, end, size, again: false, probe: false };
        if available == 0 {
            return Ok(plan(data_end + 1)); // the FIN alone: it needs no window, and its resending probes the peer's
        }
        let window = (self.snd.una + self.snd.wnd).saturating_sub(start);
        // With nothing in flight one segment may always leave, even if the MSS has outgrown the congestion window.
        let room = if self.snd.una == start { room.max(size) } else { room };
        let usable = available.min(window).min(room).min(most);
        if usable == available {
            return self.last_piece(available, size).map(|len| self.with_fin(plan(start + len)));
        }
        let whole = usable / size * size;
        if whole > 0 {
            return Ok(plan(start + whole));
        }
        if room < size.min(available) {
            self.snd.limited = start;
            return Err(Hold::Congestion);
        }
        // Sender's silly window avoidance: at least half of the largest window the peer ever offered.
        if usable > 0 && (usable >= self.snd.max_wnd / 2 || self.snd.sws_over) {
            Ok(plan(start + usable))
        } else {
            Err(Hold::Window)
        }
    }

    /// All that is left may go as far as the windows are concerned: how much of it does?
    fn last_piece(&self, available: u64, size: u64) -> Result<u64, Hold> {
        let rest = available % size;
        if rest == 0 {
            return Ok(available);
        }
        let hold = self.holds_short();
        match hold {
            None => Ok(available),
            Some(_) if available > rest => Ok(available - rest),
            Some(hold) => Err(hold),
        }
    }

    /// Must a short segment wait?
    fn holds_short(&self) -> Option<Hold> {
        if self.snd.fin.is_some() {
            return None;
        }
        if self.app.flags & app_flags::CORK != 0 && !self.snd.cork_over {
            return Some(Hold::Cork);
        }
        // Minshall: wait only for the ACK of an earlier short segment, not of full ones.
        let waits = self.app.flags & app_flags::NODELAY == 0 && self.snd.small_end > self.snd.una;
        waits.then_some(Hold::Nagle)
    }

    /// The FIN travels with the last bytes.
    fn with_fin(&self, mut plan: Plan) -> Plan {
        if self.snd.fin == Some(plan.end) {
            plan.end += 1;
        }
        plan
    }

    /// Nothing more can be sent for this reason: set the timer that gets things moving again.
    pub fn held(&mut self, env: &Env, hold: Hold) {
        let waits_for_window = hold == Hold::Window && self.snd.una == self.snd.nxt;
        if waits_for_window {
            self.timers.start(Timer::Persist, env.now + self.rtt.doubled(self.snd.persist_backoff));
        } else {
            self.timers.stop(Timer::Persist);
            self.snd.persist_backoff = 0;
        }
        match hold {
            Hold::Cork => self.timers.start(Timer::Cork, env.now + CORK_TIME),
            Hold::Congestion => self.snd.limited = self.snd.nxt,
            _ => self.timers.stop(Timer::Cork),
        }
    }

    /// A planned frame has left.
    pub fn segment_sent(&mut self, env: &mut Env, plan: &Plan) {
        self.snd.last = env.now;
        self.snd.cork_over = false;
        self.snd.sws_over = false;
        if core::mem::take(&mut self.snd.tail_probe) {
            env.stats.loss_probes += 1;
            self.snd.tail_probed = true;
            self.snd.probe_end = plan.probe.then_some(plan.end);
        }
        if plan.again {
            if !plan.probe {
                self.board.resent(plan.start, plan.end, self.snd.nxt);
            }
            self.snd.timed = None; // Karn: what is timed may be the copy
            let segments = (plan.end - plan.start).div_ceil(plan.size);
            env.stats.retrans_segs += segments;
            self.counts.retrans = self.counts.retrans.wrapping_add(segments as u32);
        } else {
            if self.snd.una == self.snd.nxt {
                self.snd.progress = env.now;
            }
            let before = self.data_sent();
            self.snd.nxt = plan.end;
            env.stats.bytes_sent += self.data_sent() - before;
            self.board.sent(plan.end - plan.start);
            if self.fin_sent() {
                self.snd.closed_first = !self.rcv.fin_done;
            }
            self.snd.timed.get_or_insert((plan.end, env.now));
            if !(plan.end - plan.start).is_multiple_of(plan.size) {
                self.snd.small_end = plan.end;
            }
        }
        // RFC 6298 §5.1
        self.timers.start(Timer::Retransmit, env.now + self.rtt.rto());
        self.watch_tail(env.now);
    }

    /// RFC 5681 §4.1: after more than an RTO of silence the window is no longer trusted.
    pub fn restart_if_idle(&mut self, env: &Env) {
        let idle = self.snd.una == self.snd.nxt && self.app.tail > self.snd.nxt;
        if idle && env.now.since(self.snd.last) > self.rtt.rto() {
            self.cc.after_idle(self.snd.last);
        }
    }
}
