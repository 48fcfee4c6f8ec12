//! What `toe status` shows.

use crate::SlowPath;
use crate::sockets::Kind;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering::Relaxed;
use toe_core::msg::{CoreStats, Down};

/// Everything, at one moment. Bytes, microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Status {
    pub nics: Vec<NicStatus>,
    pub listeners: Vec<ListenerStatus>,
    pub flows: Vec<FlowStatus>,
    pub regions: Vec<RegionStatus>,
    pub half_open: usize,
    pub time_wait: usize,
    pub cores: Vec<CoreStats>,
    pub counters: Counters,
}

/// A link.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct NicStatus {
    pub name: String,
    pub addrs: Vec<String>,
    pub up: bool,
    pub mtu: usize,
    pub local: bool,
}

/// A listener.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ListenerStatus {
    pub local: String,
    pub backlog: u32,
    pub queued: u32,
    pub pid: u32,
    pub program: String,
}

/// A connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct FlowStatus {
    pub path: String,
    pub nic: String,
    pub core: u8,
    pub state: String,
    pub local: String,
    pub remote: String,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub send_queue: u64,
    pub receive_queue: u64,
    pub cwnd: u32,
    pub ssthresh: u32,
    pub srtt_us: u32,
    pub rto_us: u32,
    pub mss: u32,
    pub retransmits: u32,
    pub pid: u32,
    pub program: String,
}

/// A registered process with its children.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RegionStatus {
    pub id: u32,
    pub pid: u32,
    pub uid: u32,
    pub program: String,
    pub processes: usize,
    pub sockets: usize,
    pub tx_chunks: u32,
}

/// Counters of the slow path. Names follow Linux's `nstat`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Counters {
    pub active_opens: u64,
    pub passive_opens: u64,
    pub syn_retrans: u64,
    pub listen_overflows: u64,
    pub listen_drops: u64,
    pub out_rsts: u64,
    pub in_errs: u64,
    pub not_ours: u64,
    pub aborts_on_timeout: u64,
}

/// Linux's names of TCP states, by number.
fn state_name(n: u32) -> &'static str {
    const NAMES: [&str; 12] = [
        "UNKNOWN",
        "ESTAB",
        "SYN-SENT",
        "SYN-RECV",
        "FIN-WAIT-1",
        "FIN-WAIT-2",
        "TIME-WAIT",
        "CLOSE",
        "CLOSE-WAIT",
        "LAST-ACK",
        "LISTEN",
        "CLOSING",
    ];
    NAMES.get(n as usize).copied().unwrap_or("UNKNOWN")
}

impl SlowPath {
    /// Asks every core for its counters; they arrive with a later `poll`.
    pub fn request_reports(&mut self) {
        for down in &mut self.downs {
            down.send(Down::Report);
            down.flush();
        }
    }

    /// The state of everything.
    pub fn status(&mut self) -> Status {
        Status {
            nics: self.nic_status(),
            listeners: self.listener_status(),
            flows: self.flow_status(),
            regions: self.region_status(),
            half_open: self.half_open.len(),
            time_wait: self.time_wait.len(),
            cores: self.reports.clone(),
            counters: self.counters.clone(),
        }
    }

    fn nic_status(&self) -> Vec<NicStatus> {
        let nic = |l: &crate::link::Link| NicStatus {
            name: l.name.clone(),
            addrs: l.addrs.iter().map(|(ip, len)| format!("{ip}/{len}")).collect(),
            up: l.up,
            mtu: l.caps.mtu,
            local: l.local,
        };
        self.links.iter().map(nic).collect()
    }

    fn listener_status(&self) -> Vec<ListenerStatus> {
        let mut out = Vec::new();
        for entry in self.regions.values() {
            for sock in entry.socks.values() {
                let (Kind::Listening { ring, tail, backlog }, Some(local)) = (sock.kind, sock.bound) else { continue };
                let head = entry.ring(ring).map_or(tail, |r| r.head.load(Relaxed));
                out.push(ListenerStatus {
                    local: local.to_string(),
                    backlog,
                    queued: tail.wrapping_sub(head).min(backlog),
                    pid: entry.owner.pid,
                    program: entry.owner.program.clone(),
                });
            }
        }
        out
    }

    fn flow_status(&self) -> Vec<FlowStatus> {
        let flow = |(key, f): (&toe_core::flow::FlowKey, &crate::FlowEntry)| {
            let entry = self.regions.get(&f.region)?;
            let slot = entry.region.sock(f.sock)?;
            let info = &slot.info;
            let (rx_tail, rx_head) = (slot.rx_tail.load(Relaxed), slot.rx_head.load(Relaxed));
            let (tx_tail, tx_head) = (slot.tx_tail.load(Relaxed), slot.tx_head.load(Relaxed));
            Some(FlowStatus {
                path: "tcp".into(),
                nic: self.links[f.link].name.clone(),
                core: f.core.0,
                state: state_name(info.tcp_state.load(Relaxed)).into(),
                local: key.local().to_string(),
                remote: key.remote().to_string(),
                bytes_acked: tx_head,
                bytes_received: rx_tail,
                send_queue: tx_tail.saturating_sub(tx_head),
                receive_queue: rx_tail.saturating_sub(rx_head),
                cwnd: info.cwnd.load(Relaxed),
                ssthresh: info.ssthresh.load(Relaxed),
                srtt_us: info.srtt_us.load(Relaxed),
                rto_us: info.rto_us.load(Relaxed),
                mss: info.mss.load(Relaxed),
                retransmits: info.total_retrans.load(Relaxed),
                pid: entry.owner.pid,
                program: entry.owner.program.clone(),
            })
        };
        self.flows.iter().filter_map(flow).collect()
    }

    fn region_status(&self) -> Vec<RegionStatus> {
        let region = |(id, e): (&toe_core::RegionId, &crate::sockets::RegionEntry)| RegionStatus {
            id: id.0,
            pid: e.owner.pid,
            uid: e.owner.uid,
            program: e.owner.program.clone(),
            processes: e.procs.len(),
            sockets: e.socks.len(),
            tx_chunks: e.region.layout().tx_pool.used.load(Relaxed),
        };
        self.regions.iter().map(region).collect()
    }
}
