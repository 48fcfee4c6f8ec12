//! The configuration file as written. Every table refuses unknown keys; `toml` names the line.

use super::Prefix;
use nic_backend::FaultSpec;
use serde::Deserialize;
use std::net::IpAddr;
use std::path::PathBuf;
use toe_core::tcp::TcpConfig;
use toml::Spanned;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    pub daemon: RawDaemon,
    pub tcp: Option<Spanned<TcpConfig>>,
    pub wait: RawWait,
    pub nic: Vec<Spanned<RawNic>>,
    pub route: Vec<Spanned<RawRoute>>,
    pub rule: Vec<Spanned<RawRule>>,
}

/// `[daemon]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawDaemon {
    pub socket: Option<PathBuf>,
    pub cores: Option<Spanned<Vec<usize>>>,
    pub pin: Option<bool>,
    pub slow_path: SlowPathPlace,
    pub loopback: Loopback,
    pub max_processes_per_user: Option<Spanned<usize>>,
    pub idle_exit_s: Option<u64>,
    pub io_uring: IoUring,
}

/// What apps that want io_uring are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IoUring {
    /// ENOSYS, so that libraries use what they have instead.
    #[default]
    Refuse,
    /// The kernel's answer.
    Allow,
}

/// Which thread runs the slow path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlowPathPlace {
    /// Its own where there are more than two CPUs.
    #[default]
    Auto,
    /// A thread of its own.
    Own,
    /// The thread of fast path core 0.
    Shared,
}

/// Who serves 127.0.0.1 and ::1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loopback {
    /// The engine between programs that use it, the kernel for all others.
    #[default]
    Offload,
    /// The kernel.
    Kernel,
}

/// `[wait]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawWait {
    pub spin_us: Option<Spanned<u64>>,
}

/// `[[nic]]`; which keys belong to which kind is checked afterwards.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawNic {
    pub name: String,
    pub kind: RawKind,
    #[serde(default)]
    pub addr: Vec<Prefix>,
    pub socket: Option<PathBuf>,
    pub mac: Option<String>,
    pub mtu: Option<usize>,
    pub ring_bytes: Option<usize>,
    pub ifname: Option<String>,
    pub vnet_hdr: Option<bool>,
    pub up: Option<bool>,
    pub host_addr: Option<Vec<Prefix>>,
    pub fault: Option<RawFault>,
    pub pcap: Option<RawPcap>,
}

/// `kind` of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RawKind {
    PcieLink,
    Tap,
    Local,
}

/// `fault = { ... }`: keys for both directions, or `tx`/`rx` tables for each.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawFault {
    pub seed: u64,
    pub loss: Option<f64>,
    pub duplicate: Option<f64>,
    pub corrupt: Option<f64>,
    pub delay_us: Option<u64>,
    pub jitter_us: Option<u64>,
    pub reorder: Option<f64>,
    pub reorder_max: Option<u32>,
    pub rate: Option<u64>,
    pub limit: Option<usize>,
    pub tx: Option<FaultSpec>,
    pub rx: Option<FaultSpec>,
}

/// `pcap = { ... }`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPcap {
    #[serde(alias = "path")]
    pub file: PathBuf,
    #[serde(default)]
    pub snaplen: usize,
    #[serde(default)]
    pub max_bytes: u64,
}

/// `[[route]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRoute {
    pub to: Prefix,
    pub via: IpAddr,
}

/// `[[rule]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRule {
    pub program: Option<String>,
    pub uid: Option<u32>,
    #[serde(default)]
    pub role: RuleRole,
    pub cidr: Option<Prefix>,
    pub port: Option<RawPort>,
    pub stack: Stack,
}

/// `port = 80`, `"80"` or `"1000-2000"`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum RawPort {
    One(u16),
    Text(String),
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleRole {
    /// Outgoing connections.
    Connect,
    /// Bind and listen.
    Listen,
    /// Both.
    #[default]
    Any,
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stack {
    /// The engine.
    Toe,
    /// The kernel's TCP.
    Kernel,
    /// ENETUNREACH.
    Refuse,
}
