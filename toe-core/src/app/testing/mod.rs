//! A daemon without engines, for tests of the app side: one thread that serves the control socket, answers requests, and moves
//! bytes between the two ends of a connection by copying. Both ends may be in one process or in several.
//!
//! It trusts its clients and is not fast. Its addresses are 127.77.0.0/16.

mod flows;

use crate::control::{self, OP_CHILD, OP_EVSET, OP_HELLO, OP_PID, Reply, Request};
use crate::ids::{EvSetId, RegionId};
use crate::notify::Waker;
use crate::shm::*;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, fence};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashMap;
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
            if slot.let_go(crate::ids::ProcId(conn.proc)) {
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
}
