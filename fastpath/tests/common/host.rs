//! A fast path with one region, one app for each flow, and a stand-in for the slow path: it answers time-outs, keeps TIME-WAIT,
//! and refuses what belongs to nobody.

use super::app::App;
use fastpath::{FastPath, FastPathConfig};
use std::sync::Arc;
use toe_core::flow::{CongestionControl, FlowInit, FlowKey, TimeWait, TsInit};
use toe_core::msg::{CloseKind, Down, TimerKind, Up};
use toe_core::nic::Nic;
use toe_core::notify::NoWaker;
use toe_core::pathq::{Receiver, Sender, channel};
use toe_core::shm::{Region, SockState};
use toe_core::tcp::TcpConfig;
use toe_core::wire::{TcpFields, TcpOptions, Timestamps, emit, flags, parse};
use toe_core::*;

/// What two ends have agreed on in their handshake.
#[derive(Clone, Debug)]
pub struct Agreed {
    pub v6: bool,
    pub mss: u16,
    pub sack: bool,
    pub timestamps: bool,
    pub wscale: u8,
    /// Initial sequence numbers of both ends.
    pub iss: [u32; 2],
    pub congestion: CongestionControl,
}

impl Default for Agreed {
    fn default() -> Agreed {
        Agreed {
            v6: false,
            mss: 1460,
            sack: true,
            timestamps: true,
            wscale: 7,
            iss: [1000, 2000],
            congestion: CongestionControl::Cubic,
        }
    }
}

pub fn key(v6: bool, local: u8, remote: u8, flow: u16) -> FlowKey {
    let ip = |n: u8| if v6 { format!("fd77::{n}") } else { format!("127.77.0.{n}") }.parse().unwrap();
    let port = |n: u8| if n == 1 { 40_000 + flow } else { 80 };
    FlowKey { local_ip: ip(local), remote_ip: ip(remote), local_port: port(local), remote_port: port(remote) }
}

/// Flow `flow` as end `me` (0 or 1) takes it over.
pub fn flow_init(agreed: &Agreed, me: usize, flow: u16, region: &Arc<Region>) -> FlowInit {
    let ethertype = if agreed.v6 { [0x86, 0xdd] } else { [8, 0] };
    let mut l2 = [2, 0, 0, 0, 0, 2 - me as u8, 2, 0, 0, 0, 0, 1 + me as u8, 0, 0];
    l2[12..].copy_from_slice(&ethertype);
    FlowInit {
        id: FlowId(flow.into()),
        core: CoreId(0),
        key: key(agreed.v6, 1 + me as u8, 2 - me as u8, flow),
        nic: NicId(0),
        l2,
        region: region.clone(),
        sock: SockId(flow.into()),
        iss: SeqNr(agreed.iss[me]),
        irs: SeqNr(agreed.iss[1 - me]),
        snd_wnd: 65_535,
        snd_wscale: agreed.wscale,
        rcv_wscale: agreed.wscale,
        snd_mss: agreed.mss,
        rcv_mss: agreed.mss,
        sack: agreed.sack,
        timestamps: agreed.timestamps.then_some(TsInit { recent: 0, offset: 0 }),
        early_data: Vec::new(),
        early_fin: false,
        rtt: Some(Duration::from_millis(1)),
        syn_retransmitted: false,
        congestion: agreed.congestion,
        ack_due: false,
    }
}

pub struct Host {
    pub fp: FastPath,
    pub up: Receiver<Up>,
    pub down: Sender<Down>,
    pub region: Arc<Region>,
    pub apps: Vec<App>,
    pub closed: Vec<(FlowId, CloseKind)>,
    /// Kicks that were passed on.
    pub kicked: Vec<SockId>,
    pub timeouts: Vec<TimerKind>,
    time_waits: Vec<(FlowKey, [u8; 14], TimeWait)>,
    /// Answer time-outs at once.
    pub obliging: bool,
    pub punts: usize,
}

impl Host {
    pub fn new(nic: Box<dyn Nic>, tcp: TcpConfig) -> Host {
        let (up_tx, up) = channel(4096, Arc::new(|| ()));
        let (mut down, down_rx) = channel(4096, Arc::new(|| ()));
        let cfg = FastPathConfig { core: CoreId(0), cores: 1, tcp, hash_seed: 42 };
        let fp = FastPath::new(cfg, vec![nic], up_tx, down_rx, Arc::new(NoWaker));
        let region = Arc::new(Region::create(RegionId(3), 2).unwrap());
        down.send(Down::Attach(region.clone()));
        let (apps, closed, kicked, timeouts, time_waits) = Default::default();
        Host { fp, up, down, region, apps, closed, kicked, timeouts, time_waits, obliging: true, punts: 0 }
    }

    pub fn install(&mut self, init: FlowInit) {
        let app = App::new(self.region.clone(), init.sock);
        app.slot().owner.store(1, std::sync::atomic::Ordering::Release);
        app.slot().state.store(SockState::Established as u32, std::sync::atomic::Ordering::Release);
        self.apps.push(app);
        self.down.send(Down::Install(Box::new(init)));
    }

    /// One round of apps, fast path and slow path; the time it wants to be called again, `now` if it was busy.
    pub fn round(&mut self, now: Instant) -> Option<Instant> {
        let app_busy = self.apps.iter_mut().fold(false, |busy, app| app.run() | busy);
        let polled = self.fp.poll(now);
        let slow_busy = self.slow_path(now);
        if app_busy || polled.busy || slow_busy { Some(now) } else { polled.next }
    }

    fn slow_path(&mut self, now: Instant) -> bool {
        let mut busy = false;
        while let Some(up) = self.up.recv() {
            busy = true;
            match up {
                Up::Timeout { flow, kind, .. } => {
                    self.timeouts.push(kind);
                    match kind {
                        _ if !self.obliging => {}
                        TimerKind::Retransmit => self.down.send(Down::Retransmit(flow)),
                        TimerKind::FinWait2 => self.down.send(Down::Remove { flow, errno: 0, reset: false }),
                        probe => self.down.send(Down::Probe(flow, probe)),
                    }
                }
                Up::Closed { flow, key, l2, how, .. } => {
                    if let CloseKind::TimeWait(tw) = how {
                        self.time_waits.push((key, l2, tw));
                    }
                    self.closed.push((flow, how));
                }
                Up::Punt { frame, .. } => self.punted(now, &frame),
                Up::Kick { sock, .. } => self.kicked.push(sock),
                Up::Link { .. } | Up::Report { .. } => {}
            }
        }
        busy
    }

    /// TIME-WAIT acknowledges what still comes; anything else is refused (RFC 9293 §3.10.7.1).
    fn punted(&mut self, now: Instant, frame: &[u8]) {
        self.punts += 1;
        let Ok(seg) = parse(frame) else { return };
        if seg.has(flags::RST) || !toe_core::wire::verify_checksum(frame, &seg) {
            return;
        }
        let mut fields = TcpFields {
            key: seg.key,
            seq: seg.ack,
            ack: SeqNr(0),
            flags: flags::RST,
            window: 0,
            urgent: 0,
            options: TcpOptions::default(),
            ttl: 64,
            tos: 0,
            ident: 0,
        };
        let mut l2 = [0; 14];
        l2[..6].copy_from_slice(&frame[6..12]);
        l2[6..12].copy_from_slice(&frame[..6]);
        l2[12..].copy_from_slice(&frame[12..14]);
        if let Some((_, _, tw)) = self.time_waits.iter().find(|t| t.0 == seg.key) {
            if seg.is_empty() {
                return;
            }
            fields.flags = flags::ACK;
            (fields.seq, fields.ack, fields.window) = (tw.snd_nxt, tw.rcv_nxt, tw.window);
            let stamp = |ts: TsInit| Timestamps { val: (now.millis() as u32).wrapping_add(ts.offset), ecr: ts.recent };
            fields.options.timestamps = tw.timestamps.map(stamp);
        }
        let header = emit(&l2, &fields, &[], false);
        self.down.send(Down::Transmit { nic: NicId(0), frame: header.as_slice().to_vec() });
    }
}

/// Runs hosts until `done` or until nothing more can happen; returns the time. Panics at `limit`.
pub fn run(hosts: &mut [Host], mut now: Instant, limit: Instant, mut done: impl FnMut(&mut [Host]) -> bool) -> Instant {
    while !done(hosts) {
        let next = hosts.iter_mut().filter_map(|h| h.round(now)).min();
        match next {
            Some(at) if at <= now => {}
            Some(at) => now = at,
            None => return now,
        }
        assert!(now < limit, "not finished at {now:?}");
    }
    now
}
