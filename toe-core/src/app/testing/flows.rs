//! The connections of the test daemon: requests, copying, closing.

#![allow(unsafe_code)]

use super::{Futexes, Key, State};
use crate::ids::SockId;
use crate::notify;
use crate::shm::*;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

impl State {
    pub(super) fn region(&self, key: Key) -> Option<Arc<Region>> {
        self.regions.get(&key.0).map(|s| s.region.clone())
    }

    pub(super) fn serve(&mut self, key: Key) {
        let Some(region) = self.region(key) else { return };
        let Some(slot) = region.sock(SockId(key.1)) else { return };
        if let Some(seq) = slot.pending_request() {
            self.request(key, &region, slot, seq);
        }
        if let Some(Some(peer)) = self.peers.get(&key).copied() {
            self.transfer(key, peer);
            self.transfer(peer, key);
        }
        let peer = self.peers.get(&key).copied().flatten();
        for key in [Some(key), peer].into_iter().flatten() {
            self.check_held(key);
        }
    }

    fn check_held(&mut self, key: Key) {
        let Some(region) = self.region(key) else { return };
        let Some(slot) = region.sock(SockId(key.1)) else { return };
        // In this order: an app sets its holder bit before it makes a free slot its own, and before TAKEN.
        let free = slot.state.load(SeqCst) == SockState::Free as u32;
        let waits = key.1 >= APP_SOCKS as u32 && slot.app_flags.load(SeqCst) & app_flags::TAKEN == 0;
        if !slot.is_held() && !waits && !free {
            self.orphan(key, &region, slot);
        }
    }

    fn request(&mut self, key: Key, region: &Region, slot: &SockSlot, seq: u32) {
        let addr = slot.req_addr.load();
        let mut connect = None;
        let err = match ReqOp::from_word(slot.req_op.load(Relaxed)) {
            Some(ReqOp::Bind) => self.bind(slot, addr),
            Some(ReqOp::Listen) => {
                slot.state.store(SockState::Listening as u32, Release);
                None
            }
            Some(ReqOp::Connect) => {
                // A slot that nobody bound may still show the address of an earlier life.
                if slot.state.load(Acquire) == SockState::New as u32 {
                    self.bind(slot, Some(SocketAddr::new(Ipv4Addr::new(127, 77, 0, 1).into(), 0)));
                }
                slot.remote.store(addr);
                slot.state.store(SockState::Connecting as u32, Release);
                connect = addr;
                None
            }
            None => Some(Errno::INVAL),
        };
        slot.answer_request(seq, err.map_or(0, Errno::raw_os_error));
        notify::all(region, SockId(key.1), slot, &Futexes);
        if let Some(addr) = connect {
            self.connect(key, region, slot, addr);
        }
    }

    fn bind(&mut self, slot: &SockSlot, addr: Option<SocketAddr>) -> Option<Errno> {
        let mut addr = addr?;
        if addr.port() == 0 {
            self.next_port += 1;
            addr.set_port(self.next_port);
        }
        if self.listener_at(addr).is_some() {
            return Some(Errno::ADDRINUSE);
        }
        slot.local.store(Some(addr));
        slot.state.store(SockState::Bound as u32, Release);
        None
    }

    fn listener_at(&self, addr: SocketAddr) -> Option<Key> {
        let matches = |a: SocketAddr| a.port() == addr.port() && (a.ip() == addr.ip() || a.ip().is_unspecified());
        self.regions.iter().find_map(|(&r, served)| {
            let socks = &served.region.layout().socks;
            let used = served.region.layout().sock_pool.fresh.load(Relaxed) as usize;
            (0..used.min(APP_SOCKS))
                .find(|&i| {
                    socks[i].state.load(Acquire) == SockState::Listening as u32
                        && socks[i].local.load().is_some_and(matches)
                })
                .map(|i| (r, i as u32))
        })
    }

    fn connect(&mut self, key: Key, region: &Region, slot: &SockSlot, addr: SocketAddr) {
        let bound = slot.local.load();
        // Bound to a port only: the address is chosen now, before the listener is told.
        if let Some(port) = bound.filter(|a| a.ip().is_unspecified()).map(|a| a.port()) {
            slot.local.store(Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 77, 0, 1)), port)));
        }
        let accepted = self.listener_at(addr).and_then(|l| self.accepted(l, slot, addr));
        match accepted {
            None => {
                slot.local.store(bound);
                slot.error.store(Errno::CONNREFUSED.raw_os_error() as u32, Relaxed);
                slot.state.store(SockState::Closed as u32, Release);
            }
            Some(peer) => {
                self.peers.insert(key, Some(peer));
                self.peers.insert(peer, Some(key));
                slot.state.store(SockState::Established as u32, Release);
            }
        }
        notify::all(region, SockId(key.1), slot, &Futexes);
    }

    fn accepted(&mut self, listener: Key, from: &SockSlot, addr: SocketAddr) -> Option<Key> {
        let served = self.regions.get_mut(&listener.0)?;
        let region = served.region.clone();
        let parent = region.sock(SockId(listener.1))?;
        let ring = region.layout().rings.get(parent.accept_ring.load(Relaxed) as usize)?;
        let tail = ring.tail.load(Relaxed);
        if tail.wrapping_sub(ring.head.load(Acquire)) >= parent.req_arg.load(Relaxed).max(1) {
            return None;
        }
        let id = served.socks.pop().unwrap_or_else(|| {
            served.next_sock += 1;
            served.next_sock - 1
        });
        let slot = region.sock(SockId(id))?;
        slot.parent.store(listener.1, Relaxed);
        slot.local.store(Some(addr));
        slot.remote.store(from.local.load());
        slot.tx_limit.store(256 * 1024, Relaxed);
        slot.rx_limit.store(256 * 1024, Relaxed);
        slot.state.store(SockState::Established as u32, Release);
        ring.entry[tail as usize % ACCEPT_RING].store(id, Relaxed);
        ring.tail.store(tail.wrapping_add(1), Release);
        notify::readable(&region, SockId(listener.1), parent, &Futexes);
        Some((listener.0, id))
    }

    /// Moves bytes from `from`'s TX stream to `to`'s RX stream.
    fn transfer(&mut self, from: Key, to: Key) {
        let (Some(fr), Some(tr)) = (self.region(from), self.region(to)) else { return };
        let (Some(f), Some(t)) = (fr.sock(SockId(from.1)), tr.sock(SockId(to.1))) else { return };
        self.free_read_chunks(to, &tr, t);
        let mut moved = false;
        loop {
            let (head, tail) = (f.tx_head.load(Relaxed), f.tx_tail.load(Acquire));
            let at = t.rx_tail.load(Relaxed);
            let unread = at - t.rx_head.load(Acquire);
            let room = u64::from(t.rx_limit.load(Relaxed)).saturating_sub(unread);
            let n = (tail - head).min(room).min(left_in_chunk(head)).min(left_in_chunk(at));
            if n == 0 {
                break;
            }
            moved = true;
            self.copy(&fr, from, head, &tr, to, at, n as usize);
            t.rx_tail.store(at + n, Release);
            f.tx_sent.store(head + n, Relaxed);
            f.tx_head.store(head + n, Release);
            if (head + n) % CHUNK_SIZE as u64 == 0 {
                fr.layout().tx_pool.push(fr.layout().tx_table[from.1 as usize][table_index(head)].load(Relaxed));
            }
        }
        let done = f.tx_head.load(Relaxed) == f.tx_tail.load(Acquire);
        let fin = f.app_flags.load(SeqCst) & app_flags::SHUT_WR != 0 && done;
        let fin = fin && t.daemon_flags.fetch_or(daemon_flags::RX_FIN, SeqCst) & daemon_flags::RX_FIN == 0;
        if moved || fin {
            notify::readable(&tr, SockId(to.1), t, &Futexes);
        }
        let used = f.tx_tail.load(Relaxed) - f.tx_head.load(Relaxed);
        if moved && used * 3 <= u64::from(f.tx_limit.load(Relaxed)) * 2 {
            notify::writable(&fr, SockId(from.1), f, &Futexes);
        }
        let both = daemon_flags::RX_FIN | daemon_flags::TX_FIN_ACKED;
        if fin
            && f.daemon_flags.fetch_or(daemon_flags::TX_FIN_ACKED, SeqCst) | daemon_flags::TX_FIN_ACKED & both == both
            && t.daemon_flags.load(SeqCst) & both == both
        {
            for (r, k, s) in [(&fr, from, f), (&tr, to, t)] {
                s.state.store(SockState::Closed as u32, Release);
                notify::all(r, SockId(k.1), s, &Futexes);
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn copy(&mut self, fr: &Region, from: Key, head: u64, tr: &Region, to: Key, at: u64, n: usize) {
        let entry = &tr.layout().rx_table[to.1 as usize][table_index(at)];
        if at.is_multiple_of(CHUNK_SIZE as u64) {
            let served = self.regions.get_mut(&to.0).expect("served");
            let chunk = served.chunks.pop().unwrap_or_else(|| {
                served.next_chunk += 1;
                served.next_chunk - 1
            });
            entry.store(chunk, Relaxed);
        }
        let src = fr.tx_chunk(fr.layout().tx_table[from.1 as usize][table_index(head)].load(Relaxed)).expect("a chunk");
        let dst = tr.rx_chunk(entry.load(Relaxed)).expect("a chunk");
        // SAFETY: `n` reaches the end of neither chunk; the app writes neither range now.
        unsafe {
            let src = src.as_ptr().add((head % CHUNK_SIZE as u64) as usize);
            core::ptr::copy_nonoverlapping(src, dst.as_ptr().add((at % CHUNK_SIZE as u64) as usize), n);
        }
    }

    fn free_read_chunks(&mut self, key: Key, region: &Region, slot: &SockSlot) {
        let upto = slot.rx_head.load(Acquire) / CHUNK_SIZE as u64;
        let from = self.freed.insert(key, upto).unwrap_or(0);
        let served = self.regions.get_mut(&key.0).expect("served");
        for c in from..upto {
            served.chunks.push(region.layout().rx_table[key.1 as usize][c as usize % STREAM_CHUNKS].load(Relaxed));
        }
    }

    /// Nobody holds the socket: FIN after what was written, RST if something was left unread (RFC 2525 §2.17).
    fn orphan(&mut self, key: Key, region: &Region, slot: &SockSlot) {
        let unread = slot.rx_tail.load(Acquire) > slot.rx_head.load(Acquire);
        let reset = unread || slot.app_flags.load(SeqCst) & app_flags::LINGER_RST != 0;
        let peer = self.peers.get(&key).copied().flatten();
        if let (Some(peer), false) = (peer, reset) {
            slot.app_flags.fetch_or(app_flags::SHUT_WR, SeqCst);
            self.transfer(key, peer);
            if slot.tx_head.load(Relaxed) != slot.tx_tail.load(Acquire) {
                return;
            }
            // The other end goes on half-closed; what it still writes is answered with RST.
            if slot.daemon_flags.load(SeqCst) & daemon_flags::RX_FIN == 0 {
                let other = self.region(peer).map(|r| r.layout().socks[peer.1 as usize].tx_tail.load(Acquire));
                if other.is_some_and(|t| t == slot.rx_tail.load(Acquire)) {
                    return;
                }
                self.reset_peer(peer);
            }
        } else if let Some(peer) = peer {
            self.reset_peer(peer);
        }
        self.abort_listener(key, region, slot);
        self.peers.remove(&key);
        if let Some(peer) = peer.filter(|p| self.peers.contains_key(p)) {
            self.peers.insert(peer, None);
        }
        self.recycle(key, region, slot);
    }

    fn reset_peer(&self, peer: Key) {
        let Some(region) = self.region(peer) else { return };
        let slot = &region.layout().socks[peer.1 as usize];
        slot.error.store(Errno::CONNRESET.raw_os_error() as u32, SeqCst);
        slot.daemon_flags.fetch_or(daemon_flags::RESET, SeqCst);
        slot.state.store(SockState::Closed as u32, Release);
        notify::all(&region, SockId(peer.1), slot, &Futexes);
    }

    /// A listener's connections that nobody took.
    fn abort_listener(&mut self, key: Key, region: &Region, slot: &SockSlot) {
        if slot.state.load(Acquire) != SockState::Listening as u32 {
            return;
        }
        let index = slot.accept_ring.load(Relaxed);
        let ring = &region.layout().rings[index as usize];
        let (head, tail) = (ring.head.load(Acquire), ring.tail.load(Acquire));
        for i in 0..tail.wrapping_sub(head) {
            let id = ring.entry[head.wrapping_add(i) as usize % ACCEPT_RING].load(Relaxed);
            self.abort((key.0, id));
        }
        region.layout().ring_pool.push(index);
    }

    pub(super) fn abort(&mut self, key: Key) {
        if let Some(Some(peer)) = self.peers.remove(&key) {
            self.reset_peer(peer);
            self.peers.insert(peer, None);
        }
    }

    fn recycle(&mut self, key: Key, region: &Region, slot: &SockSlot) {
        let first = slot.tx_head.load(Relaxed) / CHUNK_SIZE as u64;
        for c in first..slot.tx_tail.load(Acquire).div_ceil(CHUNK_SIZE as u64) {
            region
                .layout()
                .tx_pool
                .push(region.layout().tx_table[key.1 as usize][c as usize % STREAM_CHUNKS].load(Relaxed));
        }
        let first = self.freed.remove(&key).unwrap_or(0);
        let served = self.regions.get_mut(&key.0).expect("served");
        for c in first..slot.rx_tail.load(Relaxed).div_ceil(CHUNK_SIZE as u64) {
            served.chunks.push(region.layout().rx_table[key.1 as usize][c as usize % STREAM_CHUNKS].load(Relaxed));
        }
        for w in [&slot.rx_tail, &slot.tx_head, &slot.tx_sent, &slot.rx_head, &slot.tx_tail, &slot.cookie] {
            w.store(0, Relaxed);
        }
        for w in [&slot.error, &slot.daemon_flags, &slot.app_flags, &slot.rcv_timeo_ms, &slot.snd_timeo_ms] {
            w.store(0, Relaxed);
        }
        slot.sets.iter().for_each(|w| w.store(0, Relaxed));
        slot.local.store(None);
        slot.remote.store(None);
        slot.generation.fetch_add(1, Relaxed);
        slot.state.store(SockState::Free as u32, Release);
        if key.1 < APP_SOCKS as u32 {
            region.layout().sock_pool.push(key.1);
        } else {
            self.regions.get_mut(&key.0).expect("served").socks.push(key.1);
        }
    }
}

fn left_in_chunk(at: u64) -> u64 {
    CHUNK_SIZE as u64 - at % CHUNK_SIZE as u64
}

fn table_index(at: u64) -> usize {
    (at / CHUNK_SIZE as u64) as usize % STREAM_CHUNKS
}
