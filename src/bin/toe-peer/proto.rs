//! What a client tells the server first, and what the server answers last.

use crate::data::{Hash, Kind};
use std::io;

/// Bytes of an encoded [`Hello`].
pub const HELLO: usize = 64;
/// Bytes of an encoded [`Verdict`].
pub const VERDICT: usize = 24;
/// `Hello::up` of a stream that ends when the client half-closes.
pub const UNTIL_EOF: u64 = u64::MAX;

const MAGIC: u32 = 0x504F_4554;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// Bytes both ways at once, then a [`Verdict`].
    Stream,
    /// Messages of `msg` bytes, sent back as they are.
    Ping,
    /// Bytes sent back, whenever they come.
    Echo,
    /// The server leaves a byte unread and closes, on a word of its stdin (RFC 2525: RST).
    Reset,
    /// The server reads until the end.
    Hold,
    /// The server never reads nor writes.
    Deaf,
}

const JOBS: [Job; 6] = [Job::Stream, Job::Ping, Job::Echo, Job::Reset, Job::Hold, Job::Deaf];

/// First bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Hello {
    pub job: Job,
    pub data: Kind,
    pub index: u32,
    pub msg: u32,
    pub seed: u64,
    pub up: u64,
    pub down: u64,
}

impl Hello {
    /// A job without data.
    pub fn plain(job: Job) -> Hello {
        Hello { job, data: Kind::Prng, index: 0, msg: 0, seed: 0, up: 0, down: 0 }
    }

    pub fn encode(&self) -> [u8; HELLO] {
        let mut b = [0; HELLO];
        b[..4].copy_from_slice(&MAGIC.to_le_bytes());
        b[4] = JOBS.iter().position(|j| *j == self.job).unwrap_or(0) as u8;
        b[5] = u8::from(self.data == Kind::Pattern);
        b[8..12].copy_from_slice(&self.index.to_le_bytes());
        b[12..16].copy_from_slice(&self.msg.to_le_bytes());
        b[16..24].copy_from_slice(&self.seed.to_le_bytes());
        b[24..32].copy_from_slice(&self.up.to_le_bytes());
        b[32..40].copy_from_slice(&self.down.to_le_bytes());
        b
    }

    pub fn decode(b: &[u8; HELLO]) -> io::Result<Hello> {
        let job = JOBS.get(usize::from(b[4])).copied();
        match job {
            Some(job) if u32_at(b, 0) == MAGIC => Ok(Hello {
                job,
                data: if b[5] == 0 { Kind::Prng } else { Kind::Pattern },
                index: u32_at(b, 8),
                msg: u32_at(b, 12),
                seed: u64_at(b, 16),
                up: u64_at(b, 24),
                down: u64_at(b, 32),
            }),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not a toe-peer client")),
        }
    }
}

/// What the server received of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub hash: Hash,
    pub good: bool,
}

impl Verdict {
    pub fn encode(&self) -> [u8; VERDICT] {
        let mut b = [0; VERDICT];
        b[..8].copy_from_slice(&self.hash.count.to_le_bytes());
        b[8..16].copy_from_slice(&self.hash.sum.to_le_bytes());
        b[16] = u8::from(self.good);
        b
    }

    pub fn decode(b: &[u8; VERDICT]) -> Verdict {
        Verdict { hash: Hash { count: u64_at(b, 0), sum: u64_at(b, 8) }, good: b[16] == 1 }
    }
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap_or_default())
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap_or_default())
}
