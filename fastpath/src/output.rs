//! Output: a flow's turn to send. Frames are built on the stack and lent to the link.

use crate::copy_tx::{Pieces, gather};
use crate::flow::{Flow, How};
use crate::poll::Env;
use crate::segment::Plan;
use core::sync::atomic::Ordering::Release;
use toe_core::SeqNr;
use toe_core::flow::FlowKey;
use toe_core::nic::{Nic, TxError, TxMeta};
use toe_core::wire::{TcpFields, TcpOptions, Timestamps, emit, flags};

/// Most frames of one flow in one turn.
const FRAMES_PER_TURN: usize = 16;
/// Largest IP packet, headers included, that a length field can tell.
const LARGEST_PACKET: u64 = 65_535;
/// Room for IPv6 and TCP headers with all options.
const LARGEST_HEADERS: u64 = 100;

/// A link, as one flow's turn sees it.
pub(crate) struct Port<'a> {
    nic: Option<&'a mut Box<dyn Nic>>,
    mtu: u64,
    tso_max: u64,
    tx_csum: bool,
    /// Something was sent: flush at the end of the round.
    pub used: bool,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// All said.
    Done,
    /// There is more to send.
    More,
    /// The link takes no more now.
    Full,
    /// The flow has ended and everything about it is sent.
    Over,
}

impl<'a> Port<'a> {
    /// The link of a flow; `None`: there is none of that number, what is sent is lost.
    pub fn new(nic: Option<&'a mut Box<dyn Nic>>) -> Port<'a> {
        let caps = nic.as_ref().map(|n| n.caps());
        let (mtu, tso_max, tx_csum) = caps.map_or((1500, 0, false), |c| (c.mtu as u64, c.tso_max as u64, c.tx_csum));
        Port { nic, mtu, tso_max, tx_csum, used: false }
    }

    /// Largest segment before options that an IP packet of this link carries (RFC 6691).
    pub fn most_mss(&self, key: &FlowKey) -> u64 {
        let ip = if key.local_ip.is_ipv4() { 20 } else { 40 };
        self.mtu.min(LARGEST_PACKET).saturating_sub(ip + 20)
    }

    /// Largest payload of one frame: one segment, or as many whole ones as the link cuts by itself.
    pub fn most_payload(&self, size: u64) -> u64 {
        let tso = self.tso_max.min(LARGEST_PACKET - LARGEST_HEADERS);
        (tso / size * size).max(size)
    }

    /// Sends; a frame that the link drops is lost like any other.
    pub fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError> {
        let Some(nic) = &mut self.nic else { return Ok(()) };
        match nic.send(header, payload, meta) {
            Err(TxError::Full) => Err(TxError::Full),
            Err(TxError::Down | TxError::TooLarge) => Ok(()),
            Ok(()) => {
                self.used = true;
                Ok(())
            }
        }
    }
}

impl Flow {
    /// The flow's turn: look at what the app wants, send what may be sent, acknowledge what is due, and end if it is over.
    pub fn turn(&mut self, env: &mut Env, port: &mut Port) -> Turn {
        self.observe(env);
        self.announce(env);
        let turn = match self.ending {
            None => self.send_all(env, port),
            Some(_) => Turn::Done,
        };
        if turn == Turn::Done {
            self.abort_if_told();
        }
        // Sending may have found the app lying.
        let turn = match self.ending {
            Some(_) if turn != Turn::Full => self.send_farewell(env, port),
            _ => turn,
        };
        self.publish_info();
        turn
    }

    fn send_all(&mut self, env: &mut Env, port: &mut Port) -> Turn {
        self.restart_if_idle(env);
        let data = self.send_data(env, port);
        if data.is_err() {
            return Turn::Full;
        }
        if core::mem::take(&mut self.snd.probe_due) && self.send_probe(env, port).is_err() {
            self.snd.probe_due = true;
            return Turn::Full;
        }
        if self.ack_due(env) && self.send_acks(env, port).is_err() {
            return Turn::Full;
        }
        if data == Ok(true) { Turn::More } else { Turn::Done }
    }

    /// Data segments, as many as windows and budget allow. `true`: the budget was the limit.
    fn send_data(&mut self, env: &mut Env, port: &mut Port) -> Result<bool, TxError> {
        for _ in 0..FRAMES_PER_TURN {
            match self.next_segment(port) {
                Ok(plan) => self.send_segment(env, port, &plan)?,
                Err(hold) => {
                    self.held(env, hold);
                    return Ok(false);
                }
            }
            if self.ending.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn send_segment(&mut self, env: &mut Env, port: &mut Port, plan: &Plan) -> Result<(), TxError> {
        let data_end = self.snd.fin.map_or(plan.end, |fin| plan.end.min(fin));
        let mut set = flags::ACK;
        if data_end == self.app.tail && data_end > plan.start {
            set |= flags::PSH; // RFC 9293 §3.9.1: the last of what the app has written
        }
        if plan.end > data_end {
            set |= flags::FIN;
        }
        let fields = self.fields(env, self.snd.space.seq(plan.start), set);
        let gso_size = if data_end - plan.start > plan.size { plan.size as u16 } else { 0 };
        let pieces = gather(&self.region, self.sock, plan.start, data_end);
        let sent = pieces.map(|pieces| self.send_frame(port, &fields, &pieces, gso_size));
        let Some(sent) = sent else {
            self.distrust(env);
            return Ok(());
        };
        sent?;
        self.frame_sent(env);
        self.ack_sent(env, true);
        self.segment_sent(env, plan);
        self.slot().tx_sent.store(self.data_sent(), Release);
        Ok(())
    }

    /// The ACK that is due, and to a peer that counts duplicates, one for each segment out of order.
    fn send_acks(&mut self, env: &mut Env, port: &mut Port) -> Result<(), TxError> {
        loop {
            self.send_empty(env, port, self.snd.space.seq(self.snd.nxt), flags::ACK)?;
            self.ack.extra = if self.sack { 0 } else { self.ack.extra.saturating_sub(1) };
            if self.ack.extra == 0 {
                break;
            }
        }
        self.ack_sent(env, false);
        Ok(())
    }

    /// A zero-window or keep-alive probe, as Linux sends it: an old sequence number, which must be answered by an ACK.
    fn send_probe(&mut self, env: &mut Env, port: &mut Port) -> Result<(), TxError> {
        self.send_empty(env, port, self.snd.space.seq(self.snd.una) - 1, flags::ACK)?;
        env.stats.probes_sent += 1;
        Ok(())
    }

    /// The last segment of a flow that ends: an ACK still due, or a RST.
    fn send_farewell(&mut self, env: &mut Env, port: &mut Port) -> Turn {
        let Some(ending) = self.ending else { return Turn::Done };
        let sent = if ending.reset {
            // Within what the peer accepts (Linux: tcp_acceptable_seq).
            let seq = self.snd.nxt.min(self.snd.una + self.snd.wnd).max(self.snd.una);
            self.send_empty(env, port, self.snd.space.seq(seq), flags::RST | flags::ACK)
        } else if ending.how == How::Orderly && (self.ack.now || self.rcv.nxt > self.rcv.acked) {
            self.send_acks(env, port)
        } else {
            Ok(())
        };
        if sent.is_err() { Turn::Full } else { Turn::Over }
    }

    /// Length of the options the next segment carries.
    pub fn options_len(&self) -> usize {
        let stamps = if self.ts.is_some() { 12 } else { 0 };
        match self.sack_blocks_fitting() {
            0 => stamps,
            blocks => stamps + 4 + 8 * blocks,
        }
    }

    fn sack_blocks_fitting(&self) -> usize {
        let most = if self.ts.is_some() { 3 } else { 4 };
        if self.sack { self.rcv.ooo.pending_blocks().min(most) } else { 0 }
    }

    /// A segment without data.
    fn send_empty(&mut self, env: &mut Env, port: &mut Port, seq: SeqNr, set: u8) -> Result<(), TxError> {
        let fields = self.fields(env, seq, set);
        self.send_frame(port, &fields, &Pieces::new(), 0)?;
        self.frame_sent(env);
        Ok(())
    }

    /// Headers of the next frame.
    fn fields(&mut self, env: &mut Env, seq: SeqNr, set: u8) -> TcpFields {
        let timestamps = self.ts.map(|ts| Timestamps { val: ts.value(env.now), ecr: ts.recent });
        let sack = self.rcv.ooo.blocks(self.rcv.space, self.sack_blocks_fitting());
        TcpFields {
            key: self.key,
            seq,
            ack: self.rcv.space.seq(self.rcv.nxt),
            flags: set,
            window: if set & flags::RST != 0 { 0 } else { self.advertise(env) },
            urgent: 0,
            options: TcpOptions { timestamps, sack, ..Default::default() },
            ttl: self.app.ttl,
            tos: self.app.tos,
            ident: self.counts.segs_out as u16,
        }
    }

    fn send_frame(&self, port: &mut Port, fields: &TcpFields, pieces: &Pieces, gso_size: u16) -> Result<(), TxError> {
        let header = emit(&self.l2, fields, pieces, port.tx_csum);
        let meta =
            TxMeta { csum_offload: port.tx_csum, gso_size, l4_offset: header.l4_offset, flow_hash: self.link_hash };
        port.send(header.as_slice(), pieces, meta)
    }

    fn frame_sent(&mut self, env: &mut Env) {
        self.rcv.ooo.reported();
        self.counts.segs_out = self.counts.segs_out.wrapping_add(1);
        env.stats.out_segs += 1;
    }
}
