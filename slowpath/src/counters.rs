//! What the slow path counts. Names follow `nstat` where Linux has one.

use serde::Serialize;

/// Totals since start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct Counters {
    #[serde(rename = "TcpActiveOpens")]
    pub active_opens: u64,
    #[serde(rename = "TcpPassiveOpens")]
    pub passive_opens: u64,
    #[serde(rename = "TcpAttemptFails")]
    pub attempt_fails: u64,
    #[serde(rename = "TcpEstabResets")]
    pub estab_resets: u64,
    #[serde(rename = "TcpInErrs")]
    pub in_errs: u64,
    #[serde(rename = "TcpOutRsts")]
    pub out_rsts: u64,
    #[serde(rename = "TcpExtListenOverflows")]
    pub listen_overflows: u64,
    #[serde(rename = "TcpExtListenDrops")]
    pub listen_drops: u64,
    #[serde(rename = "TcpExtTCPReqQFullDrop")]
    pub req_q_full_drop: u64,
    #[serde(rename = "TcpExtTCPSynRetrans")]
    pub syn_retrans: u64,
    #[serde(rename = "TcpExtTCPChallengeACK")]
    pub challenge_acks: u64,
    #[serde(rename = "TcpExtPAWSEstabRejected")]
    pub paws_rejected: u64,
    #[serde(rename = "TcpExtTW")]
    pub time_waits: u64,
    #[serde(rename = "TcpExtTWRecycled")]
    pub time_waits_recycled: u64,
    #[serde(rename = "TcpExtTCPTimeWaitOverflow")]
    pub time_wait_overflow: u64,
    #[serde(rename = "TcpExtTCPAbortOnTimeout")]
    pub abort_on_timeout: u64,
    #[serde(rename = "TcpExtTCPTimeouts")]
    pub timeouts: u64,
    #[serde(rename = "IcmpInErrors")]
    pub icmp_in_errors: u64,
    #[serde(rename = "IcmpInDestUnreachs")]
    pub icmp_in_errors_taken: u64,
    /// Path MTU lowered.
    pub path_mtu_changes: u64,
    /// Frames for flows of another core, or that came before their flow was installed.
    pub injected: u64,
    /// Frames that were neither TCP, ARP, NDP, echo nor an ICMP error.
    #[serde(rename = "IpInUnknownProtos")]
    pub unknown_protocols: u64,
    /// Frames whose destination is no address of the link.
    #[serde(rename = "IpInAddrErrors")]
    pub wrong_address: u64,
    /// Requests of apps, and those refused.
    pub requests: u64,
    pub requests_refused: u64,
}
