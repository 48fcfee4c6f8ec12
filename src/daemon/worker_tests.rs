//! No wake-up is lost, and a worker without work sleeps.

use super::super::waker::WorkerWake;
use super::*;
use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use toe_core::ids::{RegionId, SockId};
use toe_core::pathq;
use toe_core::shm::Region;

/// Bounds a hang; no test waits that long.
const LIMIT: Duration = Duration::from_secs(60);

fn clock() -> Instant {
    Instant(toe_core::app::wait::now_ns())
}

#[derive(Default)]
struct Counts {
    polls: AtomicU64,
    arms: AtomicU64,
}

/// Answers every message, kick and byte that it sees.
struct Stub {
    messages: Option<pathq::Receiver<u32>>,
    region: Arc<Region>,
    link: Option<UnixStream>,
    pending: VecDeque<u32>,
    answers: mpsc::Sender<u32>,
    counts: Arc<Counts>,
    timer: Option<Instant>,
}

impl Engine for Stub {
    fn poll(&mut self, now: Instant) -> Polled {
        self.counts.polls.fetch_add(1, SeqCst);
        self.pending.extend(self.messages.iter().flat_map(|m| std::iter::from_fn(|| m.recv())));
        self.region.layout().kick[1].drain(|s| self.pending.push_back(s));
        if let Some(link) = &mut self.link {
            let mut byte = [0];
            while let Ok(1) = io::Read::read(link, &mut byte) {
                self.pending.push_back(byte[0].into());
            }
        }
        if self.timer.is_some_and(|t| t <= now) {
            self.timer = None;
            self.pending.push_back(4711);
        }
        let busy = !self.pending.is_empty();
        for p in self.pending.drain(..) {
            let _ = self.answers.send(p);
        }
        Polled { busy, next: self.timer }
    }

    fn arm(&mut self) -> bool {
        self.counts.arms.fetch_add(1, SeqCst);
        self.messages.as_ref().is_none_or(|m| m.is_empty()) && self.region.layout().kick[1].is_empty()
    }

    fn disarm(&mut self) {}

    fn wait_fds(&self) -> Vec<RawFd> {
        self.link.iter().map(|l| l.as_raw_fd()).collect()
    }
}

struct Bench {
    page: Arc<DaemonPageMap>,
    region: Arc<Region>,
    sleeper: Option<Sleeper>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
}

impl Bench {
    fn new() -> Bench {
        let sleeper = Sleeper::new().unwrap();
        Bench {
            page: Arc::new(DaemonPageMap::create().unwrap()),
            region: Arc::new(Region::create(RegionId(1), 2).unwrap()),
            waker: sleeper.waker(),
            sleeper: Some(sleeper),
            stop: Arc::default(),
            counts: Arc::default(),
        }
    }

    fn stub(&self, answers: mpsc::Sender<u32>) -> Stub {
        let (region, counts) = (self.region.clone(), self.counts.clone());
        Stub { messages: None, region, link: None, pending: VecDeque::new(), answers, counts, timer: None }
    }

    /// Runs `body` beside a worker with this engine and this spin time.
    fn run(mut self, stub: Stub, spin: Duration, body: impl FnOnce(&Bench)) {
        let sleeper = self.sleeper.take().unwrap();
        let (page, stop) = (self.page.clone(), self.stop.clone());
        let spin = SpinPolicy::new(spin.as_nanos() as u32);
        let engines: Vec<(usize, Box<dyn Engine>)> = vec![(1, Box::new(stub))];
        let mut worker = Worker { engines, sleeper, page, stop, spin, follow: None, clock };
        let thread = std::thread::spawn(move || worker.run());
        body(&self);
        self.stop.store(true, SeqCst);
        self.waker.wake().unwrap();
        thread.join().unwrap().unwrap();
    }
}

/// Each message waits for the answer to the one before, so one lost wake-up stops everything.
#[test]
fn no_message_is_lost() {
    for spin_us in [0, 1, 20] {
        let bench = Bench::new();
        let wake = WorkerWake { page: bench.page.clone(), worker: 1, waker: bench.waker.clone() };
        let (mut send, receive) = pathq::channel(8, Arc::new(wake));
        let (answers, answered) = mpsc::channel();
        let stub = Stub { messages: Some(receive), ..bench.stub(answers) };
        bench.run(stub, Duration::from_micros(spin_us), |_| {
            for i in 0..3000 {
                send.send(i);
                send.flush();
                assert_eq!(answered.recv_timeout(LIMIT), Ok(i));
            }
        });
    }
}

/// Apps write their descriptor only if the page says that the worker sleeps, and never drain it.
#[test]
fn no_kick_is_lost() {
    let bench = Bench::new();
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let registry = bench.sleeper.as_ref().unwrap().registry().unwrap();
    watch_kicks(&registry, eventfd.as_raw_fd()).unwrap();
    let (answers, answered) = mpsc::channel();
    let stub = bench.stub(answers);
    bench.run(stub, Duration::ZERO, |bench| {
        for i in 0..3000 {
            bench.region.kick(1, SockId(i));
            if bench.page.get().worker[1].asleep.load(SeqCst) != 0 {
                rustix::io::write(&eventfd, &1u64.to_ne_bytes()).unwrap();
            }
            assert_eq!(answered.recv_timeout(LIMIT), Ok(i));
        }
        forget_kicks(&registry, eventfd.as_raw_fd());
    });
}

#[test]
fn links_wake() {
    let bench = Bench::new();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let (answers, answered) = mpsc::channel();
    let stub = Stub { link: Some(theirs), ..bench.stub(answers) };
    bench.run(stub, Duration::ZERO, |_| {
        for i in 0..1000u32 {
            ours.write_all(&[i as u8]).unwrap();
            assert_eq!(answered.recv_timeout(LIMIT), Ok(i & 0xff));
        }
    });
}

#[test]
fn timers_wake() {
    let bench = Bench::new();
    let (answers, answered) = mpsc::channel();
    let timer = Some(clock() + Duration::from_millis(3));
    let stub = Stub { timer, ..bench.stub(answers) };
    bench.run(stub, Duration::ZERO, |_| assert_eq!(answered.recv_timeout(LIMIT), Ok(4711)));
}

/// An idle worker polls once for each wake-up and no more, however long nothing happens.
#[test]
fn idle_means_asleep() {
    let bench = Bench::new();
    let (answers, _answered) = mpsc::channel();
    let stub = bench.stub(answers);
    bench.run(stub, Duration::ZERO, |bench| {
        let asleep = || bench.page.get().worker[1].asleep.load(SeqCst) != 0;
        for round in 0..100 {
            let start = std::time::Instant::now();
            while bench.counts.arms.load(SeqCst) <= round || !asleep() {
                assert!(start.elapsed() < LIMIT);
                std::thread::yield_now();
            }
            bench.waker.wake().unwrap();
        }
        // A wake-up that comes between `asleep` and the wait costs one round more; nothing else makes rounds.
        assert!(bench.counts.polls.load(SeqCst) <= 2 * 101 + 2, "{:?}", bench.counts.polls);
    });
}

#[test]
fn a_wake_up_costs_something() {
    let cost = wake_cost();
    assert!((Duration::from_micros(20)..=Duration::from_micros(200)).contains(&cost));
}
