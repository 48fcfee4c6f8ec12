//! The ioctls of TAP devices and network interfaces. `unsafe`: ioctl with the kernel's structures.

#![allow(unsafe_code)]

use crate::config::invalid;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `IFNAMSIZ` less the final zero.
const NAME_MAX: usize = libc::IFNAMSIZ - 1;

// linux/if_tun.h
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;
const TUN_F_CSUM: libc::c_ulong = 0x01;
const TUN_F_TSO4: libc::c_ulong = 0x02;
const TUN_F_TSO6: libc::c_ulong = 0x04;

/// Checks an interface name.
pub fn check_name(name: &str) -> io::Result<()> {
    let ok = |b: u8| b.is_ascii_graphic() && b != b'/' && b != b':';
    if name.len() > NAME_MAX || !name.bytes().all(ok) {
        return Err(invalid(format!("tap: {name:?} is not an interface name")));
    }
    Ok(())
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is plain old data; all zero is a valid value.
    let mut r: libc::ifreq = unsafe { core::mem::zeroed() };
    for (to, from) in r.ifr_name.iter_mut().zip(name.bytes().take(NAME_MAX)) {
        *to = from as libc::c_char;
    }
    r
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a plain TAP device by the tun-tap crate, non-blocking; returns it with its real name.
pub fn open_plain(name: &str) -> io::Result<(OwnedFd, String)> {
    let iface = tun_tap::Iface::without_packet_info(name, tun_tap::Mode::Tap)?;
    // SAFETY: `iface` owns the descriptor and lives until the end of this function.
    let fd = unsafe { BorrowedFd::borrow_raw(iface.as_raw_fd()) }.try_clone_to_owned()?;
    set_nonblocking(&fd)?;
    Ok((fd, iface.name().to_string()))
}

/// Opens one queue of a TAP device with a virtio-net header of `header_len` bytes and all TCP offloads, non-blocking.
pub fn open_vnet(name: &str, multi_queue: bool, header_len: usize) -> io::Result<(OwnedFd, String)> {
    let fd: OwnedFd = File::options().read(true).write(true).open("/dev/net/tun")?.into();
    let mut r = request(name);
    let multi = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    r.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | multi) as libc::c_short;
    let len = header_len as libc::c_int;
    // SAFETY: the requests take an `ifreq`, an int, and a plain number; all live across the calls.
    unsafe {
        check(libc::ioctl(fd.as_raw_fd(), TUNSETIFF as _, &mut r))?;
        check(libc::ioctl(fd.as_raw_fd(), TUNSETVNETHDRSZ as _, &len))?;
        check(libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD as _, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6))?;
    }
    set_nonblocking(&fd)?;
    // SAFETY: the kernel leaves a zero-terminated name there.
    let name = unsafe { CStr::from_ptr(r.ifr_name.as_ptr()) };
    Ok((fd, name.to_string_lossy().into_owned()))
}

fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

/// A network interface, by name.
pub struct Interface {
    name: String,
    sock: OwnedFd,
}

impl Interface {
    /// The interface `name` of this network namespace.
    pub fn new(name: &str) -> io::Result<Interface> {
        Ok(Interface { name: name.to_string(), sock: control_socket(libc::AF_INET)? })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn ioctl(&self, op: libc::c_ulong, r: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: the requests used here take an `ifreq`, which lives across the call.
        check(unsafe { libc::ioctl(self.sock.as_raw_fd(), op as _, r) })
    }

    /// MTU, bytes of an IP packet.
    pub fn mtu(&self) -> io::Result<usize> {
        let mut r = request(&self.name);
        self.ioctl(libc::SIOCGIFMTU as _, &mut r)?;
        // SAFETY: SIOCGIFMTU fills in this member.
        Ok(unsafe { r.ifr_ifru.ifru_mtu }.max(0) as usize)
    }

    /// Sets the MTU.
    pub fn set_mtu(&self, mtu: usize) -> io::Result<()> {
        let mut r = request(&self.name);
        r.ifr_ifru.ifru_mtu = libc::c_int::try_from(mtu).map_err(|_| invalid("mtu"))?;
        self.ioctl(libc::SIOCSIFMTU as _, &mut r)
    }

    /// Sets how many frames may wait for us (txqueuelen).
    pub fn set_queue_len(&self, frames: u16) -> io::Result<()> {
        let mut r = request(&self.name);
        r.ifr_ifru.ifru_metric = libc::c_int::from(frames); // the kernel's `ifr_qlen`, an int of the same union
        self.ioctl(libc::SIOCSIFTXQLEN as _, &mut r)
    }

    fn flags(&self) -> io::Result<libc::c_short> {
        let mut r = request(&self.name);
        self.ioctl(libc::SIOCGIFFLAGS as _, &mut r)?;
        // SAFETY: SIOCGIFFLAGS fills in this member.
        Ok(unsafe { r.ifr_ifru.ifru_flags })
    }

    /// Has somebody brought it up?
    pub fn is_up(&self) -> io::Result<bool> {
        Ok(self.flags()? & libc::IFF_UP as libc::c_short != 0)
    }

    /// Brings it up.
    pub fn set_up(&self) -> io::Result<()> {
        let mut r = request(&self.name);
        r.ifr_ifru.ifru_flags = self.flags()? | libc::IFF_UP as libc::c_short;
        self.ioctl(libc::SIOCSIFFLAGS as _, &mut r)
    }

    /// Gives the kernel's side an address; `number` counts the addresses before it.
    pub fn add_address(&self, ip: IpAddr, prefix: u8, number: usize) -> io::Result<()> {
        match ip {
            IpAddr::V4(ip) => self.add_v4(ip, prefix, number),
            IpAddr::V6(ip) => self.add_v6(ip, prefix),
        }
    }

    fn add_v4(&self, ip: Ipv4Addr, prefix: u8, number: usize) -> io::Result<()> {
        // A second address needs a label of its own.
        let label = if number == 0 { self.name.clone() } else { format!("{}:{number}", self.name) };
        if label.len() > NAME_MAX {
            return Err(invalid(format!("tap: {label} is too long for a second IPv4 address")));
        }
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        for (op, value) in [(libc::SIOCSIFADDR, ip), (libc::SIOCSIFNETMASK, Ipv4Addr::from(mask))] {
            let mut r = request(&label);
            r.ifr_ifru.ifru_addr = sockaddr_v4(value);
            self.ioctl(op as _, &mut r)?;
        }
        Ok(())
    }

    fn add_v6(&self, ip: Ipv6Addr, prefix: u8) -> io::Result<()> {
        // Nobody else is on this link, so duplicate address detection would only cost a second; without rights to say
        // so it takes that second.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/accept_dad", self.name), "0");
        let mut r = request(&self.name);
        self.ioctl(libc::SIOCGIFINDEX as _, &mut r)?;
        let mut r6 = libc::in6_ifreq {
            ifr6_addr: libc::in6_addr { s6_addr: ip.octets() },
            ifr6_prefixlen: u32::from(prefix),
            // SAFETY: SIOCGIFINDEX fills in this member.
            ifr6_ifindex: unsafe { r.ifr_ifru.ifru_ifindex },
        };
        let sock = control_socket(libc::AF_INET6)?;
        // SAFETY: on an AF_INET6 socket this request takes an `in6_ifreq`, which lives across the call.
        check(unsafe { libc::ioctl(sock.as_raw_fd(), libc::SIOCSIFADDR as _, &mut r6) })
    }
}

fn control_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: plain system call.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: fd was just returned to us and is owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An IPv4 address as the generic `sockaddr`: port (2 bytes), then the address in network order.
fn sockaddr_v4(ip: Ipv4Addr) -> libc::sockaddr {
    let mut sa = libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: [0; 14] };
    for (to, from) in sa.sa_data[2..6].iter_mut().zip(ip.octets()) {
        *to = from as libc::c_char;
    }
    sa
}
