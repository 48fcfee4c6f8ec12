//! TCP parameters, with Linux's defaults and names (`net.ipv4.tcp_*`) where there are any.

use crate::flow::CongestionControl;
use crate::time::Duration;
use serde::{Deserialize, Serialize};

/// The `[tcp]` table of the configuration. Times in milliseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpConfig {
    /// Send buffer of a new socket.
    pub sndbuf: u32,
    /// Receive buffer of a new socket.
    pub rcvbuf: u32,
    /// Largest either grows by autotuning or by setsockopt (at most 4 MiB, the layout's limit).
    pub buf_max: u32,
    /// `cubic` or `reno`.
    pub congestion: CongestionControl,
    /// Offer window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer SACK (RFC 2018).
    pub sack: bool,
    /// Initial RTO (RFC 6298 §2.1).
    pub rto_initial_ms: u64,
    /// Least RTO (Linux: 200; RFC 6298 says 1000).
    pub rto_min_ms: u64,
    /// Largest RTO (RFC 6298 §2.5: at least 60 s).
    pub rto_max_ms: u64,
    /// Delayed ACK (RFC 9293 §3.8.6.3: below 500 ms).
    pub delayed_ack_ms: u64,
    /// SYN retransmissions before ETIMEDOUT (tcp_syn_retries).
    pub syn_retries: u32,
    /// SYN-ACK retransmissions (tcp_synack_retries).
    pub synack_retries: u32,
    /// Data retransmissions (tcp_retries2).
    pub retries: u32,
    /// Retransmissions for sockets that nobody holds (tcp_orphan_retries).
    pub orphan_retries: u32,
    /// tcp_keepalive_time.
    pub keepalive_time_ms: u64,
    /// tcp_keepalive_intvl.
    pub keepalive_intvl_ms: u64,
    /// tcp_keepalive_probes.
    pub keepalive_probes: u32,
    /// FIN-WAIT-2 of orphans (tcp_fin_timeout).
    pub fin_timeout_ms: u64,
    /// TIME-WAIT (Linux: 60 s).
    pub time_wait_ms: u64,
    /// Largest backlog of a listener (somaxconn).
    pub somaxconn: u32,
    /// First and last ephemeral port (ip_local_port_range).
    pub port_range: (u16, u16),
    /// Challenge ACKs per second (RFC 5961 §7).
    pub challenge_ack_limit: u32,
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            sndbuf: 512 << 10,
            rcvbuf: 512 << 10,
            buf_max: 4 << 20,
            congestion: CongestionControl::Cubic,
            window_scaling: true,
            timestamps: true,
            sack: true,
            rto_initial_ms: 1000,
            rto_min_ms: 200,
            rto_max_ms: 120_000,
            delayed_ack_ms: 40,
            syn_retries: 6,
            synack_retries: 5,
            retries: 15,
            orphan_retries: 8,
            keepalive_time_ms: 7_200_000,
            keepalive_intvl_ms: 75_000,
            keepalive_probes: 9,
            fin_timeout_ms: 60_000,
            time_wait_ms: 60_000,
            somaxconn: 65_535,
            port_range: (32_768, 60_999),
            challenge_ack_limit: 1000,
        }
    }
}

impl TcpConfig {
    /// Window scale we announce: enough for `buf_max` (RFC 7323 §2.3).
    pub fn rcv_wscale(&self) -> u8 {
        if !self.window_scaling {
            return 0;
        }
        (0..14).find(|s| u64::from(self.buf_max) >> s <= 0xffff).unwrap_or(14)
    }

    /// A millisecond setting as a `Duration`.
    pub fn ms(v: u64) -> Duration {
        Duration::from_millis(v)
    }
}
