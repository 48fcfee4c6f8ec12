//! What `poll(2)` says of a socket: the rules of Linux's `tcp_poll`.

use super::socket::Sock;
use crate::shm::{SockState, app_flags};
use core::sync::atomic::Ordering::Acquire;

/// Event bits, the same numbers for poll and epoll.
pub mod bits {
    #![allow(missing_docs)]
    pub const IN: u32 = 0x1;
    pub const PRI: u32 = 0x2;
    pub const OUT: u32 = 0x4;
    pub const ERR: u32 = 0x8;
    pub const HUP: u32 = 0x10;
    pub const NVAL: u32 = 0x20;
    pub const RDNORM: u32 = 0x40;
    pub const WRNORM: u32 = 0x100;
    pub const RDHUP: u32 = 0x2000;
}

use bits::*;

impl Sock<'_> {
    /// The events that are true now. If `interest` has OUT and there is no room, the daemon is asked to say when there is.
    pub fn level(&self, interest: u32) -> u32 {
        let state = self.state();
        let error = if self.has_error(state) { ERR } else { 0 };
        match state {
            // A listener that was shut down is closed. One that the kernel shares says so there.
            SockState::Listening if self.receive_shut() => {
                let shared = self.slot.app_flags.load(Acquire) & app_flags::KERNEL_BOUND != 0;
                if shared { 0 } else { HUP | OUT | WRNORM }
            }
            SockState::Listening if self.acceptable() => IN | RDNORM,
            SockState::Listening => 0,
            SockState::Connecting => 0,
            SockState::Free | SockState::New | SockState::Bound => {
                let shut = self.slot.app_flags.load(Acquire) & app_flags::SHUT_RD != 0;
                HUP | OUT | WRNORM | error | if shut { IN | RDNORM | RDHUP } else { 0 }
            }
            SockState::Established | SockState::Closed => self.stream_level(state, interest) | error,
        }
    }

    fn stream_level(&self, state: SockState, interest: u32) -> u32 {
        let closed = state == SockState::Closed;
        let (rx_shut, tx_shut) = (self.receive_shut(), closed || self.send_shut());
        let mut level = 0;
        if rx_shut && tx_shut {
            level |= HUP;
        }
        if rx_shut {
            level |= IN | RDNORM | RDHUP;
        }
        if self.available() >= self.low_water() as u64 {
            level |= IN | RDNORM;
        }
        if tx_shut || self.roomy() {
            level |= OUT | WRNORM;
        } else if interest & (OUT | WRNORM) != 0 {
            self.ask_for_room();
            if self.roomy() {
                level |= OUT | WRNORM;
            }
        }
        level
    }
}
