//! Calls that block, and how they end when the peer, or the stack below, goes away. Each prints what it is about to do, so
//! that a test knows when to act.

use crate::args::Args;
use crate::proto::{Hello, Job};
use crate::report::{Line, errno};
use crate::sys::{self, POLLIN, PollFd};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// `toe-peer reset`: one byte more than the server reads, then a read.
pub fn reset(args: &Args) -> Result<String, String> {
    let mut s = greet(args.connect()?, Job::Reset).map_err(|e| errno(&e))?;
    s.write_all(&[0]).map_err(|e| errno(&e))?;
    println!("reading");
    Ok(Line::new("reset").text("read", &outcome(s.read(&mut [0; 16]))).end())
}

/// `toe-peer hold`: a read that nothing but the end of the connection ends.
pub fn hold(args: &Args) -> Result<String, String> {
    let mut s = greet(args.connect()?, Job::Hold).map_err(|e| errno(&e))?;
    println!("reading");
    Ok(Line::new("hold").text("read", &outcome(s.read(&mut [0; 16]))).end())
}

/// `toe-peer block`: a thread in each kind of wait. Prints a line when each ends, and a last one.
pub fn all(args: &Args) -> Result<String, String> {
    let (peer, mine) = (args.connect()?, args.listen()?);
    let told = |e: io::Error| errno(&e);
    let (tx, rx) = mpsc::channel();
    let mut reader = greet(peer, Job::Deaf).map_err(told)?;
    let mut writer = greet(peer, Job::Deaf).map_err(told)?;
    let polled = greet(peer, Job::Deaf).map_err(told)?;
    let listener = sys::listener(mine, false).map_err(told)?;
    start(&tx, "read", move || outcome(reader.read(&mut [0; 16])));
    start(&tx, "write", move || {
        let block = vec![0; 1 << 16];
        loop {
            if let Err(e) = writer.write(&block) {
                return errno(&e);
            }
        }
    });
    start(&tx, "accept", move || outcome(listener.accept().map(|_| 1)));
    start(&tx, "poll", move || {
        let mut fds = [PollFd { fd: polled.as_raw_fd(), events: POLLIN, revents: 0 }];
        let polled = sys::poll(&mut fds, -1);
        format!("{} revents {:#x}", outcome(polled), fds[0].revents)
    });
    drop(tx);
    println!("blocked");
    let mut line = Line::new("block");
    for (what, how) in rx {
        println!("ended {what}: {how}");
        line = line.text(what, &how);
    }
    Ok(line.end())
}

/// `toe-peer probe`: connects until somebody accepts.
pub fn probe(args: &Args) -> Result<String, String> {
    let addr = args.connect()?;
    let start = Instant::now();
    let limit = args.time.unwrap_or(Duration::from_secs(10));
    let mut tries = 0u64;
    loop {
        tries += 1;
        match sys::connection(addr, false) {
            Ok(_) => return Ok(Line::new("probe").num("tries", tries).end()),
            Err(e) if start.elapsed() >= limit => return Err(format!("{addr}: {}", errno(&e))),
            // Polling a condition of another process, which no event tells.
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn start(tx: &Sender<(&'static str, String)>, what: &'static str, wait: impl FnOnce() -> String + Send + 'static) {
    let tx = tx.clone();
    thread::spawn(move || {
        let how = wait();
        let _ = tx.send((what, how));
    });
}

fn greet(addr: SocketAddr, job: Job) -> io::Result<TcpStream> {
    let mut s = sys::connection(addr, false)?;
    s.write_all(&Hello::plain(job).encode())?;
    Ok(s)
}

fn outcome(result: io::Result<usize>) -> String {
    match result {
        Ok(0) => "end".into(),
        Ok(n) => format!("ok {n}"),
        Err(e) => errno(&e),
    }
}
