//! Bits of `SockSlot::kept`: what the daemon's control thread does for the socket. For the apps to know; the daemon believes
//! only its own tables.

/// The daemon has the other end of the placeholder's connection, and holds the socket until the last of the placeholder's
/// descriptors is closed in whatever process: it outlives any one of them.
pub const KEPT: u32 = 1;
/// A process without the shim has the placeholder: bytes go through its connection, and the daemon moves them. Every other
/// process uses the placeholder as well from now on.
pub const RELAYED: u32 = 2;
