//! The commands of the README, as a user types them, with a daemon that `toe run` starts itself.

use crate::common::{Alone, Cmd, Proc, TempDir, alone, carried, port, program, wait_for};
use rustix::process::{Pid, Signal};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A user's session: a runtime directory of its own, so that `toe` finds no other daemon and nobody finds this one.
struct Session {
    dir: TempDir,
    _alone: Alone,
}

impl Session {
    fn new() -> Session {
        let _alone = alone();
        Session { dir: TempDir::new(), _alone }
    }

    fn toe(&self, args: &str) -> Cmd {
        let toe = Cmd::new(&[], env!("CARGO_BIN_EXE_toe"), self.dir.path()).args(args);
        toe.env("XDG_RUNTIME_DIR", &self.dir.path().to_string_lossy())
    }

    /// Processes that carry our runtime directory: the daemon, which nobody of us is the parent of.
    fn processes(&self) -> Vec<u32> {
        let mark = format!("XDG_RUNTIME_DIR={}\0", self.dir.path().display());
        let ours = |pid: &u32| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.windows(mark.len()).any(|w| w == mark.as_bytes())
        };
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|e| e.file_name().to_string_lossy().parse().ok());
        pids.filter(ours).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for pid in self.processes().into_iter().filter_map(|p| Pid::from_raw(p as i32)) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// `toe run` twice and `toe status`, nothing prepared.
#[test]
fn run_and_status() {
    let needs = ["python3", "curl"].map(|p| program("commands::run_and_status", p));
    let [Some(python), Some(curl)] = needs else { return };
    if std::env::var_os("TOE_TEST_STACK").is_some() {
        return;
    }
    let session = Session::new();
    let port = port();
    let serve = session.toe("run --").arg(python.display());
    let mut server: Proc = serve.args(&format!("-u -m http.server {port} --bind 127.77.0.1")).spawn();
    server.until("Serving HTTP", LIMIT);
    let url = format!("http://127.77.0.1:{port}/");
    let got = session.toe("run --").arg(curl.display()).args("-sS").arg(&url).run_ok(LIMIT);
    assert!(got.out.contains("Directory listing"), "{got:?}");
    let status = session.toe("status").run_ok(LIMIT);
    assert!(status.out.contains(&port.to_string()), "the listener is shown: {status:?}");
    let json = session.toe("status --json").run_ok(LIMIT);
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    // Both ends are this daemon's.
    let (sent, received, listing) = (carried(&json).0, carried(&json).1, got.out.len() as u64);
    assert!(sent >= listing && received >= listing, "the engine carried it: {json:#}");
    // The kernel knows nothing of this server.
    let plain = Cmd::new(&[], &curl, session.dir.path()).args("-sS").arg(&url).run(LIMIT);
    assert!(!plain.status.success(), "{plain:?}");
    drop(server);
    assert!(!session.processes().is_empty(), "the daemon outlives the programs for a while");
}

/// A daemon that is told to stop by a signal ends with status 0 and leaves no socket behind.
#[test]
fn daemon_starts_and_stops() {
    if std::env::var_os("TOE_TEST_STACK").is_some() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT] {
        let session = Session::new();
        let control = session.dir.path().join("c.sock");
        let toed = Cmd::new(&[], env!("CARGO_BIN_EXE_toed"), session.dir.path());
        let mut toed = toed.args("--addr 127.77.0.1/24 --socket").arg(control.display()).spawn();
        wait_for("the control socket", LIMIT, || {
            assert!(toed.ended().is_none(), "{}", toed.describe());
            control.exists().then_some(())
        });
        toed.signal(signal);
        toed.wait_ok(LIMIT);
        assert!(!control.exists());
    }
}

/// `toed` names the key and the line that it does not know.
#[test]
fn unknown_keys_are_named() {
    if std::env::var_os("TOE_TEST_STACK").is_some() {
        return;
    }
    let dir = TempDir::new();
    let file = dir.path().join("bad.toml");
    std::fs::write(&file, "[daemon]\npin = false\n\n[[nic]]\nname = \"a\"\nkind = \"local\"\ncolour = 3\n")
        .expect("file");
    let toed = Cmd::new(&[], env!("CARGO_BIN_EXE_toed"), dir.path()).arg("--config").arg(file.display());
    let got = toed.run(LIMIT);
    assert!(!got.status.success() && got.err.contains("colour") && got.err.contains("7"), "{got:?}");
}

/// `toe compare`, as short as it gets, over whatever programs are installed.
#[test]
fn compare() {
    let _alone = alone();
    let dir = TempDir::new();
    let only = if std::env::var_os("TOE_TEST_STACK").is_some() { "--only kernel" } else { "" };
    let got = run_compare(dir.path(), &format!("compare --quick --json {only}"));
    let json: serde_json::Value = serde_json::from_str(&got).expect("JSON");
    assert_eq!(json["verified"], true, "{json:#}");
    assert!(json["workloads"].as_array().is_some_and(|w| w.len() >= 4), "{json:#}");
    let text = run_compare(dir.path(), &format!("compare --quick --filter stream {only}"));
    assert!(text.contains("stream, 8 flows") && text.contains("every byte"), "{text}");
}

fn run_compare(dir: &Path, args: &str) -> String {
    let toe = Cmd::new(&[], env!("CARGO_BIN_EXE_toe"), dir).args(args);
    toe.run_ok(Duration::from_secs(400)).out
}
