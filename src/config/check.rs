//! From the file as written to a checked [`Config`]: all that types cannot say.

use super::raw::{IoUring, RawConfig, RawDaemon, RawFault, RawKind, RawNic, RawPcap, RawPort, RawRule, SlowPathPlace};
use super::*;
use nic_backend::FaultSpec;
use std::net::Ipv4Addr;
use toe_core::shm::{MAX_RULES, MAX_WORKERS};
use toml::Spanned;

/// Most links; their numbers are small integers everywhere.
const MAX_NICS: usize = 32;
/// Loopback addresses that an engine may have: the rest of 127.0.0.0/8 is the kernel's.
const ENGINE_LOOPBACK: Prefix = Prefix { addr: IpAddr::V4(Ipv4Addr::new(127, 77, 0, 0)), len: 16 };
const LOOPBACK: Prefix = Prefix { addr: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), len: 8 };

type Checked<T> = Result<T, Fault>;

fn fault<T>(span: Range<usize>, message: impl Into<String>) -> Checked<T> {
    Err(Fault { message: message.into(), span })
}

/// Checks everything.
pub(super) fn check(raw: RawConfig, machine: &Machine) -> Checked<Config> {
    let tcp = check_tcp(raw.tcp)?;
    let daemon = check_daemon(raw.daemon, machine)?;
    let spin = check_spin(raw.wait.spin_us)?;
    let nics = check_nics(raw.nic, daemon.cores.len())?;
    let mut config = Config { daemon, tcp, spin, nics, routes: vec![], rules: vec![] };
    for route in raw.route {
        let route = check_route(route, &config)?;
        config.routes.push(route);
    }
    let last = raw.rule.last().map(|r| r.span());
    config.rules = raw.rule.into_iter().map(check_rule).collect::<Checked<_>>()?;
    let count = config.rules.len() + crate::rules::implied(&config).len();
    if count > MAX_RULES {
        let span = last.unwrap_or(0..0);
        return fault(span, format!("{count} rules with those for addresses and routes; at most {MAX_RULES}"));
    }
    Ok(config)
}

fn check_tcp(tcp: Option<Spanned<TcpConfig>>) -> Checked<TcpConfig> {
    let Some(tcp) = tcp else { return Ok(TcpConfig::default()) };
    let (span, t) = (tcp.span(), tcp.into_inner());
    let most = (toe_core::shm::STREAM_CHUNKS * toe_core::shm::CHUNK_SIZE) as u32;
    let wrong = if !(4096..=most).contains(&t.buf_max) {
        format!("buf_max must be 4096 to {most}")
    } else if !(4096..=t.buf_max).contains(&t.sndbuf) || !(4096..=t.buf_max).contains(&t.rcvbuf) {
        "sndbuf and rcvbuf must be 4096 to buf_max".to_owned()
    } else if t.port_range.0 == 0 || t.port_range.0 > t.port_range.1 {
        "port_range must be [first, last] with 0 < first <= last".to_owned()
    } else if t.rto_min_ms == 0 || t.rto_min_ms > t.rto_max_ms || t.rto_initial_ms > t.rto_max_ms {
        "rto_min_ms must be above 0, and neither it nor rto_initial_ms above rto_max_ms".to_owned()
    } else if t.delayed_ack_ms >= 500 {
        "delayed_ack_ms must be below 500 (RFC 9293 3.8.6.3)".to_owned()
    } else {
        return Ok(t);
    };
    fault(span, wrong)
}

fn check_daemon(raw: RawDaemon, machine: &Machine) -> Checked<DaemonConfig> {
    let small = machine.cpus.len() <= 2;
    let pin = raw.pin.unwrap_or(raw.cores.is_some() || !small);
    let cores = match raw.cores {
        None => vec![pin.then(|| default_cpu(machine)).flatten()],
        Some(cores) => check_cores(cores, pin, machine)?,
    };
    let max = match raw.max_processes_per_user {
        None => MAX_PROCESSES_PER_USER,
        Some(n) if *n.get_ref() == 0 => return fault(n.span(), "max_processes_per_user must be above 0"),
        Some(n) => n.into_inner(),
    };
    Ok(DaemonConfig {
        socket: raw.socket,
        cores,
        shared_slow_path: match raw.slow_path {
            SlowPathPlace::Auto => small,
            SlowPathPlace::Own => false,
            SlowPathPlace::Shared => true,
        },
        loopback: raw.loopback,
        max_processes_per_user: max,
        io_uring: raw.io_uring == IoUring::Allow,
        idle_exit: raw.idle_exit_s.map(Duration::from_secs),
    })
}

/// The second CPU: the first one takes most interrupts.
fn default_cpu(machine: &Machine) -> Option<usize> {
    machine.cpus.get(1).or(machine.cpus.first()).copied()
}

fn check_cores(cores: Spanned<Vec<usize>>, pin: bool, machine: &Machine) -> Checked<Vec<Option<usize>>> {
    let (span, cores) = (cores.span(), cores.into_inner());
    if cores.is_empty() || cores.len() > MAX_WORKERS - 1 {
        return fault(span, format!("cores: {} CPUs named; must be 1 to {}", cores.len(), MAX_WORKERS - 1));
    }
    for (i, cpu) in cores.iter().enumerate() {
        if pin && !machine.cpus.contains(cpu) {
            let usable = &machine.cpus;
            return fault(span, format!("cores: there is no CPU {cpu} for this process; usable are {usable:?}"));
        }
        if pin && cores[..i].contains(cpu) {
            return fault(span, format!("cores: CPU {cpu} named twice"));
        }
    }
    Ok(cores.into_iter().map(|cpu| pin.then_some(cpu)).collect())
}

fn check_spin(spin: Option<Spanned<u64>>) -> Checked<Option<Duration>> {
    match spin {
        Some(us) if *us.get_ref() > 10_000 => fault(us.span(), "spin_us must be at most 10000"),
        spin => Ok(spin.map(|us| Duration::from_micros(us.into_inner()))),
    }
}

fn check_nics(raw: Vec<Spanned<RawNic>>, cores: usize) -> Checked<Vec<NicConfig>> {
    let mut nics: Vec<NicConfig> = vec![];
    for nic in raw {
        let span = nic.span();
        let at = |message: String| Fault { message, span: span.clone() };
        let nic = check_nic(nic.into_inner(), cores).map_err(at)?;
        unique(&nic, &nics).map_err(at)?;
        nics.push(nic);
        if nics.len() >= MAX_NICS {
            return fault(span, format!("more than {} links", MAX_NICS - 1));
        }
    }
    if !nics.iter().any(|n| matches!(n.kind, NicKind::Local(_))) {
        let kind = NicKind::Local(LocalConfig { queues: cores, ..LocalConfig::default() });
        // A name that no file can take from us: names of links are unique.
        let name = if nics.iter().any(|n| n.name == "local") { "(local)" } else { "local" }.to_owned();
        nics.push(NicConfig { name, addrs: vec![], kind, fault: None, pcap: None });
    }
    Ok(nics)
}

/// Neither name, addresses, nor kind may clash with the links before.
fn unique(nic: &NicConfig, before: &[NicConfig]) -> Result<(), String> {
    for (i, addr) in nic.addrs.iter().enumerate() {
        if nic.addrs[..i].iter().any(|a| a.addr == addr.addr) {
            return Err(format!("address {addr} given twice"));
        }
    }
    for other in before {
        if other.name == nic.name {
            return Err(format!("two links are named `{}`", nic.name));
        }
        if matches!((&other.kind, &nic.kind), (NicKind::Local(_), NicKind::Local(_))) {
            return Err("a second link of kind \"local\"; there is only one".to_owned());
        }
        for addr in &nic.addrs {
            if let Some(theirs) = other.addrs.iter().find(|a| a.overlaps(*addr)) {
                return Err(format!("{addr} overlaps {theirs} of link `{}`", other.name));
            }
        }
    }
    Ok(())
}

fn check_nic(raw: RawNic, cores: usize) -> Result<NicConfig, String> {
    if raw.name.is_empty() || raw.name.len() > 64 || raw.name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("`{}` is no name for a link: 1 to 64 bytes without blanks", raw.name));
    }
    for addr in &raw.addr {
        check_addr(*addr)?;
    }
    if raw.addr.is_empty() && raw.kind != RawKind::Local {
        return Err(format!("link `{}` has no address (addr = [\"ADDR/LEN\"])", raw.name));
    }
    foreign_keys(&raw)?;
    let mac = match &raw.mac {
        None => [0; 6],
        Some(text) => nic_backend::config::parse_mac(text).ok_or(format!("mac = \"{text}\": not aa:bb:cc:dd:ee:ff"))?,
    };
    if raw.mtu.is_some_and(|m| !(576..=65_535).contains(&m)) {
        return Err("mtu must be 576 to 65535".to_owned());
    }
    let fault = raw.fault.as_ref().map(check_fault).transpose()?;
    let pcap = raw.pcap.as_ref().map(pcap);
    let (name, addrs) = (raw.name.clone(), raw.addr.clone());
    Ok(NicConfig { kind: kind(raw, mac, cores)?, name, addrs, fault, pcap })
}

fn kind(raw: RawNic, mac: [u8; 6], cores: usize) -> Result<NicKind, String> {
    Ok(match raw.kind {
        RawKind::PcieLink => {
            let socket = raw.socket.ok_or(format!("link `{}` needs socket = \"PATH\"", raw.name))?;
            let mut c = PcieLinkConfig { mac, queues: cores, ..PcieLinkConfig::new(socket) };
            c.mtu = raw.mtu.unwrap_or(c.mtu);
            c.ring_bytes = raw.ring_bytes.unwrap_or(c.ring_bytes);
            check_ring(c.ring_bytes)?;
            NicKind::PcieLink(c)
        }
        RawKind::Local => {
            let mut c = LocalConfig { mac, queues: cores, ..LocalConfig::default() };
            c.ring_bytes = raw.ring_bytes.unwrap_or(c.ring_bytes);
            check_ring(c.ring_bytes)?;
            NicKind::Local(c)
        }
        RawKind::Tap => {
            let mut c = TapConfig { mac, queues: cores, mtu: raw.mtu, ..TapConfig::default() };
            c.name = raw.ifname.unwrap_or_default();
            if c.name.len() > 15 || c.name.contains(['/', ' ']) {
                return Err(format!("ifname = \"{}\": 1 to 15 bytes without blanks and slashes", c.name));
            }
            c.vnet_hdr = raw.vnet_hdr.unwrap_or(c.vnet_hdr);
            if !c.vnet_hdr && cores > 1 {
                return Err("vnet_hdr = false has one queue only: give the daemon one core".to_owned());
            }
            c.up = raw.up.unwrap_or(c.up);
            c.host_addr = raw.host_addr.unwrap_or_default().iter().map(|a| a.to_string()).collect();
            NicKind::Tap(c)
        }
    })
}

fn check_ring(bytes: usize) -> Result<(), String> {
    match bytes.is_power_of_two() && (64 << 10..=64 << 20).contains(&bytes) {
        true => Ok(()),
        false => Err(format!("ring_bytes = {bytes}: must be a power of two, 64 KiB to 64 MiB")),
    }
}

/// A key of another kind is as wrong as an unknown one.
fn foreign_keys(raw: &RawNic) -> Result<(), String> {
    let of = |kinds: &[RawKind]| kinds.contains(&raw.kind);
    let keys = [
        ("socket", raw.socket.is_some(), of(&[RawKind::PcieLink])),
        ("mtu", raw.mtu.is_some(), of(&[RawKind::PcieLink, RawKind::Tap])),
        ("ring_bytes", raw.ring_bytes.is_some(), of(&[RawKind::PcieLink, RawKind::Local])),
        ("ifname", raw.ifname.is_some(), of(&[RawKind::Tap])),
        ("vnet_hdr", raw.vnet_hdr.is_some(), of(&[RawKind::Tap])),
        ("up", raw.up.is_some(), of(&[RawKind::Tap])),
        ("host_addr", raw.host_addr.is_some(), of(&[RawKind::Tap])),
    ];
    match keys.into_iter().find(|(_, given, allowed)| *given && !allowed) {
        Some((key, ..)) => Err(format!("key `{key}` does not belong to a link of this kind")),
        None => Ok(()),
    }
}

fn check_addr(p: Prefix) -> Result<(), String> {
    let ip = p.addr;
    let wrong = if ip.is_unspecified() || ip.is_multicast() || p.broadcast() == Some(ip) {
        "is no address of a host"
    } else if p.len == 0 {
        "needs a prefix length above 0"
    } else if p.broadcast().is_some() && p.network().addr == ip {
        "is the network itself, not a host in it"
    } else if (LOOPBACK.contains(ip) && !ENGINE_LOOPBACK.contains(ip))
        || p.overlaps_kernel_loopback()
        || ip.is_loopback_v6()
    {
        "is the kernel's loopback; engines may use 127.77.0.0/16"
    } else {
        return Ok(());
    };
    Err(format!("addr: {p} {wrong}"))
}

impl Prefix {
    fn overlaps_kernel_loopback(self) -> bool {
        LOOPBACK.overlaps(self) && self.len < ENGINE_LOOPBACK.len
    }
}

trait LoopbackV6 {
    fn is_loopback_v6(&self) -> bool;
}

impl LoopbackV6 for IpAddr {
    fn is_loopback_v6(&self) -> bool {
        self.is_ipv6() && self.is_loopback()
    }
}

fn check_fault(raw: &RawFault) -> Result<FaultConfig, String> {
    let d = FaultSpec::default();
    let both = FaultSpec {
        loss: raw.loss.unwrap_or(d.loss),
        duplicate: raw.duplicate.unwrap_or(d.duplicate),
        corrupt: raw.corrupt.unwrap_or(d.corrupt),
        delay_us: raw.delay_us.unwrap_or(d.delay_us),
        jitter_us: raw.jitter_us.unwrap_or(d.jitter_us),
        reorder: raw.reorder.unwrap_or(d.reorder),
        reorder_max: raw.reorder_max.unwrap_or(d.reorder_max),
        rate: raw.rate.unwrap_or(d.rate),
        limit: raw.limit.unwrap_or(d.limit),
    };
    let side = |own: &Option<FaultSpec>| own.clone().unwrap_or_else(|| both.clone());
    let config = FaultConfig { seed: raw.seed, tx: side(&raw.tx), rx: side(&raw.rx) };
    config.tx.check().and(config.rx.check()).map_err(|e| e.to_string())?;
    Ok(config)
}

fn pcap(raw: &RawPcap) -> PcapConfig {
    PcapConfig { path: raw.file.clone(), snaplen: raw.snaplen, max_bytes: raw.max_bytes }
}

fn check_route(raw: Spanned<super::raw::RawRoute>, config: &Config) -> Checked<RouteConfig> {
    let (span, raw) = (raw.span(), raw.into_inner());
    if raw.to.network() != raw.to {
        return fault(span, format!("to = {}: host bits are set; the network is {}", raw.to, raw.to.network()));
    }
    if raw.to.addr.is_ipv4() != raw.via.is_ipv4() {
        return fault(span, format!("a route to {} via {}: IPv4 and IPv6 mixed", raw.to, raw.via));
    }
    if raw.to.addr.is_multicast() {
        return fault(span, format!("a route to {}: TCP has no multicast", raw.to));
    }
    if config.addrs().any(|a| a.addr == raw.via) {
        return fault(span, format!("via = {}: that is this daemon itself", raw.via));
    }
    if !config.addrs().any(|a| a.contains(raw.via)) {
        return fault(span, format!("via = {}: on no network of any link", raw.via));
    }
    if config.routes.iter().any(|r| r.to == raw.to) {
        return fault(span, format!("a second route to {}", raw.to));
    }
    Ok(RouteConfig { to: raw.to, via: raw.via })
}

fn check_rule(raw: Spanned<RawRule>) -> Checked<RuleConfig> {
    let (span, raw) = (raw.span(), raw.into_inner());
    let ports = match raw.port {
        None => Some((0, u16::MAX)),
        Some(RawPort::One(port)) => Some((port, port)),
        Some(RawPort::Text(text)) => match text.split_once('-') {
            None => text.parse().ok().map(|p| (p, p)),
            Some((lo, hi)) => lo.trim().parse().ok().zip(hi.trim().parse().ok()).filter(|(lo, hi)| lo <= hi),
        },
    };
    let Some(ports) = ports else { return fault(span, "port must be \"80\" or \"1000-2000\"") };
    if let Some(cidr) = raw.cidr.filter(|c| c.network() != *c) {
        return fault(span, format!("cidr = {cidr}: host bits are set; the network is {}", cidr.network()));
    }
    if raw.program.as_ref().is_some_and(|p| p.is_empty() || p.contains('/') || p.len() > 63) {
        return fault(span, "program must be a base name of at most 63 bytes, without a path");
    }
    let RawRule { program, uid, role, cidr, stack, .. } = raw;
    Ok(RuleConfig { program, uid, role, cidr, ports, stack })
}
