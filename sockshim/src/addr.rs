//! `sockaddr` in and out.

#![allow(unsafe_code)]

use crate::user;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use libc::{sockaddr, socklen_t};
use rustix::io::Errno;

/// Largest address that the kernel takes (`struct sockaddr_storage`).
const STORAGE: usize = 128;
/// Least length of an IPv6 address: without the scope (RFC 2133).
const SIN6_LEN_RFC2133: usize = 24;
const SIN_LEN: usize = size_of::<libc::sockaddr_in>();

/// An address as a program gave it: copied once, nothing checked but that it is there.
#[derive(Clone, Copy)]
pub struct Given {
    bytes: [u8; STORAGE],
    len: usize,
}

impl Given {
    /// EINVAL: no possible length; EFAULT.
    pub fn take(addr: *const sockaddr, len: socklen_t) -> Result<Given, Errno> {
        let mut given = Given { bytes: [0; STORAGE], len: len as usize };
        if given.len > STORAGE {
            return Err(Errno::INVAL);
        }
        user::readable(addr, given.len)?;
        // SAFETY: the program's bytes, and they are there; no more than the array holds.
        unsafe { core::ptr::copy_nonoverlapping(addr.cast(), given.bytes.as_mut_ptr(), given.len) };
        Ok(given)
    }

    /// Its family. EINVAL: too short even for that.
    pub fn family(&self) -> Result<i32, Errno> {
        if self.len < size_of::<libc::sa_family_t>() {
            return Err(Errno::INVAL);
        }
        Ok(u16::from_ne_bytes([self.bytes[0], self.bytes[1]]).into())
    }

    /// As the address of an AF_INET or AF_INET6 socket. EINVAL: too short; EAFNOSUPPORT.
    pub fn of_family(&self, v6: bool) -> Result<SocketAddr, Errno> {
        if self.len < if v6 { SIN6_LEN_RFC2133 } else { SIN_LEN } {
            return Err(Errno::INVAL);
        }
        match (self.family()?, v6) {
            (libc::AF_INET6, true) | (libc::AF_INET, false) => self.read().ok_or(Errno::INVAL),
            _ => Err(Errno::AFNOSUPPORT),
        }
    }

    /// The IPv4 or IPv6 address in it, if it is one.
    pub fn read(&self) -> Option<SocketAddr> {
        let port = self.port();
        match self.family().ok()? {
            libc::AF_INET if self.len >= SIN_LEN => {
                let ip: [u8; 4] = self.bytes[4..8].try_into().ok()?;
                Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port))
            }
            libc::AF_INET6 if self.len >= SIN6_LEN_RFC2133 => {
                let ip: [u8; 16] = self.bytes[8..24].try_into().ok()?;
                let scope = u32::from_ne_bytes(self.bytes[24..28].try_into().ok()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
            }
            _ => None,
        }
    }

    /// Its port, if it is an internet address.
    pub fn port(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]])
    }

    /// IPv4's wildcard with family AF_UNSPEC, which `bind` takes for AF_INET (compatibility with old programs).
    pub fn is_unspecified_any(&self) -> bool {
        self.family() == Ok(libc::AF_UNSPEC) && self.len >= SIN_LEN && self.bytes[4..8] == [0; 4]
    }
}

/// Reads an IPv4 or IPv6 address; `None` for any other family, a short one, or one that is not there.
pub fn read(addr: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    Given::take(addr, len).ok()?.read()
}

/// Writes `value` as the kernel does: at most `*len` bytes, `*len` becomes the full size. `v6`: an AF_INET6 socket shows
/// IPv4 addresses as mapped ones. EFAULT, EINVAL: negative length.
pub fn write(addr: *mut sockaddr, len: *mut socklen_t, value: Option<SocketAddr>, v6: bool) -> Result<(), Errno> {
    let room = user::get(len)?;
    if (room as i32) < 0 {
        return Err(Errno::INVAL);
    }
    let any = if v6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
    let value = value.unwrap_or(SocketAddr::new(any, 0));
    let put = |bytes: *const u8, size: usize| {
        let shown = size.min(room as usize);
        user::writable(addr, shown)?;
        // SAFETY: the program's buffer, and it is there.
        unsafe { core::ptr::copy_nonoverlapping(bytes, addr.cast::<u8>(), shown) };
        user::put(len, size as socklen_t)
    };
    // SAFETY: both structures are plain bytes, of which all zero is a value.
    unsafe {
        let ip6 = match (value, v6) {
            (SocketAddr::V4(a), false) => {
                let mut out: libc::sockaddr_in = core::mem::zeroed();
                out.sin_family = libc::AF_INET as libc::sa_family_t;
                out.sin_port = a.port().to_be();
                out.sin_addr.s_addr = u32::from_ne_bytes(a.ip().octets());
                return put((&raw const out).cast(), SIN_LEN);
            }
            (SocketAddr::V4(a), true) if a.ip().is_unspecified() => Ipv6Addr::UNSPECIFIED,
            (SocketAddr::V4(a), true) => a.ip().to_ipv6_mapped(),
            (SocketAddr::V6(a), _) => *a.ip(),
        };
        let mut out: libc::sockaddr_in6 = core::mem::zeroed();
        out.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        out.sin6_port = value.port().to_be();
        out.sin6_addr.s6_addr = ip6.octets();
        if let SocketAddr::V6(a) = value {
            out.sin6_scope_id = a.scope_id();
        }
        put((&raw const out).cast(), size_of::<libc::sockaddr_in6>())
    }
}
