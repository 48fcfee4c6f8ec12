//! `syscall(2)`, libc's door to any call by number: what the hooks cover goes to them, all else to the kernel.
//!
//! Two things differ between a system call and libc's function of the same name, here as in libc: a raw `ppoll` and
//! `pselect6` write back what is left of the time, and signal masks come with their size.

#![allow(unsafe_code)]

use crate::sys::{self, call, libc_ret};
use crate::table::tables;
use libc::{c_int, c_long, timespec};
use toe_core::app::wait::now_ns;

/// Six arguments, whether the caller passed them or not: on x86-64 and arm64 the missing ones are whatever the registers and one
/// word of the caller's frame hold, as in libc's own `syscall`.
#[unsafe(no_mangle)]
extern "C" fn syscall(nr: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    let args = [a, b, c, d, e, f];
    if nr == libc::SYS_io_uring_setup {
        return crate::uring::setup(args);
    }
    let hooked = match tables() {
        None => life(nr, args),
        Some(_) => data(nr, args).or_else(|| life(nr, args)).or_else(|| ready(nr, args)).or_else(|| names(nr, args)),
    };
    hooked.unwrap_or_else(|| libc_ret(call(nr, args)) as c_long)
}

/// `hooks!(nr, a; SYS_x => x(a[0] as T, …), …)`: the hook's result for each number.
macro_rules! hooks {
    ($nr:ident; $($(#[$attr:meta])* $sys:ident => $call:expr,)*) => {{
        // SAFETY: the program's own arguments, with the types that the kernel gives them.
        #[allow(unused_unsafe)]
        let result = unsafe {
            match $nr {
                $($(#[$attr])* libc::$sys => c_long::try_from($call).unwrap_or(-1),)*
                _ => return None,
            }
        };
        Some(result)
    }};
}

/// `p!(a, i)`: argument `i` as a pointer; `n!(a, i)`: as an int.
macro_rules! p {
    ($a:ident, $i:literal) => {
        core::ptr::with_exposed_provenance_mut($a[$i])
    };
}
macro_rules! n {
    ($a:ident, $i:literal) => {
        $a[$i] as c_int
    };
}

fn data(nr: c_long, a: [usize; 6]) -> Option<c_long> {
    hooks!(nr;
        SYS_read => libc::read(n!(a, 0), p!(a, 1), a[2]),
        SYS_write => libc::write(n!(a, 0), p!(a, 1), a[2]),
        SYS_readv => libc::readv(n!(a, 0), p!(a, 1), n!(a, 2)),
        SYS_writev => libc::writev(n!(a, 0), p!(a, 1), n!(a, 2)),
        // The offset comes in two halves, of which the first is the whole on 64-bit systems.
        SYS_preadv2 => libc::preadv2(n!(a, 0), p!(a, 1), n!(a, 2), a[3] as i64, n!(a, 5)),
        SYS_pwritev2 => libc::pwritev2(n!(a, 0), p!(a, 1), n!(a, 2), a[3] as i64, n!(a, 5)),
        SYS_recvfrom => libc::recvfrom(n!(a, 0), p!(a, 1), a[2], n!(a, 3), p!(a, 4), p!(a, 5)),
        SYS_sendto => libc::sendto(n!(a, 0), p!(a, 1), a[2], n!(a, 3), p!(a, 4), a[5] as u32),
        SYS_recvmsg => libc::recvmsg(n!(a, 0), p!(a, 1), n!(a, 2)),
        SYS_sendmsg => libc::sendmsg(n!(a, 0), p!(a, 1), n!(a, 2)),
        SYS_recvmmsg => libc::recvmmsg(n!(a, 0), p!(a, 1), a[2] as u32, n!(a, 3), p!(a, 4)),
        SYS_sendmmsg => libc::sendmmsg(n!(a, 0), p!(a, 1), a[2] as u32, n!(a, 3)),
        SYS_sendfile => libc::sendfile(n!(a, 0), n!(a, 1), p!(a, 2), a[3]),
        SYS_splice => libc::splice(n!(a, 0), p!(a, 1), n!(a, 2), p!(a, 3), a[4], a[5] as u32),
        SYS_tee => libc::tee(n!(a, 0), n!(a, 1), a[2], a[3] as u32),
        SYS_copy_file_range => libc::copy_file_range(n!(a, 0), p!(a, 1), n!(a, 2), p!(a, 3), a[4], a[5] as u32),
    )
}

/// What makes, copies and closes descriptors; `socket` also before anything is known of any descriptor.
fn life(nr: c_long, a: [usize; 6]) -> Option<c_long> {
    hooks!(nr;
        SYS_socket => libc::socket(n!(a, 0), n!(a, 1), n!(a, 2)),
        SYS_bind => libc::bind(n!(a, 0), p!(a, 1), a[2] as u32),
        SYS_listen => libc::listen(n!(a, 0), n!(a, 1)),
        SYS_accept => libc::accept(n!(a, 0), p!(a, 1), p!(a, 2)),
        SYS_accept4 => libc::accept4(n!(a, 0), p!(a, 1), p!(a, 2), n!(a, 3)),
        SYS_connect => libc::connect(n!(a, 0), p!(a, 1), a[2] as u32),
        SYS_shutdown => libc::shutdown(n!(a, 0), n!(a, 1)),
        SYS_close => libc::close(n!(a, 0)),
        SYS_close_range => libc::close_range(a[0] as u32, a[1] as u32, n!(a, 2)),
        SYS_dup => libc::dup(n!(a, 0)),
        #[cfg(target_arch = "x86_64")]
        SYS_dup2 => libc::dup2(n!(a, 0), n!(a, 1)),
        SYS_dup3 => libc::dup3(n!(a, 0), n!(a, 1), n!(a, 2)),
        SYS_fcntl => libc::fcntl(n!(a, 0), n!(a, 1), a[2]),
    )
}

fn names(nr: c_long, a: [usize; 6]) -> Option<c_long> {
    hooks!(nr;
        SYS_setsockopt => libc::setsockopt(n!(a, 0), n!(a, 1), n!(a, 2), p!(a, 3), a[4] as u32),
        SYS_getsockopt => libc::getsockopt(n!(a, 0), n!(a, 1), n!(a, 2), p!(a, 3), p!(a, 4)),
        SYS_getsockname => libc::getsockname(n!(a, 0), p!(a, 1), p!(a, 2)),
        SYS_getpeername => libc::getpeername(n!(a, 0), p!(a, 1), p!(a, 2)),
        SYS_ioctl => libc::ioctl(n!(a, 0), a[1] as _, a[2]),
    )
}

fn ready(nr: c_long, a: [usize; 6]) -> Option<c_long> {
    hooks!(nr;
        #[cfg(target_arch = "x86_64")]
        SYS_poll => libc::poll(p!(a, 0), a[1] as libc::nfds_t, n!(a, 2)),
        SYS_ppoll => {
            let time: *mut timespec = p!(a, 2);
            masked(a[3], a[4], || timed(time, || libc::ppoll(p!(a, 0), a[1] as libc::nfds_t, time, p!(a, 3))))
        },
        #[cfg(target_arch = "x86_64")]
        SYS_select => libc::select(n!(a, 0), p!(a, 1), p!(a, 2), p!(a, 3), p!(a, 4)),
        SYS_pselect6 => pselect6(a),
        #[cfg(target_arch = "x86_64")]
        SYS_epoll_create => libc::epoll_create(n!(a, 0)),
        SYS_epoll_create1 => libc::epoll_create1(n!(a, 0)),
        SYS_epoll_ctl => libc::epoll_ctl(n!(a, 0), n!(a, 1), n!(a, 2), p!(a, 3)),
        #[cfg(target_arch = "x86_64")]
        SYS_epoll_wait => libc::epoll_wait(n!(a, 0), p!(a, 1), n!(a, 2), n!(a, 3)),
        SYS_epoll_pwait => masked(a[4], a[5], || libc::epoll_pwait(n!(a, 0), p!(a, 1), n!(a, 2), n!(a, 3), p!(a, 4))),
        SYS_epoll_pwait2 => {
            masked(a[4], a[5], || epoll_pwait2(n!(a, 0), p!(a, 1), n!(a, 2), p!(a, 3), p!(a, 4)))
        },
    )
}

unsafe extern "C" {
    /// Not in every libc that we link with; our own hook serves then.
    fn epoll_pwait2(
        epfd: c_int,
        events: *mut libc::epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const libc::c_void,
    ) -> c_int;
}

/// A mask must have the kernel's size.
fn masked(mask: usize, size: usize, wait: impl FnOnce() -> c_int) -> c_int {
    if mask != 0 && size != 8 {
        sys::set_errno(libc::EINVAL);
        return -1;
    }
    wait()
}

/// Runs a wait and leaves in `time` what is left of it.
fn timed(time: *mut timespec, wait: impl FnOnce() -> c_int) -> c_int {
    let start = now_ns();
    let n = wait();
    let Ok(mut t) = crate::user::get(time) else { return n };
    let asked = (t.tv_sec.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec.max(0) as u64);
    let left = asked.saturating_sub(now_ns().saturating_sub(start));
    (t.tv_sec, t.tv_nsec) = ((left / 1_000_000_000) as i64, (left % 1_000_000_000) as i64);
    // As the kernel: what cannot be told is not told.
    let _ = crate::user::put(time, t);
    n
}

fn pselect6(a: [usize; 6]) -> c_int {
    let packed: *const [usize; 2] = p!(a, 5);
    let [mask, size] = crate::user::get(packed).unwrap_or([0, 0]);
    let time: *mut timespec = p!(a, 4);
    let mask_at = core::ptr::with_exposed_provenance::<libc::sigset_t>(mask);
    // SAFETY: the program's sets, time-out and mask.
    let wait = || unsafe { libc::pselect(n!(a, 0), p!(a, 1), p!(a, 2), p!(a, 3), time, mask_at) };
    masked(mask, size, || timed(time, wait))
}
