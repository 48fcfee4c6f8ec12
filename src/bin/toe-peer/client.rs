//! Clients with threads: streams both ways, and messages there and back.

use crate::args::Args;
use crate::data::{Data, Hash};
use crate::histogram::Histogram;
use crate::proto::{Hello, Job, UNTIL_EOF, VERDICT, Verdict};
use crate::report::{Line, errno};
use crate::sys;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

const STACK: usize = 256 << 10;
/// Round trips that are not measured.
const WARM_UP: u64 = 50;

/// What a stream moved, or the sum over several.
#[derive(Clone, Copy, Default)]
pub struct Moved {
    pub up: Hash,
    pub down: Hash,
}

impl Moved {
    pub fn add(&mut self, other: Moved) {
        for (a, b) in [(&mut self.up, other.up), (&mut self.down, other.down)] {
            a.count += b.count;
            a.sum = a.sum.wrapping_add(b.sum);
        }
    }
}

/// The hello of connection `index`. The bytes asked for are for all connections together.
pub fn stream_hello(args: &Args, index: u32) -> Hello {
    let share = |all: u64| {
        let n = u64::from(args.connections);
        all / n + u64::from(u64::from(index) < all % n)
    };
    let up = match (args.up, args.time) {
        (Some(up), _) => share(up),
        (None, Some(_)) => UNTIL_EOF,
        (None, None) => 0,
    };
    let (seed, data) = (args.seed, args.data);
    Hello { job: Job::Stream, data, index, msg: 0, seed, up, down: share(args.down) }
}

/// `toe-peer stream`.
pub fn stream(args: &Args) -> Result<String, String> {
    let start = Instant::now();
    let results = on_each(args, |index| stream_one(args, index));
    stream_report(args, start.elapsed(), results)
}

/// One line over all connections; an error if any of them failed.
pub fn stream_report(args: &Args, took: Duration, results: Vec<Result<Moved, String>>) -> Result<String, String> {
    let (mut sum, mut errors) = (Moved::default(), vec![]);
    for r in results {
        match r {
            Ok(m) => sum.add(m),
            Err(e) => errors.push(e),
        }
    }
    errors.truncate(5);
    let line = Line::new("stream")
        .num("connections", args.connections)
        .num("bytes_up", sum.up.count)
        .num("bytes_down", sum.down.count)
        .text("hash_up", &format!("{:016x}", sum.up.sum))
        .text("hash_down", &format!("{:016x}", sum.down.sum))
        .num("seconds", took.as_secs_f64())
        .num("mbit_s", ((sum.up.count + sum.down.count) as f64 * 8.0 / took.as_secs_f64() / 1e6).round())
        .num("verified", errors.is_empty())
        .list("errors", &errors)
        .end();
    if errors.is_empty() { Ok(line) } else { Err(line) }
}

fn stream_one(args: &Args, index: u32) -> Result<Moved, String> {
    let hello = stream_hello(args, index);
    let told = |what: &'static str| move |e: io::Error| format!("connection {index}: {what}: {}", errno(&e));
    let mut stream = open(args).map_err(told("connect"))?;
    let mut writer = stream.try_clone().map_err(told("dup"))?;
    thread::scope(|scope| {
        let sender = spawn(scope, move || send(&mut writer, args, hello)).map_err(told("thread"))?;
        let received = receive(&mut stream, hello, args.buf);
        let up = join(sender).map_err(told("write"))?;
        let (down, verdict) = received?;
        judge(hello, up, down, verdict)
    })
}

/// Do both ends agree?
pub fn judge(hello: Hello, up: Hash, down: Hash, verdict: Verdict) -> Result<Moved, String> {
    if !verdict.good || verdict.hash != up {
        return Err(format!("connection {}: the server got other bytes: {verdict:?}, sent {up:?}", hello.index));
    }
    Ok(Moved { up, down })
}

fn send(stream: &mut TcpStream, args: &Args, hello: Hello) -> io::Result<Hash> {
    let mut data = Data::new(hello.data, hello.seed, hello.index, 0);
    let mut hash = Hash::default();
    stream.write_all(&hello.encode())?;
    let deadline = args.time.map(|t| Instant::now() + t);
    while hash.count < hello.up && deadline.is_none_or(|d| Instant::now() < d) {
        let max = args.buf.min(usize::try_from(hello.up - hash.count).unwrap_or(args.buf));
        let piece = data.at(hash.count, max);
        stream.write_all(piece)?;
        hash.add_kind(hello.data, piece);
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(hash)
}

fn receive(stream: &mut TcpStream, hello: Hello, buf: usize) -> Result<(Hash, Verdict), String> {
    let told = |e: io::Error| format!("connection {}: read: {}", hello.index, errno(&e));
    let mut data = Data::new(hello.data, hello.seed, hello.index, 1);
    let mut hash = Hash::default();
    let mut bytes = vec![0; buf];
    while hash.count < hello.down {
        let max = buf.min(usize::try_from(hello.down - hash.count).unwrap_or(buf));
        let n = stream.read(&mut bytes[..max]).map_err(told)?;
        if n == 0 {
            return Err(format!("connection {}: ends after {} bytes", hello.index, hash.count));
        }
        data.check(hash.count, &bytes[..n]).map_err(|at| format!("connection {}: wrong byte at {at}", hello.index))?;
        hash.add_kind(hello.data, &bytes[..n]);
    }
    let mut raw = [0; VERDICT];
    stream.read_exact(&mut raw).map_err(told)?;
    match stream.read(&mut bytes).map_err(told)? {
        0 => Ok((hash, Verdict::decode(&raw))),
        n => Err(format!("connection {}: {n} bytes after the end", hello.index)),
    }
}

/// `toe-peer ping`.
pub fn ping(args: &Args) -> Result<String, String> {
    let start = Instant::now();
    let mut all = Histogram::new();
    for r in on_each(args, |index| ping_one(args, index)) {
        all.merge(&r?);
    }
    let took = start.elapsed().as_secs_f64();
    let (min, mean, max) = all.summary_us();
    Ok(Line::new("ping")
        .num("connections", args.connections)
        .num("msg", args.msg)
        .num("count", all.count())
        .num("seconds", took)
        .num("per_second", (all.count() as f64 / took).round())
        .num("p50_us", all.quantile_us(0.5))
        .num("p90_us", all.quantile_us(0.9))
        .num("p99_us", all.quantile_us(0.99))
        .num("p999_us", all.quantile_us(0.999))
        .num("min_us", min)
        .num("mean_us", mean)
        .num("max_us", max)
        .num("verified", true)
        .end())
}

fn ping_one(args: &Args, index: u32) -> Result<Histogram, String> {
    let told = |e: io::Error| format!("connection {index}: {}", errno(&e));
    let mut stream = open(args).map_err(told)?;
    let hello = Hello { index, msg: args.msg as u32, ..Hello::plain(Job::Ping) };
    stream.write_all(&hello.encode()).map_err(told)?;
    let mut data = Data::new(args.data, args.seed, index, 0);
    let mut back = vec![0; args.msg];
    let mut histogram = Histogram::new();
    let count = args.count.unwrap_or(if args.time.is_some() { u64::MAX } else { 1000 });
    let start = Instant::now();
    let (mut pos, mut done) = (0, 0);
    while done < count && args.time.is_none_or(|t| start.elapsed() < t) {
        let mut message = data.at(pos, args.msg).to_vec();
        message.resize(args.msg, 0);
        let sent = Instant::now();
        stream.write_all(&message).map_err(told)?;
        stream.read_exact(&mut back).map_err(told)?;
        let nanos = sent.elapsed().as_nanos() as u64;
        if back != message {
            return Err(format!("connection {index}: another message came back"));
        }
        pos += args.msg as u64;
        done += 1;
        if done > WARM_UP.min(count / 2) {
            histogram.record(nanos);
        }
    }
    Ok(histogram)
}

fn open(args: &Args) -> io::Result<TcpStream> {
    let addr = args.connect().map_err(io::Error::other)?;
    let stream = sys::connection(addr, args.cubic)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn on_each<T: Send>(args: &Args, job: impl Fn(u32) -> Result<T, String> + Sync) -> Vec<Result<T, String>> {
    thread::scope(|scope| {
        let job = &job;
        let threads: Vec<_> = (0..args.connections).map(|i| spawn(scope, move || job(i))).collect();
        let joined = threads.into_iter().map(|t| t.map_err(|e| e.to_string()).and_then(join_text));
        joined.collect()
    })
}

fn spawn<'s, T: Send + 's>(
    scope: &'s thread::Scope<'s, '_>,
    job: impl FnOnce() -> T + Send + 's,
) -> io::Result<ScopedJoinHandle<'s, T>> {
    thread::Builder::new().stack_size(STACK).spawn_scoped(scope, job)
}

fn join<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("panicked")))
}

fn join_text<T>(thread: ScopedJoinHandle<'_, Result<T, String>>) -> Result<T, String> {
    thread.join().unwrap_or_else(|_| Err("panicked".into()))
}
