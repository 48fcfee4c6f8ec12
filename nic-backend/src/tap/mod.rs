//! A TAP device: the Linux kernel is the peer on the other side of the link.
//!
//! Plain (by the tun-tap crate), or with the virtio-net header ([`vnet`]), by which segments of up to 64 KiB cross in
//! one call and nobody computes checksums. [`sys`] holds the ioctls.

mod sys;
mod vnet;

use crate::config::{TapConfig, check_queues, invalid, mac_or_random};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use sys::Interface;
use toe_core::nic::{MAX_TX_PIECES, Nic, NicCaps, NicStats, RxCsum, RxMeta, TxError, TxMeta};
use toe_core::{Duration, Instant};
use vnet::VNET_LEN;

/// Largest TCP payload of one send: an IP packet of 65,535 bytes less the largest IPv4 and TCP headers, and IPv6's.
const TSO_MAX: usize = 65_535 - 40 - 60;

/// Room for the largest frame that the kernel hands over, with its virtio-net header.
const BUFFER: usize = VNET_LEN + 18 + (64 << 10);

/// Frames that the kernel may keep for us. It drops what is beyond: its own senders learn of a full queue by loss alone, and
/// the usual 1,000 are fewer than the windows of some hundred connections.
const QUEUE_LEN: u16 = 5000;

/// How often a link that is down is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// When a send that found the kernel short of memory is worth trying again; nothing else would tell.
const RETRY: Duration = Duration::from_millis(1);

/// One queue of a TAP device. It ends with the last of its queues.
pub struct Tap {
    fd: OwnedFd,
    interface: Arc<Interface>,
    vnet: bool,
    caps: NicCaps,
    up: bool,
    next_look: Instant,
    /// The last `recv` stopped at its budget: more may be waiting.
    more: bool,
    /// A send found the kernel short of memory.
    blocked: bool,
    buffer: Box<[u8]>,
    stats: NicStats,
}

/// Largest frame with an IP packet of `mtu` bytes (one VLAN tag allowed for).
fn mtu_limit(mtu: usize) -> usize {
    mtu + 18
}

/// Opens, or creates, a TAP device and sets it up: a handle for each queue. Needs `CAP_NET_ADMIN` in the network
/// namespace.
pub fn open(cfg: &TapConfig) -> io::Result<Vec<Box<dyn Nic>>> {
    Ok(open_queues(cfg)?.into_iter().map(|t| Box::new(t) as Box<dyn Nic>).collect())
}

/// As [`open`], but with the concrete type.
pub fn open_queues(cfg: &TapConfig) -> io::Result<Vec<Tap>> {
    check_queues(cfg.queues)?;
    sys::check_name(&cfg.name)?;
    if cfg.queues > 1 && !cfg.vnet_hdr {
        return Err(invalid("tap: several queues need vnet_hdr = true"));
    }
    let addresses = cfg.host_addr.iter().map(|text| parse_cidr(text)).collect::<io::Result<Vec<_>>>()?;
    let mac = mac_or_random(cfg.mac)?;
    let mut name = cfg.name.clone();
    let mut fds = Vec::new();
    for _ in 0..cfg.queues {
        let (fd, real) = match cfg.vnet_hdr {
            true => sys::open_vnet(&name, cfg.queues > 1, VNET_LEN)?,
            false => sys::open_plain(&name)?,
        };
        name = real;
        fds.push(fd);
    }
    let interface = Arc::new(Interface::new(&name)?);
    set_up(&interface, cfg, &addresses)?;
    let caps = NicCaps {
        mac,
        mtu: interface.mtu()?,
        tso_max: if cfg.vnet_hdr { TSO_MAX } else { 0 },
        tx_csum: cfg.vnet_hdr,
        queues: cfg.queues,
    };
    let up = interface.is_up()?;
    let tap = |(i, fd)| Tap {
        fd,
        interface: interface.clone(),
        vnet: cfg.vnet_hdr,
        caps: caps.clone(),
        up,
        next_look: Instant::ZERO,
        more: false,
        blocked: false,
        buffer: vec![0; BUFFER].into_boxed_slice(),
        stats: NicStats { link_ups: u64::from(up && i == 0), ..NicStats::default() },
    };
    Ok(fds.into_iter().enumerate().map(tap).collect())
}

fn set_up(interface: &Interface, cfg: &TapConfig, addresses: &[(IpAddr, u8)]) -> io::Result<()> {
    if let Some(mtu) = cfg.mtu {
        interface.set_mtu(mtu)?;
    }
    if cfg.up {
        interface.set_queue_len(QUEUE_LEN)?;
        interface.set_up()?;
    }
    let mut v4 = 0;
    for &(ip, prefix) in addresses {
        interface.add_address(ip, prefix, v4)?;
        v4 += usize::from(ip.is_ipv4());
    }
    Ok(())
}

/// Reads `address/prefix`.
fn parse_cidr(text: &str) -> io::Result<(IpAddr, u8)> {
    let parts = text.split_once('/').and_then(|(ip, prefix)| Some((ip.parse().ok()?, prefix.parse().ok()?)));
    match parts {
        Some((ip @ IpAddr::V4(_), prefix)) if prefix <= 32 => Ok((ip, prefix)),
        Some((ip @ IpAddr::V6(_), prefix)) if prefix <= 128 => Ok((ip, prefix)),
        _ => Err(invalid(format!("host_addr: {text:?} is not an address with prefix length, as 10.9.0.1/24"))),
    }
}

impl Tap {
    /// The interface's name.
    pub fn name(&self) -> &str {
        self.interface.name()
    }

    /// Reads one frame into the buffer; returns where it stands there.
    fn read(&mut self) -> Result<(usize, usize, RxMeta), Errno> {
        let n = rustix::io::read(&self.fd, &mut self.buffer[..])?;
        let n = n.min(self.buffer.len());
        match self.buffer.first_chunk::<VNET_LEN>() {
            Some(h) if self.vnet => Ok((VNET_LEN.min(n), n, vnet::decode(h))),
            _ => Ok((0, n, RxMeta { csum: RxCsum::Unchecked, gso_size: 0 })),
        }
    }

    fn write(&self, header: &[u8], payload: &[&[u8]], payload_len: usize, meta: TxMeta) -> Result<usize, Errno> {
        let virtio = vnet::encode(meta, header, payload_len);
        let mut iov = [IoSlice::new(&[]); 2 + MAX_TX_PIECES];
        iov[0] = IoSlice::new(if self.vnet { &virtio } else { &[] });
        iov[1] = IoSlice::new(header);
        let pieces = iov.get_mut(2..2 + payload.len()).ok_or(Errno::INVAL)?;
        for (to, from) in pieces.iter_mut().zip(payload) {
            *to = IoSlice::new(from);
        }
        let skip = usize::from(!self.vnet);
        rustix::io::writev(&self.fd, &iov[skip..2 + payload.len()])
    }

    fn look(&mut self) {
        let up = self.interface.is_up().unwrap_or(false);
        if up && !self.up {
            self.stats.link_ups += 1;
            self.caps.mtu = self.interface.mtu().unwrap_or(self.caps.mtu);
        }
        self.up = up;
    }
}

impl Nic for Tap {
    fn caps(&self) -> &NicCaps {
        &self.caps
    }

    fn is_up(&self) -> bool {
        self.up
    }

    fn poll(&mut self, now: Instant) -> Option<Instant> {
        if self.up {
            // (a send that fails tells when it goes down)
            return core::mem::take(&mut self.blocked).then_some(now + RETRY);
        }
        if now >= self.next_look {
            self.look();
            self.next_look = now + LOOK;
        }
        (!self.up).then_some(self.next_look)
    }

    fn recv(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        let mut count = 0;
        self.more = true;
        while count < budget {
            match self.read() {
                Ok((start, end, meta)) if end - start >= 14 => {
                    self.stats.rx_packets += 1;
                    self.stats.rx_bytes += (end - start) as u64;
                    sink(&self.buffer[start..end], meta);
                }
                Ok(_) => self.stats.rx_errors += 1,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.more = false;
                    break;
                }
                Err(_) => {
                    // The device is gone (EBADFD): nothing more will come.
                    self.more = false;
                    self.up = false;
                    break;
                }
            }
            count += 1;
        }
        count
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], meta: TxMeta) -> Result<(), TxError> {
        let len = crate::frame::gathered_len(header, payload);
        let payload_len = len - header.len();
        if len > vnet::frame_limit(meta, header.len(), payload_len, self.caps.mtu) {
            self.stats.tx_dropped += 1;
            return Err(TxError::TooLarge);
        }
        match self.write(header, payload, payload_len, meta) {
            Ok(_) => {
                self.stats.tx_packets += 1;
                self.stats.tx_bytes += len as u64;
                Ok(())
            }
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {
                self.blocked = true;
                Err(TxError::Full)
            }
            Err(Errno::IO | Errno::BADFD) => {
                self.up = false;
                Err(TxError::Down)
            }
            Err(_) => {
                // The kernel does not like the frame (EINVAL, EMSGSIZE).
                self.stats.tx_dropped += 1;
                Err(TxError::TooLarge)
            }
        }
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        !self.more && !self.blocked
    }

    fn disarm(&mut self) {}

    fn wait_fds(&self) -> Vec<RawFd> {
        vec![self.fd.as_raw_fd()]
    }

    fn stats(&self) -> NicStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        assert_eq!(parse_cidr("10.9.0.1/24").unwrap(), ("10.9.0.1".parse().unwrap(), 24));
        assert_eq!(parse_cidr("fd09::1/64").unwrap(), ("fd09::1".parse().unwrap(), 64));
        for bad in ["10.9.0.1", "10.9.0.1/33", "fd09::1/129", "x/24", "10.9.0.1/-1", ""] {
            assert!(parse_cidr(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let bad = |cfg: TapConfig| open_queues(&cfg).err().map(|e| e.kind()) == Some(io::ErrorKind::InvalidInput);
        assert!(bad(TapConfig { name: "a/b".into(), ..TapConfig::default() }));
        assert!(bad(TapConfig { name: "much-too-long-name".into(), ..TapConfig::default() }));
        assert!(bad(TapConfig { queues: 0, ..TapConfig::default() }));
        assert!(bad(TapConfig { queues: 2, vnet_hdr: false, ..TapConfig::default() }));
        assert!(bad(TapConfig { host_addr: vec!["10.9.0.1".into()], ..TapConfig::default() }));
    }
}
