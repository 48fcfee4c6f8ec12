//! Tables of segments: inject one, expect others.
//!
//! A segment is written `FLAGS START:END ack N [win N] [ts VAL:ECR] [sack A:B,C:D]`, all numbers being stream positions
//! (bytes after the SYN), e.g. `AP 0:1000 ack 0`. Segments sent are written the same way; `win` in bytes and `ts` only when
//! asked for.

use super::host::{Agreed, Host, flow_init, key};
use super::{app::App, stream_byte};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use toe_core::msg::Down;
use toe_core::nic::*;
use toe_core::tcp::TcpConfig;
use toe_core::wire::*;
use toe_core::*;

#[derive(Default)]
struct Frames {
    inbox: Vec<Vec<u8>>,
    sent: Vec<(Vec<u8>, TxMeta)>,
    full: bool,
}

/// A link whose other end is the test.
struct ScriptNic(Arc<Mutex<Frames>>, NicCaps);

impl Nic for ScriptNic {
    fn caps(&self) -> &NicCaps {
        &self.1
    }
    fn is_up(&self) -> bool {
        true
    }
    fn poll(&mut self, _: Instant) -> Option<Instant> {
        None
    }
    fn recv(&mut self, _: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        let frames = std::mem::take(&mut self.0.lock().unwrap().inbox);
        frames.iter().for_each(|f| sink(f, RxMeta { csum: RxCsum::Unchecked, gso_size: 0 }));
        frames.len()
    }
    fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError> {
        let mut frames = self.0.lock().unwrap();
        if frames.full {
            return Err(TxError::Full);
        }
        frames.sent.push(([header, &payload.concat()].concat(), meta));
        Ok(())
    }
    fn flush(&mut self) {}
    fn arm(&mut self) -> bool {
        self.0.lock().unwrap().inbox.is_empty()
    }
    fn disarm(&mut self) {}
    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
    fn stats(&self) -> NicStats {
        NicStats::default()
    }
}

pub struct Script {
    pub host: Host,
    pub now: Instant,
    pub agreed: Agreed,
    pub show_window: bool,
    pub show_ts: bool,
    /// Window of injected segments unless they say `win`.
    pub window: u64,
    /// TSval of injected segments unless they say `ts`.
    pub ts_val: u32,
    frames: Arc<Mutex<Frames>>,
}

pub const MTU: usize = 1500;

impl Script {
    pub fn new() -> Script {
        Script::with(Agreed { timestamps: false, wscale: 0, ..Agreed::default() }, TcpConfig::default(), 0)
    }

    /// New Reno without timestamps and window scale, and a peer that has shown its window.
    pub fn reno(mss: u16, sack: bool) -> Script {
        let congestion = toe_core::flow::CongestionControl::Reno;
        let agreed = Agreed { mss, sack, timestamps: false, wscale: 0, congestion, ..Agreed::default() };
        let mut s = Script::with(agreed, TcpConfig::default(), 0);
        s.step("A 0:0 ack 0", &[]);
        s
    }

    pub fn with(agreed: Agreed, tcp: TcpConfig, tso_max: usize) -> Script {
        let frames = Arc::new(Mutex::new(Frames::default()));
        let caps = NicCaps { mac: [2; 6], mtu: MTU, tso_max, tx_csum: tso_max > 0, queues: 1 };
        let mut host = Host::new(Box::new(ScriptNic(frames.clone(), caps)), tcp);
        host.obliging = false;
        host.install(flow_init(&agreed, 0, 0, &host.region.clone()));
        host.apps[0].reading = false;
        let now = Instant::from_millis(1000);
        let mut s = Script { host, now, agreed, show_window: false, show_ts: false, window: 60_000, ts_val: 1, frames };
        s.poll();
        s
    }

    pub fn app(&self) -> &App {
        &self.host.apps[0]
    }

    /// Rounds until nothing is left to do at this time.
    pub fn poll(&mut self) {
        for _ in 0..1000 {
            if self.host.round(self.now) != Some(self.now) {
                return;
            }
        }
        panic!("busy for ever");
    }

    pub fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while let Some(next) = self.host.round(self.now).filter(|&t| t <= end) {
            self.now = self.now.max(next);
        }
        self.now = end;
        self.poll();
    }

    pub fn down(&mut self, message: Down) {
        self.host.down.send(message);
        self.poll();
    }

    pub fn set_full(&mut self, full: bool) {
        self.frames.lock().unwrap().full = full;
    }

    /// Injects one segment and polls.
    pub fn inject(&mut self, text: &str) {
        self.queue(text);
        self.poll();
    }

    /// Queues one segment for the next poll.
    pub fn queue(&mut self, text: &str) {
        let frame = self.frame(text);
        self.frames.lock().unwrap().inbox.push(frame);
    }

    pub fn queue_frame(&mut self, frame: Vec<u8>) {
        self.frames.lock().unwrap().inbox.push(frame);
    }

    fn theirs(&self, pos: i64) -> SeqNr {
        SeqNr(self.agreed.iss[1].wrapping_add(1).wrapping_add(pos as u32))
    }

    fn ours(&self, pos: i64) -> SeqNr {
        SeqNr(self.agreed.iss[0].wrapping_add(1).wrapping_add(pos as u32))
    }

    pub fn frame(&self, text: &str) -> Vec<u8> {
        let mut words = text.split_whitespace();
        let flag_bits = words.next().unwrap().chars().map(|c| match c {
            'F' => flags::FIN,
            'S' => flags::SYN,
            'R' => flags::RST,
            'P' => flags::PSH,
            'U' => flags::URG,
            'A' => flags::ACK,
            _ => 0,
        });
        let (start, end) = range(words.next().unwrap());
        let mut f = TcpFields {
            key: key(self.agreed.v6, 2, 1, 0),
            seq: self.theirs(start),
            ack: SeqNr(0),
            flags: flag_bits.fold(0, |a, b| a | b),
            window: (self.window >> self.agreed.wscale) as u16,
            urgent: 0,
            options: TcpOptions::default(),
            ttl: 64,
            tos: 0,
            ident: 0,
        };
        if self.agreed.timestamps {
            f.options.timestamps = Some(Timestamps { val: self.ts_val, ecr: 0 });
        }
        while let Some(word) = words.next() {
            let value = words.next();
            match word {
                "ack" => f.ack = self.ours(value.unwrap().parse().unwrap()),
                "win" => f.window = (value.unwrap().parse::<u64>().unwrap() >> self.agreed.wscale) as u16,
                "ts" if value == Some("none") => f.options.timestamps = None,
                "ts" => {
                    let (val, ecr) = range(value.unwrap());
                    f.options.timestamps = Some(Timestamps { val: val as u32, ecr: ecr as u32 });
                }
                "sack" => {
                    let blocks = value.unwrap().split(',').map(range);
                    f.options.sack = blocks.map(|(a, b)| (self.ours(a), self.ours(b))).collect();
                }
                other => panic!("what is {other}?"),
            }
        }
        let data: Vec<u8> = (start..end).map(|p| stream_byte(2, p as u64)).collect();
        let l2 = if self.agreed.v6 { [0x86, 0xdd] } else { [8, 0] };
        let mut head = [2; 14];
        head[12..].copy_from_slice(&l2);
        [emit(&head, &f, &[&data], false).as_slice(), &data].concat()
    }

    /// Segments sent since the last call, as text. Payload is compared with the stream.
    pub fn sent(&mut self) -> Vec<String> {
        let sent = std::mem::take(&mut self.frames.lock().unwrap().sent);
        sent.iter().map(|(frame, meta)| self.describe(frame, meta)).collect()
    }

    fn describe(&self, frame: &[u8], meta: &TxMeta) -> String {
        let seg = parse(frame).unwrap();
        assert!(meta.csum_offload || verify_checksum(frame, &seg), "bad checksum sent");
        let pos = |seq: SeqNr, base: u32| i64::from((seq - SeqNr(base.wrapping_add(1))) as i32);
        let start = pos(seg.seq, self.agreed.iss[0]);
        let end = start + seg.payload_len as i64;
        for (i, b) in frame[seg.payload_offset..].iter().enumerate() {
            assert_eq!(*b, stream_byte(1, start as u64 + i as u64));
        }
        let names = [(flags::ACK, 'A'), (flags::PSH, 'P'), (flags::FIN, 'F'), (flags::RST, 'R'), (flags::SYN, 'S')];
        let letters: String = names.iter().filter(|n| seg.has(n.0)).map(|n| n.1).collect();
        let mut text = format!("{letters} {start}:{end} ack {}", pos(seg.ack, self.agreed.iss[1]));
        if self.show_window {
            text += &format!(" win {}", u64::from(seg.window) << self.agreed.wscale);
        }
        if let Some(ts) = seg.options.timestamps.filter(|_| self.show_ts) {
            text += &format!(" ts {}:{}", ts.val, ts.ecr);
        }
        if meta.gso_size != 0 {
            text += &format!(" gso {}", meta.gso_size);
        }
        let irs = self.agreed.iss[1];
        let blocks: Vec<String> =
            seg.options.sack.iter().map(|b| format!("{}:{}", pos(b.0, irs), pos(b.1, irs))).collect();
        if !blocks.is_empty() {
            text += &format!(" sack {}", blocks.join(","));
        }
        text
    }

    /// What was sent must be exactly this.
    #[track_caller]
    pub fn expect(&mut self, wanted: &[&str]) {
        assert_eq!(self.sent(), wanted);
    }

    #[track_caller]
    pub fn step(&mut self, inject: &str, wanted: &[&str]) {
        self.inject(inject);
        self.expect(wanted);
    }
}

fn range(text: &str) -> (i64, i64) {
    let (a, b) = text.split_once(':').unwrap();
    (a.parse().unwrap(), b.parse().unwrap())
}
