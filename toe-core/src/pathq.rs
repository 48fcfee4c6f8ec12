//! `pathq`: bounded queues between daemon threads, with a wake-up for a sleeping receiver. Nothing sent is lost: what does
//! not fit waits at the sender, except for messages sent with [`Sender::offer`].

use crossbeam_queue::ArrayQueue;
use std::collections::VecDeque;
use std::sync::Arc;

/// Wakes one daemon thread if it sleeps. Cheap if it does not.
pub trait Wake: Send + Sync {
    /// Called after each batch of messages.
    fn wake(&self);
}

impl<F: Fn() + Send + Sync> Wake for F {
    fn wake(&self) {
        self();
    }
}

/// The sending end.
pub struct Sender<T> {
    queue: Arc<ArrayQueue<T>>,
    backlog: VecDeque<T>,
    wake: Arc<dyn Wake>,
    dirty: bool,
}

/// The receiving end.
pub struct Receiver<T>(Arc<ArrayQueue<T>>);

/// A queue of `capacity` messages (several senders: [`Sender::another`]).
pub fn channel<T>(capacity: usize, wake: Arc<dyn Wake>) -> (Sender<T>, Receiver<T>) {
    let queue = Arc::new(ArrayQueue::new(capacity));
    (Sender { queue: queue.clone(), backlog: VecDeque::new(), wake, dirty: false }, Receiver(queue))
}

impl<T> Sender<T> {
    /// One more sender for the same receiver.
    pub fn another(&self) -> Sender<T> {
        Sender { queue: self.queue.clone(), backlog: VecDeque::new(), wake: self.wake.clone(), dirty: false }
    }

    /// Sends; never loses, keeps order.
    pub fn send(&mut self, message: T) {
        self.dirty = true;
        if self.backlog.is_empty() {
            if let Err(message) = self.queue.push(message) {
                self.backlog.push_back(message);
            }
        } else {
            self.backlog.push_back(message);
        }
    }

    /// Sends if there is room at once; gives the message back otherwise.
    pub fn offer(&mut self, message: T) -> Result<(), T> {
        if !self.backlog.is_empty() {
            return Err(message);
        }
        self.queue.push(message)?;
        self.dirty = true;
        Ok(())
    }

    /// End of a poll round: moves the backlog, wakes the receiver if anything was sent. `false`: a backlog is left, poll
    /// again soon.
    pub fn flush(&mut self) -> bool {
        while let Some(message) = self.backlog.pop_front() {
            if let Err(message) = self.queue.push(message) {
                self.backlog.push_front(message);
                break;
            }
        }
        if core::mem::take(&mut self.dirty) {
            self.wake.wake();
        }
        self.dirty = !self.backlog.is_empty();
        self.backlog.is_empty()
    }
}

impl<T> Receiver<T> {
    /// Next message.
    #[inline]
    pub fn recv(&self) -> Option<T> {
        self.0.pop()
    }

    /// Nothing to receive?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a poll round tells the thread that runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Something was done: poll again at once.
    pub busy: bool,
    /// The next timer.
    pub next: Option<crate::time::Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn overflow_waits_and_keeps_order() {
        let wakes = Arc::new(AtomicU32::new(0));
        let w = wakes.clone();
        let (mut tx, rx) = channel(
            2,
            Arc::new(move || {
                w.fetch_add(1, Relaxed);
            }),
        );
        for i in 0..5 {
            tx.send(i);
        }
        assert_eq!(tx.offer(9), Err(9));
        let mut got = vec![];
        while !tx.flush() {
            got.extend(std::iter::from_fn(|| rx.recv()));
        }
        got.extend(std::iter::from_fn(|| rx.recv()));
        assert_eq!(got, [0, 1, 2, 3, 4]);
        assert!(wakes.load(Relaxed) >= 2);
    }
}
