//! The exported names of the hooks that are cancellation points. What each does stands in the hook's own file.

#![allow(unsafe_code)]

use crate::{cancel, hooks_data, hooks_fd, hooks_life, hooks_pipe, hooks_pos, hooks_ready};
use libc::{c_int, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, size_t};
use libc::{sockaddr, socklen_t, ssize_t, timespec, timeval};

/// `points!(module: name(arg: type, …) -> result; …)`.
macro_rules! points {
    ($($module:ident: $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C-unwind" fn $name($($arg: $type),*) -> $result {
                cancel::point(|| $module::$name($($arg),*))
            }
        )*
    };
}

points! {
    hooks_data: read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    hooks_data: write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    hooks_data: readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    hooks_data: writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    hooks_data: recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    hooks_data: send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    hooks_data: recvfrom(
        fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t
    ) -> ssize_t;
    hooks_data: sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t
    ) -> ssize_t;
    hooks_data: sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    hooks_data: recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    hooks_data: sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int;
    hooks_data: recvmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, time: *mut timespec) -> c_int;
    hooks_data: __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    hooks_data: __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    hooks_data: __recvfrom_chk(
        fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t
    ) -> ssize_t;
    hooks_pos: preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    hooks_pos: pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    hooks_pos: preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    hooks_pos: pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    hooks_pipe: splice(a: c_int, a_off: *mut i64, b: c_int, b_off: *mut i64, len: size_t, flags: u32) -> ssize_t;
    hooks_pipe: tee(a: c_int, b: c_int, len: size_t, flags: u32) -> ssize_t;
    hooks_life: accept(fd: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> c_int;
    hooks_life: accept4(fd: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t, flags: c_int) -> c_int;
    hooks_life: connect(fd: c_int, addr: *const sockaddr, addr_len: socklen_t) -> c_int;
    hooks_fd: close(fd: c_int) -> c_int;
    hooks_ready: poll(fds: *mut pollfd, n: nfds_t, ms: c_int) -> c_int;
    hooks_ready: ppoll(fds: *mut pollfd, n: nfds_t, time: *const timespec, mask: *const c_void) -> c_int;
    hooks_ready: __poll_chk(fds: *mut pollfd, n: nfds_t, ms: c_int, room: usize) -> c_int;
    hooks_ready: __ppoll_chk(
        fds: *mut pollfd, n: nfds_t, time: *const timespec, mask: *const c_void, room: usize
    ) -> c_int;
    hooks_ready: select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, time: *mut timeval) -> c_int;
    hooks_ready: pselect(
        n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, time: *const timespec, mask: *const c_void
    ) -> c_int;
    hooks_ready: epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, ms: c_int) -> c_int;
    hooks_ready: epoll_pwait(
        epfd: c_int, events: *mut epoll_event, max: c_int, ms: c_int, mask: *const c_void
    ) -> c_int;
    hooks_ready: epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, max: c_int, time: *const timespec, mask: *const c_void
    ) -> c_int;
}
