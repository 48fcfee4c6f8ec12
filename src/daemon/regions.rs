//! Registered processes: whose region is whose, who may join it, and what goes when the last one ends.

use super::engines::Command;
use super::sys::Peer;
use super::worker::{forget_kicks, watch_kicks};
use crate::config::{Config, Loopback};
use crate::rules;
use mio::Registry;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slowpath::Owner;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use toe_core::ids::{EvSetId, ProcId, RegionId, SockId};
use toe_core::pathq::Sender;
use toe_core::shm::{MAX_EVSETS, MAX_PROCS, Region, SockSlot, kept, policy};

/// Regions of all users together: address space is what they cost.
const MAX_REGIONS: usize = 8192;

/// One process's place: the region it has mapped and its bit in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Region.
    pub region: RegionId,
    /// Bit.
    pub proc: ProcId,
}

struct Entry {
    region: Arc<Region>,
    uid: u32,
    /// Bits that a living process has; what apps write into shared memory does not count.
    procs: Vec<bool>,
    /// One for each worker.
    kicks: Vec<OwnedFd>,
    /// Our own bit, by which we hold kept sockets, and how many they are.
    keeper: Option<(ProcId, usize)>,
}

/// All regions that a living process has.
pub struct Regions {
    config: Arc<Config>,
    entries: HashMap<RegionId, Entry>,
    next_id: u32,
    /// The threads' polls, by worker number.
    registries: Vec<Registry>,
    commands: Sender<Command>,
}

impl Regions {
    /// None yet.
    pub fn new(config: Arc<Config>, registries: Vec<Registry>, commands: Sender<Command>) -> Regions {
        Regions { config, entries: HashMap::new(), next_id: 1, registries, commands }
    }

    /// Passes a command on.
    pub fn command(&mut self, command: Command) {
        self.commands.send(command);
    }

    /// Wakes the slow path if it has new commands. `false`: call again soon.
    pub fn flush(&mut self) -> bool {
        self.commands.flush()
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.registries.len()
    }

    /// A new process: makes its region and tells the slow path.
    pub fn hello(&mut self, peer: Peer, program: &str) -> Result<Place, Errno> {
        let of_user = self.entries.values().filter(|e| e.uid == peer.uid).count();
        if self.entries.len() >= MAX_REGIONS || of_user >= self.config.daemon.max_processes_per_user {
            return Err(Errno::NOSPC);
        }
        let entry = self.make(peer, program).map_err(|e| {
            tracing::warn!("no region for {program} (pid {}): {e}", peer.pid);
            Errno::NOSPC
        })?;
        let id = entry.region.id();
        let proc = ProcId(entry.region.layout().proc_pool.pop().ok_or(Errno::NOSPC)?);
        let owner = Owner { pid: peer.pid, uid: peer.uid, program: program.to_owned() };
        self.command(Command::Attach(entry.region.clone(), owner));
        self.command(Command::ProcAttached(id, proc, peer.pid));
        self.entries.insert(id, entry);
        self.set_proc(id, proc, true);
        Ok(Place { region: id, proc })
    }

    fn make(&mut self, peer: Peer, program: &str) -> io::Result<Entry> {
        let id = RegionId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1).max(1);
        let region = Region::create(id, self.registries.len() as u32)?;
        let header = &region.layout().header;
        header.default_sndbuf.store(self.config.tcp.sndbuf, Relaxed);
        header.default_rcvbuf.store(self.config.tcp.rcvbuf, Relaxed);
        header.loopback.store((self.config.daemon.loopback == Loopback::Offload).into(), Relaxed);
        header.policy.store(if self.config.daemon.io_uring { policy::IO_URING } else { 0 }, Relaxed);
        rules::publish(&rules::compile(&self.config, program, peer.uid), header);
        let (procs, region) = (vec![false; MAX_PROCS], Arc::new(region));
        let mut entry = Entry { region, uid: peer.uid, procs, kicks: vec![], keeper: None };
        for registry in &self.registries {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            if let Err(e) = watch_kicks(registry, fd.as_raw_fd()) {
                entry.forget_kicks(&self.registries);
                return Err(e);
            }
            entry.kicks.push(fd);
        }
        Ok(entry)
    }

    /// A parent opens a connection for its child.
    pub fn child(&mut self, peer: Peer, region: u32, proc: u32, pid: u32) -> Result<Place, Errno> {
        let place = Place { region: RegionId(region), proc: ProcId(proc) };
        let entry = self.entries.get(&place.region).filter(|e| e.uid == peer.uid).ok_or(Errno::PERM)?;
        match entry.procs.get(place.proc.index()) {
            None => Err(Errno::INVAL),
            Some(true) => Err(Errno::EXIST),
            Some(false) => {
                self.set_proc(place.region, place.proc, true);
                self.command(Command::ProcAttached(place.region, place.proc, pid));
                Ok(place)
            }
        }
    }

    /// The process at `place` has another pid now.
    pub fn pid(&mut self, place: Place, pid: u32) {
        self.command(Command::ProcAttached(place.region, place.proc, pid));
    }

    /// The eventfd of an event set, made the first time.
    pub fn evset(&self, place: Place, set: u32) -> Result<OwnedFd, Errno> {
        let entry = self.entries.get(&place.region).ok_or(Errno::PERM)?;
        let set = EvSetId(set);
        if set.index() >= MAX_EVSETS {
            return Err(Errno::INVAL);
        }
        if entry.region.evset_fd(set).is_none() {
            entry.region.set_evset_fd(set, eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        }
        let fd = entry.region.evset_fd(set).ok_or(Errno::NFILE)?;
        fd.try_clone_to_owned().map_err(|_| Errno::NFILE)
    }

    /// What a new process is given: its region and the kick descriptors.
    pub fn shared(&self, place: Place) -> Option<(&Region, &[OwnedFd])> {
        self.entries.get(&place.region).map(|e| (&*e.region, e.kicks.as_slice()))
    }

    /// A process is gone. The slow path closes what it held and, after the last one, forgets the region in its own time.
    pub fn gone(&mut self, place: Place) {
        // Our own bit first: the slow path then gives the bit back to the apps, which may use it at once.
        self.set_proc(place.region, place.proc, false);
        self.command(Command::ProcDied(place.region, place.proc));
        if let Some(entry) = self.entries.get_mut(&place.region)
            && !entry.procs.contains(&true)
        {
            entry.forget_kicks(&self.registries);
            self.entries.remove(&place.region);
        }
    }

    /// Whose is it?
    pub fn uid(&self, region: RegionId) -> Option<u32> {
        self.entries.get(&region).map(|e| e.uid)
    }

    /// The slot of a socket.
    pub fn slot(&self, region: RegionId, sock: SockId) -> Option<&SockSlot> {
        self.entries.get(&region)?.region.sock(sock)
    }

    /// The same with its region.
    pub fn shared_slot(&self, region: RegionId, sock: SockId) -> Option<(&Region, &SockSlot)> {
        let region = &self.entries.get(&region)?.region;
        Some((region, region.sock(sock)?))
    }

    /// One more process for a region, by a fresh bit.
    pub fn join(&mut self, region: RegionId, pid: u32) -> Result<Place, Errno> {
        let entry = self.entries.get(&region).ok_or(Errno::NOENT)?;
        let proc = ProcId(entry.region.layout().proc_pool.pop().ok_or(Errno::NOSPC)?);
        // An app may have spoiled the pool.
        if entry.procs.get(proc.index()) != Some(&false) {
            return Err(Errno::NOSPC);
        }
        self.set_proc(region, proc, true);
        self.command(Command::ProcAttached(region, proc, pid));
        Ok(Place { region, proc })
    }

    /// Sets the bit of `place` in a socket that somebody holds.
    pub fn hold(&self, place: Place, sock: SockId) {
        if let Some(slot) = self.slot(place.region, sock) {
            slot.hold(place.proc);
        }
    }

    /// We hold `sock` ourselves from now on.
    pub fn keep(&mut self, region: RegionId, sock: SockId) -> Result<(), Errno> {
        let keeper = self.entries.get(&region).ok_or(Errno::NOENT)?.keeper;
        let (proc, count) = match keeper {
            Some(keeper) => keeper,
            None => (self.join(region, std::process::id())?.proc, 0),
        };
        if let Some(entry) = self.entries.get_mut(&region) {
            entry.keeper = Some((proc, count + 1));
        }
        self.hold(Place { region, proc }, sock);
        if let Some(slot) = self.slot(region, sock) {
            slot.kept.fetch_or(kept::KEPT, SeqCst);
        }
        Ok(())
    }

    /// We hold `sock` no more; if nobody else does, its owner closes it.
    pub fn unkeep(&mut self, region: RegionId, sock: SockId) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let Some((proc, count)) = entry.keeper else { return };
        entry.keeper = (count > 1).then_some((proc, count - 1));
        let last = entry.keeper.is_none();
        if let Some(slot) = entry.region.sock(sock) {
            slot.kept.store(0, SeqCst);
            slot.let_go(proc);
            fence(SeqCst);
            if !slot.is_held() {
                entry.kick(slot.owner.load(SeqCst), sock);
            }
        }
        if last {
            self.gone(Place { region, proc });
        }
    }

    fn set_proc(&mut self, region: RegionId, proc: ProcId, alive: bool) {
        if let Some(bit) = self.entries.get_mut(&region).and_then(|e| e.procs.get_mut(proc.index())) {
            *bit = alive;
        }
    }
}

impl Entry {
    /// As an app does it; the worker is woken whether it sleeps or not.
    fn kick(&self, worker: u32, sock: SockId) {
        self.region.kick(worker, sock);
        if let Some(fd) = self.kicks.get(worker as usize) {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Apps may hold the descriptors longer than we do: they must be out of the polls before.
    fn forget_kicks(&mut self, registries: &[Registry]) {
        for (registry, fd) in registries.iter().zip(self.kicks.drain(..)) {
            forget_kicks(registry, fd.as_raw_fd());
        }
    }
}
