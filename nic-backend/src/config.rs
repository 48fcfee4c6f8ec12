//! Configuration of the links. Unknown keys are refused; ranges are checked by the constructors.

use serde::{Deserialize, Deserializer, de};
use std::io;
use std::path::PathBuf;

/// Largest IP packet of PCIeLINK and the local link, bytes: 64 KiB less 16, so that 16-byte multiples of payload fit.
pub const DEFAULT_MTU: usize = 65_520;

/// Most queues of one link.
pub const MAX_QUEUES: usize = 16;

/// A PCIeLINK between two daemons of one machine (later: two machines).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLinkConfig {
    /// Path of the Unix socket over which the two daemons find each other; the same on both sides.
    pub socket: PathBuf,
    /// Our Ethernet address (`"02:00:00:00:00:01"`); all zero (the default): a random locally administered one.
    #[serde(default, deserialize_with = "mac_text")]
    pub mac: [u8; 6],
    /// Largest IP packet, bytes, 576 to 65,535; the link uses the smaller of both sides'.
    #[serde(default = "default_mtu")]
    pub mtu: usize,
    /// Queues on our side; the peer may have another number.
    #[serde(default = "one")]
    pub queues: usize,
    /// Bytes of each frame ring that we offer (there is one from each of the peer's queues to each of ours): a power of
    /// two, 64 KiB to 64 MiB, at least 16/7 of the largest frame.
    #[serde(default = "default_ring")]
    pub ring_bytes: usize,
}

/// The link of a daemon to itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalConfig {
    /// Our Ethernet address; all zero (the default): a random locally administered one.
    #[serde(default, deserialize_with = "mac_text")]
    pub mac: [u8; 6],
    /// Queues.
    #[serde(default = "one")]
    pub queues: usize,
    /// Bytes of each ring; as [`PcieLinkConfig::ring_bytes`].
    #[serde(default = "default_ring")]
    pub ring_bytes: usize,
}

/// A TAP device: the Linux kernel is the peer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapConfig {
    /// Name of the interface, at most 15 bytes; empty: the kernel picks one.
    #[serde(default)]
    pub name: String,
    /// Our side's Ethernet address (the kernel's side has one of its own); all zero: a random locally administered one.
    #[serde(default, deserialize_with = "mac_text")]
    pub mac: [u8; 6],
    /// Use the virtio-net header: 64 KiB segments cross in one call, checksums are not computed. `false`: plain frames.
    #[serde(default = "yes")]
    pub vnet_hdr: bool,
    /// Queues; more than one needs `vnet_hdr`.
    #[serde(default = "one")]
    pub queues: usize,
    /// MTU to give the interface; absent: leave it as it is.
    #[serde(default)]
    pub mtu: Option<usize>,
    /// Bring the interface up.
    #[serde(default = "yes")]
    pub up: bool,
    /// Addresses of the kernel's side with prefix length, e.g. `["10.9.0.1/24", "fd09::1/64"]`.
    #[serde(default)]
    pub host_addr: Vec<String>,
}

/// Faults of one direction. The default injects none.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultSpec {
    /// Probability that a frame is lost, 0 to 1.
    pub loss: f64,
    /// Probability that a frame comes twice, 0 to 1.
    pub duplicate: f64,
    /// Probability that one bit after the Ethernet header is flipped, 0 to 1.
    pub corrupt: f64,
    /// Fixed delay, microseconds.
    pub delay_us: u64,
    /// Random extra delay, 0 to this many microseconds. Frames stay in order: only `reorder` reorders.
    pub jitter_us: u64,
    /// Probability that a frame is overtaken by later ones, 0 to 1.
    pub reorder: f64,
    /// It is overtaken by 1 to this many later frames, but held no longer than [`crate::fault::MAX_HOLD`].
    pub reorder_max: u32,
    /// Bytes per second; 0: unlimited.
    pub rate: u64,
    /// Most frames on their way; a sender beyond that sees a full queue, a receiver leaves them in the link.
    pub limit: usize,
}

/// The `fault` middleware.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultConfig {
    /// Equal seeds give equal faults for equal traffic.
    pub seed: u64,
    /// What happens to frames we send.
    pub tx: FaultSpec,
    /// What happens to frames we receive.
    pub rx: FaultSpec,
}

/// The `pcap` middleware.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapConfig {
    /// The pcapng file to (over)write.
    pub path: PathBuf,
    /// Most bytes kept of a frame; 0: all.
    #[serde(default)]
    pub snaplen: usize,
    /// Stop writing when the file has this many bytes; 0: never.
    #[serde(default)]
    pub max_bytes: u64,
}

impl Default for FaultSpec {
    fn default() -> Self {
        FaultSpec {
            loss: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            delay_us: 0,
            jitter_us: 0,
            reorder: 0.0,
            reorder_max: 20,
            rate: 0,
            limit: 1000,
        }
    }
}

impl FaultSpec {
    /// Does it change anything?
    pub fn is_active(&self) -> bool {
        let FaultSpec { loss, duplicate, corrupt, delay_us, jitter_us, reorder, rate, .. } = *self;
        loss > 0.0 || duplicate > 0.0 || corrupt > 0.0 || reorder > 0.0 || delay_us > 0 || jitter_us > 0 || rate > 0
    }

    /// Are all values in range?
    pub fn check(&self) -> io::Result<()> {
        let p =
            [("loss", self.loss), ("duplicate", self.duplicate), ("corrupt", self.corrupt), ("reorder", self.reorder)];
        for (name, value) in p {
            if !(0.0..=1.0).contains(&value) {
                return Err(invalid(format!("fault: {name} = {value} is not a probability between 0 and 1")));
            }
        }
        if self.delay_us > 60_000_000 || self.jitter_us > 60_000_000 {
            return Err(invalid("fault: delay_us and jitter_us are at most 60,000,000 (one minute)"));
        }
        if !(1..=1_000_000).contains(&self.limit) || self.reorder_max == 0 {
            return Err(invalid("fault: limit is 1 to 1,000,000 frames, reorder_max at least 1"));
        }
        Ok(())
    }
}

impl PcieLinkConfig {
    /// The defaults with this socket.
    pub fn new(socket: impl Into<PathBuf>) -> PcieLinkConfig {
        PcieLinkConfig { socket: socket.into(), mac: [0; 6], mtu: DEFAULT_MTU, queues: 1, ring_bytes: default_ring() }
    }
}

impl Default for LocalConfig {
    fn default() -> Self {
        LocalConfig { mac: [0; 6], queues: 1, ring_bytes: default_ring() }
    }
}

impl Default for TapConfig {
    fn default() -> Self {
        TapConfig {
            name: String::new(),
            mac: [0; 6],
            vnet_hdr: true,
            queues: 1,
            mtu: None,
            up: true,
            host_addr: Vec::new(),
        }
    }
}

/// `mac`, or a random locally administered unicast address if it is all zero.
pub(crate) fn mac_or_random(mac: [u8; 6]) -> io::Result<[u8; 6]> {
    if mac != [0; 6] {
        if mac[0] & 1 != 0 {
            return Err(invalid("mac: a multicast address cannot be our own"));
        }
        return Ok(mac);
    }
    let mut random = [0; 6];
    fill_random(&mut random)?;
    random[0] = random[0] & 0xfc | 0x02;
    Ok(random)
}

fn fill_random(out: &mut [u8]) -> io::Result<()> {
    use std::io::Read;
    std::fs::File::open("/dev/urandom")?.read_exact(out)
}

pub(crate) fn check_queues(queues: usize) -> io::Result<()> {
    match queues {
        1..=MAX_QUEUES => Ok(()),
        _ => Err(invalid(format!("queues = {queues}: must be 1 to {MAX_QUEUES}"))),
    }
}

pub(crate) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

/// Reads `aa:bb:cc:dd:ee:ff`.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|p| (1..=2).contains(&p.len()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

fn mac_text<'de, D: Deserializer<'de>>(d: D) -> Result<[u8; 6], D::Error> {
    let text = String::deserialize(d)?;
    parse_mac(&text).ok_or_else(|| de::Error::invalid_value(de::Unexpected::Str(&text), &"aa:bb:cc:dd:ee:ff"))
}

fn default_mtu() -> usize {
    DEFAULT_MTU
}

fn default_ring() -> usize {
    512 << 10
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read() {
        let c: PcieLinkConfig = toml::from_str("socket = '/s'\nmac = '02:00:00:00:0a:ff'").unwrap();
        assert_eq!((c.mac, c.mtu, c.queues), ([2, 0, 0, 0, 10, 255], 65_520, 1));
        assert!(toml::from_str::<PcieLinkConfig>("socket = '/s'\nring = 4").unwrap_err().to_string().contains("ring"));
        assert!(toml::from_str::<PcieLinkConfig>("socket = '/s'\nmac = '02:00'").is_err());
        let f: FaultConfig = toml::from_str("seed = 3\ntx = { loss = 0.01, reorder = 0.2 }").unwrap();
        assert!(f.tx.is_active() && !f.rx.is_active() && f.tx.check().is_ok());
        assert!(FaultSpec { loss: 1.5, ..FaultSpec::default() }.check().is_err());
        assert!(FaultSpec { loss: f64::NAN, ..FaultSpec::default() }.check().is_err());
        let t: TapConfig = toml::from_str("name = 'toe0'\nhost_addr = ['10.9.0.1/24']").unwrap();
        assert!(t.vnet_hdr && t.up && t.mtu.is_none());
    }

    #[test]
    fn addresses_are_checked() {
        assert_eq!(parse_mac("2:0:0:0:0:1"), Some([2, 0, 0, 0, 0, 1]));
        for bad in ["", "02:00:00:00:00", "02:00:00:00:00:00:00", "0x2:0:0:0:0:0", "002:0:0:0:0:0"] {
            assert_eq!(parse_mac(bad), None, "{bad}");
        }
        let random = mac_or_random([0; 6]).unwrap();
        assert_eq!(random[0] & 3, 2);
        assert!(mac_or_random([1, 0, 0, 0, 0, 0]).is_err());
    }
}
