//! LD_PRELOAD shim: libc's socket calls over the offload engine, for programs that know nothing of it.
//!
//! Files: `hooks_life.rs` (socket, bind, listen, accept, connect, shutdown), `hooks_data.rs` (read … recvmmsg), `hooks_pipe.rs` (sendfile, splice),
//! `hooks_ready.rs` (poll, select, epoll), `hooks_opt.rs` (options, names, ioctl), `hooks_fd.rs` (close, dup, fcntl),
//! `hooks_exec.rs` (exec, posix_spawn, system, popen, daemon), `hooks_pos.rs` (preadv2, pwritev2), `hooks_stdio.rs` and `dprintf.rs` (stdio), `exec_list.rs` (execl and its like), `hooks_syscall.rs` (calls by number), `uring.rs` (io_uring),
//! `points.rs` and `cancel.rs` (cancellation points).
//! Below them: `internal.rs` (descriptors of ours), `real.rs` (libc's own functions),
//! `table.rs` (what each descriptor is), `held.rs`, `offload.rs` (kernel socket → engine socket), `connect.rs`, `remember.rs` (options), `user.rs` (EFAULT), `poll.rs`, `epset.rs`,
//! `epqueue.rs`, `epwait.rs` (waiting), `fork.rs`, `image.rs`, `keep.rs`, `spawn.rs`, `rights.rs`, `relayed.rs` and `adopt.rs` (sockets that leave for, or come from, another process image), `ctx.rs` (registration), `addr.rs`, `msg.rs`, `log.rs`, `sys.rs` (raw system calls).
//!
//! Rules of every hook: a descriptor that is not ours goes straight to the kernel by a raw system call; nothing is taken from the program's
//! heap after registration; errno changes only on failure.
//!
//! Not seen by the shim: programs that make system calls themselves.
//!
//! `unsafe` stands in every file but `connect.rs`, `held.rs`, `remember.rs` and `log.rs`: this crate is a boundary to C. So does `tests/preload.rs` (signals, limits).

#![deny(unsafe_code)]

mod addr;
mod adopt;
mod cancel;
mod connect;
mod ctx;
mod dprintf;
mod epqueue;
mod epset;
mod epwait;
mod exec_list;
mod fork;
mod held;
mod hooks_data;
mod hooks_exec;
mod hooks_fd;
mod hooks_life;
mod hooks_opt;
mod hooks_pipe;
mod hooks_pos;
mod hooks_ready;
mod hooks_stdio;
mod hooks_syscall;
mod image;
mod internal;
mod keep;
mod log;
mod msg;
mod offload;
mod points;
mod poll;
mod real;
mod relayed;
mod remember;
mod rights;
mod spawn;
mod sys;
mod table;
mod uring;
mod user;
