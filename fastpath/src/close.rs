//! The end of a connection: when it has come, what the app and the slow path are told.

use crate::alloc::RegionState;
use crate::engine::Engine;
use crate::flow::{Ending, Flow};
use std::sync::atomic::Ordering::{Relaxed, Release};
use toe_core::flow::TimeWait;
use toe_core::msg::{CloseKind, Up};
use toe_core::nic::Nic;
use toe_core::notify;
use toe_core::shm::{SLOW_WORKER, SockState, daemon_flags};

impl Flow {
    /// Both FINs acknowledged? (CLOSING, TIME-WAIT and LAST-ACK of RFC 9293 §3.3.2.)
    pub fn check_end(&mut self, eng: &Engine) {
        if self.ending != Ending::No || !self.fin_acked() {
            return;
        }
        if self.slot().daemon_flags.load(Relaxed) & daemon_flags::TX_FIN_ACKED == 0 {
            self.slot().daemon_flags.fetch_or(daemon_flags::TX_FIN_ACKED, Release);
            self.tx_news = true;
        }
        if self.rcv.fin {
            self.ending = if self.passive_close { Ending::Done } else { Ending::TimeWait };
        } else {
            self.arm_fin_wait2(eng);
        }
    }

    /// Tells the peer (if it is to be told), the app and the slow path, and gives up the RX chunks.
    pub fn finish(mut self, eng: &mut Engine, nic: &mut dyn Nic, regions: &mut RegionState) {
        if self.reset_peer {
            self.send_reset(eng, nic);
        }
        let how = match self.ending {
            Ending::TimeWait => CloseKind::TimeWait(TimeWait {
                snd_nxt: self.tx_seq(self.snd.nxt),
                rcv_nxt: self.rx_seq(self.rcv.nxt),
                window: ((self.rcv.adv - self.rcv.nxt).max(0) >> self.rcv.wscale).min(0xffff) as u16,
                timestamps: self.ts,
            }),
            Ending::PeerReset => CloseKind::PeerReset,
            Ending::Aborted => CloseKind::Aborted,
            Ending::Done | Ending::No => CloseKind::Done,
        };
        self.tell_app(eng);
        regions.set_flow(self.sock, None);
        let chunks = core::mem::take(&mut self.rcv.chunks);
        regions.keep_unread(self.sock, chunks);
        eng.up.send(Up::Closed {
            core: eng.core,
            flow: self.id,
            key: self.key,
            nic: self.nic,
            l2: self.l2,
            region: self.region.id(),
            sock: self.sock,
            how,
        });
    }

    fn tell_app(&self, eng: &Engine) {
        let slot = self.slot();
        match self.ending {
            Ending::PeerReset => {
                // Linux: EPIPE if the peer had already finished its side, else ECONNRESET.
                let errno = if self.rcv.fin { libc::EPIPE } else { libc::ECONNRESET };
                slot.error.store(errno as u32, Relaxed);
                slot.daemon_flags.fetch_or(daemon_flags::RESET, Release);
            }
            Ending::Aborted => {
                slot.daemon_flags.fetch_or(daemon_flags::RESET, Release);
            }
            Ending::TimeWait | Ending::Done | Ending::No => {}
        }
        slot.info.tcp_state.store(7, Relaxed);
        slot.owner.store(SLOW_WORKER, Relaxed);
        slot.state.store(SockState::Closed as u32, Release);
        notify::all(&self.region, self.sock, slot, &*eng.waker);
    }
}
