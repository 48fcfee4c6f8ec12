//! io_uring: a ring's operations would reach the placeholders behind our back, so that programs are told that this kernel
//! has none, and use what they have instead. TOE_IO_URING=allow leaves it to the kernel, for programs whose rings
//! do not touch offloaded sockets. Programs that make the system call themselves (liburing does) are not stopped.

#![allow(unsafe_code)]

use crate::ctx;
use crate::log::say;
use crate::sys::{self, call, libc_ret};
use libc::c_long;

/// `io_uring_setup`: ENOSYS where there is an engine.
pub fn setup(args: [usize; 6]) -> c_long {
    let allowed = ctx::env(c"TOE_IO_URING") == Some(b"allow");
    if allowed || !ctx::init() || ctx::current().is_none() {
        return libc_ret(call(libc::SYS_io_uring_setup, args)) as c_long;
    }
    say!("io_uring refused");
    sys::set_errno(libc::ENOSYS);
    -1
}
