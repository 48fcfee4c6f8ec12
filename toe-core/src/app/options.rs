//! Socket options that live in the slot, under their Linux names. Whatever else SOL_SOCKET knows is kept by the placeholder
//! descriptor, which answers for it with the kernel's own checks.

#![allow(unsafe_code)]

use super::socket::Sock;
use crate::shm::{STREAM_CHUNKS, SockState, app_flags};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int};
use rustix::io::Errno;

/// Least send and receive buffer (Linux: SOCK_MIN_SNDBUF, SOCK_MIN_RCVBUF, roughly).
const MIN_BUF: u32 = 4608;
/// Largest buffer: one stream less a chunk.
const MAX_BUF: u32 = ((STREAM_CHUNKS - 1) * crate::shm::CHUNK_SIZE) as u32;

impl Sock<'_> {
    /// Copies every option of `from`, for a slot that takes its place.
    pub fn inherit_options(&self, from: &Sock<'_>) {
        self.slot.inherit_options(from.slot);
        self.slot.soft_error.store(from.slot.soft_error.load(Relaxed), Relaxed);
        let flags = from.slot.app_flags.load(Relaxed) & INHERITED;
        self.slot.app_flags.fetch_or(flags, SeqCst);
    }

    /// Sets an integer option. ENOPROTOOPT: none of ours.
    pub fn set_option(&self, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
        if let Some(flag) = flag_of(level, name) {
            self.set_flag(flag, value != 0, true);
            if flag == app_flags::CORK {
                self.set_flag(app_flags::USER_CORK, value != 0, false);
            }
            return Ok(());
        }
        let s = self.slot;
        let (word, value) = match (level, name) {
            (SOL_SOCKET, libc::SO_SNDBUF) => (&s.opt_sndbuf, doubled(value)),
            (SOL_SOCKET, libc::SO_RCVBUF) => (&s.opt_rcvbuf, doubled(value)),
            (SOL_SOCKET, libc::SO_RCVLOWAT) => {
                (&s.opt_rcvlowat, if value < 0 { i32::MAX as u32 } else { value as u32 })
            }
            (IPPROTO_TCP, libc::TCP_KEEPIDLE) => (&s.opt_keepidle, ranged(value, 1, 32_767)?),
            (IPPROTO_TCP, libc::TCP_KEEPINTVL) => (&s.opt_keepintvl, ranged(value, 1, 32_767)?),
            (IPPROTO_TCP, libc::TCP_KEEPCNT) => (&s.opt_keepcnt, ranged(value, 1, 127)?),
            (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => (&s.opt_user_timeout, ranged(value, 0, i32::MAX)?),
            (IPPROTO_TCP, libc::TCP_MAXSEG) => (&s.opt_maxseg, if value == 0 { 0 } else { ranged(value, 88, 32_767)? }),
            (IPPROTO_TCP, libc::TCP_LINGER2) => {
                // Zero is the default; negative is no time at all, which the engine counts as 0 seconds.
                let linger = if value < 0 { 1 } else { value.min(120) as u32 + 1 };
                (&s.opt_linger2, if value == 0 { 0 } else { linger })
            }
            (IPPROTO_TCP, libc::TCP_SYNCNT) => (&s.opt_syncnt, ranged(value, 1, 127)?),
            (IPPROTO_TCP, TCP_NOTSENT_LOWAT) => (&s.opt_notsent_lowat, value as u32),
            (IPPROTO_IP, libc::IP_TTL) => (&s.opt_ttl, if value == -1 { 0 } else { ranged(value, 1, 255)? }),
            (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
                (&s.opt_ttl, if value == -1 { 0 } else { ranged(value, 0, 255)? })
            }
            // The ECN bits are TCP's own (RFC 3168).
            (IPPROTO_IP, libc::IP_TOS) => (&s.opt_tos, value as u32 & 0xfc),
            (IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                (&s.opt_tos, if value == -1 { 0 } else { ranged(value, 0, 255)? & 0xfc })
            }
            _ => return Err(Errno::NOPROTOOPT),
        };
        word.store(value, Relaxed);
        self.link.kick(s, self.id);
        Ok(())
    }

    /// Reads an integer option. ENOPROTOOPT: none of ours.
    pub fn get_option(&self, level: c_int, name: c_int) -> Result<c_int, Errno> {
        let s = self.slot;
        if let Some(flag) = flag_of(level, name) {
            return Ok((s.app_flags.load(Relaxed) & flag != 0).into());
        }
        let or = |word: &AtomicU32, default: u32| match word.load(Relaxed) {
            0 => default,
            v => v,
        };
        let value = match (level, name) {
            (SOL_SOCKET, libc::SO_ERROR) => {
                let _ = self.state();
                self.take_error().map_or(0, |e| e.raw_os_error() as u32)
            }
            (SOL_SOCKET, libc::SO_ACCEPTCONN) => (self.state() == SockState::Listening).into(),
            (SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM as u32,
            (SOL_SOCKET, libc::SO_PROTOCOL) => IPPROTO_TCP as u32,
            (SOL_SOCKET, libc::SO_SNDBUF) => or(&s.opt_sndbuf, s.tx_limit.load(Relaxed)),
            (SOL_SOCKET, libc::SO_RCVBUF) => or(&s.opt_rcvbuf, s.rx_limit.load(Relaxed)),
            (SOL_SOCKET, libc::SO_RCVLOWAT) => or(&s.opt_rcvlowat, 1),
            (IPPROTO_TCP, libc::TCP_KEEPIDLE) => or(&s.opt_keepidle, 7200),
            (IPPROTO_TCP, libc::TCP_KEEPINTVL) => or(&s.opt_keepintvl, 75),
            (IPPROTO_TCP, libc::TCP_KEEPCNT) => or(&s.opt_keepcnt, 9),
            (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => or(&s.opt_user_timeout, 0),
            // Linux answers with the MSS in use, 536 before there is one (RFC 9293 §3.7.1).
            (IPPROTO_TCP, libc::TCP_MAXSEG) => match s.info.mss.load(Relaxed) {
                0 => or(&s.opt_maxseg, 536),
                mss => mss,
            },
            (IPPROTO_TCP, libc::TCP_LINGER2) => match s.opt_linger2.load(Relaxed) {
                0 => 60,
                1 => -1i32 as u32,
                v => v - 1,
            },
            (IPPROTO_TCP, libc::TCP_SYNCNT) => or(&s.opt_syncnt, 6),
            (IPPROTO_TCP, TCP_NOTSENT_LOWAT) => or(&s.opt_notsent_lowat, 0),
            (IPPROTO_IP, libc::IP_TTL) | (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => or(&s.opt_ttl, 64),
            (IPPROTO_IP, libc::IP_TOS) | (IPPROTO_IPV6, libc::IPV6_TCLASS) => or(&s.opt_tos, 0),
            _ => return Err(Errno::NOPROTOOPT),
        };
        Ok(value as c_int)
    }

    /// TCP_INFO, truthfully as far as the engine knows it.
    pub fn tcp_info(&self) -> libc::tcp_info {
        let i = &self.slot.info;
        // SAFETY: tcp_info is plain integers; all zero is a value of it.
        let mut t: libc::tcp_info = unsafe { core::mem::zeroed() };
        t.tcpi_state = self.tcp_state();
        t.tcpi_options = i.options.load(Relaxed) as u8;
        t.tcpi_snd_rcv_wscale = i.wscale.load(Relaxed) as u8;
        t.tcpi_rto = i.rto_us.load(Relaxed);
        t.tcpi_snd_mss = i.mss.load(Relaxed);
        t.tcpi_rcv_mss = i.rcv_mss.load(Relaxed);
        t.tcpi_advmss = i.rcv_mss.load(Relaxed);
        t.tcpi_pmtu = i.mss.load(Relaxed).saturating_add(40);
        t.tcpi_rtt = i.srtt_us.load(Relaxed);
        t.tcpi_rttvar = i.rttvar_us.load(Relaxed);
        let mss = t.tcpi_snd_mss.max(1);
        // Linux counts these two in segments.
        t.tcpi_snd_cwnd = i.cwnd.load(Relaxed) / mss;
        t.tcpi_snd_ssthresh = i.ssthresh.load(Relaxed) / mss;
        t.tcpi_rcv_space = i.rcv_wnd.load(Relaxed);
        t.tcpi_retransmits = i.retransmits.load(Relaxed) as u8;
        t.tcpi_total_retrans = i.total_retrans.load(Relaxed);
        t.tcpi_unacked = (self.unsent_and_unacked().1 as u32).div_ceil(mss);
        t
    }

    /// Linux's TCP_* state number: the fast path's word, or what the slot's state implies. A shutdown counts from the call on,
    /// though the fast path is yet to see it.
    fn tcp_state(&self) -> u8 {
        let shut = self.slot.app_flags.load(Relaxed) & app_flags::SHUT_WR != 0;
        match (self.state(), self.slot.info.tcp_state.load(Relaxed)) {
            (SockState::Established, 0 | 1) if shut => 4,
            (SockState::Established, 8) if shut => 9,
            (SockState::Established, 0) => 1,
            (SockState::Established, n) => n as u8,
            (SockState::Connecting, _) => 2,
            (SockState::Listening, _) => 10,
            _ => 7,
        }
    }
}

/// Not in libc for all targets.
const TCP_NOTSENT_LOWAT: c_int = 25;
/// Flags that are options.
const INHERITED: u32 = app_flags::LINGER_RST
    | app_flags::NODELAY
    | app_flags::CORK
    | app_flags::USER_CORK
    | app_flags::KEEPALIVE
    | app_flags::REUSEADDR
    | app_flags::REUSEPORT
    | app_flags::V6ONLY
    | app_flags::RENO
    | app_flags::INET6
    | app_flags::NONBLOCK;

fn flag_of(level: c_int, name: c_int) -> Option<u32> {
    Some(match (level, name) {
        (SOL_SOCKET, libc::SO_KEEPALIVE) => app_flags::KEEPALIVE,
        (SOL_SOCKET, libc::SO_REUSEADDR) => app_flags::REUSEADDR,
        (SOL_SOCKET, libc::SO_REUSEPORT) => app_flags::REUSEPORT,
        (IPPROTO_TCP, libc::TCP_NODELAY) => app_flags::NODELAY,
        (IPPROTO_TCP, libc::TCP_CORK) => app_flags::CORK,
        (IPPROTO_TCP, libc::TCP_QUICKACK) => app_flags::QUICKACK,
        (IPPROTO_IPV6, libc::IPV6_V6ONLY) => app_flags::V6ONLY,
        _ => return None,
    })
}

/// As Linux: twice what was asked, for its overhead; never below a minimum.
fn doubled(value: c_int) -> u32 {
    (value as u32).min(MAX_BUF / 2).saturating_mul(2).max(MIN_BUF)
}

fn ranged(value: c_int, low: c_int, high: c_int) -> Result<u32, Errno> {
    if (low..=high).contains(&value) { Ok(value as u32) } else { Err(Errno::INVAL) }
}
