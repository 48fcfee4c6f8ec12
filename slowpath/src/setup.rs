//! What the root package hands in.

use core::net::IpAddr;
use serde::Serialize;
use toe_core::NicId;
use toe_core::nic::NicCaps;
use toe_core::tcp::TcpConfig;

/// A link as configured.
#[derive(Clone, Debug)]
pub struct NicSetup {
    /// Its number in messages.
    pub id: NicId,
    /// Its name in `toe status`.
    pub name: String,
    /// What it can do now; refreshed by `Up::Link`.
    pub caps: NicCaps,
    /// Up at start?
    pub up: bool,
    /// The loopback link of this daemon: everything sent to one of the daemon's own addresses, on whichever link they
    /// are configured, travels here and comes back in. At most one.
    pub local: bool,
    /// Our addresses on it, with their prefix lengths.
    pub addrs: Vec<(IpAddr, u8)>,
}

/// A configured route.
#[derive(Clone, Debug)]
pub struct Route {
    /// Destination prefix.
    pub prefix: (IpAddr, u8),
    /// Next hop, on one of the links' own networks.
    pub via: IpAddr,
}

/// Everything [`crate::SlowPath::new`] needs.
#[derive(Clone, Debug)]
pub struct SlowPathConfig {
    /// The `[tcp]` table.
    pub tcp: TcpConfig,
    /// Links. Addresses that are not unicast are left out. smoltcp holds at most 32 routes a link; later ones are left out.
    pub nics: Vec<NicSetup>,
    /// Routes beyond the links' own networks.
    pub routes: Vec<Route>,
    /// Fast path cores.
    pub cores: usize,
    /// Key of initial sequence numbers (RFC 6528), ephemeral ports (RFC 6056) and tables. Must be random and secret.
    pub secret: [u8; 16],
    /// Seed of smoltcp's generator (nothing that a peer sees depends on it).
    pub seed: u64,
}

/// Who a region belongs to, by the kernel's credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// Process that registered.
    pub pid: u32,
    /// Its user: root may bind ports below 1024.
    pub uid: u32,
    /// Its program's base name.
    pub program: String,
}
