//! The stacks that are compared.

use super::Only;
use super::child::{Child, Usage, Words};
use super::netns::Netns;
use super::place::{Places, WorkDir};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// One end of a stack.
pub struct Host {
    /// Words before each program.
    pub prefix: Vec<String>,
    /// Its address.
    pub ip: String,
}

/// Two hosts that reach each other.
pub struct Stack {
    /// For the table.
    pub name: &'static str,
    /// The kernel's TCP?
    pub kernel: bool,
    /// Where servers run.
    pub server: Host,
    /// Where clients run.
    pub client: Host,
    daemons: Vec<Child>,
    controls: Vec<PathBuf>,
    _namespaces: Vec<Netns>,
}

impl Stack {
    /// CPU time of its daemons so far.
    pub fn daemon_usage(&self) -> Usage {
        self.daemons.iter().fold(Usage::default(), |sum, d| sum + d.usage())
    }

    /// TCP payload that each of its daemons has received in order so far: what tells the engine from a fallback.
    pub fn received(&self, places: &Places) -> Vec<u64> {
        let cores = |control: &PathBuf| status(control, places)["cores"].as_array().cloned().unwrap_or_default();
        let sum = |control| cores(control).iter().map(|c| c["bytes_received"].as_u64().unwrap_or(0)).sum();
        self.controls.iter().map(sum).collect()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            daemon.stop(Duration::from_secs(2));
        }
    }
}

/// All stacks asked for: the kernel's first, the engine last.
pub fn start(only: Option<Only>, places: &Places, dir: &WorkDir) -> Result<Vec<Stack>, String> {
    let mut stacks = vec![];
    if only != Some(Only::Engine) {
        stacks.push(kernel("kernel lo", ["127.0.0.1"; 2], [vec![], vec![]], vec![]));
        stacks.extend(veth());
    }
    if only != Some(Only::Kernel) {
        stacks.push(engine(places, dir)?);
    }
    Ok(stacks)
}

fn kernel(name: &'static str, ips: [&str; 2], prefixes: [Vec<String>; 2], namespaces: Vec<Netns>) -> Stack {
    let [server, client] = prefixes;
    let host = |prefix, ip: &str| Host { prefix, ip: ip.into() };
    Stack {
        name,
        kernel: true,
        server: host(server, ips[0]),
        client: host(client, ips[1]),
        daemons: vec![],
        controls: vec![],
        _namespaces: namespaces,
    }
}

/// A veth pair between two namespaces; `None` without the right to make them.
fn veth() -> Option<Stack> {
    let one = Netns::new()?;
    let two = one.sibling()?;
    let ready = one.try_sh(&format!("ip link add v0 type veth peer name v1 netns {}", two.pid()))
        && one.try_sh("ip link set v0 up && ip addr add 10.77.0.1/24 dev v0")
        && two.try_sh("ip link set v1 up && ip addr add 10.77.0.2/24 dev v1");
    let prefixes = [one.prefix(), two.prefix()];
    ready.then(|| kernel("kernel veth", ["10.77.0.1", "10.77.0.2"], prefixes, vec![one, two]))
}

fn engine(places: &Places, dir: &WorkDir) -> Result<Stack, String> {
    let link = dir.path().join("link");
    let (mut hosts, mut daemons, mut controls) = (vec![], vec![], vec![]);
    for ip in ["127.77.0.2", "127.77.0.1"] {
        let control = dir.path().join(format!("{ip}.sock"));
        let words = Words(places.toed.clone()).arg("--pcielink").arg(link.display());
        let words = words.arg("--addr").arg(format!("{ip}/24")).arg("--socket").arg(control.display());
        daemons.push(Child::start(&[], words, dir)?);
        let run = Words::new(&places.toe).args("run --no-spawn --toed").arg(control.display()).arg("--");
        hosts.push(Host { prefix: run.0, ip: ip.into() });
        controls.push(control);
    }
    for (daemon, control) in daemons.iter_mut().zip(&controls) {
        until_up(daemon, control, places)?;
    }
    let (client, server) = (hosts.pop(), hosts.pop());
    let (Some(client), Some(server)) = (client, server) else { return Err("no hosts".into()) };
    Ok(Stack { name: "engine TCP", kernel: false, server, client, daemons, controls, _namespaces: vec![] })
}

fn until_up(daemon: &mut Child, control: &Path, places: &Places) -> Result<(), String> {
    let start = Instant::now();
    while !is_up(control, places) {
        daemon.check()?;
        if start.elapsed() > Duration::from_secs(20) {
            return Err(format!("toed: the link does not come up:\n{}", daemon.tail()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn is_up(control: &Path, places: &Places) -> bool {
    let nics = status(control, places)["nics"].as_array().cloned();
    nics.is_some_and(|n| !n.is_empty() && n.iter().all(|nic| nic["up"] == true))
}

/// `toe status --json`; null if the daemon does not answer.
fn status(control: &Path, places: &Places) -> serde_json::Value {
    let mut command = std::process::Command::new(&places.toe);
    let got = command.args(["status", "--json", "--toed"]).arg(control).output();
    got.ok().and_then(|got| serde_json::from_slice(&got.stdout).ok()).unwrap_or_default()
}
