//! The command line, by hand: this program has no dependencies.

use crate::data::Kind;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

/// All that any mode takes; see `USAGE`.
pub struct Args {
    pub listen: Option<SocketAddr>,
    pub connect: Option<SocketAddr>,
    pub peer: Option<IpAddr>,
    pub connections: u32,
    pub up: Option<u64>,
    pub down: u64,
    pub time: Option<Duration>,
    pub seed: u64,
    pub buf: usize,
    pub msg: usize,
    pub count: Option<u64>,
    pub data: Kind,
    pub poll: bool,
    pub cubic: bool,
}

impl Args {
    /// Reads `--name value` pairs and flags.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
        let mut a = Args {
            listen: None,
            connect: None,
            peer: None,
            connections: 1,
            up: None,
            down: 0,
            time: None,
            seed: 1,
            buf: 128 << 10,
            msg: 64,
            count: None,
            data: Kind::Prng,
            poll: false,
            cubic: false,
        };
        while let Some(name) = words.next() {
            match name.as_str() {
                "--poll" => a.poll = true,
                "--cubic" => a.cubic = true,
                "--listen" => a.listen = Some(value(&name, &mut words)?),
                "--connect" => a.connect = Some(value(&name, &mut words)?),
                "--peer" => a.peer = Some(value(&name, &mut words)?),
                "--connections" => a.connections = value(&name, &mut words)?,
                "--up" => a.up = Some(value(&name, &mut words)?),
                "--down" => a.down = value(&name, &mut words)?,
                "--seconds" => a.time = Some(seconds(value(&name, &mut words)?)?),
                "--seed" => a.seed = value(&name, &mut words)?,
                "--buf" => a.buf = value::<usize>(&name, &mut words)?.clamp(1, 1 << 26),
                "--msg" => a.msg = value::<usize>(&name, &mut words)?.clamp(1, 1 << 26),
                "--count" => a.count = Some(value(&name, &mut words)?),
                "--data" => a.data = value(&name, &mut words)?,
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(a)
    }

    /// The address that a server listens on.
    pub fn listen(&self) -> Result<SocketAddr, String> {
        self.listen.ok_or_else(|| "--listen is missing".into())
    }

    /// The address that a client connects to.
    pub fn connect(&self) -> Result<SocketAddr, String> {
        self.connect.ok_or_else(|| "--connect is missing".into())
    }
}

fn value<T: FromStr>(name: &str, words: &mut impl Iterator<Item = String>) -> Result<T, String> {
    let word = words.next().ok_or_else(|| format!("{name} takes a value"))?;
    word.parse().map_err(|_| format!("{name}: cannot read {word:?}"))
}

fn seconds(s: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(s).map_err(|e| format!("--seconds: {e}"))
}
