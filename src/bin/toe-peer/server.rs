//! The server: a thread for each connection (or one `poll` loop, see `polled.rs`). Runs until it is killed.

use crate::args::Args;
use crate::data::{Data, Hash};
use crate::proto::{HELLO, Hello, Job, UNTIL_EOF, Verdict};
use crate::{polled, report, sys};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Small: a thousand idle connections are a thousand threads.
const STACK: usize = 256 << 10;

/// Lines read from stdin so far; [`Job::Reset`] waits for one more.
#[derive(Default)]
struct Words {
    count: Mutex<u64>,
    changed: Condvar,
}

/// Listens and serves; prints `listening` once clients may come.
pub fn run(args: &Args) -> Result<String, String> {
    let addr = args.listen()?;
    let listener = sys::listener(addr, args.cubic).map_err(|e| format!("listen on {addr}: {e}"))?;
    println!("listening {}", listener.local_addr().map_err(|e| e.to_string())?);
    if args.poll {
        return polled::run_server(listener, args.peer);
    }
    let words = Arc::new(Words::default());
    let reader = words.clone();
    thread::spawn(move || {
        for _ in io::stdin().lines() {
            *reader.count.lock().unwrap_or_else(|e| e.into_inner()) += 1;
            reader.changed.notify_all();
        }
    });
    loop {
        let stream = match listener.accept() {
            Ok((stream, from)) if is_expected(from, args.peer) => stream,
            Ok(_) => continue,
            Err(e) => return Ok(report::Line::new("serve").text("accept", &report::errno(&e)).end()),
        };
        let words = words.clone();
        let buf = args.buf;
        let spawned = thread::Builder::new().stack_size(STACK).spawn(move || {
            if let Err(e) = serve(stream, buf, &words) {
                eprintln!("toe-peer serve: {}", report::errno(&e));
            }
        });
        spawned.map_err(|e| e.to_string())?;
    }
}

/// A connection from another address took another way than the test meant it to.
pub fn is_expected(from: SocketAddr, peer: Option<IpAddr>) -> bool {
    let expected = peer.is_none_or(|p| p == from.ip());
    if !expected {
        eprintln!("toe-peer serve: a connection from {from}");
    }
    expected
}

fn serve(mut stream: TcpStream, buf: usize, words: &Words) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut raw = [0; HELLO];
    if !read_hello(&mut stream, &mut raw)? {
        return Ok(());
    }
    let hello = Hello::decode(&raw)?;
    match hello.job {
        Job::Stream => serve_stream(stream, hello, buf),
        Job::Ping => echo(&mut stream, hello.msg.max(1) as usize, true),
        Job::Echo => echo(&mut stream, 4096, false),
        Job::Hold => io::copy(&mut stream, &mut io::sink()).map(drop),
        Job::Reset => {
            let mut byte = [0];
            stream.peek(&mut byte)?;
            println!("reset on a word");
            let mut count = words.count.lock().unwrap_or_else(|e| e.into_inner());
            let before = *count;
            while *count == before {
                count = words.changed.wait(count).unwrap_or_else(|e| e.into_inner());
            }
            drop(stream);
            Ok(())
        }
        Job::Deaf => loop {
            thread::park();
        },
    }
}

/// `false`: a probe that said nothing.
fn read_hello(stream: &mut TcpStream, raw: &mut [u8; HELLO]) -> io::Result<bool> {
    let mut have = 0;
    while have < HELLO {
        match stream.read(&mut raw[have..])? {
            0 if have == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => have += n,
        }
    }
    Ok(true)
}

fn serve_stream(mut stream: TcpStream, hello: Hello, buf: usize) -> io::Result<()> {
    let mut writer = stream.try_clone()?;
    let sender = thread::Builder::new().stack_size(STACK).spawn(move || -> io::Result<()> {
        let mut data = Data::new(hello.data, hello.seed, hello.index, 1);
        let mut pos = 0;
        while pos < hello.down {
            let max = buf.min(usize::try_from(hello.down - pos).unwrap_or(buf));
            let piece = data.at(pos, max);
            writer.write_all(piece)?;
            pos += piece.len() as u64;
        }
        Ok(())
    })?;
    let received = receive(&mut stream, hello, buf);
    let sent = sender.join().unwrap_or_else(|_| Err(io::Error::other("sender panicked")));
    let verdict = received?;
    sent?;
    stream.write_all(&verdict.encode())?;
    stream.shutdown(Shutdown::Write)
}

/// Reads to the client's FIN.
fn receive(stream: &mut TcpStream, hello: Hello, buf: usize) -> io::Result<Verdict> {
    let mut data = Data::new(hello.data, hello.seed, hello.index, 0);
    let (mut hash, mut good) = (Hash::default(), true);
    let mut bytes = vec![0; buf];
    loop {
        let n = stream.read(&mut bytes)?;
        if n == 0 {
            break;
        }
        good &= data.check(hash.count, &bytes[..n]).is_ok();
        hash.add_kind(hello.data, &bytes[..n]);
    }
    good &= hello.up == UNTIL_EOF || hello.up == hash.count;
    Ok(Verdict { hash, good })
}

/// Sends back what comes; `whole`: only whole messages of `size`.
fn echo(stream: &mut TcpStream, size: usize, whole: bool) -> io::Result<()> {
    let mut bytes = vec![0; size];
    loop {
        let n = stream.read(&mut bytes)?;
        if n == 0 {
            return Ok(());
        }
        let n = if whole && n < size {
            stream.read_exact(&mut bytes[n..])?;
            size
        } else {
            n
        };
        stream.write_all(&bytes[..n])?;
    }
}
