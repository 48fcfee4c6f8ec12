//! Every way in which a configuration can be wrong, with the line that is named.

use super::*;

fn machine(cpus: usize) -> Machine {
    Machine { cpus: (0..cpus).collect() }
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, "t.toml", &machine(4))
}

/// The message, checked to name line `line`.
fn wrong(text: &str, line: usize) -> String {
    let message = parse(text).expect_err(text).to_string();
    assert!(message.starts_with(&format!("t.toml:{line}:")), "{message}");
    message
}

const LINK: &str = "[[nic]]\nname = 'a'\nkind = 'pcielink'\nsocket = '/s'\naddr = ['127.77.0.1/24', 'fd77::1/64']\n";

#[test]
fn unknown_keys_are_named_with_their_line() {
    assert!(wrong("[daemon]\npin = true\nfrobnicate = 1", 3).contains("frobnicate"));
    assert!(wrong("[tcp]\n\nsndbuff = 1", 3).contains("sndbuff"));
    assert!(wrong("[wait]\nspin = 1", 2).contains("spin"));
    assert!(wrong(&format!("{LINK}queus = 2"), 6).contains("queus"));
    assert!(wrong(&format!("{LINK}fault = {{ seed = 1, los = 0.1 }}"), 6).contains("los"));
    assert!(wrong("[[route]]\nto = '10.0.0.0/8'\nvia = '10.0.0.1'\ndev = 'a'", 4).contains("dev"));
    assert!(wrong("[[rule]]\nstack = 'toe'\nprog = 'x'", 3).contains("prog"));
    assert!(wrong("[nick]", 1).contains("nick"));
}

#[test]
fn other_kinds_keys_are_refused() {
    assert!(wrong(&format!("{LINK}ifname = 'toe0'"), 1).contains("`ifname`"));
    assert!(wrong("[[nic]]\nname = 'l'\nkind = 'local'\nsocket = '/s'", 1).contains("`socket`"));
    assert!(
        wrong("\n[[nic]]\nname = 't'\nkind = 'tap'\naddr = ['10.0.0.1/8']\nring_bytes = 65536", 2).contains("ring")
    );
}

#[test]
fn a_full_file() {
    let text = format!(
        "[daemon]\nsocket = '/x/toed.sock'\ncores = [1, 2]\nslow_path = 'shared'\nidle_exit_s = 9\n\
         [tcp]\ncongestion = 'reno'\n[wait]\nspin_us = 30\n{LINK}\
         fault = {{ seed = 7, loss = 0.01, rx = {{ corrupt = 0.5 }} }}\npcap = {{ file = '/x/a.pcapng' }}\n\
         [[nic]]\nname = 'tap'\nkind = 'tap'\nifname = 'toe0'\naddr = ['10.9.0.2/24']\nhost_addr = ['10.9.0.1/24']\n\
         [[route]]\nto = '10.0.0.0/8'\nvia = '10.9.0.1'\n\
         [[rule]]\nprogram = 'redis-server'\nuid = 7\nrole = 'listen'\ncidr = '10.9.0.0/24'\nport = '1000-2000'\n\
         stack = 'kernel'\n[[rule]]\nport = 80\nstack = 'refuse'"
    );
    let c = parse(&text).unwrap();
    assert_eq!(c.daemon.cores, [Some(1), Some(2)]);
    assert!(c.daemon.shared_slow_path);
    assert_eq!((c.daemon.idle_exit, c.spin), (Some(Duration::from_secs(9)), Some(Duration::from_micros(30))));
    assert_eq!(c.nics.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["a", "tap", "local"]);
    let fault = c.nics[0].fault.as_ref().unwrap();
    assert_eq!((fault.seed, fault.tx.loss, fault.rx.loss, fault.rx.corrupt), (7, 0.01, 0.0, 0.5));
    assert!(matches!(&c.nics[0].kind, NicKind::PcieLink(p) if p.queues == 2));
    assert!(matches!(&c.nics[1].kind, NicKind::Tap(t) if t.name == "toe0" && t.queues == 2));
    assert_eq!(c.rules[0].ports, (1000, 2000));
    assert_eq!(c.rules[1].ports, (80, 80));
    assert_eq!(c.routes[0].via.to_string(), "10.9.0.1");
}

#[test]
fn nothing_at_all_is_a_local_link() {
    let c = Config::parse("", "t", &machine(2)).unwrap();
    assert_eq!(c.daemon.cores, [None]);
    assert!(c.daemon.shared_slow_path);
    assert!(matches!(c.nics[..], [NicConfig { kind: NicKind::Local(_), .. }]));
    let c = Config::parse("", "t", &machine(8)).unwrap();
    assert_eq!(c.daemon.cores, [Some(1)]);
    assert!(!c.daemon.shared_slow_path);
}

#[test]
fn the_built_in_configuration() {
    let mut args = ConfigArgs { user: true, ..ConfigArgs::default() };
    let c = Config::load(&args, &machine(2)).unwrap();
    assert_eq!(c.addrs().map(|a| a.to_string()).collect::<Vec<_>>(), [DEFAULT_ADDR]);
    args.pcielink = Some("/tmp/it's \"x\"".into());
    args.addr = vec!["127.77.0.9/24".parse().unwrap()];
    args.socket = Some("/c".into());
    let c = Config::load(&args, &machine(2)).unwrap();
    assert!(matches!(&c.nics[0].kind, NicKind::PcieLink(p) if p.socket == Path::new("/tmp/it's \"x\"")));
    assert_eq!(c.daemon.socket.as_deref(), Some(Path::new("/c")));
    args.addr = vec!["127.0.0.1/8".parse().unwrap()];
    assert!(Config::load(&args, &machine(2)).is_err());
}

#[test]
fn cores() {
    assert!(wrong("[daemon]\ncores = [4]", 2).contains("no CPU 4"));
    assert!(wrong("[daemon]\ncores = [1, 1]", 2).contains("twice"));
    assert!(wrong("[daemon]\ncores = []", 2).contains("1 to 16"));
    let many: Vec<usize> = (0..17).collect();
    assert!(wrong(&format!("[daemon]\ncores = {many:?}\npin = false"), 2).contains("1 to 16"));
    assert_eq!(parse("[daemon]\ncores = [0, 9]\npin = false").unwrap().daemon.cores, [None, None]);
    assert!(wrong("[daemon]\nio_uring = 'maybe'", 2).contains("refuse"));
    assert!(wrong("[daemon]\nmax_processes_per_user = 0", 2).contains("above 0"));
    assert!(wrong("[wait]\nspin_us = 10001", 2).contains("spin_us"));
    assert!(wrong("[daemon]\nloopback = 'engine'", 2).contains("engine"));
    assert_eq!(parse("[daemon]\nloopback = 'kernel'").unwrap().daemon.loopback, Loopback::Kernel);
    assert_eq!(parse("").unwrap().daemon.loopback, Loopback::Offload);
}

#[test]
fn links() {
    assert!(wrong(&format!("{LINK}[[nic]]\nname = 'a'\nkind = 'local'"), 6).contains("named `a`"));
    assert!(wrong("[[nic]]\nname='x'\nkind='local'\n[[nic]]\nname='y'\nkind='local'", 4).contains("only one"));
    let second = "[[nic]]\nname = 'b'\nkind = 'pcielink'\nsocket = '/t'\naddr = ";
    assert!(wrong(&format!("{LINK}{second}['127.77.0.2/16']"), 6).contains("overlaps 127.77.0.1/24"));
    assert!(wrong("[[nic]]\nname = 'b'\nkind = 'pcielink'\naddr = ['10.0.0.1/8']", 1).contains("socket"));
    assert!(wrong("[[nic]]\nname = 'b'\nkind = 'tap'", 1).contains("no address"));
    assert!(wrong("[[nic]]\nname = 'b b'\nkind = 'local'", 1).contains("no name"));
    assert!(wrong("[[nic]]\nname = 'b'\nkind = 'wire'", 3).contains("wire"));
    assert!(wrong(&format!("{LINK}mac = '1:2'"), 1).contains("mac"));
    assert!(wrong(&format!("{LINK}mtu = 100"), 1).contains("576"));
    assert!(wrong(&format!("{LINK}ring_bytes = 100000"), 1).contains("power of two"));
    assert!(wrong(&format!("{LINK}fault = {{ loss = 2.0 }}"), 1).contains("loss"));
    let tap = "[[nic]]\nname = 't'\nkind = 'tap'\naddr = ['10.9.0.2/24']\n";
    assert!(wrong(&format!("{tap}ifname = 'a-name-too-long-for-it'"), 1).contains("ifname"));
    assert!(wrong(&format!("[daemon]\ncores = [0, 1]\n{tap}vnet_hdr = false"), 3).contains("one queue"));
}

#[test]
fn addresses() {
    let with = |addr: &str| format!("[[nic]]\nname = 'b'\nkind = 'local'\naddr = [{addr}]");
    for addr in ["10.0.0.1/33", "10.0.0", "fd77::1/129"] {
        wrong(&with(&format!("'{addr}'")), 4);
    }
    for addr in ["127.0.0.1/8", "127.77.0.1/15", "::1/128", "0.0.0.0/8", "224.0.0.1/4", "10.0.0.255/24", "10.0.0.0/24"]
    {
        assert!(wrong(&with(&format!("'{addr}'")), 1).contains(addr));
    }
    assert!(wrong(&with("'10.0.0.1/8', '10.0.0.1/24'"), 1).contains("twice"));
    for addr in ["10.0.0.0/31", "10.0.0.7/32", "127.77.3.1/16", "fd77::1/128"] {
        assert!(parse(&with(&format!("'{addr}'"))).is_ok(), "{addr}");
    }
}

#[test]
fn routes() {
    let with = |to: &str, via: &str| format!("{LINK}[[route]]\nto = '{to}'\nvia = '{via}'\n");
    assert!(wrong(&with("10.0.0.1/8", "127.77.0.2"), 6).contains("10.0.0.0/8"));
    assert!(wrong(&with("10.0.0.0/8", "127.77.1.2"), 6).contains("no network"));
    assert!(wrong(&with("10.0.0.0/8", "127.77.0.1"), 6).contains("itself"));
    assert!(wrong(&with("10.0.0.0/8", "fd77::2"), 6).contains("mixed"));
    assert!(wrong(&with("224.0.0.0/4", "127.77.0.2"), 6).contains("multicast"));
    let twice = with("10.0.0.0/8", "127.77.0.2") + "[[route]]\nto = '10.0.0.0/8'\nvia = '127.77.0.3'";
    assert!(wrong(&twice, 9).contains("second route"));
    assert!(parse(&with("0.0.0.0/0", "127.77.0.2")).is_ok());
}

#[test]
fn rules() {
    let with = |rest: &str| format!("[[rule]]\nstack = 'toe'\n{rest}");
    for port in ["'x'", "'2-1'", "'70000'", "'-'"] {
        assert!(wrong(&with(&format!("port = {port}")), 1).contains("port"));
    }
    wrong(&with("port = -1"), 3);
    assert!(wrong(&with("cidr = '10.0.0.1/8'"), 1).contains("host bits"));
    assert!(wrong(&with("program = '/bin/x'"), 1).contains("base name"));
    wrong(&with("role = 'serve'"), 3);
    wrong("[[rule]]\nport = 1", 1);
    let many = "[[rule]]\nstack = 'toe'\n".repeat(126);
    assert!(wrong(&many, 251).contains("at most 128"));
    assert!(parse(&"[[rule]]\nstack = 'toe'\n".repeat(100)).is_ok());
}

#[test]
fn tcp() {
    for bad in ["sndbuf = 1", "buf_max = 9999999", "port_range = [9, 8]", "delayed_ack_ms = 500", "rto_min_ms = 0"] {
        wrong(&format!("[tcp]\n{bad}"), 1);
    }
    wrong("[tcp]\ncongestion = 'bbr'", 2);
}

#[test]
fn a_missing_file_is_named() {
    let e = Config::read(Path::new("/nonexistent/toed.toml"), &machine(1)).unwrap_err();
    assert!(e.to_string().starts_with("/nonexistent/toed.toml: "));
}

#[test]
fn the_example_is_right() {
    let c = parse(include_str!("../../docs/toed.toml")).unwrap();
    assert_eq!((c.nics.len(), c.routes.len(), c.rules.len()), (3, 1, 1));
}
