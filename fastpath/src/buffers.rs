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
    /// Up to where the table can hold bytes: STREAM_CHUNKS chunks from the first one not yet read to its end.
    fn table_end(&self) -> u64 {
        (self.rcv.freed + STREAM_CHUNKS as u64) * CHUNK
    }

    /// Up to where the receive buffer could take bytes now, and a window field could say so.
    fn room_to(&self) -> u64 {
        let r = &self.rcv;
        let end = (self.app.head + r.limit).min(self.table_end());
        end.min(r.nxt + (u64::from(u16::MAX) << r.wscale))
    }

    /// How far the edge must move to be worth telling (receiver's silly window avoidance, RFC 9293 §3.8.6.2.2).
    fn worthwhile(&self) -> u64 {
        (self.rcv.limit / 2).min(u64::from(self.rcv.mss)).max(1)
    }

    /// The window field of the segment being built; from here on the peer may send up to the edge it tells.
    ///
    /// The edge does not move to the left (RFC 9293 §3.8.6.2.2). What a scaled window cannot express is rounded up, and what the
    /// rounding shows is accepted too; only the edge itself does not creep with it.
    pub fn advertise(&mut self, env: &mut Env) -> u16 {
        let (target, table_end) = (self.room_to(), self.table_end());
        let moves = target >= self.rcv.told + self.worthwhile();
        let r = &mut self.rcv;
        let units = match moves {
            true => target.saturating_sub(r.nxt) >> r.wscale,
            false => r.told.saturating_sub(r.nxt).div_ceil(1 << r.wscale),
        };
        let units = units.min(u64::from(u16::MAX));
        r.advertised = units << r.wscale;
        let shown = r.nxt + r.advertised;
        if moves {
            r.told = r.told.max(shown);
        }
        r.edge = r.edge.max(shown.min(table_end));
        if units == 0 {
            env.stats.zero_windows_sent += 1;
        }
        units as u16
    }

    /// The app has read: is the news of a larger window worth an ACK? When it at least doubles what the peer has left
    /// (Linux), and by a worthwhile step.
    pub fn window_update_due(&self) -> bool {
        let (nxt, told) = (self.rcv.nxt, self.rcv.told);
        let target = self.room_to();
        !self.rcv.fin_done
            && target >= told + self.worthwhile()
            && target.saturating_sub(nxt) >= 2 * told.saturating_sub(nxt)
    }

    /// The app's own wish, or a size that grows with what it reads in a round trip (dynamic right-sizing). The shortest round
    /// trip counts: a longer one holds bytes that wait in this very buffer, and a larger buffer would only let more of them wait, out of
    /// the caches.
    pub fn tune_rx(&mut self, env: &Env) {
        let asked = u64::from(self.slot().opt_rcvbuf.load(Relaxed));
        if asked != 0 {
            return self.set_rx_limit(buffer_size(asked));
        }
        let (mark, since) = self.rcv.tuned;
        let rtt = self.rtt.least().unwrap_or(TcpConfig::ms(env.tcp.rto_initial_ms));
        let took = env.now.since(since);
        if took < rtt {
            return;
        }
        let read = u128::from(self.app.head - mark) * rtt.as_nanos() / took.as_nanos().max(1);
        let read = read.min(u128::from(MOST_BUFFER)) as u64;
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
