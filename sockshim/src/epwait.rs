//! `epoll_wait` on sets with engine sockets in them; what the sets are is in `epset.rs`.

use crate::epqueue::{EpSet, Item, LOCK, WANTED, ep_of, item, list};
use crate::epset::{DEATH, TAG, refresh_nested, rest};
use crate::sys::{check, sys};
use crate::table::Tables;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use libc::{EPOLL_CTL_DEL, EPOLLET, EPOLLONESHOT, epoll_event};
use rustix::io::Errno;
use toe_core::app::wait::now_ns;

/// Events found so far, and the data of those hybrid listeners among them (the kernel may report the same ones).
struct Found<'a> {
    out: &'a mut [epoll_event],
    count: usize,
    hybrids: [u64; 8],
    hybrid_count: usize,
}

impl Found<'_> {
    fn add(&mut self, events: u32, i: &Item) {
        let data = i.data.load(Relaxed);
        self.out[self.count] = epoll_event { events, u64: data };
        self.count += 1;
        if i.hybrid.load(Relaxed) != 0 && self.hybrid_count < self.hybrids.len() {
            self.hybrids[self.hybrid_count] = data;
            self.hybrid_count += 1;
        }
    }
}

/// Looks at every queued item.
fn collect(t: &'static Tables, number: usize, found: &mut Found<'_>) {
    let ep = ep_of(t, number);
    let _locked = LOCK.lock();
    for (n, link, set) in ep.each_set() {
        let queue_all = |sock: u32| {
            let Some((_, local)) = t.local_of(n, sock) else { return };
            for (k, i) in list(t, &local.items).filter(|(_, i)| i.ep.load(Relaxed) as usize == number) {
                ep.queue(t, k, i);
            }
        };
        set.drain(queue_all);
        if link.dead() && ep.mourned.fetch_or(1 << n, Relaxed) & 1 << n == 0 {
            sys!(SYS_epoll_ctl, ep.epfd.load(Relaxed), EPOLL_CTL_DEL, link.control_fd(), 0);
            t.open_socks(n, link).for_each(|s| queue_all(s.id.0));
        }
    }
    let last = ep.last_ready.load(Relaxed);
    while found.count < found.out.len() {
        let Some((n, i)) = ep.dequeue(t) else { break };
        if i.is_relayed(t) {
            crate::epset::hand_to_kernel(t, n, i);
            if n == last {
                break;
            }
            continue;
        }
        let events = i.events.load(Relaxed);
        let level = i.level(t);
        if level != 0 {
            found.add(level, i);
            if events & EPOLLONESHOT as u32 != 0 {
                i.events.store(events & !WANTED, Relaxed);
            } else if events & EPOLLET as u32 == 0 {
                ep.queue(t, n, i);
            }
        }
        if n == last {
            break;
        }
    }
    if found.count > 0 && item(t, ep.first_ready.load(Relaxed)).is_some() && ep.sleepers.load(Acquire) > 0 {
        ep.wake_sleepers();
    }
}

/// What the kernel's wait brought.
struct Kernel {
    /// Events of the program's own descriptors, now among those found.
    events: usize,
    /// Our eventfds or control connections were among them.
    ours: bool,
}

/// Takes our own entries out of what the kernel reported, and merges what both sides report of a hybrid.
fn filter(found: &mut Found<'_>, got: usize) -> Kernel {
    let start = found.count;
    let mut kernel = Kernel { events: 0, ours: false };
    for k in start..start + got {
        let ev = found.out[k];
        let (events, data) = (ev.events, ev.u64);
        if data & !(DEATH | 0xff) == TAG {
            kernel.ours = true;
            if data & DEATH != 0
                && let Some(link) = crate::ctx::link((data & 0xff) as usize)
            {
                link.cut_off();
            }
            continue;
        }
        if found.hybrids[..found.hybrid_count].contains(&data)
            && let Some(same) = found.out[..start].iter_mut().find(|o| o.u64 == data)
        {
            same.events |= events;
            continue;
        }
        found.out[start + kernel.events] = ev;
        kernel.events += 1;
    }
    found.count += kernel.events;
    kernel
}

/// Takes our own entries out of `got`; how many events are left, at its start.
pub fn without_ours(got: &mut [epoll_event]) -> usize {
    let n = got.len();
    let mut found = Found { out: got, count: 0, hybrids: [0; 8], hybrid_count: 0 };
    filter(&mut found, n).events
}

/// How long and under which signal mask to wait.
pub struct Wait {
    /// `CLOCK_MONOTONIC` nanoseconds; `None`: for ever; 0: not at all.
    pub deadline: Option<u64>,
    /// The program's sigset, or null.
    pub mask: *const libc::c_void,
}

/// `epoll_wait` on set `number`, whose real descriptor is `epfd`.
pub fn wait(t: &'static Tables, number: usize, epfd: i32, out: &mut [epoll_event], w: &Wait) -> Result<usize, Errno> {
    let mut found = Found { out, count: 0, hybrids: [0; 8], hybrid_count: 0 };
    let result = wait_loop(t, number, epfd, &mut found, w);
    let ep = ep_of(t, number);
    if ep.nested.load(Relaxed) != 0 || ep.sleepers.load(Acquire) != 0 {
        let _locked = LOCK.lock();
        rest(t, ep);
    }
    result.map(|()| found.count)
}

/// The kernel's own descriptors are asked at least every this many waits that found engine events.
const KERNEL_TURN: u32 = 4;

fn wait_loop(t: &'static Tables, number: usize, epfd: i32, found: &mut Found<'_>, w: &Wait) -> Result<(), Errno> {
    let ep = ep_of(t, number);
    refresh_nested();
    let start = now_ns();
    let kernels_turn = ep.turn.fetch_add(1, Relaxed).is_multiple_of(KERNEL_TURN);
    if kernels_turn && found.out.len() == 1 && peek_kernel(ep, epfd, found)?.events > 0 {
        return Ok(());
    }
    loop {
        collect(t, number, found);
        if found.count > 0 {
            if kernels_turn && found.count < found.out.len() {
                let _ = peek_kernel(ep, epfd, found);
            }
            return Ok(());
        }
        if w.deadline.is_some_and(|d| d <= now_ns()) {
            if peek_kernel(ep, epfd, found)?.ours {
                collect(t, number, found);
            }
            return Ok(());
        }
        if spin(ep, epfd, found, start)? {
            if found.count > 0 {
                return Ok(());
            }
            continue;
        }
        sleep(ep, epfd, found, w)?;
        let slept = now_ns().saturating_sub(start);
        ep.each_set().for_each(|(_, link, _)| link.spin.waited(slept));
        if found.count > 0 {
            collect(t, number, found);
            return Ok(());
        }
    }
}

/// Takes what the kernel has, without waiting.
fn peek_kernel(ep: &EpSet, epfd: i32, found: &mut Found<'_>) -> Result<Kernel, Errno> {
    let got = raw_wait(epfd, found, Some(0), core::ptr::null())?;
    let kernel = filter(found, got);
    if kernel.ours {
        ep.each_set().for_each(|(_, _, set)| set.clear());
        if ep.sleepers.load(Acquire) > 0 {
            crate::cancel::pass_on(|| ep.each_set().for_each(|(_, _, set)| set.poke()));
        }
    }
    Ok(kernel)
}

/// Arms all event sets and sleeps in the real epoll.
fn sleep(ep: &EpSet, epfd: i32, found: &mut Found<'_>, w: &Wait) -> Result<(), Errno> {
    ep.sleepers.fetch_add(1, Relaxed);
    let mut quiet = true;
    for (n, link, set) in ep.each_set() {
        quiet &= set.arm();
        quiet &= !link.dead() || ep.mourned.load(Relaxed) & 1 << n != 0;
    }
    // What another thread left in the queue is for us.
    quiet &= ep.first_ready.load(Acquire) == 0;
    let got = match quiet {
        true if crate::cancel::due() => Err(Errno::INTR),
        true => raw_wait(epfd, found, w.deadline, w.mask),
        false => Ok(0),
    };
    let alone = ep.sleepers.fetch_sub(1, Relaxed) == 1;
    let kernel = got.map(|got| filter(found, got));
    for (_, _, set) in ep.each_set() {
        // Others go on sleeping on the same request; `rest` renews it.
        if alone {
            set.disarm();
        }
        if kernel.as_ref().is_ok_and(|k| k.ours) {
            set.clear();
            if !alone && found.count == 0 {
                crate::cancel::pass_on(|| set.poke());
            }
        }
    }
    kernel.map(|_| ())
}

/// Spins for the budget of the first link. `true`: there is news, or kernel events were found.
fn spin(ep: &EpSet, epfd: i32, found: &mut Found<'_>, start: u64) -> Result<bool, Errno> {
    let budget = ep.each_set().next().map_or(0, |(_, l, _)| l.spin.budget_ns());
    let news = || ep.each_set().any(|(_, _, set)| set.news());
    let mut round = 0u32;
    while now_ns().saturating_sub(start) < budget {
        if news() {
            return Ok(true);
        }
        round += 1;
        if round.is_multiple_of(8) && peek_kernel(ep, epfd, found)?.events > 0 {
            return Ok(true);
        }
        sys!(SYS_sched_yield);
    }
    Ok(news())
}

/// The kernel's wait, into the free part of `found`.
fn raw_wait(
    epfd: i32,
    found: &mut Found<'_>,
    deadline: Option<u64>,
    mask: *const libc::c_void,
) -> Result<usize, Errno> {
    let free = &mut found.out[found.count..];
    let left = deadline.map(|d| d.saturating_sub(now_ns()));
    let ts = left.map(|ns| [(ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64]);
    let tsp = ts.as_ref().map_or(core::ptr::null(), |t| t.as_ptr());
    if left == Some(0) {
        return check(sys!(SYS_epoll_pwait, epfd, free.as_mut_ptr(), free.len(), 0, mask, 8));
    }
    match check(sys!(SYS_epoll_pwait2, epfd, free.as_mut_ptr(), free.len(), tsp, mask, 8)) {
        Err(Errno::NOSYS) => {
            let ms = left.map_or(-1, |ns| ns.div_ceil(1_000_000).min(i32::MAX as u64) as isize);
            check(sys!(SYS_epoll_pwait, epfd, free.as_mut_ptr(), free.len(), ms, mask, 8))
        }
        other => other,
    }
}
