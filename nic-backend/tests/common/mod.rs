//! What the tests of links share.
#![allow(dead_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use toe_core::Instant;
use toe_core::nic::{Nic, RxCsum, TxMeta};

/// A directory that goes away with its owner.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("toe-nic-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until one of the link's descriptors is readable; `false` after `seconds`.
pub fn wait(nic: &dyn Nic, seconds: i64) -> bool {
    wait_fds(&nic.wait_fds(), seconds)
}

pub fn wait_fds(fds: &[RawFd], seconds: i64) -> bool {
    // SAFETY: the link that named these descriptors is borrowed or owned by the caller, so that they stay open.
    let borrowed = fds.iter().map(|&fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let mut fds: Vec<PollFd> = borrowed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap() > 0
}

/// Virtual time that goes on by one millisecond a step.
pub struct Clock(pub Instant);

impl Clock {
    pub fn tick(&mut self) -> Instant {
        self.0 = Instant::from_millis(self.0.millis() + 1);
        self.0
    }
}

pub fn hash(flow_hash: u32) -> TxMeta {
    TxMeta { flow_hash, csum_offload: true, ..TxMeta::default() }
}

/// All frames that are there.
pub fn drain(nic: &mut dyn Nic) -> Vec<(Vec<u8>, RxCsum, u16)> {
    let mut got = vec![];
    while nic.recv(64, &mut |f, m| got.push((f.to_vec(), m.csum, m.gso_size))) > 0 {}
    got
}
