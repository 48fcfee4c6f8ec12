//! The same streams with one thread, non-blocking sockets and `poll`: what event-driven programs do.

use crate::args::Args;
use crate::client::{Moved, judge, stream_hello, stream_report};
use crate::data::{Data, Hash};
use crate::proto::{HELLO, Hello, Job, UNTIL_EOF, VERDICT, Verdict};
use crate::report::errno;
use crate::server::is_expected;
use crate::sys::{self, POLLIN, POLLOUT, PollFd};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Instant;

/// Bytes moved by one connection before others get their turn.
const TURN: usize = 256 << 10;

/// One direction out: `prefix`, then data up to `end`, then (server) the verdict, then FIN.
struct Out {
    pending: Vec<u8>,
    data: Data,
    hash: Hash,
    end: u64,
    fin_sent: bool,
}

/// One direction in.
struct In {
    data: Data,
    hash: Hash,
    /// Bytes of data, then the verdict; `UNTIL_EOF`: all until FIN is data.
    end: u64,
    verdict: Vec<u8>,
    good: bool,
    eof: bool,
}

struct Conn {
    stream: TcpStream,
    hello: Hello,
    out: Out,
    inn: In,
    server: bool,
}

impl Conn {
    fn new(stream: TcpStream, hello: Hello, server: bool) -> io::Result<Conn> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let (mine, theirs) = (u8::from(server), u8::from(!server));
        let data = |dir| Data::new(hello.data, hello.seed, hello.index, dir);
        let pending = if server { vec![] } else { hello.encode().to_vec() };
        let out_end = if server { hello.down } else { hello.up };
        let in_end = if server { UNTIL_EOF } else { hello.down };
        Ok(Conn {
            stream,
            hello,
            server,
            out: Out { pending, data: data(mine), hash: Hash::default(), end: out_end, fin_sent: false },
            inn: In { data: data(theirs), hash: Hash::default(), end: in_end, verdict: vec![], good: true, eof: false },
        })
    }

    fn done(&self) -> bool {
        self.inn.eof && self.out.fin_sent
    }

    fn events(&self) -> i16 {
        let wants_out = !self.out.fin_sent && (self.out_ready() || !self.out.pending.is_empty());
        (if self.inn.eof { 0 } else { POLLIN }) | (if wants_out { POLLOUT } else { 0 })
    }

    /// Something to write, or FIN is due. A server's FIN waits for the client's.
    fn out_ready(&self) -> bool {
        self.out.hash.count < self.out.end || !self.server || self.inn.eof
    }

    fn turn(&mut self, buf: &mut [u8], stop: bool) -> io::Result<()> {
        if !self.inn.eof {
            self.read(buf)?;
        }
        if stop && self.out.end == UNTIL_EOF {
            self.out.end = self.out.hash.count;
        }
        if !self.out.fin_sent {
            self.write(buf.len())?;
        }
        Ok(())
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let mut budget = TURN;
        while budget > 0 {
            let n = match self.stream.read(buf) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            };
            if n == 0 {
                return self.end_of_input();
            }
            let data = n.min(usize::try_from(self.inn.end - self.inn.hash.count).unwrap_or(n));
            self.inn.good &= self.inn.data.check(self.inn.hash.count, &buf[..data]).is_ok();
            self.inn.hash.add_kind(self.hello.data, &buf[..data]);
            self.inn.verdict.extend(&buf[data..n]);
            budget = budget.saturating_sub(n);
        }
        Ok(())
    }

    fn end_of_input(&mut self) -> io::Result<()> {
        self.inn.eof = true;
        if self.server {
            self.inn.good &= self.hello.up == UNTIL_EOF || self.hello.up == self.inn.hash.count;
        }
        Ok(())
    }

    fn write(&mut self, max: usize) -> io::Result<()> {
        let mut budget = TURN;
        loop {
            if !self.out.pending.is_empty() {
                match self.stream.write(&self.out.pending) {
                    Ok(n) => drop(self.out.pending.drain(..n)),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(e) => return Err(e),
                }
            } else if self.out.hash.count < self.out.end {
                let left = usize::try_from(self.out.end - self.out.hash.count).unwrap_or(max);
                let piece = self.out.data.at(self.out.hash.count, max.min(left));
                match self.stream.write(piece) {
                    Ok(n) => {
                        self.out.hash.add_kind(self.hello.data, &piece[..n]);
                        budget = budget.saturating_sub(n);
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(e) => return Err(e),
                }
            } else {
                return self.finish();
            }
            if budget == 0 {
                return Ok(());
            }
        }
    }

    /// All data is out: a client sends FIN; a server, once it has seen the client's, its verdict and FIN.
    fn finish(&mut self) -> io::Result<()> {
        if self.server {
            if !self.inn.eof {
                return Ok(());
            }
            let verdict = Verdict { hash: self.inn.hash, good: self.inn.good }.encode();
            let n = self.stream.write(&verdict)?;
            if n != VERDICT {
                return Err(io::Error::other("verdict cut short"));
            }
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.out.fin_sent = true;
        Ok(())
    }

    fn result(self) -> Result<Moved, String> {
        let raw: Result<[u8; VERDICT], _> = self.inn.verdict.as_slice().try_into();
        let raw =
            raw.map_err(|_| format!("connection {}: verdict of {} bytes", self.hello.index, self.inn.verdict.len()))?;
        if !self.inn.good || self.inn.hash.count != self.hello.down {
            return Err(format!("connection {}: wrong bytes came down", self.hello.index));
        }
        judge(self.hello, self.out.hash, self.inn.hash, Verdict::decode(&raw))
    }
}

/// `toe-peer stream --poll`.
pub fn run_client(args: &Args) -> Result<String, String> {
    let start = Instant::now();
    let mut conns = vec![];
    for index in 0..args.connections {
        let stream = sys::connection(args.connect()?, args.cubic).map_err(|e| format!("connect: {}", errno(&e)))?;
        conns.push(Conn::new(stream, stream_hello(args, index), false).map_err(|e| e.to_string())?);
    }
    let mut results = vec![];
    let mut buf = vec![0; args.buf];
    while !conns.is_empty() {
        let mut fds: Vec<PollFd> = conns.iter().map(|c| poll_fd(&c.stream, c.events())).collect();
        let timeout = args.time.map_or(-1, |_| 10);
        sys::poll(&mut fds, timeout).map_err(|e| e.to_string())?;
        let stop = args.time.is_some_and(|t| start.elapsed() >= t);
        for i in (0..conns.len()).rev() {
            if fds[i].revents == 0 && !stop {
                continue;
            }
            if let Err(e) = conns[i].turn(&mut buf, stop) {
                results.push(Err(format!("connection {}: {}", conns[i].hello.index, errno(&e))));
                conns.swap_remove(i);
            } else if conns[i].done() {
                results.push(conns.swap_remove(i).result());
            }
        }
    }
    stream_report(args, start.elapsed(), results)
}

fn poll_fd(fd: &impl AsRawFd, events: i16) -> PollFd {
    PollFd { fd: fd.as_raw_fd(), events, revents: 0 }
}

/// A connection whose hello is not complete yet.
struct Greeting {
    stream: TcpStream,
    raw: Vec<u8>,
}

impl Greeting {
    /// `Some` once the hello is there.
    fn read(&mut self) -> io::Result<Option<Hello>> {
        let mut buf = [0; HELLO];
        let want = HELLO - self.raw.len();
        match self.stream.read(&mut buf[..want]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => self.raw.extend(&buf[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        match <&[u8; HELLO]>::try_from(self.raw.as_slice()) {
            Ok(raw) => Hello::decode(raw).map(Some),
            Err(_) => Ok(None),
        }
    }
}

/// `toe-peer serve --poll`: streams only.
pub fn run_server(listener: TcpListener, peer: Option<IpAddr>) -> Result<String, String> {
    let told = |e: io::Error| errno(&e);
    listener.set_nonblocking(true).map_err(told)?;
    let (mut greetings, mut conns): (Vec<Greeting>, Vec<Conn>) = (vec![], vec![]);
    let mut buf = vec![0; 128 << 10];
    loop {
        let mut fds = vec![poll_fd(&listener, POLLIN)];
        fds.extend(greetings.iter().map(|g| poll_fd(&g.stream, POLLIN)));
        fds.extend(conns.iter().map(|c| poll_fd(&c.stream, c.events())));
        sys::poll(&mut fds, -1).map_err(told)?;
        let (greeted, served) = fds[1..].split_at(greetings.len());
        for i in (0..conns.len()).rev().filter(|i| served[*i].revents != 0) {
            match conns[i].turn(&mut buf, false) {
                Ok(()) if !conns[i].done() => {}
                Ok(()) => drop(conns.swap_remove(i)),
                Err(e) => {
                    eprintln!("toe-peer serve: {}", errno(&e));
                    conns.swap_remove(i);
                }
            }
        }
        for i in (0..greetings.len()).rev().filter(|i| greeted[*i].revents != 0) {
            match greetings[i].read() {
                Ok(None) => {}
                Ok(Some(h)) if h.job == Job::Stream => {
                    conns.push(Conn::new(greetings.swap_remove(i).stream, h, true).map_err(told)?);
                }
                _ => drop(greetings.swap_remove(i)),
            }
        }
        accept_all(&listener, peer, &mut greetings).map_err(told)?;
    }
}

fn accept_all(listener: &TcpListener, peer: Option<IpAddr>, greetings: &mut Vec<Greeting>) -> io::Result<()> {
    loop {
        match listener.accept() {
            Ok((_, from)) if !is_expected(from, peer) => {}
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                greetings.push(Greeting { stream, raw: vec![] });
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}
