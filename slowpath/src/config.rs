//! What the slow path is told at its start.

use core::net::IpAddr;
use toe_core::NicId;
use toe_core::nic::NicCaps;
use toe_core::tcp::TcpConfig;

/// A link.
pub struct NicSetup {
    /// Position in the configuration.
    pub id: NicId,
    /// Name in the configuration.
    pub name: String,
    /// Abilities.
    pub caps: NicCaps,
    /// Up?
    pub up: bool,
    /// Our addresses, with prefix lengths.
    pub addrs: Vec<(IpAddr, u8)>,
    /// Leads to ourselves: packets to any address of the daemon go out here.
    pub local: bool,
}

/// A route beyond the links' own networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination network.
    pub prefix: (IpAddr, u8),
    /// Gateway, on one of the links' networks.
    pub via: IpAddr,
}

/// Everything.
pub struct SlowPathConfig {
    /// TCP parameters.
    pub tcp: TcpConfig,
    /// Links.
    pub nics: Vec<NicSetup>,
    /// Routes.
    pub routes: Vec<Route>,
    /// Fast path cores.
    pub cores: usize,
    /// Secret for initial sequence numbers (RFC 6528), ports (RFC 6056) and hashes.
    pub secret: [u8; 16],
    /// Seed for smoltcp.
    pub seed: u64,
}

/// Whose region it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Process id of the first process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Program name.
    pub program: String,
}
