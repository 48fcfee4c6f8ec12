//! From the configuration to running threads: links, queues, engines.

use super::engines::{Command, Event, FastEngine, SlowEngine};
use super::follow::Follow;
use super::waker::{LiveWaker, WorkerWake};
use super::worker::{self, Engine, Sleeper, Worker};
use crate::config::{Config, Loopback, NicConfig, NicKind};
use fastpath::{FastPath, FastPathConfig};
use mio::{Registry, Waker};
use nic_backend::fault::Fault;
use nic_backend::pcap::{Pcap, PcapFile};
use slowpath::{NicSetup, Route, SlowPath, SlowPathConfig};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use toe_core::ids::{CoreId, NicId};
use toe_core::nic::Nic;
use toe_core::pathq::{self, Receiver, Sender};
use toe_core::shm::{DaemonPageMap, SLOW_WORKER};
use toe_core::spin::{CHAIN, SpinPolicy};
use toe_core::{Instant, notify};

/// Messages that fit between slow path and one core before the sender keeps them itself.
const PATHQ: usize = 4096;
/// Commands likewise.
const COMMANDQ: usize = 256;

/// The running threads.
pub struct Threads {
    /// To the slow path.
    pub commands: Option<Sender<Command>>,
    /// The threads' polls, by worker number.
    pub registries: Vec<Registry>,
    /// One line for each thread, for `toe status`.
    pub places: Vec<String>,
    stop: Arc<AtomicBool>,
    wakers: Vec<Arc<Waker>>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Ends all threads and waits for them.
    pub fn stop(&mut self) {
        self.stop.store(true, SeqCst);
        for waker in &self.wakers {
            let _ = waker.wake();
        }
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The engines' clock.
pub fn now() -> Instant {
    Instant(toe_core::app::wait::now_ns())
}

/// Opens the links, builds the engines, and starts their threads.
pub fn start(
    config: &Config,
    page: &Arc<DaemonPageMap>,
    events: mpsc::Sender<Event>,
    events_wake: Arc<Waker>,
) -> io::Result<Threads> {
    let cores = config.daemon.cores.len();
    let (setups, queues) = open_nics(config)?;
    // Thread 0 runs the slow path; where it is shared, it runs core 0 as well.
    let shared = usize::from(config.daemon.shared_slow_path);
    let sleepers = (0..1 + cores - shared).map(|_| Sleeper::new()).collect::<io::Result<Vec<_>>>()?;
    let thread_of = |worker: usize| if worker == 0 { 0 } else { worker - shared };
    let wake = |worker: usize| -> Arc<dyn pathq::Wake> {
        Arc::new(WorkerWake { page: page.clone(), worker, waker: sleepers[thread_of(worker)].waker() })
    };
    let registries = (0..=cores).map(|w| sleepers[thread_of(w)].registry()).collect::<io::Result<_>>()?;
    let wakers = sleepers.iter().map(Sleeper::waker).collect();

    let (commands, commands_end) = pathq::channel(COMMANDQ, wake(SLOW_WORKER as usize));
    let (up, up_end) = pathq::channel(PATHQ, wake(SLOW_WORKER as usize));
    let (downs, down_ends): (Vec<_>, Vec<_>) = (0..cores).map(|c| pathq::channel(PATHQ, wake(1 + c))).unzip();
    let live: Arc<dyn notify::Waker> = Arc::new(LiveWaker);
    let mut slow = SlowPath::new(slow_config(config, setups)?, downs, up_end, live.clone());
    slow.publish_ports(page.clone());
    let slow: Box<dyn Engine> = Box::new(SlowEngine::new(slow, commands_end, events, events_wake));
    let fasts = fast_engines(config, queues, &up, down_ends, &live)?;

    let mut engines: Vec<Vec<(usize, Box<dyn Engine>)>> = sleepers.iter().map(|_| vec![]).collect();
    engines[0].push((SLOW_WORKER as usize, slow));
    for (core, fast) in fasts.into_iter().enumerate() {
        engines[thread_of(1 + core)].push((1 + core, fast));
    }
    let mut threads =
        Threads { commands: Some(commands), registries, places: vec![], stop: Arc::default(), wakers, handles: vec![] };
    let spin = config.spin.unwrap_or_else(|| worker::wake_cost() * CHAIN);
    let spin_ns = spin.as_nanos().try_into().unwrap_or(u32::MAX);
    page.get().spin_ns.store(spin_ns, Relaxed);
    tracing::info!("spinning at most {} µs before each sleep", spin.as_micros());
    for (thread, (engines, sleeper)) in engines.into_iter().zip(sleepers).enumerate() {
        let core = (thread + shared).checked_sub(1);
        let cpu = core.and_then(|c| config.daemon.cores[c]);
        let (page, stop) = (page.clone(), threads.stop.clone());
        let spin = SpinPolicy::new(spin_ns);
        let worker = Worker { engines, sleeper, page, stop, spin, follow: None, clock: now };
        threads.spawn(core, thread == 0, cpu, worker)?;
    }
    Ok(threads)
}

impl Threads {
    fn spawn(&mut self, core: Option<usize>, slow: bool, cpu: Option<usize>, mut worker: Worker) -> io::Result<()> {
        let what = match (core, slow) {
            (Some(core), true) => format!("fast path core {core} and slow path"),
            (Some(core), false) => format!("fast path core {core}"),
            (None, _) => "slow path".to_owned(),
        };
        let place = match cpu {
            Some(cpu) => format!("{what} pinned to CPU {cpu}"),
            None => format!("{what} on the CPU of its apps"),
        };
        let name = core.map_or("toe-slow".to_owned(), |c| format!("toe-fast-{c}"));
        let (pinned, told) = mpsc::channel();
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            let ok = cpu.is_none_or(|id| core_affinity::set_for_current(core_affinity::CoreId { id }));
            worker.follow = if cpu.is_none() { Follow::new(now()) } else { None };
            let _ = pinned.send(ok);
            let _guard = AbortOnPanic;
            if let Err(e) = worker.run() {
                tracing::error!("{what}: {e}");
                std::process::abort();
            }
        })?;
        self.handles.push(handle);
        if !told.recv().unwrap_or(false) {
            return Err(io::Error::other(format!("{place}: the system refused")));
        }
        tracing::info!("{place}");
        self.places.push(place);
        Ok(())
    }
}

/// Without one of its threads a daemon is worse than none: apps must see it end.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn slow_config(config: &Config, nics: Vec<NicSetup>) -> io::Result<SlowPathConfig> {
    let mut seed = [0; 8];
    let mut secret = [0; 16];
    random(&mut seed)?;
    random(&mut secret)?;
    let routes = config.routes.iter().map(|r| Route { prefix: (r.to.addr, r.to.len), via: r.via }).collect();
    let cores = config.daemon.cores.len();
    Ok(SlowPathConfig { tcp: config.tcp.clone(), nics, routes, cores, secret, seed: u64::from_ne_bytes(seed) })
}

fn fast_engines(
    config: &Config,
    queues: Vec<Queues>,
    up: &Sender<toe_core::msg::Up>,
    downs: Vec<Receiver<toe_core::msg::Down>>,
    live: &Arc<dyn notify::Waker>,
) -> io::Result<Vec<Box<dyn Engine>>> {
    let mut engines: Vec<Box<dyn Engine>> = vec![];
    for (core, (nics, down)) in queues.into_iter().zip(downs).enumerate() {
        let mut seed = [0; 8];
        random(&mut seed)?;
        let fast = FastPathConfig {
            core: CoreId(core as u8),
            cores: config.daemon.cores.len(),
            tcp: config.tcp.clone(),
            hash_seed: u64::from_ne_bytes(seed),
        };
        engines.push(Box::new(FastEngine(FastPath::new(fast, nics, up.another(), down, live.clone()))));
    }
    Ok(engines)
}

/// All queues of one link, or one queue of each link.
type Queues = Vec<Box<dyn Nic>>;

/// Opens all links. The queues come back by core, then by link.
fn open_nics(config: &Config) -> io::Result<(Vec<NicSetup>, Vec<Queues>)> {
    let cores = config.daemon.cores.len();
    let mut setups = vec![];
    let mut by_core: Vec<Queues> = (0..cores).map(|_| vec![]).collect();
    for (i, nic) in config.nics.iter().enumerate() {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("link {}: {e}", nic.name));
        let queues = open_nic(nic).map_err(named)?;
        if queues.len() != cores {
            return Err(named(io::Error::other(format!("{} queues for {cores} cores", queues.len()))));
        }
        setups.push(NicSetup {
            id: NicId(i as u8),
            name: nic.name.clone(),
            caps: queues[0].caps().clone(),
            up: queues[0].is_up(),
            addrs: addresses(config, nic),
            local: matches!(nic.kind, NicKind::Local(_)),
        });
        let addrs: Vec<String> = setups[i].addrs.iter().map(|(ip, len)| format!("{ip}/{len}")).collect();
        tracing::info!("link {}: {}", nic.name, addrs.join(", "));
        for (core, queue) in by_core.iter_mut().zip(queues) {
            core.push(queue);
        }
    }
    Ok((setups, by_core))
}

/// The local link has the loopback addresses as well, if the engine serves them.
fn addresses(config: &Config, nic: &NicConfig) -> Vec<(IpAddr, u8)> {
    let mut addrs: Vec<_> = nic.addrs.iter().map(|a| (a.addr, a.len)).collect();
    if matches!(nic.kind, NicKind::Local(_)) && config.daemon.loopback == Loopback::Offload {
        addrs.extend([(Ipv4Addr::LOCALHOST.into(), 8), (Ipv6Addr::LOCALHOST.into(), 128)]);
    }
    addrs
}

fn open_nic(nic: &NicConfig) -> io::Result<Queues> {
    let mut queues = match &nic.kind {
        NicKind::PcieLink(c) => nic_backend::pcielink::open(c.clone())?,
        NicKind::Local(c) => nic_backend::local::open(c)?,
        NicKind::Tap(c) => nic_backend::tap::open(c)?,
    };
    if let Some(fault) = &nic.fault {
        tracing::warn!("link {}: faults are injected", nic.name);
        let wrap = |(i, q)| Fault::new(q, fault, i as u64).map(|f| Box::new(f) as Box<dyn Nic>);
        queues = queues.into_iter().enumerate().map(wrap).collect::<io::Result<_>>()?;
    }
    if let Some(pcap) = &nic.pcap {
        let file = PcapFile::create(pcap, &nic.name)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", pcap.path.display())))?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let offset = (wall.as_nanos() as u64).saturating_sub(now().0);
        queues = queues.into_iter().map(|q| Box::new(Pcap::new(q, file.clone(), offset)) as Box<dyn Nic>).collect();
    }
    Ok(queues)
}

fn random(out: &mut [u8]) -> io::Result<()> {
    std::fs::File::open("/dev/urandom")?.read_exact(out)
}
