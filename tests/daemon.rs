//! `toed` and `toe` as processes: start, stop, plain users, programs started by `toe run`.

#[path = "common/mod.rs"]
mod common;

use common::{Cmd, Proc, TempDir, skip, wait_for};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const TOED: &str = env!("CARGO_BIN_EXE_toed");
const TOE: &str = env!("CARGO_BIN_EXE_toe");

/// A daemon without links to others, ready.
fn daemon(dir: &Path, socket: &Path, more: &str) -> Proc {
    let toed = Cmd::new(&[], TOED, dir).args("--user --print-ready --socket").arg(socket.display()).args(more);
    let mut proc = toed.spawn();
    proc.until("ready ", LIMIT);
    proc
}

fn toe(dir: &Path, args: &str) -> Cmd {
    Cmd::new(&[], TOE, dir).args(args)
}

#[test]
fn signals_end_it_and_its_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = TempDir::new();
        let socket = dir.path().join("toed.sock");
        let proc = daemon(dir.path(), &socket, "");
        assert!(socket.exists());
        proc.signal(signal);
        let got = proc.wait(LIMIT);
        assert!(got.status.success(), "{got:?}");
        assert!(!socket.exists());
    }
}

#[test]
fn a_second_daemon_is_refused_and_a_dead_ones_place_is_taken() {
    let dir = TempDir::new();
    let socket = dir.path().join("toed.sock");
    let first = daemon(dir.path(), &socket, "");
    let second = Cmd::new(&[], TOED, dir.path()).args("--user --socket").arg(socket.display()).run(LIMIT);
    assert!(!second.status.success() && second.err.contains("already runs"), "{second:?}");
    first.signal(Signal::KILL);
    first.wait(LIMIT);
    assert!(socket.exists());
    let third = daemon(dir.path(), &socket, "");
    toe(dir.path(), "status --toed").arg(socket.display()).run_ok(LIMIT);
    third.signal(Signal::TERM);
    third.wait_ok(LIMIT);
}

#[test]
fn status_for_people_and_programs() {
    let dir = TempDir::new();
    let socket = dir.path().join("toed.sock");
    let _daemon = daemon(dir.path(), &socket, "");
    let json = toe(dir.path(), "status --json --toed").arg(socket.display()).run_ok(LIMIT).json();
    assert_eq!(json["nics"][0]["addrs"][0], "127.77.0.1/24");
    assert!(json["daemon"]["pid"].as_u64().is_some());
    let text = toe(dir.path(), "status --toed").arg(socket.display()).run_ok(LIMIT).out;
    assert!(text.contains("127.77.0.1/24") && text.contains("fast path core 0"), "{text}");
    let none = toe(dir.path(), "status --toed /nonexistent/toed.sock").run(LIMIT);
    assert!(!none.status.success() && none.err.contains("/nonexistent/toed.sock"), "{none:?}");
}

#[test]
fn a_wrong_file_is_refused_with_its_line() {
    let dir = TempDir::new();
    let file = dir.path().join("t.toml");
    fs::write(&file, "[daemon]\npin = false\n\nfrobnicate = 1\n").expect("write");
    let got = Cmd::new(&[], TOED, dir.path()).arg("--config").arg(file.display()).run(LIMIT);
    assert!(!got.status.success(), "{got:?}");
    assert!(got.err.contains(&format!("{}:4:1: ", file.display())) && got.err.contains("frobnicate"), "{got:?}");
}

#[test]
fn it_ends_when_nobody_is_left() {
    let dir = TempDir::new();
    let socket = dir.path().join("toed.sock");
    let proc = daemon(dir.path(), &socket, "--idle-exit 0");
    assert!(proc.wait(LIMIT).status.success());
    assert!(!socket.exists());
}

#[test]
fn a_plain_user_runs_it() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        skip("daemon::a_plain_user_runs_it", "all tests here run as a plain user already");
        return;
    }
    let dir = TempDir::new();
    // The build directory may be closed to other users.
    let toed = dir.path().join("toed");
    fs::copy(TOED, &toed).expect("copy");
    chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"].map(String::from);
    let run = dir.path().join("run");
    let mut proc = Cmd::new(&user, &toed, dir.path())
        .env("XDG_RUNTIME_DIR", &run.display().to_string())
        .args("--user --print-ready")
        .spawn();
    proc.until("ready ", LIMIT);
    let socket = run.join("toe/toed.sock");
    let meta = fs::metadata(&socket).expect("socket");
    assert_eq!((meta.uid(), meta.permissions().mode() & 0o777), (NOBODY, 0o600));
    assert_eq!(fs::metadata(run.join("toe")).expect("directory").permissions().mode() & 0o777, 0o700);
    let status = toe(dir.path(), "status --json --toed").arg(socket.display()).run_ok(LIMIT).json();
    assert_eq!(status["nics"][0]["up"], true);
    proc.signal(Signal::TERM);
    proc.wait_ok(LIMIT);
    assert!(!socket.exists());
}

/// `toe run` fails like env(1): 127 no such program, 126 not runnable.
#[test]
fn run_fails_like_env() {
    let dir = TempDir::new();
    let run = |program: &str| toe(dir.path(), "run --no-spawn --toed /nonexistent --").arg(program).run(LIMIT);
    assert_eq!(run("/nonexistent/program").status.code(), Some(127));
    assert_eq!(run("no-such-program-anywhere").status.code(), Some(127));
    assert_eq!(run(&dir.path().display().to_string()).status.code(), Some(126));
    let got = run("true");
    assert_eq!(got.status.code(), Some(0), "{got:?}");
}

#[test]
fn run_sets_the_environment() {
    let dir = TempDir::new();
    let got =
        toe(dir.path(), "run --no-spawn --toed x.sock -- sh -c").arg("echo $LD_PRELOAD $TOE_SOCKET").run_ok(LIMIT);
    let words: Vec<&str> = got.out.split_whitespace().collect();
    assert!(words[0].ends_with("/libsockshim.so") && Path::new(words[0]).is_file(), "{got:?}");
    assert_eq!(Path::new(words[1]), fs::canonicalize(dir.path()).expect("path").join("x.sock"));
}

/// `toe run` starts a daemon that is no child of the program, and a second one finds it.
#[test]
fn run_starts_a_daemon() {
    let dir = TempDir::new();
    let socket = dir.path().join("r/toed.sock");
    let run = |line: &str| {
        let cmd = toe(dir.path(), "run --toed").arg(socket.display()).arg("--").args("sh -c").arg(line);
        cmd.run_ok(LIMIT).out
    };
    // The shell has no child that it did not start: `wait` returns at once.
    assert_eq!(run("wait; echo first").trim(), "first");
    let pid_of = |socket: &PathBuf| {
        let status = toe(dir.path(), "status --json --toed").arg(socket.display()).run_ok(LIMIT).json();
        status["daemon"]["pid"].as_i64().expect("a pid") as i32
    };
    let pid = pid_of(&socket);
    let guard = KillOnDrop(pid);
    assert_eq!(run("echo second").trim(), "second");
    assert_eq!(pid_of(&socket), pid);
    drop(guard);
    wait_for("the daemon's end", LIMIT, || (!socket.exists()).then_some(()));
}

/// Slow path on a thread of its own or on core 0's, one core or two: programs of one daemon reach each other over its local
/// link in each of them.
#[test]
fn every_layout_of_threads_carries_data() {
    for (slow_path, cores) in [("own", "[0]"), ("shared", "[0]"), ("own", "[0, 1]"), ("shared", "[0, 1]")] {
        let dir = TempDir::new();
        let (file, socket) = (dir.path().join("t.toml"), dir.path().join("toed.sock"));
        let daemon = format!("[daemon]\nsocket = '{}'\nslow_path = '{slow_path}'\n", socket.display());
        let nic = "[[nic]]\nname = 'l'\nkind = 'local'\naddr = ['127.77.0.1/24', 'fd77::1/64']\n";
        fs::write(&file, format!("{daemon}cores = {cores}\npin = false\n{nic}")).expect("write");
        let mut toed = Cmd::new(&[], TOED, dir.path()).args("--print-ready --config").arg(file.display()).spawn();
        toed.until("ready ", LIMIT);
        for addr in ["127.77.0.1:5000", "[fd77::1]:5000"] {
            let run = |args: &str| {
                let cmd = toe(dir.path(), "run --no-spawn --toed").arg(socket.display());
                cmd.arg("--").arg(env!("CARGO_BIN_EXE_toe-peer")).args(args).arg(addr)
            };
            let mut server = run("serve --listen").stdin().spawn();
            server.until("listening", LIMIT);
            let got = run("stream --connections 8 --up 4000000 --down 4000000 --connect").run(LIMIT);
            assert!(got.status.success(), "{slow_path} {cores} {addr}: {got:?} {}", toed.describe());
            assert_eq!(got.json()["verified"], true, "{got:?}");
        }
        let status = toe(dir.path(), "status --json --toed").arg(socket.display()).run_ok(LIMIT).json();
        let local = status["nics"].as_array().expect("links").iter().position(|n| n["name"] == "l");
        let carried =
            |core: &serde_json::Value| core["nics"][local.expect("link")][1]["rx_bytes"].as_u64().unwrap_or(0);
        let bytes: u64 = status["cores"].as_array().expect("cores").iter().map(carried).sum();
        assert!(bytes > 16_000_000, "the engine carried only {bytes} bytes: {status}");
        toed.signal(Signal::TERM);
        toed.wait_ok(LIMIT);
    }
}

struct KillOnDrop(i32);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
}
