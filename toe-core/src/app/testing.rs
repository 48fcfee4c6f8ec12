//! A daemon without engines, for tests of the app side: one thread that serves the control socket, answers requests, and moves
//! bytes between the two ends of a connection by copying. Both ends may be in one process or in several.
//!
//! It trusts its clients and is not fast. Its addresses are 127.77.0.0/16.

use crate::control::{self, OP_CHILD, OP_EVSET, OP_HELLO, OP_PID, Reply, Request};
use crate::ids::{EvSetId, RegionId, SockId};
use crate::notify::{self, Waker};
use crate::shm::*;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, fence};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// `alive` of a living test daemon.
const ALIVE: u32 = 1 << 31 | 7;
/// What the kernel adds when a robust futex's owner dies.
const OWNER_DIED: u32 = 1 << 30;

/// The running daemon; stops when dropped.
pub struct LoopDaemon {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    page: Arc<DaemonPageMap>,
    thread: Option<JoinHandle<()>>,
}

impl LoopDaemon {
    /// Starts one with its control socket in `dir`.
    pub fn start(dir: &Path) -> std::io::Result<LoopDaemon> {
        let path = dir.join("toed.sock");
        let _ = std::fs::remove_file(&path);
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
        rustix::net::listen(&listener, 64)?;
        let page = Arc::new(DaemonPageMap::create()?);
        page.get().alive.store(ALIVE, Release);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stop = Arc::new(AtomicBool::new(false));
        let mut state = State {
            listener,
            page: page.clone(),
            wake: wake.clone(),
            stop: stop.clone(),
            conns: Vec::new(),
            regions: HashMap::new(),
            next_region: 1,
            next_port: 40_000,
            peers: HashMap::new(),
            freed: HashMap::new(),
        };
        let thread = Some(std::thread::spawn(move || state.run()));
        Ok(LoopDaemon { path, stop, wake, page, thread })
    }

    /// Path of the control socket.
    pub fn path(&self) -> super::SocketPath {
        use std::os::unix::ffi::OsStrExt;
        super::SocketPath::try_from(self.path.as_os_str().as_bytes()).expect("a short path")
    }

    /// Dies as a killed process would: the kernel marks the robust futex, wakes one sleeper, and closes all descriptors.
    pub fn kill(&mut self) {
        self.stop.store(true, SeqCst);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the test daemon ended well");
        }
        let _ = std::fs::remove_file(&self.path);
        self.page.get().alive.fetch_or(OWNER_DIED, SeqCst);
        let _ = rustix::thread::futex::wake(&self.page.get().alive, rustix::thread::futex::Flags::empty(), 1);
    }
}

impl Drop for LoopDaemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Region and socket.
type Key = (u32, u32);

struct Conn {
    fd: OwnedFd,
    region: u32,
    proc: u32,
}

struct Served {
    region: Arc<Region>,
    /// Freed accepted slots and RX chunks; beyond them, numbers never used.
    socks: Vec<u32>,
    next_sock: u32,
    chunks: Vec<u32>,
    next_chunk: u32,
}

struct State {
    listener: OwnedFd,
    page: Arc<DaemonPageMap>,
    wake: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    conns: Vec<Conn>,
    regions: HashMap<u32, Served>,
    next_region: u32,
    next_port: u16,
    peers: HashMap<Key, Option<Key>>,
    /// First RX chunk (by position in the stream) not yet freed.
    freed: HashMap<Key, u64>,
}

struct Futexes;

impl Waker for Futexes {
    fn futex(&self, word: &AtomicU32) {
        let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
    }

    fn evset(&self, region: &Region, set: EvSetId) {
        if let Some(fd) = region.evset_fd(set) {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }
}

impl State {
    fn run(&mut self) {
        while !self.stop.load(SeqCst) {
            let mut busy = false;
            let kicked: Vec<Key> = self
                .regions
                .iter()
                .flat_map(|(&id, served)| {
                    let mut socks = vec![];
                    served.region.layout().kick[0].drain(|s| socks.push((id, s)));
                    socks
                })
                .collect();
            for key in kicked {
                busy = true;
                self.serve(key);
            }
            if !busy {
                self.sleep();
            }
        }
    }

    fn sleep(&mut self) {
        self.page.get().worker[0].asleep.store(1, SeqCst);
        fence(SeqCst);
        let quiet = self.regions.values().all(|s| s.region.layout().kick[0].is_empty());
        let ready: Vec<bool> = if quiet {
            let fds = [self.listener.as_fd(), self.wake.as_fd()];
            let conns = self.conns.iter().map(|c| c.fd.as_fd());
            let mut set: Vec<PollFd<'_>> =
                fds.into_iter().chain(conns).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let _ = poll(&mut set, None);
            set.iter().map(|p| !p.revents().is_empty()).collect()
        } else {
            vec![]
        };
        self.page.get().worker[0].asleep.store(0, SeqCst);
        let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
        let readable: Vec<usize> = ready.iter().skip(2).enumerate().filter(|(_, r)| **r).map(|(i, _)| i).collect();
        for &i in readable.iter().rev() {
            self.control(i);
        }
        if ready.first() == Some(&true)
            && let Ok(fd) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC)
        {
            self.conns.push(Conn { fd, region: 0, proc: u32::MAX });
        }
    }

    fn control(&mut self, index: usize) {
        let got = control::recv::<Request>(self.conns[index].fd.as_fd(), RecvFlags::empty());
        let Ok(Some((request, _))) = got else {
            let conn = self.conns.swap_remove(index);
            self.process_gone(&conn);
            return;
        };
        let mut reply = Reply::new(0);
        match request.op {
            OP_HELLO => self.hello(index, reply),
            OP_CHILD => {
                (self.conns[index].region, self.conns[index].proc) = (request.region, request.proc);
                let _ = control::send(self.conns[index].fd.as_fd(), &reply, &[]);
            }
            OP_PID => {
                let _ = control::send(self.conns[index].fd.as_fd(), &reply, &[]);
            }
            OP_EVSET => {
                let set = EvSetId(request.arg);
                let region = self.regions[&request.region].region.clone();
                if region.evset_fd(set).is_none() {
                    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
                    region.set_evset_fd(set, fd);
                }
                let fd = region.evset_fd(set).expect("just set");
                let _ = control::send(self.conns[index].fd.as_fd(), &reply, &[fd]);
            }
            _ => {
                reply.errno = Errno::NOSYS.raw_os_error() as u32;
                let _ = control::send(self.conns[index].fd.as_fd(), &reply, &[]);
            }
        }
    }

    fn hello(&mut self, index: usize, mut reply: Reply) {
        let id = self.next_region;
        self.next_region += 1;
        let region = Arc::new(Region::create(RegionId(id), 1).expect("a region"));
        let header = &region.layout().header;
        header.default_sndbuf.store(256 * 1024, Relaxed);
        header.default_rcvbuf.store(256 * 1024, Relaxed);
        let rule = &header.rules[0];
        rule.roles.store(3, Relaxed);
        rule.action.store(1, Relaxed);
        rule.family.store(4, Relaxed);
        rule.prefix_len.store(16, Relaxed);
        rule.prefix[0].store(u32::from_ne_bytes([127, 77, 0, 0]), Relaxed);
        rule.port_hi.store(65_535, Relaxed);
        header.rules_len.store(1, Release);
        let proc = region.layout().proc_pool.pop().expect("a process bit");
        let conn = &mut self.conns[index];
        (conn.region, conn.proc) = (id, proc);
        (reply.region, reply.proc, reply.workers) = (id, proc, 1);
        let _ = control::send(conn.fd.as_fd(), &reply, &[region.fd(), self.page.fd(), self.wake.as_fd()]);
        let served = Served { region, socks: vec![], next_sock: APP_SOCKS as u32, chunks: vec![], next_chunk: 0 };
        self.regions.insert(id, served);
    }

    fn process_gone(&mut self, conn: &Conn) {
        if conn.proc == u32::MAX {
            return;
        }
        let region = self.regions[&conn.region].region.clone();
        for id in 0..MAX_SOCKS as u32 {
            let slot = &region.layout().socks[id as usize];
            let bit = 1u64 << (conn.proc % 64);
            if slot.holders[conn.proc as usize / 64].fetch_and(!bit, SeqCst) & bit != 0 {
                self.serve((conn.region, id));
            }
        }
        region.layout().proc_pool.push(conn.proc);
        if self.conns.iter().all(|c| c.region != conn.region) {
            let gone: Vec<Key> = self.peers.keys().copied().filter(|k| k.0 == conn.region).collect();
            gone.into_iter().for_each(|k| self.abort(k));
            self.regions.remove(&conn.region);
        }
    }

    fn region(&self, key: Key) -> Option<Arc<Region>> {
        self.regions.get(&key.0).map(|s| s.region.clone())
    }

    fn serve(&mut self, key: Key) {
        let Some(region) = self.region(key) else { return };
        let Some(slot) = region.sock(SockId(key.1)) else { return };
        if slot.req_seq.load(Acquire) != slot.resp_seq.load(Relaxed) {
            self.request(key, &region, slot);
        }
        if let Some(Some(peer)) = self.peers.get(&key).copied() {
            self.transfer(key, peer);
            self.transfer(peer, key);
        }
        let peer = self.peers.get(&key).copied().flatten();
        for key in [Some(key), peer].into_iter().flatten() {
            self.check_held(key);
        }
    }

    fn check_held(&mut self, key: Key) {
        let Some(region) = self.region(key) else { return };
        let Some(slot) = region.sock(SockId(key.1)) else { return };
        // In this order: an accepter sets its holder bit, then TAKEN.
        let waits = key.1 >= APP_SOCKS as u32 && slot.app_flags.load(SeqCst) & app_flags::TAKEN == 0;
        let held = slot.holders.iter().any(|w| w.load(SeqCst) != 0);
        if !held && !waits && slot.state.load(Acquire) != SockState::Free as u32 {
            self.orphan(key, &region, slot);
        }
    }

    fn request(&mut self, key: Key, region: &Region, slot: &SockSlot) {
        let seq = slot.req_seq.load(Acquire);
        let addr = slot.req_addr.load();
        let mut connect = None;
        let err = match ReqOp::from_word(slot.req_op.load(Relaxed)) {
            Some(ReqOp::Bind) => self.bind(slot, addr),
            Some(ReqOp::Listen) => {
                slot.state.store(SockState::Listening as u32, Release);
                None
            }
            Some(ReqOp::Connect) => {
                if slot.local.load().is_none_or(|a| a.port() == 0) {
                    self.bind(slot, Some(SocketAddr::new(Ipv4Addr::new(127, 77, 0, 1).into(), 0)));
                }
                slot.remote.store(addr);
                slot.state.store(SockState::Connecting as u32, Release);
                connect = addr;
                None
            }
            None => Some(Errno::INVAL),
        };
        slot.resp_err.store(err.map_or(0, |e| e.raw_os_error() as u32), Relaxed);
        slot.resp_seq.store(seq, Release);
        notify::all(region, SockId(key.1), slot, &Futexes);
        if let Some(addr) = connect {
            self.connect(key, region, slot, addr);
        }
    }

    fn bind(&mut self, slot: &SockSlot, addr: Option<SocketAddr>) -> Option<Errno> {
        let mut addr = addr?;
        if addr.port() == 0 {
            self.next_port += 1;
            addr.set_port(self.next_port);
        }
        if self.listener_at(addr).is_some() {
            return Some(Errno::ADDRINUSE);
        }
        slot.local.store(Some(addr));
        slot.state.store(SockState::Bound as u32, Release);
        None
    }

    fn listener_at(&self, addr: SocketAddr) -> Option<Key> {
        let matches = |a: SocketAddr| a.port() == addr.port() && (a.ip() == addr.ip() || a.ip().is_unspecified());
        self.regions.iter().find_map(|(&r, served)| {
            let socks = &served.region.layout().socks;
            let used = served.region.layout().sock_pool.fresh.load(Relaxed) as usize;
            (0..used.min(APP_SOCKS))
                .find(|&i| {
                    socks[i].state.load(Acquire) == SockState::Listening as u32
                        && socks[i].local.load().is_some_and(matches)
                })
                .map(|i| (r, i as u32))
        })
    }

    fn connect(&mut self, key: Key, region: &Region, slot: &SockSlot, addr: SocketAddr) {
        let accepted = self.listener_at(addr).and_then(|l| self.accepted(l, slot, addr));
        match accepted {
            None => {
                slot.error.store(Errno::CONNREFUSED.raw_os_error() as u32, Relaxed);
                slot.state.store(SockState::Closed as u32, Release);
            }
            Some(peer) => {
                self.peers.insert(key, Some(peer));
                self.peers.insert(peer, Some(key));
                if slot.local.load().is_some_and(|a| a.ip().is_unspecified()) {
                    let port = slot.local.load().map_or(0, |a| a.port());
                    slot.local.store(Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 77, 0, 1)), port)));
                }
                slot.state.store(SockState::Established as u32, Release);
            }
        }
        notify::all(region, SockId(key.1), slot, &Futexes);
    }

    fn accepted(&mut self, listener: Key, from: &SockSlot, addr: SocketAddr) -> Option<Key> {
        let served = self.regions.get_mut(&listener.0)?;
        let region = served.region.clone();
        let parent = region.sock(SockId(listener.1))?;
        let ring = region.layout().rings.get(parent.accept_ring.load(Relaxed) as usize)?;
        let tail = ring.tail.load(Relaxed);
        if tail.wrapping_sub(ring.head.load(Acquire)) >= parent.req_arg.load(Relaxed).max(1) {
            return None;
        }
        let id = served.socks.pop().unwrap_or_else(|| {
            served.next_sock += 1;
            served.next_sock - 1
        });
        let slot = region.sock(SockId(id))?;
        slot.parent.store(listener.1, Relaxed);
        slot.local.store(Some(addr));
        slot.remote.store(from.local.load());
        slot.tx_limit.store(256 * 1024, Relaxed);
        slot.rx_limit.store(256 * 1024, Relaxed);
        slot.state.store(SockState::Established as u32, Release);
        ring.entry[tail as usize % ACCEPT_RING].store(id, Relaxed);
        ring.tail.store(tail.wrapping_add(1), Release);
        notify::readable(&region, SockId(listener.1), parent, &Futexes);
        Some((listener.0, id))
    }

    /// Moves bytes from `from`'s TX stream to `to`'s RX stream.
    fn transfer(&mut self, from: Key, to: Key) {
        let (Some(fr), Some(tr)) = (self.region(from), self.region(to)) else { return };
        let (Some(f), Some(t)) = (fr.sock(SockId(from.1)), tr.sock(SockId(to.1))) else { return };
        self.free_read_chunks(to, &tr, t);
        let mut moved = false;
        loop {
            let (head, tail) = (f.tx_head.load(Relaxed), f.tx_tail.load(Acquire));
            let at = t.rx_tail.load(Relaxed);
            let unread = at - t.rx_head.load(Acquire);
            let room = u64::from(t.rx_limit.load(Relaxed)).saturating_sub(unread);
            let n = (tail - head).min(room).min(left_in_chunk(head)).min(left_in_chunk(at));
            if n == 0 {
                break;
            }
            moved = true;
            self.copy(&fr, from, head, &tr, to, at, n as usize);
            t.rx_tail.store(at + n, Release);
            f.tx_sent.store(head + n, Relaxed);
            f.tx_head.store(head + n, Release);
            if (head + n) % CHUNK_SIZE as u64 == 0 {
                fr.layout().tx_pool.push(fr.layout().tx_table[from.1 as usize][table_index(head)].load(Relaxed));
            }
        }
        let done = f.tx_head.load(Relaxed) == f.tx_tail.load(Acquire);
        let fin = f.app_flags.load(SeqCst) & app_flags::SHUT_WR != 0 && done;
        let fin = fin && t.daemon_flags.fetch_or(daemon_flags::RX_FIN, SeqCst) & daemon_flags::RX_FIN == 0;
        if moved || fin {
            notify::readable(&tr, SockId(to.1), t, &Futexes);
        }
        let used = f.tx_tail.load(Relaxed) - f.tx_head.load(Relaxed);
        if moved && used * 3 <= u64::from(f.tx_limit.load(Relaxed)) * 2 {
            notify::writable(&fr, SockId(from.1), f, &Futexes);
        }
        let both = daemon_flags::RX_FIN | daemon_flags::TX_FIN_ACKED;
        if fin
            && f.daemon_flags.fetch_or(daemon_flags::TX_FIN_ACKED, SeqCst) | daemon_flags::TX_FIN_ACKED & both == both
            && t.daemon_flags.load(SeqCst) & both == both
        {
            for (r, k, s) in [(&fr, from, f), (&tr, to, t)] {
                s.state.store(SockState::Closed as u32, Release);
                notify::all(r, SockId(k.1), s, &Futexes);
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn copy(&mut self, fr: &Region, from: Key, head: u64, tr: &Region, to: Key, at: u64, n: usize) {
        let entry = &tr.layout().rx_table[to.1 as usize][table_index(at)];
        if at % CHUNK_SIZE as u64 == 0 {
            let served = self.regions.get_mut(&to.0).expect("served");
            let chunk = served.chunks.pop().unwrap_or_else(|| {
                served.next_chunk += 1;
                served.next_chunk - 1
            });
            entry.store(chunk, Relaxed);
        }
        let src = fr.tx_chunk(fr.layout().tx_table[from.1 as usize][table_index(head)].load(Relaxed)).expect("a chunk");
        let dst = tr.rx_chunk(entry.load(Relaxed)).expect("a chunk");
        // SAFETY: `n` reaches the end of neither chunk; the app writes neither range now.
        unsafe {
            let src = src.as_ptr().add((head % CHUNK_SIZE as u64) as usize);
            core::ptr::copy_nonoverlapping(src, dst.as_ptr().add((at % CHUNK_SIZE as u64) as usize), n);
        }
    }

    fn free_read_chunks(&mut self, key: Key, region: &Region, slot: &SockSlot) {
        let upto = slot.rx_head.load(Acquire) / CHUNK_SIZE as u64;
        let from = self.freed.insert(key, upto).unwrap_or(0);
        let served = self.regions.get_mut(&key.0).expect("served");
        for c in from..upto {
            served.chunks.push(region.layout().rx_table[key.1 as usize][c as usize % STREAM_CHUNKS].load(Relaxed));
        }
    }

    /// Nobody holds the socket: FIN after what was written, RST if something was left unread (RFC 2525 §2.17).
    fn orphan(&mut self, key: Key, region: &Region, slot: &SockSlot) {
        let unread = slot.rx_tail.load(Acquire) > slot.rx_head.load(Acquire);
        let reset = unread || slot.app_flags.load(SeqCst) & app_flags::LINGER_RST != 0;
        let peer = self.peers.get(&key).copied().flatten();
        if let (Some(peer), false) = (peer, reset) {
            slot.app_flags.fetch_or(app_flags::SHUT_WR, SeqCst);
            self.transfer(key, peer);
            if slot.tx_head.load(Relaxed) != slot.tx_tail.load(Acquire) {
                return;
            }
            // The other end goes on half-closed; what it still writes is answered with RST.
            if slot.daemon_flags.load(SeqCst) & daemon_flags::RX_FIN == 0 {
                let other = self.region(peer).map(|r| r.layout().socks[peer.1 as usize].tx_tail.load(Acquire));
                if other.is_some_and(|t| t == slot.rx_tail.load(Acquire)) {
                    return;
                }
                self.reset_peer(peer);
            }
        } else if let Some(peer) = peer {
            self.reset_peer(peer);
        }
        self.abort_listener(key, region, slot);
        self.peers.remove(&key);
        if let Some(peer) = peer.filter(|p| self.peers.contains_key(p)) {
            self.peers.insert(peer, None);
        }
        self.recycle(key, region, slot);
    }

    fn reset_peer(&self, peer: Key) {
        let Some(region) = self.region(peer) else { return };
        let slot = &region.layout().socks[peer.1 as usize];
        slot.error.store(Errno::CONNRESET.raw_os_error() as u32, SeqCst);
        slot.daemon_flags.fetch_or(daemon_flags::RESET, SeqCst);
        slot.state.store(SockState::Closed as u32, Release);
        notify::all(&region, SockId(peer.1), slot, &Futexes);
    }

    /// A listener's connections that nobody took.
    fn abort_listener(&mut self, key: Key, region: &Region, slot: &SockSlot) {
        if slot.state.load(Acquire) != SockState::Listening as u32 {
            return;
        }
        let index = slot.accept_ring.load(Relaxed);
        let ring = &region.layout().rings[index as usize];
        let (head, tail) = (ring.head.load(Acquire), ring.tail.load(Acquire));
        for i in 0..tail.wrapping_sub(head) {
            let id = ring.entry[head.wrapping_add(i) as usize % ACCEPT_RING].load(Relaxed);
            self.abort((key.0, id));
        }
        region.layout().ring_pool.push(index);
    }

    fn abort(&mut self, key: Key) {
        if let Some(Some(peer)) = self.peers.remove(&key) {
            self.reset_peer(peer);
            self.peers.insert(peer, None);
        }
    }

    fn recycle(&mut self, key: Key, region: &Region, slot: &SockSlot) {
        let first = slot.tx_head.load(Relaxed) / CHUNK_SIZE as u64;
        for c in first..slot.tx_tail.load(Acquire).div_ceil(CHUNK_SIZE as u64) {
            region
                .layout()
                .tx_pool
                .push(region.layout().tx_table[key.1 as usize][c as usize % STREAM_CHUNKS].load(Relaxed));
        }
        let first = self.freed.remove(&key).unwrap_or(0);
        let served = self.regions.get_mut(&key.0).expect("served");
        for c in first..slot.rx_tail.load(Relaxed).div_ceil(CHUNK_SIZE as u64) {
            served.chunks.push(region.layout().rx_table[key.1 as usize][c as usize % STREAM_CHUNKS].load(Relaxed));
        }
        for w in [&slot.rx_tail, &slot.tx_head, &slot.tx_sent, &slot.rx_head, &slot.tx_tail, &slot.cookie] {
            w.store(0, Relaxed);
        }
        for w in [&slot.error, &slot.daemon_flags, &slot.app_flags, &slot.rcv_timeo_ms, &slot.snd_timeo_ms] {
            w.store(0, Relaxed);
        }
        slot.sets.iter().for_each(|w| w.store(0, Relaxed));
        slot.local.store(None);
        slot.remote.store(None);
        slot.generation.fetch_add(1, Relaxed);
        slot.state.store(SockState::Free as u32, Release);
        if key.1 < APP_SOCKS as u32 {
            region.layout().sock_pool.push(key.1);
        } else {
            self.regions.get_mut(&key.0).expect("served").socks.push(key.1);
        }
    }
}

fn left_in_chunk(at: u64) -> u64 {
    CHUNK_SIZE as u64 - at % CHUNK_SIZE as u64
}

fn table_index(at: u64) -> usize {
    (at / CHUNK_SIZE as u64) as usize % STREAM_CHUNKS
}
