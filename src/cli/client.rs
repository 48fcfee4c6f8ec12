//! The control socket from a tool's side.

use crate::daemon::paths;
use rustix::net::RecvFlags;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use toe_core::control::{self, OP_STATUS, Request};

/// Most bytes of a status that a tool takes.
const MOST: usize = 256 << 20;

/// The control socket to use: the one named, TOE_SOCKET's, else the first that answers.
pub fn socket(named: Option<&Path>) -> io::Result<PathBuf> {
    if let Some(path) = named.map(Path::to_path_buf).or_else(|| std::env::var_os("TOE_SOCKET").map(PathBuf::from)) {
        return Ok(path);
    }
    let all = paths::candidates();
    let found = all.iter().find(|p| paths::answers(p)).cloned();
    found.ok_or_else(|| {
        let tried: Vec<String> = all.iter().map(|p| p.display().to_string()).collect();
        io::Error::new(io::ErrorKind::NotFound, format!("no daemon answers (tried {})", tried.join(", ")))
    })
}

/// Asks the daemon behind `path` for its status.
pub fn status(path: &Path) -> io::Result<serde_json::Value> {
    let fd = paths::connect(path)?;
    control::send(fd.as_fd(), &Request::new(OP_STATUS), &[])?;
    let (mut text, mut packet) = (vec![], vec![0; 64 * 1024]);
    loop {
        let n = rustix::net::recv(&fd, &mut packet[..], RecvFlags::empty())?.0;
        if n == 0 {
            break;
        }
        text.extend_from_slice(&packet[..n]);
        if text.len() > MOST {
            return Err(io::Error::other("the daemon's answer does not end"));
        }
    }
    serde_json::from_slice(&text).map_err(|e| io::Error::other(format!("the daemon's answer makes no sense: {e}")))
}
