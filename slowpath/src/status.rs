//! `toe status`: everything the slow path knows, as plain data.

use crate::counters::Counters;
use crate::engine::SlowPath;
use crate::half::Role;
use crate::ports::SockRef;
use crate::setup::Owner;
use crate::table::RegionState;
use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;
use serde::Serialize;
use std::collections::BTreeMap;
use toe_core::app::Why;
use toe_core::flow::FlowKey;
use toe_core::msg::CoreStats;
use toe_core::nic::NicStats;
use toe_core::{CoreId, RegionId, SockId};

/// The whole.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Links.
    pub nics: Vec<NicStatus>,
    /// Listening sockets.
    pub listeners: Vec<ListenerStatus>,
    /// Connections, handshakes included.
    pub flows: Vec<FlowStatus>,
    /// Handshakes under way.
    pub half_open: usize,
    /// Connections in TIME-WAIT.
    pub time_wait: usize,
    /// Each core's counters, as of its last report.
    pub cores: Vec<CoreStats>,
    /// The slow path's counters.
    pub counters: Counters,
    /// Registered programs.
    pub regions: Vec<RegionStatus>,
    /// Sockets that went to the kernel, by reason, those of ended programs included.
    pub why: WhyCounts,
}

/// Sockets by [`Why::key`]; reasons that never occurred are left out.
pub type WhyCounts = BTreeMap<&'static str, u64>;

/// A link.
#[derive(Clone, Debug, Serialize)]
pub struct NicStatus {
    /// Configured name.
    pub name: String,
    /// Addresses with prefix lengths.
    pub addrs: Vec<String>,
    /// Up?
    pub up: bool,
    /// Largest IP packet, bytes.
    pub mtu: usize,
    /// Ethernet address.
    pub mac: String,
    /// Counters, summed over its queues.
    pub stats: NicStats,
}

/// A listener.
#[derive(Clone, Debug, Serialize)]
pub struct ListenerStatus {
    /// Address and port.
    pub local: SocketAddr,
    /// Most connections that may wait.
    pub backlog: u32,
    /// Connections that wait to be accepted (as last seen).
    pub waiting: usize,
    /// Handshakes under way.
    pub half_open: usize,
    /// Process.
    pub pid: u32,
    /// Its name.
    pub program: String,
}

/// A connection.
#[derive(Clone, Debug, Serialize)]
pub struct FlowStatus {
    /// How its bytes travel.
    pub path: &'static str,
    /// Link.
    pub nic: String,
    /// Linux's name of its state.
    pub state: &'static str,
    /// Our end.
    pub local: SocketAddr,
    /// Their end.
    pub remote: SocketAddr,
    /// Bytes that the peer acknowledged.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Bytes received and not yet read.
    pub recv_q: u64,
    /// Bytes written and not yet acknowledged.
    pub send_q: u64,
    /// Congestion window, in segments as TCP_INFO has it.
    pub cwnd: u32,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Segments retransmitted.
    pub retransmits: u32,
    /// Process that registered.
    pub pid: u32,
    /// Its name.
    pub program: String,
    /// Fast path core; `None` before the hand-over.
    pub core: Option<CoreId>,
}

/// A registered program and its share of memory.
#[derive(Clone, Debug, Serialize)]
pub struct RegionStatus {
    /// Number.
    pub id: RegionId,
    /// Who.
    pub owner: Owner,
    /// Processes that hold its sockets.
    pub processes: usize,
    /// Socket slots in use.
    pub sockets: u64,
    /// TX chunks in use.
    pub tx_chunks: u32,
    /// Its sockets that went to the kernel, by reason. The program's own word.
    pub why: WhyCounts,
    /// The last errno of the engine for which one did, 0: none.
    pub why_errno: u32,
}

/// Linux's names of `tcp_info.tcpi_state`, as `ss` prints them.
fn state_name(n: u32) -> &'static str {
    const NAMES: [&str; 12] = [
        "UNKNOWN",
        "ESTAB",
        "SYN-SENT",
        "SYN-RECV",
        "FIN-WAIT-1",
        "FIN-WAIT-2",
        "TIME-WAIT",
        "UNCONN",
        "CLOSE-WAIT",
        "LAST-ACK",
        "LISTEN",
        "CLOSING",
    ];
    NAMES.get(n as usize).copied().filter(|_| n != 0).unwrap_or("ESTAB")
}

impl SlowPath {
    /// A picture of now; the cores' figures are those of their last reports.
    pub fn status(&mut self) -> Status {
        let mut flows: Vec<FlowStatus> =
            self.flows.iter().filter_map(|(k, f)| self.flow_status(k, f.nic, f.sock, Some(f.core), None)).collect();
        flows.extend(self.half.values().filter_map(|h| {
            let state = if h.irs.is_some() { "SYN-RECV" } else { "SYN-SENT" };
            let shown = h.role == Role::Active;
            shown.then(|| self.flow_status(&h.key, h.nic, h.owner, None, Some(state))).flatten()
        }));
        flows.sort_by_key(|f| (f.local, f.remote));
        let regions: Vec<_> = self.regions.iter().map(|(id, r)| region_status(*id, r)).collect();
        let mut why = self.why_before.clone();
        regions.iter().for_each(|r| add(&mut why, &r.why));
        Status {
            nics: (0..self.nics.len()).map(|i| self.nic_status(i)).collect(),
            listeners: self.listener_status(),
            flows,
            half_open: self.half.len(),
            time_wait: self.time_wait.len(),
            cores: self.reports.clone(),
            counters: self.counters.clone(),
            regions,
            why,
        }
    }

    /// A region is going: its reasons stay.
    pub(crate) fn keep_reasons(&mut self, id: RegionId) {
        if let Some(r) = self.regions.get(&id) {
            add(&mut self.why_before, &why_counts(r));
        }
    }

    fn nic_status(&self, index: usize) -> NicStatus {
        let n = &self.nics[index].setup;
        let mut stats = NicStats::default();
        for (_, s) in self.reports.iter().flat_map(|r| &r.nics).filter(|(id, _)| *id == n.id) {
            stats.rx_packets += s.rx_packets;
            stats.rx_bytes += s.rx_bytes;
            stats.tx_packets += s.tx_packets;
            stats.tx_bytes += s.tx_bytes;
            stats.rx_errors += s.rx_errors;
            stats.rx_dropped += s.rx_dropped;
            stats.tx_dropped += s.tx_dropped;
            stats.link_ups = stats.link_ups.max(s.link_ups);
        }
        NicStatus {
            name: n.name.clone(),
            addrs: n.addrs.iter().map(|(ip, len)| format!("{ip}/{len}")).collect(),
            up: n.up,
            mtu: n.caps.mtu,
            mac: n.caps.mac.map(|b| format!("{b:02x}")).join(":"),
            stats,
        }
    }

    fn listener_status(&self) -> Vec<ListenerStatus> {
        let mut all: Vec<_> = self
            .listeners
            .iter()
            .map(|(at, l)| {
                let owner = self.regions.get(&at.0).map(|r| &r.owner);
                ListenerStatus {
                    local: SocketAddr::new(l.ip, l.port),
                    backlog: l.backlog,
                    waiting: l.untaken.len(),
                    half_open: l.half.len(),
                    pid: owner.map_or(0, |o| o.pid),
                    program: owner.map_or(String::new(), |o| o.program.clone()),
                }
            })
            .collect();
        all.sort_by_key(|l| l.local);
        all
    }

    fn flow_status(
        &self,
        key: &FlowKey,
        nic: usize,
        (region, sock): SockRef,
        core: Option<CoreId>,
        state: Option<&'static str>,
    ) -> Option<FlowStatus> {
        let r = self.regions.get(&region)?;
        let s = r.region.sock(sock)?;
        let (tx_head, tx_tail) = (s.tx_head.load(Relaxed), s.tx_tail.load(Relaxed));
        let (rx_head, rx_tail) = (s.rx_head.load(Relaxed), s.rx_tail.load(Relaxed));
        Some(FlowStatus {
            path: "tcp",
            nic: self.nics[nic].setup.name.clone(),
            state: state.unwrap_or_else(|| state_name(s.info.tcp_state.load(Relaxed))),
            local: key.local(),
            remote: key.remote(),
            bytes_acked: tx_head,
            bytes_received: rx_tail,
            recv_q: rx_tail.saturating_sub(rx_head),
            send_q: tx_tail.saturating_sub(tx_head),
            cwnd: s.info.cwnd.load(Relaxed),
            rtt_us: s.info.srtt_us.load(Relaxed),
            retransmits: s.info.total_retrans.load(Relaxed),
            pid: self.pid_of(r, sock),
            program: r.owner.program.clone(),
            core,
        })
    }

    /// A process that holds the socket now, else the one that registered.
    fn pid_of(&self, r: &RegionState, sock: SockId) -> u32 {
        let holds = |p: usize| {
            r.region
                .sock(sock)
                .and_then(|s| s.holders.get(p / 64))
                .is_some_and(|w| w.load(Relaxed) >> (p % 64) & 1 != 0)
        };
        let holder = r.procs.iter().filter(|(p, _)| holds(p.index())).min_by_key(|(p, _)| **p);
        holder.map_or(r.owner.pid, |(_, pid)| *pid)
    }
}

fn region_status(id: RegionId, r: &RegionState) -> RegionStatus {
    let layout = r.region.layout();
    RegionStatus {
        id,
        owner: r.owner.clone(),
        processes: r.procs.len(),
        sockets: u64::from(layout.sock_pool.used.load(Relaxed)) + r.accepted() as u64,
        tx_chunks: layout.tx_pool.used.load(Relaxed),
        why: why_counts(r),
        why_errno: layout.header.why_errno.load(Relaxed),
    }
}

/// A region's reasons.
fn why_counts(r: &RegionState) -> WhyCounts {
    let counts = &r.region.layout().header.why;
    let each = Why::ALL.iter().map(|w| (w.key(), u64::from(counts[*w as usize].load(Relaxed))));
    each.filter(|(_, n)| *n > 0).collect()
}

fn add(sum: &mut WhyCounts, more: &WhyCounts) {
    for (key, n) in more {
        *sum.entry(*key).or_default() += n;
    }
}
