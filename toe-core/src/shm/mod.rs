//! Shared memory between apps and daemon: layout, mapping, and the small lock-free structures in it.

mod addr;
pub mod kept;
pub mod layout;
mod pool;
mod readyset;
pub mod region;
mod slot;

pub use layout::*;
pub use readyset::bits;
pub use region::{DaemonPageMap, Region};

/// Bits of `RegionHeader::policy`.
pub mod policy {
    /// io_uring is left to the kernel; without it, it is refused with ENOSYS.
    pub const IO_URING: u32 = 1;
}
