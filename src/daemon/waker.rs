//! Live wake-ups: of apps (futex, eventfd) and of the daemon's own threads.

use mio::Waker;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, fence};
use toe_core::ids::EvSetId;
use toe_core::shm::{DaemonPageMap, Region};
use toe_core::{notify, pathq};

/// Wakes apps.
pub struct LiveWaker;

impl notify::Waker for LiveWaker {
    fn futex(&self, word: &AtomicU32) {
        let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
    }

    fn evset(&self, region: &Region, set: EvSetId) {
        if let Some(fd) = region.evset_fd(set) {
            // A full counter (EAGAIN) is readable already.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }
}

/// Wakes the thread of one worker, if it sleeps.
pub struct WorkerWake {
    /// Where it says whether it sleeps.
    pub page: Arc<DaemonPageMap>,
    /// Its worker number.
    pub worker: usize,
    /// Its thread's poll.
    pub waker: Arc<Waker>,
}

impl pathq::Wake for WorkerWake {
    fn wake(&self) {
        // Pairs with the fence in `Worker::sleep`: either it sees the message, or we see it asleep.
        fence(SeqCst);
        if self.page.get().worker[self.worker].asleep.load(SeqCst) != 0 {
            let _ = self.waker.wake();
        }
    }
}
