//! TAP devices against the kernel, each test in a network namespace of its own. Needs root; without it they say so.

mod common;

use common::{TempDir, wait};
use nic_backend::pcap::{Pcap, PcapFile};
use nic_backend::tap::{Tap, open_queues};
use nic_backend::{PcapConfig, TapConfig};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use toe_core::SeqNr;
use toe_core::flow::FlowKey;
use toe_core::nic::{Nic, RxCsum, TxMeta};
use toe_core::wire::{Segment, TcpFields, TcpOptions, emit, flags, parse, verify_checksum};

const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x42];

/// Runs `test` in a thread with a network namespace of its own, which ends with it.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = std::thread::spawn(|| {
        // SAFETY: only the network namespace of this thread changes; no descriptor table is unshared.
        if unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.is_err() || !std::path::Path::new("/dev/net/tun").exists() {
            eprintln!("skipped: needs root and /dev/net/tun");
            return;
        }
        test();
    });
    outcome.join().unwrap();
}

fn tap(cfg: TapConfig) -> Tap {
    let host_addr = vec!["10.9.0.1/24".into(), "10.9.1.1/24".into(), "fd09::1/64".into()];
    let mut queues = open_queues(&TapConfig { name: "toe0".into(), mac: OUR_MAC, host_addr, ..cfg }).unwrap();
    assert_eq!(queues[0].name(), "toe0");
    assert!(queues[0].is_up());
    queues.remove(0)
}

/// Receives frames until `pick` takes one; sleeps on the descriptors between.
fn next<T>(tap: &mut dyn Nic, mut pick: impl FnMut(&[u8], RxCsum, u16) -> Option<T>) -> T {
    loop {
        // One at a time: what follows the frame we look for is for the next call.
        let mut picked = None;
        while picked.is_none() && tap.recv(1, &mut |f, m| picked = pick(f, m.csum, m.gso_size)) > 0 {}
        if let Some(t) = picked {
            return t;
        }
        assert!(tap.arm());
        assert!(wait(tap, 20), "no frame comes");
        tap.disarm();
    }
}

/// Answers the kernel's ARP or neighbour solicitation for `ip`; returns the kernel's MAC.
fn resolve(tap: &mut dyn Nic, ip: IpAddr) -> [u8; 6] {
    let (request, mac) = next(tap, |f, _, _| {
        let wanted = match ip {
            IpAddr::V4(ip) => f[12..14] == [8, 6] && f[21] == 1 && f[38..42] == ip.octets(),
            IpAddr::V6(ip) => f[12..14] == [0x86, 0xdd] && f[20] == 58 && f[54] == 135 && f[62..78] == ip.octets(),
        };
        wanted.then(|| (f.to_vec(), <[u8; 6]>::try_from(&f[6..12]).unwrap()))
    });
    let mut reply = mac.to_vec();
    reply.extend(OUR_MAC);
    match ip {
        IpAddr::V4(ip) => {
            reply.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
            reply.extend(OUR_MAC);
            reply.extend(ip.octets());
            reply.extend(&request[22..32]);
        }
        IpAddr::V6(ip) => {
            let mut icmp = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
            icmp.extend(ip.octets());
            icmp.extend([2, 1]);
            icmp.extend(OUR_MAC);
            let source = IpAddr::from(<[u8; 16]>::try_from(&request[22..38]).unwrap());
            let sum = toe_core::wire::checksum::pseudo(ip.into(), source, 58, icmp.len());
            let sum = !toe_core::wire::checksum::fold(toe_core::wire::checksum::add(sum, &icmp));
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            reply.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, icmp.len() as u8, 58, 255]);
            reply.extend(ip.octets());
            reply.extend(&request[22..38]);
            reply.extend(icmp);
        }
    }
    tap.send(&reply, &[], TxMeta::default()).unwrap();
    tap.flush();
    mac
}

/// A hand-driven TCP end of ours.
struct Conn {
    key: FlowKey,
    l2: [u8; 14],
    seq: SeqNr,
    ack: SeqNr,
}

impl Conn {
    fn send(&mut self, tap: &mut dyn Nic, fl: u8, payload: &[&[u8]]) {
        let offload = tap.caps().tx_csum;
        let fields = TcpFields {
            key: self.key,
            seq: self.seq,
            ack: self.ack,
            flags: fl,
            window: 65_535,
            urgent: 0,
            options: TcpOptions { mss: (fl & flags::SYN != 0).then_some(1440), ..TcpOptions::default() },
            ttl: 64,
            tos: 0,
            ident: 0,
        };
        let header = emit(&self.l2, &fields, payload, offload);
        let gso_size = if tap.caps().tso_max > 0 { 1440 } else { 0 };
        let meta = TxMeta { csum_offload: offload, gso_size, l4_offset: header.l4_offset, flow_hash: 0 };
        tap.send(header.as_slice(), payload, meta).unwrap();
        tap.flush();
        let len: usize = payload.iter().map(|p| p.len()).sum();
        self.seq += len as u32 + u32::from(fl & (flags::SYN | flags::FIN) != 0);
    }

    /// The next segment of this connection, with its payload.
    fn next(&mut self, tap: &mut dyn Nic) -> (Segment, Vec<u8>, u16) {
        let key = self.key;
        let offload = tap.caps().tx_csum;
        let mut vouched = false;
        let got = next(tap, |f, csum, gso| {
            let s = parse(f).ok().filter(|s| s.key == key)?;
            assert!(csum == RxCsum::Good || verify_checksum(f, &s), "a good checksum, or none needed");
            assert!(csum == RxCsum::Unchecked || offload, "a plain TAP vouches for nothing");
            vouched |= csum == RxCsum::Good;
            let payload = f[s.payload_offset..s.payload_offset + s.payload_len].to_vec();
            Some((s, payload, gso))
        });
        assert!(vouched == offload || got.1.is_empty(), "data of the kernel comes unsummed");
        got
    }
}

/// Binds as soon as the kernel has finished setting up the (IPv6) address, which it does in the background.
fn listen(host: SocketAddr) -> TcpListener {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        match TcpListener::bind(host) {
            Ok(listener) => return listener,
            Err(e) if std::time::Instant::now() > deadline => panic!("{host}: {e}"),
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// Connects to a listener of the kernel by hand, moves bytes both ways, and checks them.
fn exchange(tap: &mut dyn Nic, ours: SocketAddr, host: SocketAddr) {
    let listener = listen(host);
    let probe = UdpSocket::bind(SocketAddr::new(host.ip(), 0)).unwrap();
    probe.send_to(b"who is there?", ours).unwrap();
    let mac = resolve(tap, ours.ip());
    let mut l2 = [0; 14];
    l2[..6].copy_from_slice(&mac);
    l2[6..12].copy_from_slice(&OUR_MAC);
    l2[12..].copy_from_slice(if host.is_ipv4() { &[8, 0] } else { &[0x86, 0xdd] });
    let key = FlowKey {
        local_ip: ours.ip(),
        remote_ip: host.ip(),
        local_port: ours.port(),
        remote_port: listener.local_addr().unwrap().port(),
    };
    let mut conn = Conn { key, l2, seq: SeqNr(1000), ack: SeqNr(0) };
    conn.send(tap, flags::SYN, &[]);
    let (syn_ack, ..) = conn.next(tap);
    assert!(syn_ack.has(flags::SYN) && syn_ack.ack == conn.seq);
    conn.ack = syn_ack.end();
    conn.send(tap, flags::ACK, &[]);
    let (mut stream, peer) = listener.accept().unwrap();
    assert_eq!(peer, ours);

    let data: Vec<u8> = (0..20_000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
    match tap.caps().tso_max {
        0 => data.chunks(1400).for_each(|c| conn.send(tap, flags::ACK | flags::PSH, &[c])),
        _ => conn.send(tap, flags::ACK | flags::PSH, &[&data[..7000], &data[7000..]]),
    }
    let mut got = vec![0; data.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == data);

    stream.write_all(&data).unwrap();
    drop(stream);
    let (mut back, mut largest) = (Vec::<u8>::new(), 0);
    loop {
        let (s, payload, gso) = conn.next(tap);
        if s.seq == conn.ack {
            back.extend(&payload);
            conn.ack = s.end();
            largest = largest.max(payload.len());
            assert!(gso != 0 || payload.len() <= 1440);
        }
        conn.send(tap, flags::ACK, &[]);
        if s.has(flags::FIN) && s.end() == conn.ack {
            break;
        }
    }
    assert!(back == data);
    assert_eq!(largest > 1440, tap.caps().tso_max > 0, "large segments with offloads: {largest}");
}

fn both_families(tap: &mut dyn Nic) {
    // Fixed ports, which no dissector of tshark takes for its protocol.
    exchange(tap, "10.9.0.2:54001".parse().unwrap(), "10.9.0.1:54000".parse().unwrap());
    exchange(tap, "10.9.1.2:54002".parse().unwrap(), "10.9.1.1:54000".parse().unwrap());
    exchange(tap, "[fd09::2]:54003".parse().unwrap(), "[fd09::1]:54000".parse().unwrap());
    let stats = tap.stats();
    assert!(stats.tx_bytes > 60_000 && stats.rx_bytes > 60_000 && stats.rx_errors == 0);
}

#[test]
fn tcp_with_the_kernel_by_virtio_headers() {
    in_namespace(|| both_families(&mut tap(TapConfig::default())));
}

#[test]
fn tcp_with_the_kernel_over_a_plain_tap() {
    in_namespace(|| both_families(&mut tap(TapConfig { vnet_hdr: false, ..TapConfig::default() })));
}

/// A captured session holds no malformed packet and no bad checksum, in the eyes of tshark.
#[test]
fn a_capture_pleases_tshark() {
    in_namespace(|| {
        let dir = TempDir::new();
        let path = dir.path().join("session.pcapng");
        let file = PcapFile::create(&PcapConfig { path: path.clone(), snaplen: 0, max_bytes: 0 }, "toe0").unwrap();
        both_families(&mut Pcap::new(Box::new(tap(TapConfig::default())), file, 1_700_000_000_000_000_000));
        let tshark = |filter: &str| {
            let mut run = std::process::Command::new("tshark");
            run.env("HOME", dir.path()).arg("-r").arg(&path).args(["-Y", filter]);
            for protocol in ["ip", "tcp", "udp"] {
                run.arg("-o").arg(format!("{protocol}.check_checksum:TRUE"));
            }
            run.output().ok().map(|o| (o.status.success(), String::from_utf8_lossy(&o.stdout).into_owned()))
        };
        let Some((ok, all)) = tshark("tcp.checksum.status == 1") else {
            eprintln!("skipped: no tshark");
            return;
        };
        assert!(ok && all.lines().count() > 30, "good ones: {all}");
        let bad = "_ws.malformed || ip.checksum.status == 0 || tcp.checksum.status == 0 || udp.checksum.status == 0";
        assert_eq!(tshark(bad), Some((true, String::new())));
    });
}

#[test]
fn several_queues_and_an_mtu() {
    in_namespace(|| {
        let cfg = TapConfig { name: "toe1".into(), queues: 3, mtu: Some(9000), ..TapConfig::default() };
        let mut queues = open_queues(&cfg).unwrap();
        assert_eq!(queues.len(), 3);
        for q in &mut queues {
            assert_eq!((q.caps().mtu, q.caps().queues, q.is_up()), (9000, 3, true));
            let mut f = [0xffu8; 60];
            f[6..12].copy_from_slice(&OUR_MAC);
            f[12..14].copy_from_slice(&[0x88, 0xb5]); // local experimental EtherType
            q.send(&f, &[&[0; 8000]], TxMeta::default()).unwrap();
            assert!(q.send(&f, &[&[0; 9000]], TxMeta::default()).is_err());
            assert_eq!((q.stats().tx_packets, q.stats().tx_dropped), (1, 1));
        }
    });
}

#[test]
fn a_link_that_is_down_comes_up_later() {
    in_namespace(|| {
        let cfg = TapConfig { name: "toe2".into(), up: false, ..TapConfig::default() };
        let mut down = open_queues(&cfg).unwrap().remove(0);
        let mut now = toe_core::Instant::from_millis(5);
        assert!(!down.is_up() && down.poll(now).is_some());
        assert_eq!(down.send(&[0; 60], &[], TxMeta::default()), Err(toe_core::nic::TxError::Down));
        // Another handle on the name: the address makes the kernel bring it up.
        let done = std::process::Command::new("ip").args(["link", "set", "toe2", "up"]).status();
        if !done.is_ok_and(|s| s.success()) {
            eprintln!("skipped: no ip command");
            return;
        }
        now = down.poll(now).unwrap();
        assert_eq!(down.poll(now), None);
        assert!(down.is_up() && down.stats().link_ups == 1);
    });
}
