//! The configuration: file, command line, checks.

mod check;
mod prefix;
mod raw;
#[cfg(test)]
mod tests;

pub use prefix::Prefix;
pub use raw::{Loopback, RuleRole, SlowPathPlace, Stack};

use nic_backend::{FaultConfig, LocalConfig, PcapConfig, PcieLinkConfig, TapConfig};
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toe_core::tcp::TcpConfig;

/// Where the system's configuration stands.
pub const SYSTEM_FILE: &str = "/etc/toe/toed.toml";
/// Address of a daemon that nobody configured. 127.77.0.0/16 is the loopback network's: it cannot leave the machine
/// even when no daemon runs.
pub const DEFAULT_ADDR: &str = "127.77.0.1/24";
/// Regions that one user may have at a time, if the configuration does not say.
const MAX_PROCESSES_PER_USER: usize = 1024;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[daemon]`.
    pub daemon: DaemonConfig,
    /// `[tcp]`.
    pub tcp: TcpConfig,
    /// Time to spin before sleeping; `None`: measure what a wake-up costs.
    pub spin: Option<Duration>,
    /// Links, in the order of their numbers. Exactly one is local.
    pub nics: Vec<NicConfig>,
    /// Routes beyond the links' own networks.
    pub routes: Vec<RouteConfig>,
    /// Rules in order.
    pub rules: Vec<RuleConfig>,
}

/// `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Control socket; `None`: the default place.
    pub socket: Option<PathBuf>,
    /// One fast path core for each: the CPU it is pinned to, if any.
    pub cores: Vec<Option<usize>>,
    /// The slow path runs on the thread of fast path core 0.
    pub shared_slow_path: bool,
    /// Who serves 127.0.0.1 and ::1.
    pub loopback: Loopback,
    /// Regions that one user may have at a time.
    pub max_processes_per_user: usize,
    /// Apps may use io_uring.
    pub io_uring: bool,
    /// End when nobody has been registered for so long.
    pub idle_exit: Option<Duration>,
}

/// One link.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Its name.
    pub name: String,
    /// Our addresses on it.
    pub addrs: Vec<Prefix>,
    /// What it is.
    pub kind: NicKind,
    /// Injected faults.
    pub fault: Option<FaultConfig>,
    /// Capture.
    pub pcap: Option<PcapConfig>,
}

/// What a link is.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum NicKind {
    PcieLink(PcieLinkConfig),
    Tap(TapConfig),
    Local(LocalConfig),
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteConfig {
    /// Destination.
    pub to: Prefix,
    /// Next hop.
    pub via: IpAddr,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleConfig {
    /// Base name of the program it is for; `None`: any.
    pub program: Option<String>,
    /// User it is for; `None`: any.
    pub uid: Option<u32>,
    /// What it is about.
    pub role: RuleRole,
    /// Addresses; `None`: all.
    pub cidr: Option<Prefix>,
    /// First and last port.
    pub ports: (u16, u16),
    /// What it says.
    pub stack: Stack,
}

/// What the configuration is checked against.
#[derive(Clone, Debug)]
pub struct Machine {
    /// CPUs this process may run on.
    pub cpus: Vec<usize>,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let cpus = core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|c| c.id).collect();
        Machine { cpus }
    }
}

/// What the command line says of the configuration; shared by `toed` and `toe rules check`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfigArgs {
    /// Configuration file [default: /etc/toe/toed.toml if it is there, else built-in]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pcielink", "user"])]
    pub config: Option<PathBuf>,
    /// No file: one PCIeLINK over this socket (the same path on both sides)
    #[arg(long, value_name = "SOCKET")]
    pub pcielink: Option<PathBuf>,
    /// Without a file: our address on the link [default: 127.77.0.1/24]
    #[arg(long, value_name = "ADDR/LEN", conflicts_with = "config")]
    pub addr: Vec<Prefix>,
    /// Built-in configuration even if there is a system-wide one
    #[arg(long)]
    pub user: bool,
    /// Control socket, instead of the configured one
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}", file.display())]
    Read {
        /// File.
        file: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Something in it is wrong.
    #[error("{file}:{line}:{column}: {message}")]
    At {
        /// File.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What.
        message: String,
    },
}

/// What is wrong, and where in the text.
#[derive(Debug)]
pub(crate) struct Fault {
    pub message: String,
    pub span: Range<usize>,
}

impl Config {
    /// What the command line asks for.
    pub fn load(args: &ConfigArgs, machine: &Machine) -> Result<Config, ConfigError> {
        let system = Path::new(SYSTEM_FILE);
        let built_in = args.user || args.pcielink.is_some() || !args.addr.is_empty();
        let file = args.config.as_deref().or_else(|| (!built_in && system.exists()).then_some(system));
        let mut config = match file {
            Some(file) => Config::read(file, machine)?,
            None => Config::parse(&built_in_text(args), "command line", machine)?,
        };
        if args.socket.is_some() {
            config.daemon.socket.clone_from(&args.socket);
        }
        Ok(config)
    }

    /// Reads a file.
    pub fn read(file: &Path, machine: &Machine) -> Result<Config, ConfigError> {
        let text =
            std::fs::read_to_string(file).map_err(|error| ConfigError::Read { file: file.to_path_buf(), error })?;
        Config::parse(&text, &file.display().to_string(), machine)
    }

    /// Reads text; `name` is for messages.
    pub fn parse(text: &str, name: &str, machine: &Machine) -> Result<Config, ConfigError> {
        let raw: Result<raw::RawConfig, _> = toml::from_str(text);
        let checked = match raw {
            Ok(raw) => check::check(raw, machine),
            Err(e) => Err(Fault { message: e.message().to_owned(), span: e.span().unwrap_or(0..0) }),
        };
        checked.map_err(|fault| {
            let (line, column) = position(text, fault.span.start);
            ConfigError::At { file: name.to_owned(), line, column, message: fault.message }
        })
    }

    /// Every address of ours, with its network.
    pub fn addrs(&self) -> impl Iterator<Item = Prefix> + '_ {
        self.nics.iter().flat_map(|n| n.addrs.iter().copied())
    }
}

/// The built-in configuration as text, so that it goes through the same checks.
fn built_in_text(args: &ConfigArgs) -> String {
    let mut addrs: Vec<String> = args.addr.iter().map(|a| format!("'{a}'")).collect();
    if addrs.is_empty() {
        addrs.push(format!("'{DEFAULT_ADDR}'"));
    }
    let kind = match &args.pcielink {
        Some(socket) => {
            let socket = toml::Value::String(socket.to_string_lossy().into_owned());
            format!("name = 'pcie0'\nkind = 'pcielink'\nsocket = {socket}")
        }
        None => "name = 'local'\nkind = 'local'".to_owned(),
    };
    format!("[[nic]]\naddr = [{}]\n{kind}\n", addrs.join(", "))
}

/// Line and column of byte `at`.
fn position(text: &str, at: usize) -> (usize, usize) {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
