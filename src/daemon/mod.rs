//! `toed`: threads for the engines, and this one for the control socket and signals.

mod assemble;
mod control;
mod engines;
mod follow;
pub mod paths;
mod ready;
mod regions;
mod relay;
mod robust;
mod signals;
mod sys;
mod waker;
mod worker;

pub use assemble::now;
pub use control::ControlStats;

use crate::config::Config;
use assemble::Threads;
use control::{Control, LISTENER};
use engines::{Command, Event};
use mio::{Events, Interest, Poll, Token, Waker};
use paths::ControlSocket;
use regions::Regions;
use relay::Relay;
use robust::Alive;
use rustix::process::{Resource, Rlimit};
use signals::Signals;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use toe_core::shm::DaemonPageMap;

/// Peers are told properly within this, or reset.
const DRAIN: Duration = Duration::from_secs(3);
/// Time for the resets to leave.
const ABORT: Duration = Duration::from_millis(500);
/// How soon commands that did not fit are tried again.
const RETRY: Duration = Duration::from_millis(1);

const SIGNALS: Token = Token(1);
const ENGINES: Token = Token(2);

/// How to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// A session of its own, so that the terminal's signals do not reach it.
    pub detach: bool,
    /// Print `ready SOCKET` on stdout when ready.
    pub print_ready: bool,
}

/// Runs until a signal ends it, or nobody needs it any more. Call from the main thread.
pub fn run(config: Config, options: RunOptions) -> io::Result<()> {
    if options.detach {
        // Fails only if this already leads a process group; then it has no terminal to fear either.
        let _ = rustix::process::setsid();
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    raise_descriptor_limit();
    let signals = Signals::catch()?;
    let path = config.daemon.socket.clone().unwrap_or_else(paths::default_socket);
    let socket = ControlSocket::bind(&path)?;
    let path = socket.path().to_path_buf();
    let page = Arc::new(DaemonPageMap::create()?);
    // Before anyone can connect to anything: apps remember what the word says when they come.
    let _alive = Alive::declare(page.clone())?;
    let mut daemon = Daemon::start(config, socket, page, signals)?;
    tracing::info!("ready on {}", path.display());
    ready::notify("READY=1");
    if options.print_ready {
        ready::print(&path);
    }
    daemon.serve()?;
    ready::notify("STOPPING=1");
    daemon.threads.stop();
    tracing::info!("ended");
    Ok(())
}

/// Why the main loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Peers are being told; resets follow at the deadline.
    Draining(Instant),
    /// Resets are leaving.
    Aborting(Instant),
    Ended,
}

struct Daemon {
    config: Arc<Config>,
    poll: Poll,
    control: Control,
    threads: Threads,
    events: mpsc::Receiver<Event>,
    signals: Signals,
    phase: Phase,
    idle_since: Instant,
    started: Instant,
    path: PathBuf,
}

impl Daemon {
    fn start(
        config: Config,
        socket: ControlSocket,
        page: Arc<DaemonPageMap>,
        mut signals: Signals,
    ) -> io::Result<Daemon> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), ENGINES)?);
        let (events_in, events) = mpsc::channel();
        let relay = Relay::new(socket.path(), events_in.clone(), waker.clone());
        let mut threads = assemble::start(&config, &page, events_in, waker)?;
        poll.registry().register(signals.source(), SIGNALS, Interest::READABLE)?;
        let config = Arc::new(config);
        let commands = threads.commands.take().ok_or_else(|| io::Error::other("no command queue"))?;
        let regions = Regions::new(config.clone(), std::mem::take(&mut threads.registries), commands);
        let path = socket.path().to_path_buf();
        let mut control = Control::new(socket, poll.registry().try_clone()?, page, regions)?;
        control.relay_by(relay);
        let now = Instant::now();
        let (phase, idle_since, started) = (Phase::Serving, now, now);
        Ok(Daemon { config, poll, control, threads, events, signals, phase, idle_since, started, path })
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        while self.phase != Phase::Ended {
            let flushed = self.control.regions.flush();
            let retry = (!flushed).then_some(RETRY);
            let next = self.deadline().into_iter().chain(self.control.next_due()).min();
            let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
            match self.poll.poll(&mut events, timeout.into_iter().chain(retry).min()) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            for event in &events {
                match event.token() {
                    SIGNALS => self.on_signal(),
                    ENGINES => self.on_engines(),
                    token => self.control.event(token),
                }
            }
            self.control.check_due(Instant::now());
            self.check_deadline();
        }
        Ok(())
    }

    fn on_signal(&mut self) {
        for _ in 0..self.signals.take().min(2) {
            self.phase = match self.phase {
                Phase::Serving => self.shut_down("signal"),
                // A second one: at once.
                Phase::Draining(_) | Phase::Aborting(_) | Phase::Ended => Phase::Ended,
            };
        }
    }

    fn shut_down(&mut self, why: &str) -> Phase {
        tracing::info!("{why}: closing all connections");
        self.control.stop_listening();
        self.control.regions.command(Command::Shutdown);
        Phase::Draining(Instant::now() + DRAIN)
    }

    fn on_engines(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Status(id, status) => {
                    let text = self.with_daemon(status).to_string();
                    self.control.status(id, &text);
                }
                Event::Drained => self.phase = Phase::Ended,
                Event::RelayEnded(token) => self.control.relay_ended(token),
            }
        }
    }

    /// When something must happen even if nothing comes.
    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Draining(at) | Phase::Aborting(at) => Some(at),
            Phase::Serving if self.control.is_idle() => self.config.daemon.idle_exit.map(|d| self.idle_since + d),
            _ => None,
        }
    }

    fn check_deadline(&mut self) {
        let now = Instant::now();
        if !self.control.is_idle() {
            self.idle_since = now;
        }
        if self.deadline().is_none_or(|at| now < at) {
            return;
        }
        self.phase = match self.phase {
            Phase::Serving => self.shut_down("nobody is left"),
            Phase::Draining(_) => {
                self.control.regions.command(Command::Abort);
                Phase::Aborting(now + ABORT)
            }
            Phase::Aborting(_) | Phase::Ended => Phase::Ended,
        };
    }

    /// Adds what only the daemon knows.
    fn with_daemon(&self, mut status: serde_json::Value) -> serde_json::Value {
        status["daemon"] = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "socket": self.path,
            "uptime_s": self.started.elapsed().as_secs(),
            "threads": self.threads.places,
            "control": self.control.stats,
        });
        status
    }
}

/// Each registered process costs a few descriptors.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(e) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::warn!("cannot raise the limit of open files: {e}");
    }
}

const _: () = assert!(LISTENER.0 == 0 && SIGNALS.0 < 16 && ENGINES.0 < 16);
