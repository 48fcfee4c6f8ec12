//! The raw rate of the link: frames of 64 KiB from one PCIeLINK end to the other, no TCP, out of memory that is not in a
//! first-level cache and into such memory: what the two DMA steps cost without anything else.

use nic_backend::PcieLinkConfig;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};
use toe_core::Instant;
use toe_core::nic::{Nic, TxError, TxMeta};

/// Ethernet, IPv4 and TCP headers, by length only: the link does not look inside.
const HEADER: usize = 14 + 40;
/// Four pieces as out of four chunks; with the header it fits the link's largest frame.
const PIECE: usize = 16_368;
const FRAME: usize = 4 * PIECE;
/// Frames that source and destination hold, as a socket's buffers do.
const FRAMES: usize = 32;

/// Gb/s of payload over `span`, between two ends in this process that meet at `socket`.
pub fn rate(socket: &Path, span: Duration) -> Result<f64, String> {
    let open = || {
        let mut queues = nic_backend::pcielink::open(PcieLinkConfig::new(socket)).map_err(|e| e.to_string())?;
        queues.pop().ok_or_else(|| "no queue".to_string())
    };
    let (mut tx, mut rx) = (open()?, open()?);
    let start = Clock::now();
    let now = || Instant(start.elapsed().as_nanos() as u64);
    while !(tx.is_up() && rx.is_up()) {
        tx.poll(now());
        rx.poll(now());
        if start.elapsed() > Duration::from_secs(10) {
            return Err("the link does not come up".into());
        }
        std::thread::yield_now();
    }
    pump(tx.as_mut(), rx.as_mut(), span, &now)
}

/// One thread sends, one receives, as two daemons' cores do.
fn pump(tx: &mut dyn Nic, rx: &mut dyn Nic, span: Duration, now: &(dyn Fn() -> Instant + Sync)) -> Result<f64, String> {
    let stop = AtomicBool::new(false);
    let begin = Clock::now();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut frames, mut bad) = (0usize, 0u64);
            let mut memory = vec![0; FRAMES * FRAME];
            while !stop.load(Ordering::Relaxed) {
                rx.poll(now());
                let got = rx.recv(32, &mut |frame, _| match frame.get(HEADER..) {
                    Some(payload) if payload.len() == FRAME && payload[FRAME - 1] == 0xa5 => {
                        memory[frames % FRAMES * FRAME..][..FRAME].copy_from_slice(payload);
                        frames += 1;
                    }
                    _ => bad += 1,
                });
                if got == 0 {
                    std::thread::yield_now();
                }
            }
            ((frames * FRAME) as u64, bad)
        });
        let sent = send(tx, span, now);
        let seconds = begin.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        let (bytes, bad) = receiver.join().map_err(|_| "the receiver panicked")?;
        sent?;
        match bad {
            0 if bytes > 0 => Ok(bytes as f64 * 8.0 / seconds / 1e9),
            _ => Err(format!("{bytes} bytes arrived, {bad} frames were wrong")),
        }
    })
}

fn send(tx: &mut dyn Nic, span: Duration, now: &dyn Fn() -> Instant) -> Result<(), String> {
    let header = [0x02; HEADER];
    let memory = vec![0xa5; FRAMES * FRAME];
    let mut frames = memory.chunks(FRAME).cycle();
    let begin = Clock::now();
    while begin.elapsed() < span {
        tx.poll(now());
        let mut burst = 0;
        while burst < 8 {
            let frame = frames.clone().next().unwrap_or_default();
            let (a, b) = frame.split_at(2 * PIECE);
            let ((a, b), (c, d)) = (a.split_at(PIECE), b.split_at(PIECE));
            match tx.send(&header, &[a, b, c, d], TxMeta::default()) {
                Ok(()) => {
                    frames.next();
                    burst += 1;
                }
                Err(TxError::Full) => break,
                Err(e) => return Err(e.to_string()),
            }
        }
        tx.flush();
        if burst == 0 {
            std::thread::yield_now();
        }
    }
    Ok(())
}
