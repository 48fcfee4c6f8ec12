//! Telling an app that a socket has news: event-set bits and wake-ups, in the order that loses none.
//!
//! The daemon first publishes the news itself (`rx_tail`, `tx_head`, `state`, flags), then calls one of these. The app
//! arms first and checks the news after; `SeqCst` fences between both pairs make at least one side see the other.

use crate::ids::{EvSetId, SockId};
use crate::shm::{Region, SockSlot, app_flags, bits};
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, fence};

/// How sleepers are woken: futex and eventfd live, a recorder in tests.
pub trait Waker: Send + Sync {
    /// Wakes every thread that sleeps in a shared futex on `word`.
    fn futex(&self, word: &AtomicU32);
    /// Makes an event set's eventfd readable.
    fn evset(&self, region: &Region, set: EvSetId);
}

/// A waker for engines without sleepers (virtual time).
pub struct NoWaker;

impl Waker for NoWaker {
    fn futex(&self, _: &AtomicU32) {}
    fn evset(&self, _: &Region, _: EvSetId) {}
}

/// Bytes arrived, EOF, or a connection to accept.
#[inline]
pub fn readable(region: &Region, id: SockId, slot: &SockSlot, waker: &dyn Waker) {
    fence(SeqCst);
    wake_word(&slot.rx_wait, waker);
    mark(region, id, slot, waker);
}

/// Room in the TX stream. Call when a third of the limit is free; quiet unless the app asked (`NOSPACE`) or sleeps.
#[inline]
pub fn writable(region: &Region, id: SockId, slot: &SockSlot, waker: &dyn Waker) {
    fence(SeqCst);
    wake_word(&slot.tx_wait, waker);
    if slot.app_flags.load(SeqCst) & app_flags::NOSPACE != 0 {
        slot.app_flags.fetch_and(!app_flags::NOSPACE, SeqCst);
        mark(region, id, slot, waker);
    }
}

/// State changed, a request was answered, an error is pending: wake everyone.
pub fn all(region: &Region, id: SockId, slot: &SockSlot, waker: &dyn Waker) {
    fence(SeqCst);
    slot.app_flags.fetch_and(!app_flags::NOSPACE, SeqCst);
    wake_word(&slot.rx_wait, waker);
    wake_word(&slot.tx_wait, waker);
    mark(region, id, slot, waker);
}

#[inline]
fn wake_word(word: &AtomicU32, waker: &dyn Waker) {
    if word.load(SeqCst) != 0 && word.swap(0, SeqCst) != 0 {
        waker.futex(word);
    }
}

#[inline]
fn mark(region: &Region, id: SockId, slot: &SockSlot, waker: &dyn Waker) {
    for (word, sets) in slot.sets.iter().enumerate() {
        for bit in bits(sets.load(SeqCst)) {
            let set_id = EvSetId(word as u32 * 64 + bit);
            let Some(set) = region.evset(set_id) else { continue };
            set.ready.set(id.0);
            if set.armed.load(SeqCst) != 0 && set.armed.swap(0, SeqCst) != 0 {
                waker.evset(region, set_id);
            }
        }
    }
}
