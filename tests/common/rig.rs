//! Two stacks that can reach each other, and programs started on either.
//!
//! `TOE_TEST_STACK=kernel` puts the kernel's TCP on both sides: a check of the tests themselves.

use super::{Cmd, Netns, Proc, TempDir, skip, wait_for};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const START: Duration = Duration::from_secs(20);

/// Which IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ip {
    V4,
    V6,
}

/// What a rig is made of, beyond its kind.
#[derive(Clone, Debug, Default)]
pub struct RigSpec {
    /// Put a PCIeLINK rig into a network namespace, with IPv6 addresses.
    pub v6: bool,
    /// TOML of the `fault` middleware, on every engine's side of the link.
    pub fault: Option<&'static str>,
    /// Capture what the first engine sees into this file of the rig's directory.
    pub pcap: Option<&'static str>,
    /// TAP without virtio-net header: no offloads.
    pub plain_tap: bool,
    /// TOML list of fast path cores.
    pub cores: Option<&'static str>,
    /// More of the `[daemon]` table.
    pub daemon: Option<&'static str>,
}

/// One end.
pub struct Side {
    /// Control socket of its daemon; `None`: the kernel's TCP.
    pub control: Option<PathBuf>,
    v4: IpAddr,
    v6: IpAddr,
    ns: Option<Arc<Netns>>,
    dir: PathBuf,
}

impl Side {
    /// Its address.
    pub fn ip(&self, ip: Ip) -> IpAddr {
        if ip == Ip::V4 { self.v4 } else { self.v6 }
    }

    /// Its address with a port.
    pub fn addr(&self, ip: Ip, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(ip), port)
    }

    /// A program on this side's stack.
    pub fn cmd(&self, program: impl AsRef<Path>) -> Cmd {
        let Some(control) = &self.control else { return self.plain(program) };
        let socket = control.to_string_lossy();
        let run = Cmd::new(&self.prefix(), env!("CARGO_BIN_EXE_toe"), &self.dir);
        run.args("run --no-spawn --toed").arg(socket).arg("--").arg(program.as_ref().display())
    }

    /// A program on the kernel's stack, in this side's namespace.
    pub fn plain(&self, program: impl AsRef<Path>) -> Cmd {
        Cmd::new(&self.prefix(), program, &self.dir)
    }

    /// `toe-peer` on this side.
    pub fn peer(&self, args: &str) -> Cmd {
        self.cmd(env!("CARGO_BIN_EXE_toe-peer")).args(args)
    }

    /// A `toe-peer serve` that listens.
    pub fn serve(&self, addr: SocketAddr, more: &str) -> Proc {
        let mut server = self.peer("serve --listen").arg(addr).args(more).stdin().spawn();
        server.until("listening", START);
        server
    }

    /// Like [`serve`](Self::serve); connections that do not come from `client`'s address, because they took another stack,
    /// are complained of and closed.
    pub fn serve_for(&self, client: &Side, ip: Ip, addr: SocketAddr, more: &str) -> Proc {
        // Without an engine a rig may have both addresses on one host: then there is nothing to tell apart.
        match self.control.is_some() || client.control.is_some() {
            true => self.serve(addr, &format!("--peer {} {more}", client.ip(ip))),
            false => self.serve(addr, more),
        }
    }

    /// Waits until somebody accepts connections at `addr`. Servers see a connection that says nothing.
    pub fn probe(&self, addr: SocketAddr) {
        self.peer("probe --seconds 20 --connect").arg(addr).run_ok(START * 2);
    }

    fn prefix(&self) -> Vec<String> {
        self.ns.as_ref().map(|ns| ns.prefix()).unwrap_or_default()
    }
}

/// A running `toed`.
pub struct Daemon {
    /// The process.
    pub proc: Proc,
    /// Its control socket.
    pub control: PathBuf,
}

impl Daemon {
    /// `memfd` descriptors that it holds: one for each region of an app, and some of its own.
    pub fn memfds(&self) -> usize {
        let dir = std::fs::read_dir(format!("/proc/{}/fd", self.proc.pid()));
        let links = dir.into_iter().flatten().flatten().filter_map(|e| std::fs::read_link(e.path()).ok());
        links.filter(|l| l.to_string_lossy().contains("memfd:")).count()
    }
}

/// Two sides and what serves them.
pub struct Rig {
    /// An engine (in both kinds of rig).
    pub a: Side,
    /// The other engine, or the kernel behind the TAP device.
    pub b: Side,
    /// The daemons, a's first.
    pub daemons: Vec<Daemon>,
    /// All files.
    pub dir: TempDir,
    ns: Option<Arc<Netns>>,
    _alone: Alone,
}

/// Tests that measure or load the machine run one at a time, whatever the runner's number of threads.
pub type Alone = MutexGuard<'static, ()>;

/// Waits for the turn.
pub fn alone() -> Alone {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

fn kernel_only() -> bool {
    std::env::var_os("TOE_TEST_STACK").is_some_and(|v| v == "kernel")
}

impl Rig {
    /// Two user-mode daemons joined by PCIeLINK.
    pub fn pcielink(test: &str, spec: &RigSpec) -> Option<Rig> {
        let alone = alone();
        let ns = if spec.v6 { Some(Arc::new(namespace(test)?)) } else { None };
        let dir = TempDir::new();
        let mut rig = Rig::bare(alone, dir, ns, ["127.77.0.1", "fd77::1"], ["127.77.0.2", "fd77::2"]);
        if kernel_only() {
            if let Some(ns) = &rig.ns {
                sh(ns, "ip addr add fd77::1/64 dev lo; ip addr add fd77::2/64 dev lo");
            }
            return Some(rig);
        }
        for (i, name) in ["a", "b"].into_iter().enumerate() {
            let link = rig.dir.path().join("link");
            let nic = format!("kind = \"pcielink\"\nsocket = \"{}\"\n", link.display());
            let v6 = if spec.v6 { format!(", \"fd77::{}/64\"", i + 1) } else { String::new() };
            let addr = format!("addr = [\"127.77.0.{}/24\"{v6}]\n", i + 1);
            let control = rig.start_daemon(name, &(nic + &addr), spec, i == 0);
            if i == 0 { rig.a.control = Some(control) } else { rig.b.control = Some(control) }
        }
        rig.wait_up();
        Some(rig)
    }

    /// One daemon, and the loopback addresses.
    pub fn loopback(spec: &RigSpec) -> Rig {
        let mut rig = Rig::bare(alone(), TempDir::new(), None, ["127.0.0.1", "::1"], ["127.0.0.1", "::1"]);
        if !kernel_only() {
            let control = rig.start_daemon("a", "kind = \"local\"\n", spec, true);
            rig.a.control = Some(control.clone());
            rig.b.control = Some(control);
            rig.wait_up();
        }
        rig
    }

    /// A daemon on a TAP device, and the kernel's TCP behind it, in one namespace.
    pub fn tap(test: &str, spec: &RigSpec) -> Option<Rig> {
        let alone = alone();
        let ns = Arc::new(namespace(test)?);
        let mut rig =
            Rig::bare(alone, TempDir::new(), Some(ns.clone()), ["10.9.0.2", "fd09::2"], ["10.9.0.1", "fd09::1"]);
        if kernel_only() {
            let other = ns.sibling().expect("a second namespace");
            sh(&ns, &format!("ip link add v0 type veth peer name v1 netns {}", other.pid()));
            sh(&ns, "ip link set v0 up; ip addr add 10.9.0.2/24 dev v0; ip addr add fd09::2/64 dev v0");
            sh(&other, "ip link set v1 up; ip addr add 10.9.0.1/24 dev v1; ip addr add fd09::1/64 dev v1");
            rig.b.ns = Some(Arc::new(other));
            return Some(rig);
        }
        let nic = format!(
            "kind = \"tap\"\nifname = \"toe0\"\nvnet_hdr = {}\nhost_addr = [\"10.9.0.1/24\", \"fd09::1/64\"]\n\
             addr = [\"10.9.0.2/24\", \"fd09::2/64\"]\n",
            !spec.plain_tap
        );
        rig.a.control = Some(rig.start_daemon("a", &nic, spec, true));
        rig.wait_up();
        Some(rig)
    }

    /// Both ends as (server, client).
    pub fn b_serves(&self) -> (&Side, &Side) {
        (&self.b, &self.a)
    }

    /// Both ends as (server, client).
    pub fn a_serves(&self) -> (&Side, &Side) {
        (&self.a, &self.b)
    }

    /// Is the engine in it at all?
    pub fn has_engine(&self) -> bool {
        !self.daemons.is_empty()
    }

    fn bare(alone: Alone, dir: TempDir, ns: Option<Arc<Netns>>, a: [&str; 2], b: [&str; 2]) -> Rig {
        let path = dir.path().to_path_buf();
        let side = |ips: [&str; 2]| Side {
            control: None,
            v4: ips[0].parse().expect("IPv4"),
            v6: ips[1].parse().expect("IPv6"),
            ns: ns.clone(),
            dir: path.clone(),
        };
        Rig { a: side(a), b: side(b), daemons: vec![], dir, ns: ns.clone(), _alone: alone }
    }

    fn start_daemon(&mut self, name: &str, nic: &str, spec: &RigSpec, first: bool) -> PathBuf {
        let control = self.dir.path().join(format!("{name}.sock"));
        let mut toml = format!("[daemon]\nsocket = \"{}\"\npin = false\n", control.display());
        if let Some(cores) = spec.cores {
            toml += &format!("cores = {cores}\n");
        }
        if let Some(daemon) = spec.daemon {
            toml += &format!("{daemon}\n");
        }
        toml += &format!("\n[[nic]]\nname = \"{name}0\"\n{nic}");
        if let Some(fault) = spec.fault {
            toml += &format!("fault = {fault}\n");
        }
        if let (Some(pcap), true) = (spec.pcap, first) {
            toml += &format!("pcap = {{ file = \"{}\" }}\n", self.dir.path().join(pcap).display());
        }
        let file = self.dir.path().join(format!("{name}.toml"));
        std::fs::write(&file, toml).expect("configuration");
        let prefix = self.ns.as_ref().map(|ns| ns.prefix()).unwrap_or_default();
        let toed = Cmd::new(&prefix, env!("CARGO_BIN_EXE_toed"), self.dir.path());
        let proc = toed.arg("--config").arg(file.display()).env("RUST_LOG", "info").spawn();
        self.daemons.push(Daemon { proc, control: control.clone() });
        control
    }

    /// Waits until every daemon answers and every link is up.
    fn wait_up(&mut self) {
        for i in 0..self.daemons.len() {
            let control = self.daemons[i].control.clone();
            wait_for("daemon and link", START, || {
                let daemon = &mut self.daemons[i].proc;
                let ended = daemon.ended();
                assert!(ended.is_none(), "toed ended with {ended:?}: {}", daemon.describe());
                links_up(&self.status(&control)?).then_some(())
            });
        }
    }

    /// `toe status --json` of a daemon.
    pub fn status(&self, control: &Path) -> Option<serde_json::Value> {
        let toe = Cmd::new(&[], env!("CARGO_BIN_EXE_toe"), self.dir.path());
        let got = toe.args("status --json --toed").arg(control.display()).run(START);
        if got.status.success() { serde_json::from_str(&got.out).ok() } else { None }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for d in &self.daemons {
                eprintln!("{}", d.proc.describe());
            }
        }
    }
}

fn sh(ns: &Netns, line: &str) {
    assert!(ns.try_sh(line), "{line}");
}

fn namespace(test: &str) -> Option<Netns> {
    let ns = Netns::new();
    if ns.is_none() {
        skip(test, "network namespaces are not allowed to this user");
    }
    ns
}

fn links_up(status: &serde_json::Value) -> bool {
    let nics = status.get("nics").and_then(|n| n.as_array());
    nics.is_some_and(|n| !n.is_empty() && n.iter().all(|nic| nic.get("up").is_some_and(|u| u == true)))
}
