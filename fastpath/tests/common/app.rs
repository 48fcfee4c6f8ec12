//! A scripted app: writes and reads a socket slot as the shim does, kicks as the shim does.

use super::stream_byte;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use toe_core::shm::*;
use toe_core::{SockId, stream};

const CHUNK: u64 = CHUNK_SIZE as u64;

pub struct App {
    pub region: Arc<Region>,
    pub sock: SockId,
    pub seed_out: u64,
    pub seed_in: u64,
    /// Bytes still to be written.
    pub to_write: u64,
    pub shut_when_done: bool,
    /// Most bytes of one read or write.
    pub step: u64,
    pub reading: bool,
}

impl App {
    pub fn new(region: Arc<Region>, sock: SockId) -> App {
        let app = App {
            region,
            sock,
            seed_out: 1,
            seed_in: 2,
            to_write: 0,
            shut_when_done: false,
            step: 100_000,
            reading: true,
        };
        let slot = app.slot();
        slot.holders[0].store(1, Relaxed);
        slot.tx_limit.store(1 << 20, Relaxed);
        app
    }

    pub fn slot(&self) -> &SockSlot {
        self.region.sock(self.sock).unwrap()
    }

    pub fn kick(&self) {
        let owner = self.slot().owner.load(Acquire);
        if owner != SLOW_WORKER {
            self.region.kick(owner, self.sock);
        }
    }

    pub fn state(&self) -> SockState {
        SockState::from_word(self.slot().state.load(Acquire))
    }

    pub fn set_flags(&self, set: u32, clear: u32) {
        self.slot().app_flags.fetch_or(set, Release);
        self.slot().app_flags.fetch_and(!clear, Release);
        self.kick();
    }

    pub fn shutdown(&self) {
        self.set_flags(app_flags::SHUT_WR, 0);
    }

    pub fn close(&self) {
        self.slot().holders[0].store(0, Release);
        self.kick();
    }

    pub fn error(&self) -> i32 {
        self.slot().error.load(Acquire) as i32
    }

    pub fn eof(&self) -> bool {
        self.slot().daemon_flags.load(Acquire) & daemon_flags::RX_FIN != 0
    }

    pub fn unread(&self) -> u64 {
        self.slot().rx_tail.load(Acquire) - self.slot().rx_head.load(Relaxed)
    }

    pub fn received(&self) -> u64 {
        self.slot().rx_tail.load(Acquire)
    }

    pub fn acked(&self) -> u64 {
        self.slot().tx_head.load(Acquire)
    }

    /// Writes `len` bytes of the stream now (there must be room).
    pub fn write(&self, len: u64) {
        assert_eq!(self.write_some(len), len);
    }

    /// Writes what there is room for, at most `len` bytes.
    pub fn write_some(&self, len: u64) -> u64 {
        let slot = self.slot();
        let room = u64::from(slot.tx_limit.load(Relaxed)) - self.in_buffer().min(slot.tx_limit.load(Relaxed).into());
        let table = self.region.tx_table(self.sock).unwrap();
        let (start, end) = (slot.tx_tail.load(Relaxed), slot.tx_tail.load(Relaxed) + len.min(room));
        let mut at = start;
        while at < end {
            let entry = &table[(at / CHUNK) as usize % STREAM_CHUNKS];
            if at.is_multiple_of(CHUNK) {
                entry.store(self.region.layout().tx_pool.pop().unwrap(), Relaxed);
            }
            let n = (end - at).min(CHUNK - at % CHUNK);
            let bytes: Vec<u8> = (at..at + n).map(|p| stream_byte(self.seed_out, p)).collect();
            assert!(stream::tx_write(&self.region, entry.load(Relaxed), (at % CHUNK) as usize, &bytes));
            at += n;
        }
        slot.tx_tail.store(end, Release);
        if end > start {
            self.kick();
        }
        end - start
    }

    pub fn in_buffer(&self) -> u64 {
        self.slot().tx_tail.load(Relaxed) - self.slot().tx_head.load(Acquire)
    }

    /// Reads and checks up to `len` bytes.
    pub fn read(&self, len: u64) -> u64 {
        let slot = self.slot();
        let table = self.region.rx_table(self.sock).unwrap();
        let (start, tail) = (slot.rx_head.load(Relaxed), slot.rx_tail.load(Acquire));
        let end = tail.min(start + len);
        let mut at = start;
        while at < end {
            let n = (end - at).min(CHUNK - at % CHUNK);
            let mut bytes = vec![0; n as usize];
            let chunk = table[(at / CHUNK) as usize % STREAM_CHUNKS].load(Relaxed);
            assert!(stream::rx_read(&self.region, chunk, (at % CHUNK) as usize, &mut bytes));
            for (i, b) in bytes.iter().enumerate() {
                let pos = at + i as u64;
                assert_eq!(*b, stream_byte(self.seed_in, pos), "byte {pos} of the stream");
            }
            at += n;
        }
        let small = (tail - start) * 2 >= u64::from(slot.rx_limit.load(Relaxed));
        slot.rx_head.store(end, Release);
        if small || start / CHUNK != end / CHUNK {
            self.kick();
        }
        end - start
    }

    /// One step of a busy app; `true` if it did anything.
    pub fn run(&mut self) -> bool {
        let mut did = false;
        if self.to_write > 0 && self.state() == SockState::Established {
            let n = self.write_some(self.to_write.min(self.step));
            self.to_write -= n;
            did |= n > 0;
        }
        if self.to_write == 0 && self.shut_when_done {
            self.shut_when_done = false;
            self.shutdown();
            did = true;
        }
        if self.reading && self.unread() > 0 {
            did |= self.read(self.step) > 0;
        }
        did
    }
}
