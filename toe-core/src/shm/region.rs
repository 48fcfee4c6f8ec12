//! Mapping a region or the daemon page. `unsafe`: mmap and raw chunk pointers.

#![allow(unsafe_code)]

use super::layout::*;
use crate::ids::{EvSetId, RegionId, SockId};
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, fence};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// A shared mapping of a whole sealed memfd.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping is plain memory whose contents are atomics or raw bytes reached by pointer; it may be used and
// unmapped from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A new zeroed memfd of `len` bytes, sealed against growing and shrinking.
    fn create(name: &core::ffi::CStr, len: usize) -> io::Result<Mapping> {
        // SAFETY: plain system call with a valid C string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd was just returned to us and is owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system calls on an fd we own.
        unsafe {
            if libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) != 0
                || libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) != 0
            {
                return Err(io::Error::last_os_error());
            }
        }
        Mapping::map(fd, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps a memfd received from another process, if it is sealed and of exactly `len` bytes.
    fn open(fd: OwnedFd, len: usize, prot: libc::c_int) -> io::Result<Mapping> {
        // SAFETY: plain system calls on an fd we own; `stat` is plain old data.
        let (seals, size) = unsafe {
            let mut st: libc::stat = core::mem::zeroed();
            if libc::fstat(fd.as_raw_fd(), &mut st) != 0 {
                return Err(io::Error::last_os_error());
            }
            (libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS), st.st_size)
        };
        if seals & SEALS != SEALS || size != len as libc::off_t {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory of another size or not sealed"));
        }
        Mapping::map(fd, len, prot)
    }

    fn map(fd: OwnedFd, len: usize, prot: libc::c_int) -> io::Result<Mapping> {
        // SAFETY: a fresh shared mapping at an address of the kernel's choice; sealed, so it cannot shrink under us.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice on the mapping just made; failure is harmless.
        unsafe { libc::madvise(base, len, libc::MADV_DONTDUMP) };
        let base = NonNull::new(base.cast()).expect("mmap returned a non-null address");
        Ok(Mapping { base, len, fd })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of our own mapping; nothing borrowed from it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

const SEALS: libc::c_int = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;

/// A mapped region.
pub struct Region {
    map: Mapping,
    /// Kept apart from the header, which the app can write.
    id: RegionId,
    /// Daemon: the eventfd of each event set, once the app has asked for it.
    evset_fds: Box<[OnceLock<OwnedFd>]>,
}

impl Region {
    /// Daemon: a new, empty region.
    pub fn create(id: RegionId, workers: u32) -> io::Result<Region> {
        let region = Region::with(Mapping::create(c"toe-region", REGION_SIZE)?, id);
        let h = &region.layout().header;
        h.id.store(id.0, Relaxed);
        h.workers.store(workers, Relaxed);
        h.size.store(REGION_SIZE as u64, Relaxed);
        h.version.store(VERSION, Relaxed);
        h.magic.store(MAGIC, Release);
        Ok(region)
    }

    /// App: maps a region received from the daemon.
    pub fn open(fd: OwnedFd) -> io::Result<Region> {
        let mut region = Region::with(Mapping::open(fd, REGION_SIZE, libc::PROT_READ | libc::PROT_WRITE)?, RegionId(0));
        let h = &region.layout().header;
        if h.magic.load(Relaxed) != MAGIC || h.version.load(Relaxed) != VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory of another version"));
        }
        region.id = RegionId(h.id.load(Relaxed));
        Ok(region)
    }

    fn with(map: Mapping, id: RegionId) -> Region {
        Region { map, id, evset_fds: (0..MAX_EVSETS).map(|_| OnceLock::new()).collect() }
    }

    /// The memfd, to pass on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd.as_fd()
    }

    /// The whole layout.
    #[inline(always)]
    pub fn layout(&self) -> &RegionLayout {
        // SAFETY: the mapping is REGION_SIZE bytes, page-aligned, lives as long as `self`, and every field reached
        // through `&RegionLayout` is atomic, except the arenas, which are private to `tx_chunk`/`rx_chunk` below.
        unsafe { self.map.base.cast::<RegionLayout>().as_ref() }
    }

    /// The region's number.
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// A socket slot, if `id` is in range.
    #[inline(always)]
    pub fn sock(&self, id: SockId) -> Option<&SockSlot> {
        self.layout().socks.get(id.index())
    }

    /// A socket's TX chunk table, if `id` is in range.
    #[inline(always)]
    pub fn tx_table(&self, id: SockId) -> Option<&[AtomicU32; STREAM_CHUNKS]> {
        self.layout().tx_table.get(id.index())
    }

    /// A socket's RX chunk table, if `id` is in range.
    #[inline(always)]
    pub fn rx_table(&self, id: SockId) -> Option<&[AtomicU32; STREAM_CHUNKS]> {
        self.layout().rx_table.get(id.index())
    }

    /// An event set, if `id` is in range.
    #[inline(always)]
    pub fn evset(&self, id: EvSetId) -> Option<&EvSet> {
        self.layout().evsets.get(id.index())
    }

    /// First byte of a TX chunk (valid for [`CHUNK_SIZE`] bytes while the region lives); `None` if out of range.
    /// The other side may write it at any time: copy from it, never make a reference that must stay unchanged.
    #[inline(always)]
    pub fn tx_chunk(&self, chunk: u32) -> Option<NonNull<u8>> {
        self.chunk_at(core::mem::offset_of!(RegionLayout, tx_arena), chunk)
    }

    /// First byte of an RX chunk; as [`tx_chunk`](Self::tx_chunk).
    #[inline(always)]
    pub fn rx_chunk(&self, chunk: u32) -> Option<NonNull<u8>> {
        self.chunk_at(core::mem::offset_of!(RegionLayout, rx_arena), chunk)
    }

    #[inline(always)]
    fn chunk_at(&self, arena: usize, chunk: u32) -> Option<NonNull<u8>> {
        if chunk as usize >= ARENA_CHUNKS {
            return None;
        }
        // SAFETY: arena + chunk * CHUNK_SIZE is inside the mapping by the check above and the layout's size.
        Some(unsafe { self.map.base.add(arena + chunk as usize * CHUNK_SIZE) })
    }

    /// Daemon: records the eventfd of an event set (the first one stays).
    pub fn set_evset_fd(&self, set: EvSetId, fd: OwnedFd) {
        if let Some(slot) = self.evset_fds.get(set.index()) {
            let _ = slot.set(fd);
        }
    }

    /// Daemon: the eventfd of an event set.
    pub fn evset_fd(&self, set: EvSetId) -> Option<BorrowedFd<'_>> {
        self.evset_fds.get(set.index())?.get().map(AsFd::as_fd)
    }

    /// Asks `worker` to look at `sock`. The caller then wakes the worker if it sleeps.
    #[inline(always)]
    pub fn kick(&self, worker: u32, sock: SockId) {
        if let Some(set) = self.layout().kick.get(worker as usize) {
            set.set(sock.0);
            fence(SeqCst);
        }
    }
}

/// The daemon page, mapped.
pub struct DaemonPageMap(Mapping);

impl DaemonPageMap {
    /// Daemon: a new page.
    pub fn create() -> io::Result<DaemonPageMap> {
        let page = DaemonPageMap(Mapping::create(c"toe-daemon", core::mem::size_of::<DaemonPage>())?);
        // SAFETY: plain system call on an fd we own. From now on nobody, of whatever user, can map the page writable.
        if unsafe { libc::fcntl(page.0.fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        page.get().version.store(VERSION, Relaxed);
        page.get().magic.store(MAGIC, Release);
        Ok(page)
    }

    /// App: maps the page read-only. Stores through it would fault.
    pub fn open(fd: OwnedFd) -> io::Result<DaemonPageMap> {
        let page = DaemonPageMap(Mapping::open(fd, core::mem::size_of::<DaemonPage>(), libc::PROT_READ)?);
        if page.get().magic.load(Relaxed) != MAGIC || page.get().version.load(Relaxed) != VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "daemon page of another version"));
        }
        Ok(page)
    }

    /// The page.
    #[inline(always)]
    pub fn get(&self) -> &DaemonPage {
        // SAFETY: the mapping has the page's size and alignment and lives as long as `self`; all fields are atomic.
        unsafe { self.0.base.cast::<DaemonPage>().as_ref() }
    }

    /// The page's memfd, to pass to apps; it cannot be mapped writable.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    fn dup(fd: BorrowedFd<'_>) -> OwnedFd {
        fd.try_clone_to_owned().unwrap()
    }

    #[test]
    fn a_region_opens_with_the_same_contents() {
        let a = Region::create(RegionId(7), 2).unwrap();
        let b = Region::open(dup(a.fd())).unwrap();
        assert_eq!(b.id(), RegionId(7));
        a.sock(SockId(65_535)).unwrap().tx_tail.store(9, Relaxed);
        assert_eq!(b.sock(SockId(65_535)).unwrap().tx_tail.load(Relaxed), 9);
        assert!(a.sock(SockId(65_536)).is_none());
        assert!(a.tx_chunk(ARENA_CHUNKS as u32).is_none());
    }

    #[test]
    fn foreign_memory_is_refused() {
        let small = Mapping::create(c"small", 4096).unwrap();
        let fd = dup(small.fd.as_fd()).into_raw_fd();
        // SAFETY: fd was just duplicated and given up.
        assert!(Region::open(unsafe { OwnedFd::from_raw_fd(fd) }).is_err());
        let blank = Mapping::create(c"blank", REGION_SIZE).unwrap();
        assert!(Region::open(dup(blank.fd.as_fd())).is_err());
    }

    #[test]
    fn kicks_are_drained_once() {
        let r = Region::create(RegionId(1), 2).unwrap();
        for s in [0, 63, 64, 4095, 4096, 65_535] {
            r.kick(1, SockId(s));
            r.kick(1, SockId(s));
        }
        let mut seen = vec![];
        r.layout().kick[1].drain(|s| seen.push(s));
        assert_eq!(seen, [0, 63, 64, 4095, 4096, 65_535]);
        assert_eq!(r.layout().kick[1].drain(|_| ()), 0);
        assert!(!r.layout().kick[1].take(3));
    }

    #[test]
    fn pools_are_lifo_and_bounded() {
        let r = Region::create(RegionId(1), 2).unwrap();
        let p = &r.layout().ring_pool;
        let all: Vec<u32> = std::iter::from_fn(|| p.pop()).collect();
        assert_eq!(all, (0..MAX_LISTENERS as u32).collect::<Vec<_>>());
        assert!(p.push(5) && p.push(9) && !p.push(MAX_LISTENERS as u32));
        assert_eq!((p.pop(), p.pop(), p.pop()), (Some(9), Some(5), None));
    }

    #[test]
    fn pools_survive_threads() {
        let r = Region::create(RegionId(1), 2).unwrap();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..20_000 {
                        let i = r.layout().tx_pool.pop().unwrap();
                        assert!(r.layout().tx_pool.push(i));
                    }
                });
            }
        });
        assert_eq!(r.layout().tx_pool.used.load(Relaxed), 0);
        assert!(r.layout().tx_pool.fresh.load(Relaxed) <= 4);
    }

    #[test]
    fn the_daemon_page_is_read_only_for_apps() {
        let page = DaemonPageMap::create().unwrap();
        page.get().alive.store(42, Relaxed);
        let ro = dup(page.fd());
        assert!(Mapping::open(ro.try_clone().unwrap(), 4096, libc::PROT_READ | libc::PROT_WRITE).is_err());
        assert_eq!(DaemonPageMap::open(ro).unwrap().get().alive.load(Relaxed), 42);
    }
}
