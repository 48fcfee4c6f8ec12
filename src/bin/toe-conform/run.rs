//! One case in a child process, watched.

use crate::sys::{self, alive_group, kill_group};
use crate::trace::T;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The child's end of the pipe is moved here, out of the way of cases that count on the lowest free number.
const TRACE_FD: i32 = 500;

/// What the case recorded, and how it ended if not well.
pub fn run(body: &dyn Fn(&T), addr: IpAddr, seconds: u64) -> String {
    let (read, write) = sys::pipe();
    let pid = c!(fork());
    if pid == 0 {
        c!(setpgid(0, 0));
        c!(close(read));
        c!(dup3(write, TRACE_FD, libc::O_CLOEXEC));
        c!(close(write));
        sys::on_sigpipe();
        body(&T::new(addr, TRACE_FD));
        crate::sys::quit();
    }
    c!(close(write));
    let pid = pid as i32;
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut bytes = vec![];
    let hang = !sys::read_all(read, &mut bytes, deadline);
    c!(close(read));
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if hang {
        text += " HANG";
    }
    // The child closes its end only by ending; its own children may have kept it.
    if hang || alive_group(pid) {
        kill_group(pid);
    }
    match sys::wait_status(pid) {
        (_, Some(signal)) if !hang => text += &format!(" SIGNAL {signal}"),
        (Some(code), _) if code != 0 => text += &format!(" EXIT {code}"),
        _ => {}
    }
    text
}
