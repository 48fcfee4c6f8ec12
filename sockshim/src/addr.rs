//! `sockaddr` in and out.

#![allow(unsafe_code)]

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use libc::{sockaddr, socklen_t};
use rustix::io::Errno;

/// Reads an IPv4 or IPv6 address; `None` for any other family or a short one.
pub fn read(addr: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    let len = len as usize;
    if addr.is_null() || len < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the caller passed `len` readable bytes at `addr`; each read below is within them, unaligned.
    unsafe {
        match i32::from((&raw const (*addr).sa_family).read_unaligned()) {
            libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
                let a = addr.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(ip.into(), u16::from_be(a.sin_port)))
            }
            libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
                let a = addr.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), 0, a.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Writes `value` as the kernel does: at most `*len` bytes, `*len` becomes the full size. `v6`: an AF_INET6 socket shows
/// IPv4 addresses as mapped ones. A null `addr` is nothing to do.
pub fn write(addr: *mut sockaddr, len: *mut socklen_t, value: Option<SocketAddr>, v6: bool) -> Result<(), Errno> {
    if addr.is_null() {
        return Ok(());
    }
    if len.is_null() {
        return Err(Errno::FAULT);
    }
    let any = if v6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
    let value = value.unwrap_or(SocketAddr::new(any, 0));
    // SAFETY: `addr` and `len` are the program's, valid by the contract of the hooked function.
    unsafe {
        let room = len.read_unaligned();
        if room as i32 > i32::MAX - 1 || (room as i32) < 0 {
            return Err(Errno::INVAL);
        }
        let put = |bytes: *const u8, size: usize| {
            core::ptr::copy_nonoverlapping(bytes, addr.cast::<u8>(), size.min(room as usize));
            len.write_unaligned(size as socklen_t);
        };
        let ip6 = match (value, v6) {
            (SocketAddr::V4(a), false) => {
                let mut out: libc::sockaddr_in = core::mem::zeroed();
                out.sin_family = libc::AF_INET as libc::sa_family_t;
                out.sin_port = a.port().to_be();
                out.sin_addr.s_addr = u32::from_ne_bytes(a.ip().octets());
                put((&raw const out).cast(), size_of::<libc::sockaddr_in>());
                return Ok(());
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
        put((&raw const out).cast(), size_of::<libc::sockaddr_in6>());
    }
    Ok(())
}
