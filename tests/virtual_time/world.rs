//! Two hosts, their engines and their apps, and the virtual clock.

use crate::link::{Faults, pair, random};
use fastpath::{FastPath, FastPathConfig};
use slowpath::{NicSetup, Owner, SlowPath, SlowPathConfig};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use toe_core::nic::Nic;
use toe_core::notify::NoWaker;
use toe_core::pathq::{Polled, channel};
use toe_core::shm::{
    ACCEPT_RING, CHUNK_SIZE, Region, ReqOp, SLOW_WORKER, STREAM_CHUNKS, SockSlot, SockState, app_flags, daemon_flags,
};
use toe_core::stream;
use toe_core::tcp::TcpConfig;
use toe_core::{CoreId, Instant, NicId, ProcId, RegionId, SockId};

pub struct World {
    pub hosts: [Host; 2],
    pub now: Instant,
    pub polls: u64,
}

pub struct Host {
    pub fast: FastPath,
    pub slow: SlowPath,
    pub app: App,
    addr: IpAddr,
    listener: Option<(u16, SockId)>,
}

/// What the shim does, without any system call: plain stores into the region.
pub struct App {
    region: Arc<Region>,
}

const PROC: u32 = 0;

impl World {
    pub fn new(faults: Faults, mtu: usize, v6: bool) -> World {
        let (a, b) = pair(faults, mtu);
        let host = |n: u8, wire| Host::new(n, Box::new(wire), if v6 { v6_addr(n) } else { v4_addr(n) });
        World { hosts: [host(1, a), host(2, b)], now: Instant::from_millis(1_000), polls: 0 }
    }

    /// Polls both hosts until neither has anything to do, then jumps to the next timer; stops when `done` says so.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut World) -> bool) {
        let deadline = self.now + limit;
        while !done(self) {
            assert!(self.now < deadline, "not done at {:?}", self.now);
            let next = self.round();
            self.now = next.min(deadline);
        }
    }

    /// Lets time pass.
    pub fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let next = self.round();
            self.now = next.min(end);
        }
    }

    /// One poll of everything; returns when the next is due. Each round takes at least 10 µs.
    fn round(&mut self) -> Instant {
        self.polls += 1;
        let soon = self.now + Duration::from_micros(10);
        let mut next = Instant(u64::MAX);
        for host in &mut self.hosts {
            for polled in [host.fast.poll(self.now), host.slow.poll(self.now)] {
                let Polled { busy, next: timer } = polled;
                next = next.min(if busy { soon } else { timer.unwrap_or(next) });
            }
        }
        let quiet = self.hosts.iter_mut().all(|h| {
            let quiet = h.fast.arm() && h.slow.is_quiet();
            h.fast.disarm();
            quiet
        });
        if quiet { next.max(soon) } else { soon }
    }

    pub fn listen(&mut self, host: usize, port: u16) -> SockId {
        if let Some((p, sock)) = self.hosts[host].listener {
            assert_eq!(p, port, "one listener a host");
            return sock;
        }
        let addr = SocketAddr::new(self.hosts[host].addr, port);
        let sock = self.hosts[host].app.new_socket();
        self.request(host, sock, ReqOp::Bind, Some(addr), 0);
        let ring = self.hosts[host].app.region.layout().ring_pool.pop().unwrap();
        self.hosts[host].app.slot(sock).accept_ring.store(ring, SeqCst);
        self.request(host, sock, ReqOp::Listen, None, 128);
        self.hosts[host].listener = Some((port, sock));
        sock
    }

    pub fn connect(&mut self, host: usize, port: u16) -> SockId {
        let addr = SocketAddr::new(self.hosts[1 - host].addr, port);
        let sock = self.hosts[host].app.new_socket();
        self.request(host, sock, ReqOp::Connect, Some(addr), 0);
        sock
    }

    /// A connection from host 0 to a listener of host 1.
    pub fn establish(&mut self, port: u16) -> (SockId, SockId) {
        let listener = self.listen(1, port);
        let client = self.connect(0, port);
        let mut server = None;
        self.run_until(Duration::from_secs(100), |w| {
            server = server.or_else(|| w.hosts[1].app.accept(listener));
            server.is_some() && w.hosts[0].app.state(client) == SockState::Established
        });
        (client, server.unwrap())
    }

    fn request(&mut self, host: usize, sock: SockId, op: ReqOp, addr: Option<SocketAddr>, arg: u32) {
        let slot = self.hosts[host].app.slot(sock);
        slot.req_addr.store(addr);
        slot.req_op.store(op as u32, SeqCst);
        slot.req_arg.store(arg, SeqCst);
        let seq = slot.req_seq.fetch_add(1, SeqCst) + 1;
        self.hosts[host].app.kick(sock);
        self.run_until(Duration::from_secs(1), |w| w.hosts[host].app.slot(sock).resp_seq.load(SeqCst) == seq);
        assert_eq!(self.hosts[host].app.slot(sock).resp_err.load(SeqCst), 0, "{op:?} refused");
    }

    /// Both apps close; both engines must forget the connection (TIME-WAIT aside) and free both slots.
    pub fn close_both(&mut self, client: SockId, server: SockId) {
        self.hosts[0].app.close(client);
        self.hosts[1].app.close(server);
        self.run_until(Duration::from_secs(120), |w| {
            w.hosts[0].app.state(client) == SockState::Free && w.hosts[1].app.state(server) == SockState::Free
        });
    }

    pub fn kill_app(&mut self, host: usize) {
        let now = self.now;
        let h = &mut self.hosts[host];
        h.slow.proc_died(now, h.app.region.id(), ProcId(PROC));
    }
}

fn v4_addr(n: u8) -> IpAddr {
    IpAddr::from([127, 77, 0, n])
}

fn v6_addr(n: u8) -> IpAddr {
    IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, u16::from(n)])
}

impl Host {
    fn new(n: u8, nic: Box<dyn Nic>, addr: IpAddr) -> Host {
        let tcp = TcpConfig::default();
        let wake = || Arc::new(|| ());
        let (up_tx, up_rx) = channel(1024, wake());
        let (down_tx, down_rx) = channel(1024, wake());
        let prefix = if addr.is_ipv4() { 24 } else { 64 };
        let setup = NicSetup {
            id: NicId(0),
            name: "pcielink0".into(),
            caps: nic.caps().clone(),
            up: true,
            addrs: vec![(addr, prefix)],
            local: false,
        };
        let config = FastPathConfig { core: CoreId(0), cores: 1, tcp: tcp.clone(), hash_seed: 7 };
        let fast = FastPath::new(config, vec![nic], up_tx, down_rx, Arc::new(NoWaker));
        let config =
            SlowPathConfig { tcp, nics: vec![setup], routes: vec![], cores: 1, secret: [n; 16], seed: u64::from(n) };
        let mut slow = SlowPath::new(config, vec![down_tx], up_rx, Arc::new(NoWaker));
        let region = Arc::new(Region::create(RegionId(1), 2).unwrap());
        let header = &region.layout().header;
        header.default_sndbuf.store(1 << 20, SeqCst);
        header.default_rcvbuf.store(1 << 20, SeqCst);
        slow.attach(region.clone(), Owner { pid: 1, uid: 0, program: "app".into() });
        slow.proc_attached(RegionId(1), ProcId(PROC), 1);
        Host { fast, slow, app: App { region }, addr, listener: None }
    }
}

impl App {
    pub fn slot(&self, sock: SockId) -> &SockSlot {
        self.region.sock(sock).unwrap()
    }

    fn new_socket(&self) -> SockId {
        let sock = SockId(self.region.layout().sock_pool.pop().unwrap());
        let (slot, header) = (self.slot(sock), &self.region.layout().header);
        slot.tx_limit.store(header.default_sndbuf.load(SeqCst), SeqCst);
        slot.rx_limit.store(header.default_rcvbuf.load(SeqCst), SeqCst);
        slot.holders[0].store(1 << PROC, SeqCst);
        slot.owner.store(SLOW_WORKER, SeqCst);
        slot.state.store(SockState::New as u32, SeqCst);
        sock
    }

    fn kick(&self, sock: SockId) {
        self.region.kick(self.slot(sock).owner.load(SeqCst), sock);
    }

    fn accept(&self, listener: SockId) -> Option<SockId> {
        let ring = &self.region.layout().rings[self.slot(listener).accept_ring.load(SeqCst) as usize];
        let head = ring.head.load(SeqCst);
        if head == ring.tail.load(SeqCst) {
            return None;
        }
        let sock = SockId(ring.entry[head as usize % ACCEPT_RING].load(SeqCst));
        ring.head.store(head.wrapping_add(1), SeqCst);
        self.slot(sock).holders[0].fetch_or(1 << PROC, SeqCst);
        self.slot(sock).app_flags.fetch_or(app_flags::TAKEN, SeqCst);
        self.kick(sock);
        Some(sock)
    }

    pub fn state(&self, sock: SockId) -> SockState {
        SockState::from_word(self.slot(sock).state.load(SeqCst))
    }

    pub fn take_error(&self, sock: SockId) -> i32 {
        self.slot(sock).error.swap(0, SeqCst) as i32
    }

    /// Writes what fits; returns how much.
    pub fn write(&self, sock: SockId, bytes: &[u8]) -> usize {
        let slot = self.slot(sock);
        let tail = slot.tx_tail.load(SeqCst);
        let room = u64::from(slot.tx_limit.load(SeqCst)).saturating_sub(tail - slot.tx_head.load(SeqCst));
        let len = bytes.len().min(room as usize);
        let table = self.region.tx_table(sock).unwrap();
        for (pos, &byte) in (tail..).zip(&bytes[..len]) {
            let entry = &table[(pos / CHUNK_SIZE as u64) as usize % STREAM_CHUNKS];
            if pos % CHUNK_SIZE as u64 == 0 {
                entry.store(self.region.layout().tx_pool.pop().unwrap(), SeqCst);
            }
            assert!(stream::tx_write(&self.region, entry.load(SeqCst), (pos % CHUNK_SIZE as u64) as usize, &[byte]));
        }
        slot.tx_tail.store(tail + len as u64, SeqCst);
        if len > 0 {
            self.kick(sock);
        }
        len
    }

    pub fn readable(&self, sock: SockId) -> usize {
        let slot = self.slot(sock);
        (slot.rx_tail.load(SeqCst) - slot.rx_head.load(SeqCst)) as usize
    }

    /// Reads everything there is.
    pub fn read(&self, sock: SockId) -> Vec<u8> {
        let slot = self.slot(sock);
        let (head, tail) = (slot.rx_head.load(SeqCst), slot.rx_tail.load(SeqCst));
        let table = self.region.rx_table(sock).unwrap();
        let bytes = (head..tail).map(|pos| {
            let entry = table[(pos / CHUNK_SIZE as u64) as usize % STREAM_CHUNKS].load(SeqCst);
            let mut byte = [0];
            assert!(stream::rx_read(&self.region, entry, (pos % CHUNK_SIZE as u64) as usize, &mut byte));
            byte[0]
        });
        let bytes = bytes.collect();
        slot.rx_head.store(tail, SeqCst);
        self.kick(sock);
        bytes
    }

    pub fn at_eof(&self, sock: SockId, bytes: u64) -> bool {
        let slot = self.slot(sock);
        slot.daemon_flags.load(SeqCst) & daemon_flags::RX_FIN != 0 && slot.rx_tail.load(SeqCst) == bytes
    }

    pub fn shutdown_write(&self, sock: SockId) {
        self.slot(sock).app_flags.fetch_or(app_flags::SHUT_WR, SeqCst);
        self.kick(sock);
    }

    pub fn close(&self, sock: SockId) {
        self.read(sock);
        self.slot(sock).holders[0].store(0, SeqCst);
        self.kick(sock);
    }
}

/// Sends a seeded stream and checks what the other end gets.
pub struct Transfer {
    sock: SockId,
    left: u64,
    tx_rng: u64,
    rx_rng: u64,
    rx_left: u64,
}

impl Transfer {
    pub fn new(sock: SockId, bytes: u64, seed: u64) -> Transfer {
        Transfer { sock, left: bytes, tx_rng: seed, rx_rng: 3 - seed, rx_left: bytes }
    }

    /// Writes some, reads what is there.
    pub fn step(&mut self, app: &App) {
        if self.left > 0 {
            let mut ahead = self.tx_rng;
            let piece: Vec<u8> = (0..self.left.min(50_000)).map(|_| random(&mut ahead) as u8).collect();
            let wrote = app.write(self.sock, &piece);
            for _ in 0..wrote {
                random(&mut self.tx_rng);
            }
            self.left -= wrote as u64;
        }
        if app.readable(self.sock) > 0 {
            for byte in app.read(self.sock) {
                assert_eq!(byte, random(&mut self.rx_rng) as u8, "byte differs, {} left", self.rx_left);
                self.rx_left -= 1;
            }
        }
    }

    pub fn is_done(&self) -> bool {
        self.left == 0 && self.rx_left == 0
    }
}
