//! Which stack an address belongs to: the configuration's rules and those that follow from addresses and routes, compiled
//! into a region's table for one process. First match wins; no match: the kernel.

use crate::config::{Config, Loopback, Prefix, RuleConfig, RuleRole, Stack};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::{Relaxed, Release};
use toe_core::app::rules::{Action, Role, plain};
use toe_core::flow::{SHARED, is_shared};
use toe_core::shm::{MAX_RULES, RegionHeader};

/// `ShmRule::origin` of a rule that no one wrote.
const IMPLIED: u32 = u32::MAX;

/// One entry of a region's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it is about.
    pub role: RuleRole,
    /// Addresses; `None`: all.
    pub cidr: Option<Prefix>,
    /// First and last port.
    pub ports: (u16, u16),
    /// What it says.
    pub stack: Stack,
    /// Why it is there.
    pub origin: Origin,
}

/// Why a rule is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `[[rule]]` number (from 0) of the configuration.
    Config(usize),
    /// TCP has no such destination.
    NoUnicast,
    /// An address that engine and kernel share.
    Loopback,
    /// The network of this link.
    Link(String),
    /// A configured route.
    Route(Prefix),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Config(i) => write!(f, "rule {} of the configuration", i + 1),
            Origin::NoUnicast => write!(f, "no unicast address"),
            Origin::Loopback => write!(f, "loopback"),
            Origin::Link(name) => write!(f, "network of link {name}"),
            Origin::Route(to) => write!(f, "route to {to}"),
        }
    }
}

/// The table of a process that runs `program` as `uid`.
pub fn compile(config: &Config, program: &str, uid: u32) -> Vec<Rule> {
    let mut rules = no_unicast();
    let for_us = |r: &RuleConfig| r.program.as_deref().is_none_or(|p| p == program) && r.uid.is_none_or(|u| u == uid);
    let written = config.rules.iter().enumerate().filter(|(_, r)| for_us(r));
    rules.extend(written.map(|(i, r)| Rule {
        role: r.role,
        cidr: r.cidr,
        ports: r.ports,
        stack: r.stack,
        origin: Origin::Config(i),
    }));
    rules.extend(loopback(config));
    rules.extend(networks(config));
    rules
}

/// All rules that follow from the rest of the configuration.
pub fn implied(config: &Config) -> Vec<Rule> {
    let mut rules = no_unicast();
    rules.extend(loopback(config));
    rules.extend(networks(config));
    rules
}

/// Multicast and limited broadcast are the kernel's to refuse; they come before all rules, so that `0.0.0.0/0` does not
/// catch them.
fn no_unicast() -> Vec<Rule> {
    let v4 = |a: [u8; 4], len| Prefix { addr: Ipv4Addr::from(a).into(), len };
    let v6 = Prefix { addr: Ipv6Addr::from(0xff00u128 << 112).into(), len: 8 };
    let never = [v4([224, 0, 0, 0], 4), v4([255; 4], 32), v6];
    never.into_iter().map(|p| engine(p, RuleRole::Connect, Stack::Kernel, Origin::NoUnicast)).collect()
}

/// 127.0.0.1 and ::1.
fn loopback(config: &Config) -> Vec<Rule> {
    let hosts: &[IpAddr] = match config.daemon.loopback {
        Loopback::Offload => &SHARED,
        Loopback::Kernel => &[],
    };
    hosts.iter().map(|ip| engine(Prefix::host(*ip), RuleRole::Any, Stack::Toe, Origin::Loopback)).collect()
}

fn networks(config: &Config) -> Vec<Rule> {
    let mut rules = vec![];
    for nic in &config.nics {
        let origin = Origin::Link(nic.name.clone());
        for addr in &nic.addrs {
            // Own addresses are inside; the engine itself refuses to bind the others.
            if let Some(broadcast) = addr.broadcast() {
                rules.push(engine(Prefix::host(broadcast), RuleRole::Any, Stack::Refuse, origin.clone()));
            }
            rules.push(engine(addr.network(), RuleRole::Any, Stack::Toe, origin.clone()));
        }
    }
    // The longest prefix first, so that what `toe rules check` names is the route that is used.
    let mut routes: Vec<Prefix> = config.routes.iter().map(|r| r.to).collect();
    routes.sort_by_key(|r| std::cmp::Reverse(r.len));
    rules.extend(routes.into_iter().map(|to| engine(to, RuleRole::Connect, Stack::Toe, Origin::Route(to))));
    rules
}

fn engine(cidr: Prefix, role: RuleRole, stack: Stack, origin: Origin) -> Rule {
    Rule { role, cidr: Some(cidr), ports: (0, u16::MAX), stack, origin }
}

/// What happens, by the same reading as the shim's, and the rule that says so.
pub fn decide<'a>(config: &Config, rules: &'a [Rule], role: Role, addr: SocketAddr) -> (Action, Option<&'a Rule>) {
    let addr = plain(addr);
    let found = rules.iter().find(|r| r.covers(role, addr));
    let action = match found.map_or(Stack::Kernel, |r| r.stack) {
        Stack::Toe if is_shared(addr.ip()) => match config.daemon.loopback {
            Loopback::Offload => Action::Shared,
            Loopback::Kernel => Action::Kernel,
        },
        Stack::Toe => Action::Engine,
        Stack::Kernel => Action::Kernel,
        Stack::Refuse => Action::Refuse,
    };
    (action, found)
}

/// The rules by which a listener on the wildcard address `addr` (`::` without IPV6_V6ONLY) gets connections of the engine; the
/// shim's reading once more.
pub fn decide_wildcard(rules: &[Rule], addr: SocketAddr) -> Vec<&Rule> {
    let family = |r: &&Rule| addr.is_ipv6() || r.cidr.is_none_or(|c| c.addr.is_ipv4());
    let live = rules.iter().filter(|r| r.concerns(Role::Listen, addr.port())).filter(family);
    // A rule for a part of the addresses says nothing of the others.
    let all = |r: &Rule| r.stack != Stack::Toe && r.cidr.is_none_or(|c| c.len == 0);
    live.take_while(|r| !all(r)).filter(|r| r.stack == Stack::Toe).collect()
}

impl Rule {
    fn covers(&self, role: Role, addr: SocketAddr) -> bool {
        self.concerns(role, addr.port()) && self.cidr.is_none_or(|c| c.contains(addr.ip()))
    }

    /// Is it for this role and port, whatever the address? Port 0 is yet to be chosen.
    fn concerns(&self, role: Role, port: u16) -> bool {
        let role = self.role_bits() & if role == Role::Connect { 1 } else { 2 } != 0;
        role && (port == 0 || (self.ports.0..=self.ports.1).contains(&port))
    }

    fn role_bits(&self) -> u32 {
        match self.role {
            RuleRole::Connect => 1,
            RuleRole::Listen => 2,
            RuleRole::Any => 3,
        }
    }
}

/// Writes a table into a fresh region. What does not fit (never, after the configuration's checks) is left out.
pub fn publish(rules: &[Rule], header: &RegionHeader) {
    let len = rules.len().min(MAX_RULES);
    for (rule, slot) in rules.iter().zip(&header.rules) {
        let (family, octets, prefix_len) = match rule.cidr {
            None => (0, [0; 16], 0),
            Some(Prefix { addr: IpAddr::V4(a), len }) => {
                let mut octets = [0; 16];
                octets[..4].copy_from_slice(&a.octets());
                (4, octets, len)
            }
            Some(Prefix { addr: IpAddr::V6(a), len }) => (6, a.octets(), len),
        };
        slot.roles.store(rule.role_bits(), Relaxed);
        slot.action.store(action_word(rule.stack), Relaxed);
        slot.family.store(family, Relaxed);
        slot.prefix_len.store(prefix_len.into(), Relaxed);
        for (word, bytes) in slot.prefix.iter().zip(octets.chunks_exact(4)) {
            word.store(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), Relaxed);
        }
        slot.port_lo.store(rule.ports.0.into(), Relaxed);
        slot.port_hi.store(rule.ports.1.into(), Relaxed);
        let origin = if let Origin::Config(i) = rule.origin { i as u32 } else { IMPLIED };
        slot.origin.store(origin, Relaxed);
    }
    header.rules_len.store(len as u32, Release);
}

/// `ShmRule::action`.
fn action_word(stack: Stack) -> u32 {
    match stack {
        Stack::Toe => 1,
        Stack::Kernel => 2,
        Stack::Refuse => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Machine;
    use toe_core::ids::RegionId;
    use toe_core::shm::Region;

    const TEXT: &str = "
        [[nic]]
        name = 'a'
        kind = 'pcielink'
        socket = '/s'
        addr = ['127.77.0.1/24', 'fd77::1/64']
        [[route]]
        to = '10.0.0.0/8'
        via = '127.77.0.2'
        [[rule]]
        program = 'curl'
        port = '443'
        stack = 'kernel'
        [[rule]]
        uid = 7
        cidr = '192.0.2.0/24'
        role = 'connect'
        stack = 'refuse'
        [[rule]]
        role = 'listen'
        port = '9000-9010'
        cidr = '0.0.0.0/0'
        stack = 'toe'
    ";

    fn config() -> Config {
        Config::parse(TEXT, "t", &Machine { cpus: vec![0, 1] }).unwrap()
    }

    fn decided(program: &str, uid: u32, role: Role, addr: &str) -> (Action, Option<Origin>) {
        let rules = compile(&config(), program, uid);
        let (action, rule) = decide(&config(), &rules, role, addr.parse().unwrap());
        (action, rule.map(|r| r.origin.clone()))
    }

    #[test]
    fn the_first_match_wins() {
        use Action::*;
        let link = Some(Origin::Link("a".into()));
        assert_eq!(decided("curl", 0, Role::Connect, "127.77.0.2:443"), (Kernel, Some(Origin::Config(0))));
        assert_eq!(decided("wget", 0, Role::Connect, "127.77.0.2:443"), (Engine, link.clone()));
        assert_eq!(decided("curl", 0, Role::Connect, "[::ffff:127.77.0.2]:80"), (Engine, link.clone()));
        assert_eq!(decided("curl", 0, Role::Listen, "[fd77::1]:80"), (Engine, link.clone()));
        assert_eq!(decided("x", 7, Role::Connect, "192.0.2.1:80"), (Refuse, Some(Origin::Config(1))));
        assert_eq!(decided("x", 7, Role::Listen, "192.0.2.1:80"), (Kernel, None));
        assert_eq!(decided("x", 8, Role::Connect, "192.0.2.1:80"), (Kernel, None));
        assert_eq!(decided("x", 0, Role::Listen, "0.0.0.0:9005"), (Engine, Some(Origin::Config(2))));
        let route = Origin::Route("10.0.0.0/8".parse().unwrap());
        assert_eq!(decided("x", 0, Role::Connect, "10.1.2.3:1"), (Engine, Some(route)));
        assert_eq!(decided("x", 0, Role::Connect, "127.77.0.255:1"), (Refuse, link));
        let shared = (Shared, Some(Origin::Loopback));
        assert_eq!(decided("x", 0, Role::Connect, "127.0.0.1:80"), shared);
        assert_eq!(decided("x", 0, Role::Listen, "[::1]:80"), shared);
        assert_eq!(decided("curl", 0, Role::Connect, "[::1]:443"), (Kernel, Some(Origin::Config(0))));
        assert_eq!(decided("x", 0, Role::Connect, "127.0.0.2:80"), (Kernel, None));
    }

    #[test]
    fn multicast_never_is_the_engines() {
        let text = "[[rule]]\ncidr = '0.0.0.0/0'\nstack = 'toe'\n[[rule]]\nstack = 'toe'";
        let config = Config::parse(text, "t", &Machine { cpus: vec![0] }).unwrap();
        let rules = compile(&config, "x", 0);
        for addr in ["224.0.0.1:1", "239.255.255.255:1", "255.255.255.255:1", "[ff02::1]:1"] {
            assert_eq!(decide(&config, &rules, Role::Connect, addr.parse().unwrap()).0, Action::Kernel, "{addr}");
        }
        assert_eq!(decide(&config, &rules, Role::Connect, "8.8.8.8:1".parse().unwrap()).0, Action::Engine);
    }

    #[test]
    fn loopback_may_be_left_to_the_kernel() {
        let text = "[daemon]\nloopback = 'kernel'\n[[rule]]\nprogram = 'x'\nstack = 'toe'";
        let config = Config::parse(text, "t", &Machine { cpus: vec![0] }).unwrap();
        for program in ["x", "y"] {
            let rules = compile(&config, program, 0);
            assert_eq!(decide(&config, &rules, Role::Connect, "127.0.0.1:1".parse().unwrap()).0, Action::Kernel);
        }
    }

    #[test]
    fn the_shim_reads_the_table_alike() {
        let region = Region::create(RegionId(1), 2).unwrap();
        let header = &region.layout().header;
        header.loopback.store(1, Relaxed);
        let ips = [
            "127.0.0.1",
            "::1",
            "127.77.0.2",
            "127.77.0.255",
            "10.1.2.3",
            "192.0.2.1",
            "8.8.8.8",
            "fd77::9",
            "fd78::9",
            "224.0.0.1",
        ];
        for (program, uid) in [("curl", 0), ("x", 7), ("x", 0)] {
            let rules = compile(&config(), program, uid);
            publish(&rules, header);
            for ip in ips {
                for port in [1, 443, 9000, 9010, 9011] {
                    for role in [Role::Connect, Role::Listen] {
                        let addr = SocketAddr::new(ip.parse().unwrap(), port);
                        let ours = decide(&config(), &rules, role, addr).0;
                        assert_eq!(toe_core::app::rules::decide(header, role, addr), ours, "{program} {addr} {role:?}");
                    }
                }
            }
            for port in [1, 443, 9000] {
                for ip in ["0.0.0.0", "::"] {
                    let addr = SocketAddr::new(ip.parse().unwrap(), port);
                    let ours = if decide_wildcard(&rules, addr).is_empty() { Action::Kernel } else { Action::Engine };
                    let shim = toe_core::app::rules::decide_wildcard(header, port, true, addr.is_ipv6());
                    assert_eq!(shim, ours, "{program} {addr}");
                }
            }
        }
    }
}
