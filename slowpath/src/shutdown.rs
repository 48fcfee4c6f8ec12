//! A clean end: peers are told, by FIN as long as there is time, by RST at the deadline.

use crate::engine::SlowPath;
use crate::errno::{ECONNABORTED, ECONNRESET};
use crate::half::Role;
use crate::ports::SockRef;
use crate::table::Phase;
use core::sync::atomic::Ordering::SeqCst;
use toe_core::Instant;
use toe_core::flow::FlowKey;
use toe_core::msg::Down;
use toe_core::shm::{SockState, app_flags};

impl SlowPath {
    /// No more connections: listeners end (what nobody accepted is reset), attempts under way fail, and every flow sends FIN
    /// after what its app has written, as after shutdown(SHUT_WR).
    pub fn begin_shutdown(&mut self, _now: Instant) {
        self.shutting_down = true;
        let listeners: Vec<SockRef> = self.listeners.keys().copied().collect();
        for at in listeners {
            self.close_listener(at);
            self.set_phase(at, Phase::Idle, SockState::Closed);
        }
        self.drop_handshakes();
        let flows: Vec<_> = self.flows.values().map(|f| (f.core, f.sock)).collect();
        for (core, (region, sock)) in flows {
            if let Some(slot) = self.regions.get(&region).and_then(|r| r.region.sock(sock)) {
                slot.app_flags.fetch_or(app_flags::SHUT_WR, SeqCst);
            }
            self.down(core, Down::Kick { region, sock });
        }
    }

    /// The deadline: RST to whoever is left.
    pub fn abort_all(&mut self) {
        self.drop_handshakes();
        let flows: Vec<FlowKey> = self.flows.keys().copied().collect();
        for key in flows {
            self.remove_flow(&key, ECONNRESET, true);
        }
    }

    /// Nothing left but TIME-WAIT?
    pub fn is_drained(&self) -> bool {
        self.flows.is_empty() && self.half.is_empty()
    }

    fn drop_handshakes(&mut self) {
        let keys: Vec<FlowKey> = self.half.keys().copied().collect();
        for key in keys {
            let Some(half) = self.half.remove(&key) else { continue };
            match half.role {
                Role::Active => self.over(half, ECONNABORTED),
                Role::Passive => self.forget(&half),
            }
        }
    }
}
