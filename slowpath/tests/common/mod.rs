//! One slow path under virtual time: its queues, one app region, and a peer made of frames.
#![allow(dead_code, missing_docs, clippy::vec_box)]

use slowpath::{NicSetup, Owner, Route, SlowPath, SlowPathConfig};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use toe_core::flow::{FlowInit, FlowKey, TimeWait};
use toe_core::msg::{CloseKind, Down, TimerKind, Up};
use toe_core::nic::{NicCaps, RxCsum, RxMeta};
use toe_core::notify::NoWaker;
use toe_core::pathq::{Receiver, Sender, channel};
use toe_core::shm::{ACCEPT_RING, Region, ReqOp, SockSlot, SockState, app_flags};
use toe_core::tcp::TcpConfig;
use toe_core::wire::{self, Segment, TcpFields, TcpOptions, Timestamps, flags::*};
use toe_core::{CoreId, Duration, FlowId, Instant, NicId, ProcId, RegionId, SeqNr, SockId};

pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const LOCAL_NIC: NicId = NicId(1);

pub fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

pub fn at(s: &str) -> SocketAddr {
    s.parse().unwrap()
}

pub struct Host {
    pub slow: SlowPath,
    pub now: Instant,
    pub region: Arc<Region>,
    up: Sender<Up>,
    pub downs: Vec<Receiver<Down>>,
}

/// What came down, by kind.
#[derive(Default)]
pub struct Came {
    pub frames: Vec<(CoreId, Vec<u8>)>,
    pub installs: Vec<Box<FlowInit>>,
    pub injected: Vec<(CoreId, Vec<u8>)>,
    pub kicks: Vec<(CoreId, SockId)>,
    pub released: Vec<(CoreId, SockId)>,
    pub removed: Vec<(FlowId, i32, bool)>,
    pub others: Vec<Down>,
    /// Kinds in order: t(ransmit) I(nstall) i(nject) k(ick) r(emove) (re)l(ease) o(ther).
    pub order: String,
}

impl Came {
    pub fn segments(&self) -> Vec<Segment> {
        self.frames.iter().filter_map(|(_, f)| wire::parse(f).ok()).collect()
    }

    /// The only TCP segment that was sent.
    pub fn segment(&self) -> Segment {
        let all = self.segments();
        assert_eq!(all.len(), 1, "one segment expected: {all:?}");
        all[0].clone()
    }

    pub fn none(&self) -> bool {
        self.order.is_empty()
    }
}

pub fn config(mac: [u8; 6], addrs: &[(&str, u8)]) -> SlowPathConfig {
    let caps = |mac| NicCaps { mac, mtu: 1500, tso_max: 0, tx_csum: false, queues: 1 };
    let addrs = addrs.iter().map(|(a, l)| (ip(a), *l)).collect();
    let nics = vec![
        NicSetup { id: NicId(0), name: "link0".into(), caps: caps(mac), up: true, local: false, addrs },
        NicSetup {
            id: LOCAL_NIC,
            name: "local".into(),
            caps: caps([2, 0, 0, 0, 9, 9]),
            up: true,
            local: true,
            addrs: vec![],
        },
    ];
    let routes = vec![Route { prefix: (ip("10.0.0.0"), 8), via: ip("127.77.0.254") }];
    SlowPathConfig { tcp: TcpConfig::default(), nics, routes, cores: 2, secret: [mac[5]; 16], seed: 5 }
}

pub fn host() -> Host {
    Host::new(config(MAC, &[("127.77.0.1", 24), ("fd77::1", 64)]), 0)
}

impl Host {
    /// The local link: whatever is sent comes in again. The flows that follow.
    pub fn loop_back(&mut self, mut came: Came) -> Vec<Box<FlowInit>> {
        let mut installs = vec![];
        for _ in 0..20 {
            for (core, frame) in core::mem::take(&mut came.frames) {
                self.punt_at(core.0, LOCAL_NIC, frame);
            }
            installs.append(&mut came.installs);
            came = self.run();
        }
        installs
    }

    pub fn new(cfg: SlowPathConfig, uid: u32) -> Host {
        let (mut txs, mut rxs) = (vec![], vec![]);
        for _ in 0..cfg.cores {
            let (tx, rx) = channel(1 << 16, Arc::new(|| ()));
            txs.push(tx);
            rxs.push(rx);
        }
        let (up, up_rx) = channel(1 << 16, Arc::new(|| ()));
        let mut slow = SlowPath::new(cfg, txs, up_rx, Arc::new(NoWaker));
        let region = Arc::new(Region::create(RegionId(1), 3).unwrap());
        slow.attach(region.clone(), Owner { pid: 77, uid, program: "test".into() });
        let proc = region.layout().proc_pool.pop().unwrap();
        slow.proc_attached(RegionId(1), ProcId(proc), 77);
        let mut host = Host { slow, now: Instant::from_millis(1000), region, up, downs: rxs };
        host.run();
        host
    }

    /// Polls and collects what came down.
    pub fn run(&mut self) -> Came {
        let mut came = Came::default();
        while self.slow.poll(self.now).busy {}
        for (i, rx) in self.downs.iter().enumerate() {
            let core = CoreId(i as u8);
            while let Some(message) = rx.recv() {
                came.order.push(match message {
                    Down::Transmit { nic: _, frame } => {
                        came.frames.push((core, frame));
                        't'
                    }
                    Down::Install(f) => {
                        came.installs.push(f);
                        'I'
                    }
                    Down::Inject { frame, .. } => {
                        came.injected.push((core, frame));
                        'i'
                    }
                    Down::Kick { sock, .. } => {
                        came.kicks.push((core, sock));
                        'k'
                    }
                    Down::Release { sock, .. } => {
                        came.released.push((core, sock));
                        'l'
                    }
                    Down::Remove { flow, errno, reset } => {
                        came.removed.push((flow, errno, reset));
                        'r'
                    }
                    other => {
                        came.others.push(other);
                        'o'
                    }
                });
            }
        }
        came
    }

    pub fn wait(&mut self, d: Duration) -> Came {
        self.now += d;
        self.run()
    }

    pub fn next(&mut self) -> Option<Instant> {
        self.slow.poll(self.now).next
    }

    pub fn up(&mut self, message: Up) {
        self.up.send(message);
        self.up.flush();
    }

    /// A frame arrives at `core`.
    pub fn punt_at(&mut self, core: u8, nic: NicId, frame: Vec<u8>) {
        let meta = RxMeta { csum: RxCsum::Unchecked, gso_size: 0 };
        self.up(Up::Punt { core: CoreId(core), nic, frame, meta });
    }

    pub fn receive(&mut self, frame: Vec<u8>) -> Came {
        self.punt_at(0, NicId(0), frame);
        self.run()
    }

    // -- the app's side

    pub fn slot(&self, s: SockId) -> &SockSlot {
        self.region.sock(s).unwrap()
    }

    pub fn state(&self, s: SockId) -> SockState {
        SockState::from_word(self.slot(s).state.load(SeqCst))
    }

    /// A new socket, as the app side makes one.
    pub fn socket(&mut self) -> SockId {
        let id = SockId(self.region.layout().sock_pool.pop().expect("a free slot"));
        let slot = self.slot(id);
        slot.req_seq.store(slot.resp_seq.load(SeqCst), SeqCst);
        slot.state.store(SockState::New as u32, SeqCst);
        slot.holders[0].fetch_or(1, SeqCst);
        id
    }

    /// close(2), which the slow path sees when it runs next.
    pub fn let_go(&self, s: SockId) {
        self.slot(s).holders[0].fetch_and(!1, SeqCst);
        self.region.kick(self.slot(s).owner.load(SeqCst), s);
    }

    pub fn close(&mut self, s: SockId) -> Came {
        self.let_go(s);
        self.run()
    }

    /// Stores and kicks; the answer is the errno.
    pub fn ask(&mut self, s: SockId, op: ReqOp, addr: Option<SocketAddr>, arg: u32) -> (i32, Came) {
        let slot = self.region.sock(s).unwrap();
        slot.req_addr.store(addr);
        slot.req_op.store(op as u32, Relaxed);
        slot.req_arg.store(arg, Relaxed);
        let seq = slot.req_seq.load(Relaxed).wrapping_add(1);
        slot.req_seq.store(seq, SeqCst);
        self.region.kick(0, s);
        let came = self.run();
        let slot = self.slot(s);
        assert_eq!(slot.resp_seq.load(SeqCst), seq, "answered");
        (slot.resp_err.load(SeqCst) as i32, came)
    }

    pub fn bind(&mut self, s: SockId, a: &str) -> i32 {
        self.ask(s, ReqOp::Bind, Some(at(a)), 0).0
    }

    pub fn listen(&mut self, s: SockId, backlog: u32) -> i32 {
        let pool = &self.region.layout().ring_pool;
        let ring = pool.pop().expect("a free ring");
        self.slot(s).accept_ring.store(ring, SeqCst);
        let err = self.ask(s, ReqOp::Listen, None, backlog).0;
        if err != 0 {
            self.region.layout().ring_pool.push(ring);
        }
        err
    }

    pub fn listener(&mut self, a: &str, backlog: u32) -> SockId {
        let s = self.socket();
        assert_eq!(self.bind(s, a), 0);
        assert_eq!(self.listen(s, backlog), 0);
        assert_eq!(self.state(s), SockState::Listening);
        s
    }

    pub fn connect(&mut self, s: SockId, a: &str) -> (i32, Came) {
        self.ask(s, ReqOp::Connect, Some(at(a)), 0)
    }

    /// Takes one connection out of a listener's ring.
    pub fn accept(&mut self, listener: SockId) -> Option<SockId> {
        let ring = &self.region.layout().rings[self.slot(listener).accept_ring.load(SeqCst) as usize];
        let head = ring.head.load(SeqCst);
        if head == ring.tail.load(SeqCst) {
            return None;
        }
        let id = SockId(ring.entry[head as usize % ACCEPT_RING].load(SeqCst));
        ring.head.store(head.wrapping_add(1), SeqCst);
        let slot = self.slot(id);
        slot.holders[0].fetch_or(1, SeqCst);
        slot.app_flags.fetch_or(app_flags::TAKEN, SeqCst);
        Some(id)
    }

    pub fn flag(&self, s: SockId, flag: u32) {
        self.slot(s).app_flags.fetch_or(flag, SeqCst);
    }

    // -- a stand-in for the fast path

    /// The flow of `f` ends.
    pub fn end(&mut self, f: &FlowInit, how: CloseKind) -> Came {
        let slot = self.slot(f.sock);
        slot.owner.store(0, SeqCst);
        slot.state.store(SockState::Closed as u32, SeqCst);
        let (core, flow, key, nic, l2) = (f.core, f.id, f.key, f.nic, f.l2);
        self.up(Up::Closed { core, flow, key, nic, l2, region: RegionId(1), sock: f.sock, how });
        self.run()
    }

    pub fn end_time_wait(&mut self, f: &FlowInit) -> (TimeWait, Came) {
        let tw = TimeWait { snd_nxt: f.iss + 101, rcv_nxt: f.irs + 201, window: 500, timestamps: f.timestamps };
        (tw, self.end(f, CloseKind::TimeWait(tw)))
    }

    pub fn timeout(&mut self, f: &FlowInit, kind: TimerKind, count: u32, silent: Duration) -> Came {
        self.up(Up::Timeout { core: f.core, flow: f.id, kind, count, silent, orphan: false });
        self.run()
    }

    /// A whole passive handshake from `peer`; the flow that was installed.
    pub fn accept_flow(&mut self, peer: &mut Peer) -> Box<FlowInit> {
        let mut came = self.receive(peer.syn());
        if came.segments().is_empty() {
            came = self.receive(peer.neighbour_answer());
        }
        peer.learn(&came.segment());
        let mut came = self.receive(peer.ack());
        assert_eq!(came.installs.len(), 1, "installed");
        came.installs.remove(0)
    }

    /// connect(2) to `peer` and the whole active handshake.
    pub fn connect_flow(&mut self, s: SockId, peer: &mut Peer) -> Box<FlowInit> {
        let to = SocketAddr::new(peer.key.local_ip, peer.key.local_port);
        let (err, mut came) = self.connect(s, &to.to_string());
        assert_eq!(err, 0);
        if came.segments().is_empty() {
            came = self.receive(peer.neighbour_answer());
        }
        peer.learn(&came.segment());
        let mut came = self.receive(peer.syn_ack());
        assert_eq!(came.installs.len(), 1, "installed");
        came.installs.remove(0)
    }
}

/// The other end, as frames. `key.local` is the peer.
#[derive(Clone)]
pub struct Peer {
    pub key: FlowKey,
    pub seq: SeqNr,
    pub ack: SeqNr,
    pub options: TcpOptions,
    pub window: u16,
    pub to_mac: [u8; 6],
    pub mac: [u8; 6],
}

pub fn linux_options() -> TcpOptions {
    TcpOptions {
        mss: Some(1460),
        wscale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { val: 5000, ecr: 0 }),
        ..Default::default()
    }
}

impl Peer {
    pub fn new(peer: &str, us: &str) -> Peer {
        let (peer, us) = (at(peer), at(us));
        let key = FlowKey { local_ip: peer.ip(), remote_ip: us.ip(), local_port: peer.port(), remote_port: us.port() };
        Peer {
            key,
            seq: SeqNr(7_000_000),
            ack: SeqNr(0),
            options: linux_options(),
            window: 64_240,
            to_mac: MAC,
            mac: PEER_MAC,
        }
    }

    pub fn frame(&self, seq: SeqNr, ack: SeqNr, flags: u8, options: TcpOptions, payload: &[u8]) -> Vec<u8> {
        let f = TcpFields {
            key: self.key,
            seq,
            ack,
            flags,
            window: self.window,
            urgent: 0,
            options,
            ttl: 64,
            tos: 0,
            ident: 0,
        };
        let kind: [u8; 2] = if self.key.local_ip.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        let l2: [u8; 14] = [&self.to_mac[..], &self.mac, &kind].concat().try_into().unwrap();
        let h = wire::emit(&l2, &f, &[payload], false);
        [h.as_slice(), payload].concat()
    }

    pub fn syn(&self) -> Vec<u8> {
        self.frame(self.seq, SeqNr(0), SYN, self.options.clone(), &[])
    }

    /// Takes port, and acknowledgment numbers from what they sent.
    pub fn learn(&mut self, theirs: &Segment) {
        self.key.remote_port = theirs.key.remote_port;
        self.ack = theirs.seq + 1;
    }

    pub fn syn_ack(&self) -> Vec<u8> {
        self.frame(self.seq, self.ack, SYN | ACK, self.options.clone(), &[])
    }

    fn data_options(&self) -> TcpOptions {
        TcpOptions { timestamps: self.options.timestamps, ..Default::default() }
    }

    pub fn ack(&self) -> Vec<u8> {
        self.data(&[], ACK)
    }

    pub fn data(&self, payload: &[u8], flags: u8) -> Vec<u8> {
        self.frame(self.seq + 1, self.ack, flags, self.data_options(), payload)
    }

    /// Their answer to "who has": ARP reply or neighbour advertisement.
    pub fn neighbour_answer(&self) -> Vec<u8> {
        match (self.key.local_ip, self.key.remote_ip) {
            (IpAddr::V4(me), IpAddr::V4(you)) => arp(2, self.mac, me, self.to_mac, you),
            (IpAddr::V6(me), IpAddr::V6(you)) => {
                let body = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &me.octets(), &[2, 1], &self.mac].concat();
                icmp6(self.mac, self.to_mac, me.into(), you.into(), body)
            }
            _ => unreachable!(),
        }
    }
}

pub fn arp(op: u8, from: [u8; 6], me: std::net::Ipv4Addr, to: [u8; 6], you: std::net::Ipv4Addr) -> Vec<u8> {
    let dst = if op == 1 { [0xff; 6] } else { to };
    let head = [&dst[..], &from, &[8, 6, 0, 1, 8, 0, 6, 4, 0, op]].concat();
    [&head[..], &from, &me.octets(), &to, &you.octets()].concat()
}

pub fn icmp6(from: [u8; 6], to: [u8; 6], src: IpAddr, dst: IpAddr, mut body: Vec<u8>) -> Vec<u8> {
    let (IpAddr::V6(s), IpAddr::V6(d)) = (src, dst) else { unreachable!() };
    body[2..4].copy_from_slice(&[0, 0]);
    let sum = wire::checksum::pseudo(src, dst, 58, body.len());
    let sum = !wire::checksum::fold(wire::checksum::add(sum, &body));
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = [&[0x60, 0, 0, 0][..], &(body.len() as u16).to_be_bytes(), &[58, 255], &s.octets(), &d.octets()].concat();
    [&to[..], &from, &[0x86, 0xdd], &ip, &body].concat()
}

pub fn icmp4(src: IpAddr, dst: IpAddr, mut body: Vec<u8>) -> Vec<u8> {
    let (IpAddr::V4(s), IpAddr::V4(d)) = (src, dst) else { unreachable!() };
    body[2..4].copy_from_slice(&[0, 0]);
    let sum = !wire::checksum::fold(wire::checksum::add(0, &body));
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip =
        [&[0x45, 0][..], &(20 + body.len() as u16).to_be_bytes(), &[0, 0, 0, 0, 64, 1, 0, 0], &s.octets(), &d.octets()]
            .concat();
    let sum = !wire::checksum::fold(wire::checksum::add(0, &ip));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&MAC[..], &PEER_MAC, &[8, 0], &ip, &body].concat()
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
