//! `toe run`: a program over the engine.

use super::place;
use crate::daemon::paths;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// What env(1) returns if it fails itself, if the program cannot be run, and if there is none.
const FAILED: u8 = 125;
const NOT_RUNNABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// A daemon that nobody uses any more ends after this many seconds.
const IDLE_EXIT: &str = "60";

/// What the command line says.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Control socket of the daemon [default: TOE_SOCKET, else the first usual place where one answers]
    #[arg(long, value_name = "SOCKET")]
    pub toed: Option<PathBuf>,
    /// Start no daemon if none answers: the program then uses the kernel's TCP
    #[arg(long)]
    pub no_spawn: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// Becomes the program. Returns only if that fails.
pub fn run(args: &Args) -> ExitCode {
    let (shim, socket) = match prepare(args) {
        Ok(ready) => ready,
        Err(e) => {
            eprintln!("toe run: {e}");
            return ExitCode::from(FAILED);
        }
    };
    let Some((program, rest)) = args.command.split_first() else { return ExitCode::from(FAILED) };
    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preload(&shim, std::env::var_os("LD_PRELOAD").as_deref()));
    let e = command.env("TOE_SOCKET", socket).exec();
    eprintln!("toe run: {}: {e}", program.display());
    ExitCode::from(if e.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE })
}

/// The shim and the control socket of a daemon that answers (or may be absent, if the user says so).
fn prepare(args: &Args) -> io::Result<(PathBuf, PathBuf)> {
    let shim = place::shim()?;
    let named = args.toed.clone().or_else(|| std::env::var_os("TOE_SOCKET").map(PathBuf::from));
    let all = named.map_or_else(paths::candidates, |p| vec![p]);
    let found = all.iter().find(|p| paths::answers(p));
    let socket = match found {
        Some(path) => path.clone(),
        None if args.no_spawn => all[0].clone(),
        None => spawn(&all[0])?,
    };
    // The program may change its directory before it looks.
    Ok((shim, std::path::absolute(socket)?))
}

/// Our shim first, then whatever was there.
fn preload(shim: &Path, before: Option<&OsStr>) -> OsString {
    let mut all = shim.as_os_str().to_owned();
    if let Some(before) = before.filter(|b| !b.is_empty()) {
        all.push(":");
        all.push(before);
    }
    all
}

/// Starts a user-mode daemon and waits until it is ready.
fn spawn(socket: &Path) -> io::Result<PathBuf> {
    let socket = std::path::absolute(socket)?;
    let log_path = PathBuf::from(format!("{}.log", socket.display()));
    let log = open_log(&log_path)?;
    // Through an intermediate that ends at once: the program must not find a child that it did not start.
    let exe = std::env::current_exe()?;
    let mut starter = Command::new(exe);
    starter.arg("spawn-daemon").arg(&socket).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = starter.spawn()?;
    let out = child.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
    let status = child.wait()?;
    // The line comes when the daemon is ready; the end without it when the daemon has ended.
    let mut line = String::new();
    if status.success() {
        BufReader::new(out).read_line(&mut line)?;
    }
    // Another `toe run` may have been faster: its daemon serves as well.
    if line.starts_with("ready ") || paths::answers(&socket) {
        return Ok(socket);
    }
    let log = fs::read_to_string(&log_path).unwrap_or_default();
    let last = log.lines().last().unwrap_or("it said nothing");
    Err(io::Error::other(format!("toed did not start: {last} (see {})", log_path.display())))
}

fn open_log(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options.open(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// The intermediate: starts the daemon and ends.
pub fn spawn_daemon(socket: &Path) -> ExitCode {
    let started = place::toed().and_then(|(toed, first)| {
        let mut command = Command::new(toed);
        command
            .args(first)
            .args(["--user", "--detach", "--print-ready", "--idle-exit", IDLE_EXIT])
            .arg("--socket")
            .arg(socket);
        // The daemon outlives the program: it keeps no directory busy and is not run through the shim itself.
        command.current_dir("/").env_remove("LD_PRELOAD").env_remove("TOE_SOCKET").spawn()
    });
    match started {
        Ok(_) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("toe run: {e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_comes_first() {
        let shim = Path::new("/x/libsockshim.so");
        assert_eq!(preload(shim, None), "/x/libsockshim.so");
        assert_eq!(preload(shim, Some(OsStr::new(""))), "/x/libsockshim.so");
        assert_eq!(preload(shim, Some(OsStr::new("a.so:b.so"))), "/x/libsockshim.so:a.so:b.so");
    }
}
