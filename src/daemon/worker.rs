//! The run loop of one daemon thread: poll its engines, spin for a while after the last work, then sleep.
//!
//! Sleeping loses nothing: `asleep` is stored first, then every source of work is looked at again, then the thread waits
//! for descriptors. Whoever brings work does so first and reads `asleep` after; `SeqCst` fences stand between both pairs.

use super::follow::{self, Follow};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, fence};
use std::time::Duration;
use toe_core::Instant;
use toe_core::pathq::Polled;
use toe_core::shm::DaemonPageMap;
use toe_core::spin::SpinPolicy;

/// What a worker runs.
pub trait Engine: Send {
    /// One round.
    fn poll(&mut self, now: Instant) -> Polled;
    /// About to sleep. `false`: something is pending.
    fn arm(&mut self) -> bool;
    /// Awake again.
    fn disarm(&mut self);
    /// Descriptors that become readable when there is work.
    fn wait_fds(&self) -> Vec<RawFd> {
        vec![]
    }
    /// Where the app ran that kicked in the last round.
    fn kicker_cpu(&self) -> Option<usize> {
        None
    }
    /// Changes whenever `wait_fds` would answer differently.
    fn wait_fds_epoch(&self) -> u64 {
        0
    }
}

/// Kicks and messages; one token, because a wake-up means "look everywhere".
const WAKE: Token = Token(0);
const LINKS: Token = Token(1);
/// A timer closer than this is waited for awake: a sleep has steps of a millisecond.
const NEAR: Duration = Duration::from_micros(500);

/// What a thread sleeps in; made before the thread, so that others can hold its waker.
pub struct Sleeper {
    poll: Poll,
    waker: Arc<Waker>,
    /// The links' descriptors in a set of their own. When they change, the whole set is replaced: a descriptor that a
    /// link has closed may have another owner by now and must not be taken out by number.
    links: Option<Poll>,
    links_epoch: Option<u64>,
}

impl Sleeper {
    /// A new one.
    pub fn new() -> io::Result<Sleeper> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        Ok(Sleeper { poll, waker, links: None, links_epoch: None })
    }

    /// For `WorkerWake`.
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// For [`watch_kicks`].
    pub fn registry(&self) -> io::Result<Registry> {
        self.poll.registry().try_clone()
    }

    fn watch_links(&mut self, epoch: u64, fds: impl FnOnce() -> Vec<RawFd>) -> io::Result<()> {
        if self.links_epoch != Some(epoch) {
            let set = Poll::new()?;
            let mut fds = fds();
            fds.sort_unstable();
            fds.dedup();
            for fd in &fds {
                set.registry().register(&mut SourceFd(fd), Token(0), Interest::READABLE)?;
            }
            self.links = None;
            if !fds.is_empty() {
                self.poll.registry().register(&mut SourceFd(&set.as_raw_fd()), LINKS, Interest::READABLE)?;
                self.links = Some(set);
            }
            self.links_epoch = Some(epoch);
        } else if let Some(set) = &self.links {
            // mio reports edges; asking again reports what is readable still.
            self.poll.registry().reregister(&mut SourceFd(&set.as_raw_fd()), LINKS, Interest::READABLE)?;
        }
        Ok(())
    }
}

/// Lets an app's kick descriptor wake the thread of `registry`. It need not be drained: each write is an edge.
pub fn watch_kicks(registry: &Registry, fd: RawFd) -> io::Result<()> {
    registry.register(&mut SourceFd(&fd), WAKE, Interest::READABLE)
}

/// Takes back [`watch_kicks`]; call before closing `fd`, which apps hold, too.
pub fn forget_kicks(registry: &Registry, fd: RawFd) {
    let _ = registry.deregister(&mut SourceFd(&fd));
}

/// One thread's work.
pub struct Worker {
    /// Worker numbers and their engines.
    pub engines: Vec<(usize, Box<dyn Engine>)>,
    /// What it sleeps in.
    pub sleeper: Sleeper,
    /// Where it says that it sleeps, and where it runs.
    pub page: Arc<DaemonPageMap>,
    /// Set (then woken) to end it.
    pub stop: Arc<AtomicBool>,
    /// How long to poll without work before sleeping.
    pub spin: SpinPolicy,
    /// Follows its apps; `None`: is pinned, or has no choice.
    pub follow: Option<Follow>,
    /// Reads the clock.
    pub clock: fn() -> Instant,
}

impl Worker {
    /// Runs until `stop`.
    pub fn run(&mut self) -> io::Result<()> {
        let mut last_work = (self.clock)();
        let mut events = Events::with_capacity(16);
        self.tell_cpu();
        while !self.stop.load(SeqCst) {
            let now = (self.clock)();
            let polled = self.poll(now);
            let waited = now.since(last_work);
            if polled.busy {
                self.spin.waited(waited.as_nanos() as u64);
                self.follow_apps(now);
                last_work = now;
                continue;
            }
            let near = polled.next.is_some_and(|next| next.since(now) < NEAR);
            if near || (waited.as_nanos() as u64) < self.spin.budget_ns() {
                rustix::thread::sched_yield();
                continue;
            }
            if let Some(follow) = &mut self.follow {
                follow.idle(now);
            }
            self.sleep(polled.next, &mut events)?;
        }
        Ok(())
    }

    fn poll(&mut self, now: Instant) -> Polled {
        let mut all = Polled::default();
        for (_, engine) in &mut self.engines {
            let one = engine.poll(now);
            all.busy |= one.busy;
            all.next = all.next.into_iter().chain(one.next).min();
        }
        all
    }

    fn follow_apps(&mut self, now: Instant) {
        if let Some(follow) = &mut self.follow {
            self.engines.iter().filter_map(|(_, e)| e.kicker_cpu()).for_each(|cpu| follow.kicked(cpu, now));
        }
    }

    fn sleep(&mut self, next: Option<Instant>, events: &mut Events) -> io::Result<()> {
        self.set_asleep(1);
        fence(SeqCst);
        // All are armed, even if an earlier one has something pending: all are disarmed.
        let quiet = self.engines.iter_mut().fold(true, |quiet, (_, e)| e.arm() && quiet);
        let result = if quiet && !self.stop.load(SeqCst) { self.wait(next, events) } else { Ok(()) };
        self.set_asleep(0);
        self.engines.iter_mut().for_each(|(_, e)| e.disarm());
        self.tell_cpu();
        result
    }

    fn wait(&mut self, next: Option<Instant>, events: &mut Events) -> io::Result<()> {
        let epoch = self.engines.iter().fold(0, |sum: u64, (_, e)| sum.wrapping_add(e.wait_fds_epoch()));
        let engines = &self.engines;
        self.sleeper.watch_links(epoch, || engines.iter().flat_map(|(_, e)| e.wait_fds()).collect())?;
        let timeout = next.map(|next| next.since((self.clock)()));
        match self.sleeper.poll.poll(events, timeout) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
            _ => Ok(()),
        }
    }

    fn set_asleep(&self, asleep: u32) {
        for (worker, _) in &self.engines {
            self.page.get().worker[*worker].asleep.store(asleep, SeqCst);
        }
    }

    fn tell_cpu(&self) {
        let cpu = follow::here();
        for (worker, _) in &self.engines {
            self.page.get().worker[*worker].cpu.store(cpu, Relaxed);
        }
    }
}

/// About what it costs to wake a thread that sleeps in the kernel: half a round trip, the median of a few.
pub fn wake_cost() -> Duration {
    const ROUNDS: usize = 31;
    let (least, most) = (Duration::from_micros(20), Duration::from_micros(200));
    let Ok(mut took) = ping_pong(ROUNDS) else { return least };
    took.sort_unstable();
    (took[took.len() / 2] / 2).clamp(least, most)
}

/// Round trips between this thread and another, both asleep in between.
fn ping_pong(rounds: usize) -> io::Result<Vec<Duration>> {
    let (there, back) = (eventfd(0, EventfdFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?);
    let wake = |fd: &OwnedFd| rustix::io::write(fd, &1u64.to_ne_bytes()).map(|_| ());
    let wait = |fd: &OwnedFd| rustix::io::read(fd, &mut [0u8; 8][..]).map(|_| ());
    std::thread::scope(|s| {
        s.spawn(|| (0..rounds).try_for_each(|_| wait(&there).and_then(|()| wake(&back))));
        let round = |_| {
            let start = std::time::Instant::now();
            wake(&there).and_then(|()| wait(&back))?;
            Ok(start.elapsed())
        };
        (0..rounds).map(round).collect()
    })
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
