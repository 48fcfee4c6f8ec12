//! The built shim under real programs, against the test daemon of `toe-core`: what a program sees must be what it sees on kernel
//! sockets. Needs python3 and a C compiler; without them the tests say so and do nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use toe_core::app::testing::LoopDaemon;

/// Nothing here takes longer on a slow and busy machine; what does is hung.
const LIMIT: Duration = Duration::from_secs(120);

fn shim() -> PathBuf {
    // target/<profile>/deps/preload-… → target/<profile>. `cargo test` leaves it in deps, `cargo build` in both.
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    [deps.parent().unwrap(), deps]
        .iter()
        .map(|d| d.join("libsockshim.so"))
        .max_by_key(|p| p.metadata().and_then(|m| m.modified()).ok())
        .filter(|p| p.exists())
        .expect("the built shim")
}

/// A directory that goes away, with its daemon.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("toe-shim-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn have_python() -> bool {
    let found = Command::new("python3").arg("-c").arg("").status().is_ok_and(|s| s.success());
    if !found {
        eprintln!("skipped: no python3");
    }
    found
}

fn preloaded(program: &str, dir: &Path) -> Command {
    let mut c = Command::new(program);
    c.env("LD_PRELOAD", shim()).env("TOE_SOCKET", dir.join("toed.sock"));
    c
}

/// Runs to the end and returns standard output; a hung program is killed and fails the test.
fn output(command: &mut Command) -> String {
    // No byte code left beside the scripts.
    let mut child = command.env("PYTHONDONTWRITEBYTECODE", "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut out, &mut text).map(|_| text)
    });
    let (done, finished) = std::sync::mpsc::channel::<()>();
    let pid = child.id() as i32;
    let guard = std::thread::spawn(move || {
        if finished.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            // SAFETY: our own child, not yet waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    });
    let text = reader.join().unwrap().unwrap();
    drop(done);
    guard.join().unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}\n{text}");
    text
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases.py")
}

#[test]
fn shim_on_equals_shim_off() {
    if !have_python() {
        return;
    }
    let dir = Dir::new("cases");
    let _daemon = LoopDaemon::start(&dir.0).unwrap();
    let kernel = output(Command::new("python3").arg(cases()).arg("127.0.0.1"));
    let engine = output(preloaded("python3", &dir.0).arg(cases()).arg("127.77.0.1"));
    let differing: Vec<_> = kernel.lines().zip(engine.lines()).filter(|(k, e)| k != e).collect();
    assert!(differing.is_empty(), "{differing:#?}");
    assert_eq!(kernel.lines().count(), engine.lines().count());
    assert!(kernel.lines().count() > 100 && !kernel.contains("raised"), "{kernel}");
}

#[test]
fn without_a_daemon_all_is_the_kernels() {
    if !have_python() {
        return;
    }
    let dir = Dir::new("alone");
    let kernel = output(Command::new("python3").arg(cases()).arg("127.0.0.1"));
    let shimmed = output(preloaded("python3", &dir.0).arg(cases()).arg("127.0.0.1"));
    assert_eq!(kernel, shimmed);
}

/// The first connection is made by rule, so both ends must be engine sockets; the daemon dies; blocked calls end; new sockets
/// are the kernel's; a new daemon is found.
const DEATH: &str = r#"
import socket, select, sys, threading, os, struct
def placeholder(s):
    # An engine socket's descriptor is an AF_UNIX socket to the kernel.
    inode = os.readlink("/proc/self/fd/%d" % s.fileno())[len("socket:["):-1]
    return any(line.split()[6] == inode for line in open("/proc/net/unix"))
def pair():
    l = socket.create_server(("127.77.0.1", 0))
    c = socket.create_connection(l.getsockname())
    return c, l.accept()[0]
c, s = pair()
engine = placeholder(c), placeholder(s)
ep = select.epoll(); ep.register(s, select.EPOLLIN)
result = {}
def run(name, call):
    def body():
        try: result[name] = call()
        except OSError as e: result[name] = type(e).__name__
    t = threading.Thread(target=body); t.start(); return t
p = select.poll(); p.register(c, select.POLLIN)
ts = [run("recv", lambda: s.recv(1)), run("recv2", lambda: c.recv(1)), run("poll", lambda: len(p.poll())), run("epoll", lambda: len(ep.poll()))]
print(*engine, flush=True)
sys.stdin.readline()
for t in ts: t.join()
print(sorted(result.items()), flush=True)
c2, s2 = pair()
print(placeholder(c2), flush=True)
c2.sendall(b"kernel"); print(s2.recv(10), flush=True)
sys.stdin.readline()
while True:
    try:
        c3, s3 = pair()
        if placeholder(c3): break
    except ConnectionRefusedError: pass  # the listener was still the kernel's, the client the engine's
c3.sendall(b"again"); print(s3.recv(10), flush=True)
"#;

#[test]
fn a_daemon_dies_and_another_comes() {
    use std::io::{BufRead, Write};
    if !have_python() {
        return;
    }
    let dir = Dir::new("death");
    let mut daemon = LoopDaemon::start(&dir.0).unwrap();
    let mut child =
        preloaded("python3", &dir.0).args(["-c", DEATH]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    assert_eq!(line(), "True True");
    daemon.kill();
    input.write_all(b"\n").unwrap();
    let got = line();
    assert_eq!(got, "[('epoll', 1), ('poll', 1), ('recv', 'ConnectionResetError'), ('recv2', 'ConnectionResetError')]");
    assert_eq!(line(), "False");
    assert_eq!(line(), "b'kernel'");
    let _second = LoopDaemon::start(&dir.0).unwrap();
    input.write_all(b"\n").unwrap();
    assert_eq!(line(), "b'again'");
    assert!(child.wait().unwrap().success());
}

#[test]
fn signals_as_c_programs_see_them() {
    let dir = Dir::new("signals");
    let program = dir.0.join("signals");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/signals.c");
    let built = Command::new("cc").args(["-O2", "-D_FORTIFY_SOURCE=2", "-o"]).arg(&program).arg(&source).status();
    if !built.is_ok_and(|s| s.success()) {
        eprintln!("skipped: no C compiler");
        return;
    }
    let program = program.to_str().unwrap();
    let _daemon = LoopDaemon::start(&dir.0).unwrap();
    let kernel = output(Command::new(program).arg("127.0.0.1"));
    let engine = output(preloaded(program, &dir.0).arg("127.77.0.1"));
    assert_eq!(kernel, engine);
    assert_eq!(kernel.matches("restart: done").count(), 3, "{kernel}");
    assert_eq!(kernel.lines().count(), 18, "{kernel}");
}

#[test]
fn few_descriptors() {
    if !have_python() {
        return;
    }
    let dir = Dir::new("few");
    let _daemon = LoopDaemon::start(&dir.0).unwrap();
    let script =
        format!("ulimit -n 64; exec python3 {} 127.77.0.1 life shutdown epoll fork sendfile", cases().display());
    let out = output(preloaded("sh", &dir.0).args(["-c", &script]));
    assert!(out.contains("sendfile 0 ([True], 0)") && !out.contains("raised"), "{out}");
}

/// Builds `tests/<name>.c` and runs it on kernel sockets and under the shim; the outputs must be the same. `None`: no compiler.
fn c_cases(name: &str) -> Option<String> {
    let dir = Dir::new(name);
    let program = dir.0.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let built = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-Wno-unused-result", "-D_FORTIFY_SOURCE=2", "-pthread", "-o"])
        .arg(&program)
        .arg(&source)
        .status();
    match built {
        Err(_) => {
            eprintln!("skipped: no C compiler");
            return None;
        }
        Ok(status) => assert!(status.success(), "{name}.c does not compile"),
    }
    let program = program.to_str().unwrap();
    let _daemon = LoopDaemon::start(&dir.0).unwrap();
    let kernel = output(Command::new(program).arg("127.0.0.1"));
    let engine = output(preloaded(program, &dir.0).arg("127.77.15.1"));
    assert_eq!(kernel, engine);
    // And with a shim that finds no daemon.
    let alone = output(preloaded(program, Path::new("/nonexistent")).arg("127.0.0.1"));
    assert_eq!(kernel, alone);
    Some(kernel)
}

#[test]
fn stdio_on_sockets() {
    let Some(out) = c_cases("stdio") else { return };
    assert!(out.contains("getline 9 line two") && out.contains("told: No such file"), "{out}");
    assert!(out.contains("1 two 3.25 4 5 6 7.5 8|list c 1.000000 2 3 4|plain|"), "{out}");
    assert_eq!(out.lines().count(), 28, "{out}");
}

#[test]
fn calls_by_number_and_between_descriptors() {
    let Some(out) = c_cases("calls") else { return };
    assert!(out.contains("through pipes 0 200000 1 0") && out.contains("dup2 everywhere: 0 failed"), "{out}");
    assert_eq!(out.lines().count(), 28, "{out}");
}

#[test]
fn threads_are_cancelled() {
    let Some(out) = c_cases("cancel") else { return };
    assert_eq!(out.matches("cancelled cleaned 1 then 2").count(), 15, "{out}");
    assert!(out.contains("disabled: cancelled after 4") && out.contains("waiter 2: 0 1"), "{out}");
    assert_eq!(out.lines().count(), 37, "{out}");
}

/// A ring could not see what is behind a placeholder: libraries are told that there is none, unless the user knows better.
#[test]
fn io_uring_is_refused() {
    const SETUP: &str = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
r = libc.syscall(ctypes.c_long(425), ctypes.c_long(1), ctypes.create_string_buffer(120))
print('ring' if r >= 0 else ctypes.get_errno())";
    if !have_python() {
        return;
    }
    let dir = Dir::new("uring");
    let kernel = output(Command::new("python3").args(["-c", SETUP]));
    let absent = output(preloaded("python3", &dir.0).args(["-c", SETUP]));
    assert_eq!(absent, kernel);
    let _daemon = LoopDaemon::start(&dir.0).unwrap();
    let refused = output(preloaded("python3", &dir.0).args(["-c", SETUP]));
    assert_eq!(refused.trim(), libc::ENOSYS.to_string());
    let allowed = output(preloaded("python3", &dir.0).env("TOE_IO_URING", "allow").args(["-c", SETUP]));
    assert_eq!(allowed, kernel);
}

/// bash opens the connection, puts it on descriptor 1 for each `echo`, and its `printf` is stdio's.
const REDIRECT: &str = r#"
import socket, subprocess, sys
listener = socket.create_server((sys.argv[1], 0))
script = """exec 3<>/dev/tcp/%s/%d
echo one >&3; printf '%%s\n' two >&3
read -r answer <&3; echo "bash got $answer"
""" % listener.getsockname()
shell = subprocess.Popen(["bash", "-c", script])
conn, _ = listener.accept()
lines = conn.makefile("rw")
print(lines.readline(), lines.readline(), flush=True)
lines.write("three\n"); lines.flush()
print(shell.wait())
"#;

#[test]
fn shells_redirect_to_sockets() {
    if !have_python() || !Command::new("bash").arg("-c").arg("").status().is_ok_and(|s| s.success()) {
        eprintln!("skipped: no bash");
        return;
    }
    let dir = Dir::new("bash");
    let _daemon = LoopDaemon::start(&dir.0).unwrap();
    let out = output(preloaded("python3", &dir.0).args(["-c", REDIRECT, "127.77.15.1"]));
    assert_eq!(out, "one\n two\n\nbash got three\n0\n");
    assert_eq!(output(Command::new("python3").args(["-c", REDIRECT, "127.0.0.1"])), out);
}
