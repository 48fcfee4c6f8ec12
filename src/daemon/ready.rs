//! Telling whoever started us that we are ready: systemd's protocol, and a line on stdout.

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

/// `sd_notify(3)`: one datagram to the socket that NOTIFY_SOCKET names. Nobody listening is no error.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let addr = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    let sent = addr.and_then(|addr| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &addr));
    if let Err(e) = sent {
        tracing::warn!("NOTIFY_SOCKET: {e}");
    }
}

/// `ready SOCKET` on stdout, for `toe run`.
pub fn print(socket: &Path) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {}", socket.display()).and_then(|()| out.flush());
}
