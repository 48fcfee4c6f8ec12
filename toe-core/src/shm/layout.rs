//! The shared-memory contract between an app's processes and its daemon. **This file is the whole layout.**
//!
//! A *region* is one sealed, sparse memfd for each registering process; forked children and programs that inherit a
//! socket map the same one. Everything here is made of atomics, so that `&T` into shared memory is sound whatever the
//! other side writes. All that an app can write is untrusted by the daemon: read once into a local, bounds-checked.
//!
//! ```text
//! region   ┌ header ┬ pools ┬ kick sets ┬ ev sets ┬ socket slots ┬ chunk tables ┬ accept rings ┬ TX arena ┬ RX arena ┐
//! ```
//!
//! A stream (one direction of one socket) is counted from byte 0 = first byte after the SYN, as `u64`. Byte `p` lies in
//! chunk `table[(p / CHUNK_SIZE) % STREAM_CHUNKS]` at offset `p % CHUNK_SIZE`.
//!
//! ```text
//!  TX:  tx_head (daemon: acked) ≤ sent ≤ tx_tail (app: written);      RX:  rx_head (app: read) ≤ rx_tail (daemon: in order)
//! ```

use core::mem::{align_of, offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// First word of every region ("TOE1").
pub const MAGIC: u32 = u32::from_le_bytes(*b"TOE1");
/// Bumped with every change of this file; daemon and shim must agree.
pub const VERSION: u32 = 2;

/// Bytes of one chunk.
pub const CHUNK_SIZE: usize = 16 * 1024;
/// Chunks one stream can hold: 4 MiB of buffer.
pub const STREAM_CHUNKS: usize = 256;
/// Socket slots of a region.
pub const MAX_SOCKS: usize = 65_536;
/// Slots below this are taken by the app (connect, listen), those above by the daemon (accept).
pub const APP_SOCKS: usize = 32_768;
/// Chunks of each arena: 1 GiB, sparse.
pub const ARENA_CHUNKS: usize = 65_536;
/// Event sets of a region.
pub const MAX_EVSETS: usize = 256;
/// Listening sockets of a region.
pub const MAX_LISTENERS: usize = 256;
/// Entries of one accept ring: the largest backlog.
pub const ACCEPT_RING: usize = 65_536;
/// Daemon threads that take kicks: the slow path is worker 0, fast path core `i` is worker `1 + i`.
pub const MAX_WORKERS: usize = 17;
/// Rules that a region carries (routes and addresses of the daemon included, most specific last resort).
pub const MAX_RULES: usize = 128;
/// Reasons for which a socket can go to the kernel.
pub const MAX_WHYS: usize = 32;
/// Processes that can hold sockets of one region at a time.
pub const MAX_PROCS: usize = 256;

/// Worker number of the slow path.
pub const SLOW_WORKER: u32 = 0;

/// Life of a socket slot; written by the daemon, except `Free → New` by the app on its own slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SockState {
    /// In a pool.
    Free = 0,
    /// Taken; not yet bound.
    New = 1,
    /// Has a local port.
    Bound = 2,
    /// Accepting.
    Listening = 3,
    /// SYN sent, or queued to be.
    Connecting = 4,
    /// Data may flow; closed directions are told by `DaemonFlags`/`AppFlags`.
    Established = 5,
    /// Over: `error` tells why, 0 for an orderly end. Unread bytes stay readable.
    Closed = 6,
}

/// Bits of `SockSlot::daemon_flags`.
pub mod daemon_flags {
    /// The peer's FIN has been received in order: EOF after `rx_tail`.
    pub const RX_FIN: u32 = 1;
    /// The connection was reset or aborted: `error` holds (or held) the errno.
    pub const RESET: u32 = 2;
    /// Our FIN has been acknowledged.
    pub const TX_FIN_ACKED: u32 = 4;
}

/// Bits of `SockSlot::app_flags`.
pub mod app_flags {
    /// No more bytes will be written: FIN after `tx_tail`.
    pub const SHUT_WR: u32 = 1;
    /// The app will not read again (shutdown(SHUT_RD)): arriving data is acknowledged and dropped, as Linux does.
    pub const SHUT_RD: u32 = 2;
    /// Close with RST (SO_LINGER with a zero time-out).
    pub const LINGER_RST: u32 = 4;
    /// TCP_NODELAY.
    pub const NODELAY: u32 = 8;
    /// TCP_CORK or a pending MSG_MORE.
    pub const CORK: u32 = 16;
    /// SO_KEEPALIVE.
    pub const KEEPALIVE: u32 = 32;
    /// TCP_QUICKACK: acknowledge at once.
    pub const QUICKACK: u32 = 64;
    /// SO_REUSEADDR.
    pub const REUSEADDR: u32 = 128;
    /// SO_REUSEPORT.
    pub const REUSEPORT: u32 = 256;
    /// IPV6_V6ONLY.
    pub const V6ONLY: u32 = 512;
    /// Congestion control: NewReno instead of the default CUBIC.
    pub const RENO: u32 = 1024;
    /// The app found the TX stream full and waits for room: tell it when a third is free.
    pub const NOSPACE: u32 = 2048;
    /// A process has taken this daemon-accepted socket out of its accept ring: from now on no holders means closed. Set
    /// after the holder bit, so read this first and the holders after.
    pub const TAKEN: u32 = 1 << 16;
    /// O_NONBLOCK of the open file description. App only.
    pub const NONBLOCK: u32 = 1 << 17;
    /// The app set TCP_CORK itself, so a send without MSG_MORE leaves `CORK` alone. App only.
    pub const USER_CORK: u32 = 1 << 18;
    /// The kernel holds the local port for this socket as well, and has decided that it may: only listeners of the engine
    /// are in its way, no connections and no TIME-WAIT.
    pub const KERNEL_BOUND: u32 = 1 << 19;
    /// Made as AF_INET6: names are told in that form, whatever the addresses are. App only.
    pub const INET6: u32 = 1 << 24;
}

/// What an app asks of the slow path through `SockSlot::req_op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ReqOp {
    /// Reserve `req_addr` (port 0: choose).
    Bind = 1,
    /// Start accepting, `req_arg` = backlog; `accept_ring` names a ring the app took.
    Listen = 2,
    /// Open a connection to `req_addr`; answered at once (0: under way), the end is told by `state`.
    Connect = 3,
}

/// An address and port in shared memory; see `addr.rs` for the conversions.
#[repr(C)]
pub struct ShmAddr {
    /// 0 none, 4 or 6.
    pub family: AtomicU32,
    /// Host byte order.
    pub port: AtomicU32,
    /// Network byte order; IPv4 in the first word.
    pub ip: [AtomicU32; 4],
    /// IPv6 scope id.
    pub scope: AtomicU32,
    _pad: AtomicU32,
}

/// Figures for TCP_INFO and `toe status`, written by the flow's fast path. Times in microseconds, sizes in bytes;
/// `tcp_state` is Linux's TCP_* number, `options` its TCPI_OPT_* bits (1 timestamps, 2 sack, 4 wscale), `wscale` has
/// the send scale in its low 4 bits and the receive scale in the next 4.
#[repr(C, align(64))]
#[allow(missing_docs)]
pub struct SockInfo {
    pub cwnd: AtomicU32,
    pub ssthresh: AtomicU32,
    pub srtt_us: AtomicU32,
    pub rttvar_us: AtomicU32,
    pub rto_us: AtomicU32,
    pub mss: AtomicU32,
    pub rcv_mss: AtomicU32,
    pub snd_wnd: AtomicU32,
    pub rcv_wnd: AtomicU32,
    pub total_retrans: AtomicU32,
    pub retransmits: AtomicU32,
    pub options: AtomicU32,
    pub wscale: AtomicU32,
    pub tcp_state: AtomicU32,
    pub segs_out: AtomicU32,
    pub segs_in: AtomicU32,
}

/// One socket. Each cache line has one writing side; lines are ordered by how often they move.
#[repr(C, align(64))]
pub struct SockSlot {
    // -- line 0: written by the daemon, rarely
    /// A [`SockState`].
    pub state: AtomicU32,
    /// Worker that the app kicks ([`SLOW_WORKER`] or 1 + core).
    pub owner: AtomicU32,
    /// Pending error (errno); the app takes it with `swap(0)`.
    pub error: AtomicU32,
    /// [`daemon_flags`].
    pub daemon_flags: AtomicU32,
    /// Number of the last request answered.
    pub resp_seq: AtomicU32,
    /// Its errno, 0 for success.
    pub resp_err: AtomicU32,
    /// Counts reuses of this slot.
    pub generation: AtomicU32,
    /// Daemon-accepted sockets: the listener's slot.
    pub parent: AtomicU32,
    /// ICMP or other soft error seen (errno), reported on give-up.
    pub soft_error: AtomicU32,
    /// Bits of [`kept`](super::kept).
    pub kept: AtomicU32,
    _pad0: [AtomicU32; 6],

    // -- line 1: written by the daemon, per segment received
    /// In-order bytes received.
    pub rx_tail: AtomicU64,
    /// Urgent pointer as a stream position plus 1; 0: none. (Later issues.)
    pub rx_urgent: AtomicU64,
    _pad1: [AtomicU64; 6],

    // -- line 2: written by the daemon, per ACK received
    /// Bytes acknowledged by the peer; chunks below are free.
    pub tx_head: AtomicU64,
    /// Bytes sent at least once.
    pub tx_sent: AtomicU64,
    /// Most bytes the app may have between `tx_head` and `tx_tail` (autotuned; at most what `opt_sndbuf` asks).
    pub tx_limit: AtomicU32,
    /// Receive buffer in force, bytes.
    pub rx_limit: AtomicU32,
    _pad2: [AtomicU64; 5],

    // -- line 3: written by app readers
    /// Bytes read by the app.
    pub rx_head: AtomicU64,
    /// 1: a reader (or accepter) sleeps in a futex on this word.
    pub rx_wait: AtomicU32,
    /// Lock among readers: owner's tid.
    pub rx_lock: AtomicU32,
    _pad3: [AtomicU64; 6],

    // -- line 4: written by app writers
    /// Bytes written by the app.
    pub tx_tail: AtomicU64,
    /// 1: a writer (or connecter, or requester) sleeps in a futex on this word.
    pub tx_wait: AtomicU32,
    /// Lock among writers: owner's tid.
    pub tx_lock: AtomicU32,
    /// [`app_flags`].
    pub app_flags: AtomicU32,
    /// SO_RCVTIMEO, milliseconds; 0: none. App only.
    pub rcv_timeo_ms: AtomicU32,
    /// SO_SNDTIMEO, milliseconds; 0: none. App only.
    pub snd_timeo_ms: AtomicU32,
    _pad4: [AtomicU32; 9],

    // -- line 5: who holds and who watches
    /// One bit for each process that has the socket open; none left: closed.
    pub holders: [AtomicU64; MAX_PROCS / 64],
    /// One bit for each event set that watches the socket.
    pub sets: [AtomicU64; MAX_EVSETS / 64],

    // -- line 6, 7: requests (numbered) and options, written by the app
    /// Number of the last request.
    pub req_seq: AtomicU32,
    /// A [`ReqOp`].
    pub req_op: AtomicU32,
    /// Its argument.
    pub req_arg: AtomicU32,
    /// Listener: the accept ring the app took for it.
    pub accept_ring: AtomicU32,
    /// Address of the request.
    pub req_addr: ShmAddr,
    /// SO_COOKIE of the placeholder fd: the socket's identity across exec and SCM_RIGHTS. 0: none yet.
    pub cookie: AtomicU64,
    /// Lock among requesters: owner's tid.
    pub req_lock: AtomicU32,
    /// SO_SNDBUF as set (already doubled as Linux does), 0: autotune.
    pub opt_sndbuf: AtomicU32,
    /// SO_RCVBUF as set (already doubled), 0: autotune.
    pub opt_rcvbuf: AtomicU32,
    /// TCP_KEEPIDLE, seconds; 0: default.
    pub opt_keepidle: AtomicU32,
    /// TCP_KEEPINTVL, seconds; 0: default.
    pub opt_keepintvl: AtomicU32,
    /// TCP_KEEPCNT; 0: default.
    pub opt_keepcnt: AtomicU32,
    /// TCP_USER_TIMEOUT, milliseconds; 0: none.
    pub opt_user_timeout: AtomicU32,
    /// TCP_MAXSEG as asked; 0: none.
    pub opt_maxseg: AtomicU32,
    /// TCP_LINGER2, seconds + 1; 0: default.
    pub opt_linger2: AtomicU32,
    /// TCP_SYNCNT; 0: default.
    pub opt_syncnt: AtomicU32,
    /// IP_TTL / IPV6_UNICAST_HOPS; 0: default 64.
    pub opt_ttl: AtomicU32,
    /// IP_TOS / IPV6_TCLASS.
    pub opt_tos: AtomicU32,
    /// SO_RCVLOWAT; 0 and 1 alike.
    pub opt_rcvlowat: AtomicU32,
    /// TCP_NOTSENT_LOWAT, 0: none.
    pub opt_notsent_lowat: AtomicU32,
    _pad5: [AtomicU32; 4],

    // -- line 8: addresses, written by the daemon
    /// getsockname.
    pub local: ShmAddr,
    /// getpeername.
    pub remote: ShmAddr,

    // -- line 9
    /// TCP_INFO.
    pub info: SockInfo,
}

/// A set of small numbers that many set and one drains: three levels of bits, never full. See `readyset.rs`.
#[repr(C, align(64))]
pub struct ReadySet {
    /// One bit for each non-zero word of `mid`.
    pub top: AtomicU64,
    /// Of a kick set: the CPU of the last thread that kicked, plus 1.
    pub cpu: AtomicU32,
    _pad: [AtomicU32; 13],
    /// One bit for each non-zero word of `leaf`.
    pub mid: [AtomicU64; MAX_SOCKS / 64 / 64],
    /// One bit for each member.
    pub leaf: [AtomicU64; MAX_SOCKS / 64],
}

/// One waiter for many sockets (`epoll`, `poll`, `select`).
#[repr(C, align(64))]
pub struct EvSet {
    /// 1: the waiter sleeps; whoever swaps it to 0 writes the set's eventfd.
    pub armed: AtomicU32,
    _pad: [AtomicU32; 15],
    /// Sockets with news since the waiter last looked.
    pub ready: ReadySet,
}

/// Connections ready for `accept`: daemon pushes at `tail`, takers move `head` by compare-and-swap.
#[repr(C, align(64))]
pub struct AcceptRing {
    /// Next to take.
    pub head: AtomicU32,
    _pad0: [AtomicU32; 15],
    /// Next to fill.
    pub tail: AtomicU32,
    _pad1: [AtomicU32; 15],
    /// Socket ids.
    pub entry: [AtomicU32; ACCEPT_RING],
}

/// Lock-free LIFO of indices below `N`; see `pool.rs`.
#[repr(C, align(64))]
pub struct IndexPool<const N: usize> {
    /// Tag (high half) and index + 1 (low half) of the first free entry.
    pub head: AtomicU64,
    /// Entries from here on were never used.
    pub fresh: AtomicU32,
    /// Entries now taken (for status; approximate under races).
    pub used: AtomicU32,
    _pad: [AtomicU64; 6],
    /// Index + 1 of the next free entry.
    pub next: [AtomicU32; N],
}

/// A compiled rule: first match decides which stack a bind, connect or listen uses.
#[repr(C)]
pub struct ShmRule {
    /// Bit 0: connect, bit 1: bind/listen.
    pub roles: AtomicU32,
    /// 1: engine, 2: kernel, 3: refuse with ENETUNREACH.
    pub action: AtomicU32,
    /// 4, 6, or 0 for any.
    pub family: AtomicU32,
    /// Prefix length in bits.
    pub prefix_len: AtomicU32,
    /// Network byte order; IPv4 in the first word.
    pub prefix: [AtomicU32; 4],
    /// First port (host order).
    pub port_lo: AtomicU32,
    /// Last port.
    pub port_hi: AtomicU32,
    /// Position of the rule in the configuration (for `toe rules check`), or u32::MAX for an implied one.
    pub origin: AtomicU32,
    _pad: AtomicU32,
}

/// Start of a region.
#[repr(C, align(64))]
pub struct RegionHeader {
    /// [`MAGIC`].
    pub magic: AtomicU32,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Size of the mapping.
    pub size: AtomicU64,
    /// The region's number.
    pub id: AtomicU32,
    /// Workers in use, the slow path included.
    pub workers: AtomicU32,
    /// Rules in use.
    pub rules_len: AtomicU32,
    /// What the daemon's configuration says about this process's shim: bits of `shm::policy`.
    pub policy: AtomicU32,
    /// Default TX limit for new sockets, bytes.
    pub default_sndbuf: AtomicU32,
    /// Default RX limit for new sockets, bytes.
    pub default_rcvbuf: AtomicU32,
    /// 1: what rules say of the engine and 127.0.0.1 or ::1 means engine and kernel together; 0: the kernel alone.
    pub loopback: AtomicU32,
    /// The last errno of the engine for which a socket went to the kernel instead.
    pub why_errno: AtomicU32,
    _pad2: [AtomicU32; 4],
    /// The rules, first match wins.
    pub rules: [ShmRule; MAX_RULES],
    /// Sockets that went to the kernel, by [`crate::app::Why`]. Written by the app.
    pub why: [AtomicU32; MAX_WHYS],
}

/// One whole region: a view of the mapping.
#[repr(C, align(4096))]
pub struct RegionLayout {
    /// Constants, rules.
    pub header: RegionHeader,
    /// Free socket slots below [`APP_SOCKS`]: app pops, daemon pushes.
    pub sock_pool: IndexPool<APP_SOCKS>,
    /// Free event sets: app only.
    pub evset_pool: IndexPool<MAX_EVSETS>,
    /// Free accept rings: app pops, daemon pushes.
    pub ring_pool: IndexPool<MAX_LISTENERS>,
    /// Free TX chunks: app pops, fast path pushes on ACK.
    pub tx_pool: IndexPool<ARENA_CHUNKS>,
    /// Process bits in use: parent takes one for the child before `fork`, daemon gives it back.
    pub proc_pool: IndexPool<MAX_PROCS>,
    /// Sockets that want a worker's attention.
    pub kick: [ReadySet; MAX_WORKERS],
    /// Event sets.
    pub evsets: [EvSet; MAX_EVSETS],
    /// Sockets.
    pub socks: [SockSlot; MAX_SOCKS],
    /// TX chunk tables, written by the app.
    pub tx_table: [[AtomicU32; STREAM_CHUNKS]; MAX_SOCKS],
    /// RX chunk tables, written by the daemon (which keeps its own copy and never reads this one).
    pub rx_table: [[AtomicU32; STREAM_CHUNKS]; MAX_SOCKS],
    /// Accept queues.
    pub rings: [AcceptRing; MAX_LISTENERS],
    /// TX payload.
    pub tx_arena: [[[u64; 8]; CHUNK_SIZE / 64]; ARENA_CHUNKS],
    /// RX payload.
    pub rx_arena: [[[u64; 8]; CHUNK_SIZE / 64]; ARENA_CHUNKS],
}

/// Bytes of a region.
pub const REGION_SIZE: usize = size_of::<RegionLayout>();

/// State of one worker in the daemon page.
#[repr(C, align(64))]
pub struct WorkerPage {
    /// 1: asleep; after a kick, write its eventfd.
    pub asleep: AtomicU32,
    /// CPU it runs on, or u32::MAX.
    pub cpu: AtomicU32,
    _pad: [AtomicU32; 14],
}

/// Pages that every app maps read-only: whether the daemon lives, which of its workers sleep, where it has listeners.
#[repr(C, align(4096))]
pub struct DaemonPage {
    /// [`MAGIC`].
    pub magic: AtomicU32,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Robust futex: the daemon's tid | FUTEX_WAITERS while it lives, then FUTEX_OWNER_DIED. Every sleeper waits on it too.
    pub alive: AtomicU32,
    /// Longest spin before a sleep, nanoseconds: what the daemon measured or was told.
    pub spin_ns: AtomicU32,
    _pad: [AtomicU32; 12],
    /// Workers.
    pub worker: [WorkerPage; MAX_WORKERS],
    _pad2: [AtomicU32; 736],
    /// One bit for each port that somebody listens on at 127.0.0.1 or ::1. Without it, connecting there need not be asked for.
    pub shared_ports: [AtomicU64; 1024],
}

const _: () = {
    assert!(size_of::<ShmAddr>() == 32);
    assert!(size_of::<SockInfo>() == 64);
    assert!(size_of::<SockSlot>() == 640 && align_of::<SockSlot>() == 64);
    assert!(offset_of!(SockSlot, rx_tail) == 64 && offset_of!(SockSlot, tx_head) == 128);
    assert!(offset_of!(SockSlot, rx_head) == 192 && offset_of!(SockSlot, tx_tail) == 256);
    assert!(offset_of!(SockSlot, holders) == 320 && offset_of!(SockSlot, req_seq) == 384);
    assert!(offset_of!(SockSlot, local) == 512);
    assert!(size_of::<ReadySet>() == 64 + 128 + 8192);
    assert!(size_of::<EvSet>() == 64 + size_of::<ReadySet>());
    assert!(size_of::<AcceptRing>() == 128 + 4 * ACCEPT_RING);
    assert!(size_of::<ShmRule>() == 48);
    assert!(size_of::<RegionHeader>() == 64 + 48 * MAX_RULES + 4 * MAX_WHYS);
    assert!(size_of::<IndexPool<64>>() == 64 + 256);
    assert!(offset_of!(RegionLayout, header) == 0);
    assert!(offset_of!(RegionLayout, tx_arena) % 64 == 0);
    assert!(REGION_SIZE.is_multiple_of(4096));
    assert!(size_of::<WorkerPage>() == 64);
    assert!(size_of::<DaemonPage>() == 4096 + 8192 && offset_of!(DaemonPage, shared_ports) == 4096);
    assert!(MAX_SOCKS == 64 * 64 * 16 && APP_SOCKS < MAX_SOCKS);
};
