//! LD_PRELOAD shim: libc's socket calls over the offload engine, for programs that know nothing of it.
//!
//! Files: `hooks_life.rs` (socket, bind, listen, accept, connect, shutdown), `hooks_data.rs` (read … recvmmsg, sendfile),
//! `hooks_ready.rs` (poll, select, epoll), `hooks_opt.rs` (options, names, ioctl), `hooks_fd.rs` (close, dup, fcntl). Below them:
//! `table.rs` (what each descriptor is), `offload.rs` (kernel socket → engine socket), `connect.rs`, `remember.rs` (options), `poll.rs`, `epset.rs`,
//! `epqueue.rs`, `epwait.rs` (waiting), `fork.rs`, `ctx.rs` (registration), `addr.rs`, `msg.rs`, `log.rs`, `user.rs` (EFAULT), `sys.rs` (raw
//! system calls).
//!
//! Rules of every hook: a descriptor that is not ours goes straight to the kernel by a raw system call; nothing is taken from the program's
//! heap after registration; errno changes only on failure.
//!
//! Not seen by the shim: stdio on top of an engine socket (libc's own `read` inside `fread`), programs that make system
//! calls themselves, and descriptors that survive `exec`.
//!
//! `unsafe` stands in every file but `connect.rs`, `remember.rs` and `log.rs`: this crate is a boundary to C. So does `tests/preload.rs` (signals, limits).

#![deny(unsafe_code)]

mod addr;
mod connect;
mod ctx;
mod epqueue;
mod epset;
mod epwait;
mod fork;
mod hooks_data;
mod hooks_fd;
mod hooks_life;
mod hooks_opt;
mod hooks_ready;
mod log;
mod msg;
mod offload;
mod poll;
mod remember;
mod sys;
mod table;
mod user;
