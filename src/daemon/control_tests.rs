//! The control socket's service, with clients as apps and tools are.

use super::super::worker::Sleeper;
use super::*;
use crate::config::{Config, Machine};
use crate::testing::TempDir;
use mio::{Events, Poll, Waker};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use toe_core::app::{Link, Reason, SocketPath};
use toe_core::control::{OP_CHILD, OP_EVSET, OP_HELLO, OP_PID, OP_STATUS};
use toe_core::ids::{ProcId, RegionId};
use toe_core::pathq;

/// Bounds a hang.
const LIMIT: Duration = Duration::from_secs(60);
const STOP: Token = Token(1);

/// What the slow path was told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Attach(RegionId, String, u32),
    Proc(RegionId, ProcId),
    Died(RegionId, ProcId),
    Status,
}

struct Rig {
    _dir: TempDir,
    path: PathBuf,
    told: mpsc::Receiver<Told>,
    stop: Arc<Waker>,
    thread: Option<JoinHandle<ControlStats>>,
}

impl Rig {
    /// A service for two workers, with `status` as the slow path's answer.
    fn new(config: &str, status: String) -> Rig {
        let dir = TempDir::new();
        let path = dir.path().join("toed.sock");
        let config = Arc::new(Config::parse(config, "t", &Machine { cpus: vec![0, 1] }).unwrap());
        let poll = Poll::new().unwrap();
        let stop = Arc::new(Waker::new(poll.registry(), STOP).unwrap());
        let sleepers: Vec<Sleeper> = (0..2).map(|_| Sleeper::new().unwrap()).collect();
        let registries = sleepers.iter().map(|s| s.registry().unwrap()).collect();
        let (commands, received) = pathq::channel(64, Arc::new(|| ()));
        let regions = Regions::new(config, registries, commands);
        let page = Arc::new(DaemonPageMap::create().unwrap());
        let socket = ControlSocket::bind(&path).unwrap();
        let mut control = Control::new(socket, poll.registry().try_clone().unwrap(), page, regions).unwrap();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _sleepers = sleepers;
            serve(poll, &mut control, &received, &tell, &status);
            control.stats
        });
        Rig { _dir: dir, path, told, stop, thread: Some(thread) }
    }

    fn told(&self) -> Told {
        self.told.recv_timeout(LIMIT).unwrap()
    }

    fn connect(&self) -> OwnedFd {
        super::super::paths::connect(&self.path).unwrap()
    }

    /// A registered process.
    fn hello(&self, program: &str) -> (OwnedFd, Reply, control::Fds) {
        let fd = self.connect();
        let mut request = Request::new(OP_HELLO);
        request.program[..program.len()].copy_from_slice(program.as_bytes());
        let (reply, fds) = ask(&fd, &request).unwrap();
        (fd, reply, fds)
    }

    fn end(mut self) -> ControlStats {
        self.stop.wake().unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

fn serve(
    mut poll: Poll,
    control: &mut Control,
    commands: &pathq::Receiver<Command>,
    tell: &mpsc::Sender<Told>,
    status: &str,
) {
    let mut events = Events::with_capacity(16);
    loop {
        poll.poll(&mut events, None).unwrap();
        for event in &events {
            if event.token() == STOP {
                return;
            }
            control.event(event.token());
        }
        control.regions.flush();
        while let Some(command) = commands.recv() {
            let told = match command {
                Command::Attach(r, owner) => Told::Attach(r.id(), owner.program, owner.uid),
                Command::ProcAttached(region, proc, _) => Told::Proc(region, proc),
                Command::ProcDied(region, proc) => Told::Died(region, proc),
                Command::Status(id) => {
                    control.status(id, status);
                    Told::Status
                }
                Command::Shutdown | Command::Abort => continue,
            };
            let _ = tell.send(told);
        }
    }
}

/// `None`: the connection is over.
fn ask(fd: &OwnedFd, request: &Request) -> Option<(Reply, control::Fds)> {
    control::send(fd.as_fd(), request, &[]).unwrap();
    control::recv::<Reply>(fd.as_fd(), RecvFlags::empty()).unwrap_or(None)
}

fn request(op: u32, region: u32, proc: u32, arg: u32) -> Request {
    Request { region, proc, arg, ..Request::new(op) }
}

fn errno(e: Errno) -> u32 {
    e.raw_os_error() as u32
}

#[test]
fn hello_gives_descriptors_and_rules() {
    let rig = Rig::new(
        "[[nic]]\nname='l'\nkind='local'\naddr=['127.77.0.1/24']\n[tcp]\nsndbuf=65536\n[daemon]\nio_uring='allow'",
        String::new(),
    );
    let path = SocketPath::try_from(rig.path.as_os_str().as_encoded_bytes()).unwrap();
    let link = Link::register(&path, b"/usr/bin/prog\n", 0).unwrap();
    let uid = rustix::process::getuid().as_raw();
    assert_eq!(rig.told(), Told::Attach(RegionId(1), "prog?".into(), uid));
    assert_eq!(rig.told(), Told::Proc(RegionId(1), ProcId(0)));
    let header = &link.region.layout().header;
    assert_eq!(header.default_sndbuf.load(std::sync::atomic::Ordering::Relaxed), 65536);
    assert_eq!(header.policy.load(std::sync::atomic::Ordering::Relaxed), toe_core::shm::policy::IO_URING);
    assert_eq!(header.workers.load(std::sync::atomic::Ordering::Relaxed), 2);
    let engine = toe_core::app::rules::decide(header, toe_core::app::Role::Connect, "127.77.0.2:1".parse().unwrap());
    assert_eq!(engine, toe_core::app::Action::Engine);
    drop(link);
    assert_eq!(rig.told(), Told::Died(RegionId(1), ProcId(0)));
    assert_eq!(rig.end(), ControlStats { accepted: 1, ..ControlStats::default() });
}

#[test]
fn another_version_is_refused() {
    let rig = Rig::new("", String::new());
    let fd = rig.connect();
    let mut request = Request::new(OP_HELLO);
    request.version += 1;
    let (reply, fds) = ask(&fd, &request).unwrap();
    assert_eq!((reply.errno, reply.version, fds.len()), (errno(Errno::PROTO), VERSION, 0));
    assert!(control::recv::<Reply>(fd.as_fd(), RecvFlags::empty()).unwrap().is_none());
    assert_eq!(rig.end().refused, 1);
}

#[test]
fn nonsense_ends_the_connection_and_is_counted() {
    let rig = Rig::new("", String::new());
    let mut wrong_magic = Request::new(OP_HELLO);
    wrong_magic.magic = 7;
    for bad in [wrong_magic, Request::new(99)] {
        assert!(ask(&rig.connect(), &bad).is_none());
    }
    let fd = rig.connect();
    rustix::net::send(&fd, &[1, 2, 3], SendFlags::empty()).unwrap();
    assert!(matches!(rustix::net::recv(&fd, &mut [0u8; 8][..], RecvFlags::empty()), Ok((0, _)) | Err(_)));
    // The next client is served as ever.
    assert_eq!(rig.hello("x").1.errno, 0);
    let stats = rig.end();
    assert_eq!((stats.accepted, stats.malformed), (4, 3));
}

#[test]
fn children_join_and_leave() {
    let rig = Rig::new("", String::new());
    let (parent, reply, fds) = rig.hello("x");
    assert_eq!((reply.region, reply.proc, reply.workers, fds.len()), (1, 0, 2, 4));
    assert!(matches!((rig.told(), rig.told()), (Told::Attach(..), Told::Proc(..))));
    let child = rig.connect();
    for (proc, e) in [(0, Errno::EXIST), (256, Errno::INVAL), (u32::MAX, Errno::INVAL)] {
        assert_eq!(ask(&child, &request(OP_CHILD, 1, proc, 0)).unwrap().0.errno, errno(e));
    }
    assert_eq!(ask(&child, &request(OP_CHILD, 9, 1, 0)).unwrap().0.errno, errno(Errno::PERM));
    assert_eq!(ask(&child, &request(OP_PID, 1, 0, 0)).unwrap().0.errno, errno(Errno::PERM));
    assert_eq!(ask(&child, &request(OP_CHILD, 1, 5, 0)).unwrap().0.errno, 0);
    assert_eq!(rig.told(), Told::Proc(RegionId(1), ProcId(5)));
    assert_eq!(ask(&child, &request(OP_PID, 1, 5, 0)).unwrap().0.errno, 0);
    assert_eq!(rig.told(), Told::Proc(RegionId(1), ProcId(5)));
    // The parent goes, the child stays with the region.
    drop(parent);
    assert_eq!(rig.told(), Told::Died(RegionId(1), ProcId(0)));
    assert_eq!(ask(&child, &request(OP_EVSET, 1, 0, 3)).unwrap().1.len(), 1);
    drop(child);
    assert_eq!(rig.told(), Told::Died(RegionId(1), ProcId(5)));
    assert_eq!(ask(&rig.connect(), &request(OP_CHILD, 1, 6, 0)).unwrap().0.errno, errno(Errno::PERM));
    rig.end();
}

#[test]
fn event_sets_have_one_descriptor_each() {
    let rig = Rig::new("", String::new());
    let (fd, ..) = rig.hello("x");
    let get = |set| ask(&fd, &request(OP_EVSET, 1, 0, set)).unwrap();
    let (first, again) = (get(7).1.pop().unwrap(), get(7).1.pop().unwrap());
    rustix::io::write(&first, &3u64.to_ne_bytes()).unwrap();
    let mut value = [0; 8];
    rustix::io::read(&again, &mut value).unwrap();
    assert_eq!(u64::from_ne_bytes(value), 3);
    assert_eq!(get(256).0.errno, errno(Errno::INVAL));
    assert_eq!(ask(&fd, &request(OP_EVSET, 2, 0, 1)).unwrap().0.errno, errno(Errno::PERM));
    assert_eq!(ask(&fd, &Request::new(OP_HELLO)).unwrap().0.errno, errno(Errno::INVAL));
    rig.end();
}

#[test]
fn each_user_has_a_limit() {
    let rig = Rig::new("[daemon]\nmax_processes_per_user = 2", String::new());
    let all: Vec<_> = (0..3).map(|_| rig.hello("x")).collect();
    assert_eq!(all.iter().map(|(_, r, _)| r.errno).collect::<Vec<_>>(), [0, 0, errno(Errno::NOSPC)]);
    let path = SocketPath::try_from(rig.path.as_os_str().as_encoded_bytes()).unwrap();
    assert_eq!(Link::register(&path, b"x", 0).err(), Some(Reason::Full));
    let mut all = all;
    all.remove(0);
    while !matches!(rig.told(), Told::Died(..)) {}
    assert_eq!(rig.hello("x").1.errno, 0);
    rig.end();
}

/// Larger than a socket's buffer, and a client that goes away half-way does no harm.
#[test]
fn status_is_complete() {
    let status = serde_json::json!({ "text": "x".repeat(3 << 20) });
    let rig = Rig::new("", status.to_string());
    let impatient = rig.connect();
    control::send(impatient.as_fd(), &Request::new(OP_STATUS), &[]).unwrap();
    assert_eq!(rig.told(), Told::Status);
    drop(impatient);
    assert_eq!(crate::cli::client::status(&rig.path).unwrap(), status);
    assert_eq!(rig.end().accepted, 2);
}
