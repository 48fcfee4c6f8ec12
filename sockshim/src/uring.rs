//! io_uring: a ring's operations would reach the placeholders behind our back, so that programs are told that this kernel
//! has none, and use what they have instead. TOE_IO_URING=allow or `io_uring = "allow"` in the daemon's configuration leave
//! it to the kernel, for programs whose rings do not touch offloaded sockets. Programs that make the system call themselves (liburing does) are not stopped.

#![allow(unsafe_code)]

use crate::ctx;
use crate::log::say;
use crate::sys::{self, call, libc_ret};
use core::sync::atomic::Ordering::Relaxed;
use libc::c_long;
use toe_core::app::Link;
use toe_core::shm::policy;

/// `io_uring_setup`: ENOSYS where there is an engine.
pub fn setup(args: [usize; 6]) -> c_long {
    let by_daemon = |l: &Link| l.region.layout().header.policy.load(Relaxed) & policy::IO_URING != 0;
    let allowed = match ctx::env(c"TOE_IO_URING") {
        Some(b"allow") => true,
        Some(b"refuse") => false,
        // Without a daemon there is nothing to be kept from.
        _ => !ctx::init() || ctx::current().is_none_or(|(_, link)| by_daemon(link)),
    };
    if allowed {
        return libc_ret(call(libc::SYS_io_uring_setup, args)) as c_long;
    }
    say!("io_uring refused");
    sys::set_errno(libc::ENOSYS);
    -1
}
