//! Connections that do nothing, and are then found to be alive.

use crate::args::Args;
use crate::proto::{Hello, Job};
use crate::report::{Line, errno};
use crate::sys;
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// `toe-peer idle`: opens all, says `ready`, waits for the end of stdin, exchanges a byte over each.
pub fn run(args: &Args) -> Result<String, String> {
    let addr = args.connect()?;
    let mut streams = vec![];
    for i in 0..args.connections {
        let mut s = sys::connection(addr, args.cubic).map_err(|e| format!("connection {i}: {}", errno(&e)))?;
        s.set_nodelay(true).map_err(|e| e.to_string())?;
        s.write_all(&Hello::plain(Job::Echo).encode()).map_err(|e| format!("connection {i}: {}", errno(&e)))?;
        exchange(&mut s, 1).map_err(|e| format!("connection {i}: {}", errno(&e)))?;
        streams.push(s);
    }
    println!("ready");
    io::stdin().read_to_end(&mut vec![]).map_err(|e| e.to_string())?;
    for (i, s) in streams.iter_mut().enumerate() {
        exchange(s, i as u8).map_err(|e| format!("connection {i} after idling: {}", errno(&e)))?;
    }
    Ok(Line::new("idle").num("connections", args.connections).num("verified", true).end())
}

fn exchange(stream: &mut TcpStream, byte: u8) -> io::Result<()> {
    let mut back = [0];
    stream.write_all(&[byte])?;
    stream.read_exact(&mut back)?;
    if back[0] == byte { Ok(()) } else { Err(io::Error::other("another byte came back")) }
}
