//! Buffer sizes and the window we advertise.

use crate::alloc::CHUNK;
use crate::flow::Flow;
use crate::poll::Env;
use core::sync::atomic::Ordering::Relaxed;
use toe_core::shm::STREAM_CHUNKS;
use toe_core::tcp::TcpConfig;

/// Most bytes of one stream's buffer: every position must find its chunk, whatever the offset in the first one.
pub(crate) const MOST_BUFFER: u64 = (STREAM_CHUNKS as u64 - 1) * CHUNK;
/// Least buffer, as Linux's SOCK_MIN_RCVBUF in spirit.
const LEAST_BUFFER: u64 = 4096;

/// A buffer size within what the layout carries.
pub(crate) fn buffer_size(asked: u64) -> u64 {
    asked.clamp(LEAST_BUFFER, MOST_BUFFER)
}

impl Flow {
    /// Up to where the receive buffer could take bytes now.
    fn room_to(&self) -> u64 {
        let read = if self.rcv.discard { self.rcv.nxt } else { self.app.head };
        // The table holds STREAM_CHUNKS chunks from the first unread one.
        let table = (self.rcv.freed + STREAM_CHUNKS as u64) * CHUNK;
        if self.rcv.discard { read + self.rcv.limit } else { (read + self.rcv.limit).min(table) }
    }

    /// How far the edge must move to be worth telling (receiver's silly window avoidance, RFC 9293 §3.8.6.2.2).
    fn worthwhile(&self) -> u64 {
        (self.rcv.limit / 2).min(u64::from(self.rcv.mss)).max(1)
    }

    /// The window field of the segment being built; from here on the peer may send up to the edge it tells.
    pub fn advertise(&mut self, env: &mut Env) -> u16 {
        let r = &self.rcv;
        let target = self.room_to();
        let units = if target >= r.told + self.worthwhile() {
            (target.saturating_sub(r.nxt) >> r.wscale).min(u64::from(u16::MAX))
        } else {
            // The edge stays. Rounding up may show less than one unit more; moving it to the left is forbidden.
            r.told.saturating_sub(r.nxt).div_ceil(1 << r.wscale).min(u64::from(u16::MAX))
        };
        let r = &mut self.rcv;
        r.advertised = units << r.wscale;
        if r.nxt + r.advertised <= target {
            r.told = r.told.max(r.nxt + r.advertised);
            r.edge = r.edge.max(r.told);
        }
        if units == 0 {
            env.stats.zero_windows_sent += 1;
        }
        units as u16
    }

    /// The app has read: is the news of a larger window worth an ACK? When it at least doubles what the peer has left
    /// (Linux), and by a worthwhile step.
    pub fn window_update_due(&self) -> bool {
        if self.rcv.fin_done {
            return false;
        }
        let left = self.rcv.told.saturating_sub(self.rcv.nxt);
        let target = self.room_to();
        target >= self.rcv.told + self.worthwhile() && target - self.rcv.nxt >= 2 * left && left < self.rcv.limit / 2
    }

    /// The app's own wish, or a size that grows with what it reads in a round trip (dynamic right-sizing).
    pub fn tune_rx(&mut self, env: &Env) {
        let asked = u64::from(self.slot().opt_rcvbuf.load(Relaxed));
        if asked != 0 {
            return self.set_rx_limit(buffer_size(asked));
        }
        let (mark, since) = self.rcv.tuned;
        let rtt = self.rtt.srtt().unwrap_or(TcpConfig::ms(env.tcp.rto_initial_ms));
        if env.now.since(since) < rtt {
            return;
        }
        let read = self.app.head - mark;
        self.rcv.tuned = (self.app.head, env.now);
        if 2 * read > self.rcv.limit {
            let most = buffer_size(env.tcp.buf_max.into());
            self.set_rx_limit((2 * read).min(most).max(self.rcv.limit));
        }
    }

    /// Receive buffer in force.
    pub fn set_rx_limit(&mut self, limit: u64) {
        if self.rcv.limit != limit {
            self.rcv.limit = limit;
            self.slot().rx_limit.store(limit as u32, Relaxed);
        }
    }

    /// The app's own wish, or twice the congestion window, so that the sender always finds something to send.
    pub fn tune_tx(&mut self) {
        let slot = self.slot();
        let (asked, now) = (u64::from(slot.opt_sndbuf.load(Relaxed)), u64::from(slot.tx_limit.load(Relaxed)));
        let want = if asked != 0 { buffer_size(asked) } else { now.max((2 * self.cc.cwnd()).min(self.snd.buf_max)) };
        if want != now {
            slot.tx_limit.store(want as u32, Relaxed);
        }
    }
}
