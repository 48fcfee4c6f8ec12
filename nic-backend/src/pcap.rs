//! Middleware that writes the frames of both directions into a pcapng file, with nanosecond times. A diagnostic: it
//! copies, locks and writes; a failing file ends the capture, never the link.

use crate::config::PcapConfig;
use crate::frame;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use toe_core::nic::{Nic, NicCaps, NicStats, RxCsum, RxMeta, TxError, TxMeta};
use toe_core::{Duration, Instant};

/// Captured frames reach the file after this at the latest, while the link is polled.
const FLUSH: Duration = Duration::from_millis(100);

/// Link type Ethernet.
const LINKTYPE_ETHERNET: u16 = 1;

/// `epb_flags` values: direction.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

struct Output {
    /// Absent after an error, or when the file is large enough.
    file: Option<BufWriter<File>>,
    written: u64,
    max_bytes: u64,
    snaplen: usize,
    block: Vec<u8>,
}

/// A capture file; the queues of one link share it.
#[derive(Clone)]
pub struct PcapFile(Arc<Mutex<Output>>);

fn put32(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_ne_bytes());
}

fn put_option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_ne_bytes());
    out.extend_from_slice(&(value.len() as u16).to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Wraps `body` as a block.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put32(&mut out, kind);
    put32(&mut out, body.len() as u32 + 12);
    out.extend_from_slice(body);
    put32(&mut out, body.len() as u32 + 12);
    out
}

/// Section header and interface description.
fn file_header(name: &str, snaplen: usize) -> Vec<u8> {
    let mut section = Vec::new();
    put32(&mut section, 0x1a2b_3c4d); // byte order
    section.extend_from_slice(&1u16.to_ne_bytes()); // version 1.0
    section.extend_from_slice(&0u16.to_ne_bytes());
    section.extend_from_slice(&u64::MAX.to_ne_bytes()); // section length: not given
    let mut interface = Vec::new();
    interface.extend_from_slice(&LINKTYPE_ETHERNET.to_ne_bytes());
    interface.extend_from_slice(&0u16.to_ne_bytes());
    put32(&mut interface, if snaplen == usize::MAX { 0 } else { snaplen as u32 });
    put_option(&mut interface, 2, &name.as_bytes()[..name.len().min(64)]); // if_name
    put_option(&mut interface, 9, &[9]); // if_tsresol: nanoseconds
    put_option(&mut interface, 0, &[]);
    let mut out = block(0x0a0d_0d0a, &section);
    out.extend(block(1, &interface));
    out
}

impl PcapFile {
    /// Creates the file of the link `name`.
    pub fn create(cfg: &PcapConfig, name: &str) -> io::Result<PcapFile> {
        let snaplen = if cfg.snaplen == 0 { usize::MAX } else { cfg.snaplen };
        let mut file = BufWriter::with_capacity(256 << 10, File::create(&cfg.path)?);
        let header = file_header(name, snaplen);
        file.write_all(&header)?;
        file.flush()?;
        let max_bytes = if cfg.max_bytes == 0 { u64::MAX } else { cfg.max_bytes };
        let written = header.len() as u64;
        Ok(PcapFile(Arc::new(Mutex::new(Output { file: Some(file), written, max_bytes, snaplen, block: Vec::new() }))))
    }

    fn with(&self, act: impl FnOnce(&mut Output) -> io::Result<()>) {
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if output.file.is_some()
            && let Err(e) = act(&mut output)
        {
            tracing::warn!("packet capture ends: {e}");
            output.file = None;
        }
    }

    fn flush(&self) {
        self.with(|o| o.file.as_mut().map_or(Ok(()), Write::flush));
    }
}

impl Output {
    /// Appends one enhanced packet block.
    fn packet(&mut self, wall_ns: u64, bytes: &[u8], direction: u32) -> io::Result<()> {
        let kept = &bytes[..bytes.len().min(self.snaplen)];
        let len = 32 + kept.len().next_multiple_of(4) + 12;
        if self.written + len as u64 > self.max_bytes {
            return self.file.take().map_or(Ok(()), |mut f| f.flush());
        }
        let b = &mut self.block;
        b.clear();
        put32(b, 6);
        put32(b, len as u32);
        put32(b, 0); // interface
        put32(b, (wall_ns >> 32) as u32);
        put32(b, wall_ns as u32);
        put32(b, kept.len() as u32);
        put32(b, bytes.len() as u32);
        b.extend_from_slice(kept);
        b.resize(b.len().next_multiple_of(4), 0);
        put_option(b, 2, &direction.to_ne_bytes()); // epb_flags
        put_option(b, 0, &[]);
        put32(b, len as u32);
        self.written += len as u64;
        match &mut self.file {
            Some(f) => f.write_all(b),
            None => Ok(()),
        }
    }
}

/// A link whose frames are captured.
pub struct Pcap {
    inner: Box<dyn Nic>,
    file: PcapFile,
    /// Wall-clock nanoseconds (since 1970) at engine time zero.
    wall_offset_ns: u64,
    now: Instant,
    next_flush: Instant,
    scratch: Vec<u8>,
}

impl Pcap {
    /// Captures one queue. `wall_offset_ns`: wall-clock nanoseconds since 1970 at engine time zero.
    pub fn new(inner: Box<dyn Nic>, file: PcapFile, wall_offset_ns: u64) -> Pcap {
        Pcap { inner, file, wall_offset_ns, now: Instant::ZERO, next_flush: Instant::ZERO, scratch: Vec::new() }
    }
}

/// Writes the frame in `scratch`; `partial`: its checksum may be only the pseudo-header's sum.
fn capture(file: &PcapFile, wall_ns: u64, scratch: &mut [u8], partial: bool, direction: u32) {
    if partial {
        frame::complete_checksum(scratch);
    }
    file.with(|o| o.packet(wall_ns, scratch, direction));
}

impl Nic for Pcap {
    fn caps(&self) -> &NicCaps {
        self.inner.caps()
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn poll(&mut self, now: Instant) -> Option<Instant> {
        self.now = now;
        if now >= self.next_flush {
            self.next_flush = now + FLUSH;
            self.file.flush();
        }
        self.inner.poll(now)
    }

    fn recv(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        let wall_ns = self.wall_offset_ns.wrapping_add(self.now.0);
        let (file, scratch) = (&self.file, &mut self.scratch);
        self.inner.recv(budget, &mut |bytes, meta| {
            frame::gather(scratch, bytes, &[]);
            capture(file, wall_ns, scratch, meta.csum == RxCsum::Good, INBOUND);
            sink(bytes, meta);
        })
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError> {
        self.inner.send(header, payload, meta)?;
        frame::gather(&mut self.scratch, header, payload);
        let wall_ns = self.wall_offset_ns.wrapping_add(self.now.0);
        capture(&self.file, wall_ns, &mut self.scratch, meta.csum_offload, OUTBOUND);
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn arm(&mut self) -> bool {
        let sleep = self.inner.arm();
        if sleep {
            self.file.flush();
        }
        sleep
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }

    fn wait_fds_epoch(&self) -> u64 {
        self.inner.wait_fds_epoch()
    }

    fn stats(&self) -> NicStats {
        self.inner.stats()
    }
}

impl Drop for Pcap {
    fn drop(&mut self) {
        self.file.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::testing::tcp_header;
    use crate::memory::pair;
    use etherparse::{SlicedPacket, TransportSlice};

    struct Packet {
        ns: u64,
        full_len: u32,
        bytes: Vec<u8>,
        direction: u32,
    }

    /// Reads a file of ours; checks each block's framing.
    fn read(file: &[u8]) -> Vec<Packet> {
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds, mut packets) = (0, vec![], vec![]);
        while at < file.len() {
            let len = word(at + 4) as usize;
            assert_eq!((len % 4, word(at + len - 4) as usize), (0, len));
            kinds.push(word(at));
            if word(at) == 6 {
                let kept = word(at + 20) as usize;
                let options = at + 28 + kept.next_multiple_of(4);
                packets.push(Packet {
                    ns: u64::from(word(at + 12)) << 32 | u64::from(word(at + 16)),
                    full_len: word(at + 24),
                    bytes: file[at + 28..at + 28 + kept].to_vec(),
                    direction: word(options + 4),
                });
            }
            at += len;
        }
        assert_eq!(kinds[..2], [0x0a0d_0d0a, 1]);
        packets
    }

    fn captured(snaplen: usize, max_bytes: u64) -> Vec<Packet> {
        let unique = format!("toe-pcap-{}-{snaplen}-{max_bytes}.pcapng", std::process::id());
        let path = std::env::temp_dir().join(unique);
        let file = PcapFile::create(&PcapConfig { path: path.clone(), snaplen, max_bytes }, "test0").unwrap();
        let caps = NicCaps { mac: [2; 6], mtu: 9000, tso_max: 0, tx_csum: true, queues: 1 };
        let (a, mut b) = pair(caps, 8);
        let mut a = Pcap::new(Box::new(a), file, 1_700_000_000_000_000_000);
        a.poll(Instant(5));
        let payload = [7u8; 333];
        let meta = TxMeta { csum_offload: true, ..TxMeta::default() };
        for v6 in [false, true] {
            a.send(tcp_header(v6, &[&payload], true).as_slice(), &[&payload], meta).unwrap();
        }
        a.flush();
        b.send(tcp_header(false, &[&payload], true).as_slice(), &[&payload], meta).unwrap();
        b.flush();
        a.poll(Instant(9));
        assert_eq!(a.recv(5, &mut |f, m| assert_eq!((f.len(), m.csum), (387, RxCsum::Good))), 1);
        drop(a);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        read(&bytes)
    }

    #[test]
    fn frames_are_read_back_with_good_checksums() {
        let packets = captured(0, 0);
        let times: Vec<u64> = packets.iter().map(|p| p.ns - 1_700_000_000_000_000_000).collect();
        assert_eq!(times, [5, 5, 9]);
        assert_eq!(packets.iter().map(|p| p.direction).collect::<Vec<_>>(), [OUTBOUND, OUTBOUND, INBOUND]);
        for p in &packets {
            let sliced = SlicedPacket::from_ethernet(&p.bytes).unwrap();
            let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("not TCP") };
            let want = match sliced.net.unwrap() {
                etherparse::NetSlice::Ipv4(ip) => {
                    tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination())
                }
                etherparse::NetSlice::Ipv6(ip) => {
                    tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination())
                }
                _ => panic!("not IP"),
            };
            assert_eq!((tcp.checksum(), tcp.payload().len()), (want.unwrap(), 333));
        }
    }

    #[test]
    fn long_frames_and_long_files_are_cut() {
        let packets = captured(65, 0);
        assert!(packets.iter().all(|p| p.bytes.len() == 65) && packets.len() == 3);
        assert_eq!(packets[1].full_len, 407);
        assert_eq!(captured(0, 700).len(), 1);
    }
}
