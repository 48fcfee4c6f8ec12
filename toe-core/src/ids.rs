//! Newtypes for every index, so that none is passed for another.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// As an index into a table.
            #[inline(always)]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// A registered process's shared-memory region, numbered by its daemon.
    RegionId(u32)
);
id!(
    /// A socket slot of a region.
    SockId(u32)
);
id!(
    /// An established connection in one fast path; the slow path hands the numbers out.
    FlowId(u32)
);
id!(
    /// A fast path core, by its position in the configured list.
    CoreId(u8)
);
id!(
    /// A network interface, by its position in the configuration.
    NicId(u8)
);
id!(
    /// A set of sockets that one `epoll`/`poll`/`select` waits for, in a region.
    EvSetId(u32)
);
id!(
    /// A process attached to a region: its bit in every socket's `holders`.
    ProcId(u32)
);
