//! `address/length`, as in `127.77.0.1/24`.

use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address with a prefix length; host bits may be set (an interface address) or not (a network).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Address.
    pub addr: IpAddr,
    /// Prefix length in bits.
    pub len: u8,
}

impl Prefix {
    /// The prefix that holds `addr` alone.
    pub fn host(addr: IpAddr) -> Prefix {
        Prefix { addr, len: width(addr) }
    }

    /// The same prefix without host bits.
    pub fn network(self) -> Prefix {
        let addr = match self.addr {
            IpAddr::V4(a) => Ipv4Addr::from(u32::from(a) & self.mask_v4()).into(),
            IpAddr::V6(a) => Ipv6Addr::from(u128::from(a) & mask(128, self.len)).into(),
        };
        Prefix { addr, len: self.len }
    }

    /// Is `ip` inside?
    pub fn contains(self, ip: IpAddr) -> bool {
        self.addr.is_ipv4() == ip.is_ipv4() && Prefix { addr: ip, len: self.len }.network() == self.network()
    }

    /// Does any address belong to both?
    pub fn overlaps(self, other: Prefix) -> bool {
        if self.len <= other.len { self.contains(other.addr) } else { other.contains(self.addr) }
    }

    /// The directed broadcast address of an IPv4 network that has one (RFC 919; not /31, RFC 3021, nor /32).
    pub fn broadcast(self) -> Option<IpAddr> {
        match self.addr {
            IpAddr::V4(a) if self.len < 31 => Some(Ipv4Addr::from(u32::from(a) | !self.mask_v4()).into()),
            _ => None,
        }
    }

    fn mask_v4(self) -> u32 {
        mask(32, self.len) as u32
    }
}

/// The top `len` of `bits` bits.
fn mask(bits: u32, len: u8) -> u128 {
    let all = u128::MAX >> (128 - bits);
    all & !all.checked_shr(len.into()).unwrap_or(0)
}

fn width(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

impl FromStr for Prefix {
    type Err = String;

    /// Reads `addr/len`; without a length the host's own prefix.
    fn from_str(text: &str) -> Result<Prefix, String> {
        let (addr, len) = match text.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| format!("`{text}` is no IP address with prefix length"))?;
        let most = width(addr);
        let len = match len {
            None => most,
            Some(len) => len
                .parse()
                .ok()
                .filter(|l| *l <= most)
                .ok_or_else(|| format!("`{text}`: the prefix length must be 0 to {most}"))?,
        };
        Ok(Prefix { addr, len })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Prefix, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn text_and_arithmetic() {
        assert_eq!(p("127.77.0.1/24").network(), p("127.77.0.0/24"));
        assert_eq!(p("fd77::1/64").network(), p("fd77::/64"));
        assert_eq!(p("10.0.0.1"), p("10.0.0.1/32"));
        assert_eq!(p("10.1.2.3/24").broadcast(), Some("10.1.2.255".parse().unwrap()));
        assert_eq!(p("10.1.2.3/31").broadcast(), None);
        assert_eq!(p("1.2.3.4/0").network(), p("0.0.0.0/0"));
        assert_eq!(p("ffff::/0").network(), p("::/0"));
        for bad in ["", "1.2.3/24", "1.2.3.4/33", "::/129", "1.2.3.4/-1", "1.2.3.4/", "host/8"] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn membership() {
        assert!(p("10.0.0.0/8").contains("10.255.0.1".parse().unwrap()));
        assert!(!p("10.0.0.0/8").contains("11.0.0.1".parse().unwrap()));
        assert!(!p("0.0.0.0/0").contains("::1".parse().unwrap()));
        assert!(p("10.0.0.0/8").overlaps(p("10.1.0.0/16")) && p("10.1.0.0/16").overlaps(p("10.0.0.0/8")));
        assert!(!p("10.0.0.0/16").overlaps(p("10.1.0.0/16")));
        assert!(p("0.0.0.0/0").overlaps(p("1.2.3.4/32")));
    }
}
