//! A child inherits the mapping and the sockets, but is a process of its own to the daemon: it has its own holder bit and its
//! own control connection. The parent prepares both, so that neither can be closed in between.

use super::client::{Link, borrow, close_raw, exchange};
use super::socket::Sock;
use crate::control::{OP_CHILD, OP_PID, Request};
use crate::ids::ProcId;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use rustix::fd::{AsFd, IntoRawFd, RawFd};
use rustix::io::Errno;

/// What a parent has prepared for a child, for one link. Plain numbers, so that it survives `fork` anywhere.
#[derive(Clone, Copy, Debug)]
pub struct ChildLink {
    control: RawFd,
    proc: ProcId,
}

impl Link {
    /// Parent, before `fork` (or a child of a bare `clone`, for itself): a holder bit, set in all of `socks`, and a control
    /// connection.
    pub fn prepare_child<'a>(&'a self, socks: impl Iterator<Item = Sock<'a>>) -> Result<ChildLink, Errno> {
        if self.dead() {
            return Err(Errno::CONNRESET);
        }
        let control = self.connect_again()?;
        let pool = &self.region.layout().proc_pool;
        let proc = ProcId(pool.pop().ok_or(Errno::NFILE)?);
        let mut request = Request::new(OP_CHILD);
        request.region = self.region.id().0;
        request.proc = proc.0;
        request.pid = my_pid();
        let answer = exchange(control.as_fd(), &request);
        if !matches!(&answer, Ok((reply, _)) if reply.errno == 0) {
            pool.push(proc.0);
            return Err(Errno::NFILE);
        }
        for sock in socks {
            sock.slot.hold(proc);
        }
        Ok(ChildLink { control: control.into_raw_fd(), proc })
    }

    /// Parent, after `fork` (whether it worked or not): the child's connection is the child's alone.
    pub fn leave_to_child(&self, child: ChildLink) {
        close_raw(child.control);
    }

    /// Child: from now on this link speaks for the child. `None`: nothing could be prepared; the sockets stay open as long as the parent
    /// has them, and this process's own control connection is none.
    pub fn become_child(&self, child: Option<ChildLink>) {
        self.control_lock.store(0, Relaxed);
        let control = child.map_or(-1, |c| c.control);
        close_raw(self.control.swap(control, AcqRel));
        match child {
            None => self.without_proc(),
            Some(c) => {
                self.proc.store(c.proc.0, Relaxed);
                let mut request = Request::new(OP_PID);
                request.pid = my_pid();
                request.region = self.region.id().0;
                request.proc = c.proc.0;
                // Informative only: a daemon that does not answer changes nothing.
                let _ = exchange(borrow(c.control), &request);
            }
        }
    }
}

fn my_pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}
