//! Child processes: output in files, ended (with all their children) when dropped.

use super::wait_for;
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A program to be started.
pub struct Cmd {
    words: Vec<String>,
    envs: Vec<(String, String)>,
    dir: PathBuf,
    stdin: bool,
}

/// How a program ended.
#[derive(Debug)]
pub struct Output {
    /// Exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Output {
    /// The last line of standard output as JSON.
    pub fn json(&self) -> serde_json::Value {
        let line = self.out.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

impl Cmd {
    /// `prefix` is what wraps the program (namespace, stack); output files go to `dir`.
    pub fn new(prefix: &[String], program: impl AsRef<Path>, dir: &Path) -> Cmd {
        // The kernel ends the child with us even if we are killed; the namespace is entered first.
        let mut words = prefix.to_vec();
        let at = words.iter().position(|w| w == "--").map_or(0, |i| i + 1);
        words.splice(at..at, ["setpriv", "--pdeathsig", "KILL"].map(String::from));
        words.push(program.as_ref().to_string_lossy().into_owned());
        Cmd { words, envs: vec![], dir: dir.to_path_buf(), stdin: false }
    }

    /// One argument.
    pub fn arg(mut self, arg: impl ToString) -> Cmd {
        self.words.push(arg.to_string());
        self
    }

    /// Several, separated by blanks.
    pub fn args(mut self, args: &str) -> Cmd {
        self.words.extend(args.split_whitespace().map(String::from));
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Cmd {
        self.envs.push((name.into(), value.into()));
        self
    }

    /// A pipe as stdin, for [`Proc::say`].
    pub fn stdin(mut self) -> Cmd {
        self.stdin = true;
        self
    }

    /// Starts it.
    pub fn spawn(self) -> Proc {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let file = |kind: &str| self.dir.join(format!("{n}.{kind}"));
        let create = |kind: &str| File::create(file(kind)).expect("output file");
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).process_group(0).current_dir(&self.dir);
        command.envs(self.envs.iter().map(|(k, v)| (k, v)));
        command.stdin(if self.stdin { Stdio::piped() } else { Stdio::null() });
        command.stdout(create("out")).stderr(create("err"));
        let child = command.spawn().unwrap_or_else(|e| panic!("{:?}: {e}", self.words));
        Proc { child, name: self.words.join(" "), out: file("out"), err: file("err") }
    }

    /// Starts it and waits for its end.
    pub fn run(self, limit: Duration) -> Output {
        self.spawn().wait(limit)
    }

    /// Starts it, waits, and insists on success.
    pub fn run_ok(self, limit: Duration) -> Output {
        self.spawn().wait_ok(limit)
    }
}

/// A running program.
pub struct Proc {
    child: Child,
    name: String,
    out: PathBuf,
    err: PathBuf,
}

impl Proc {
    /// Process id (of the program itself: all wrappers exec).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it ended?
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("wait")
    }

    /// Standard output so far.
    pub fn out(&self) -> String {
        read(&self.out)
    }

    /// Standard error so far.
    pub fn err(&self) -> String {
        read(&self.err)
    }

    /// Waits until its output holds `text`; panics if it ends before.
    pub fn until(&mut self, text: &str, limit: Duration) {
        let start = Instant::now();
        loop {
            let ended = self.ended();
            if self.out().contains(text) || self.err().contains(text) {
                return;
            }
            let waited = start.elapsed() >= limit;
            assert!(!waited && ended.is_none(), "no {text:?} within {limit:?} ({ended:?}): {}", self.describe());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Writes a line to its stdin.
    pub fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("stdin is a pipe");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("write to stdin");
    }

    /// Ends its stdin.
    pub fn end_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Sends a signal to it alone.
    pub fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process(self.raw_pid(), signal);
    }

    /// Waits for its end.
    pub fn wait(mut self, limit: Duration) -> Output {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.ended() {
                break status;
            }
            assert!(start.elapsed() < limit, "still running after {limit:?}: {}", self.describe());
            std::thread::sleep(Duration::from_millis(1));
        };
        Output { status, out: self.out(), err: self.err() }
    }

    /// Waits, and insists on success.
    pub fn wait_ok(self, limit: Duration) -> Output {
        let name = self.name.clone();
        let output = self.wait(limit);
        assert!(output.status.success(), "{name}: {output:?}");
        output
    }

    /// Waits until the program has no runnable thread: whoever is in a blocking call sleeps in the kernel.
    pub fn until_asleep(&self, limit: Duration) {
        let tasks = format!("/proc/{}/task", self.pid());
        wait_for(&format!("sleep of {}", self.describe()), limit, || {
            let mut all = std::fs::read_dir(&tasks).ok()?.flatten();
            all.all(|t| task_state(&t.path()).is_some_and(|s| s == "S")).then_some(())
        });
    }

    /// CPU time used so far, in clock ticks.
    pub fn ticks(&self) -> u64 {
        ticks(self.pid())
    }

    /// How often its threads have gone to sleep so far.
    pub fn switches(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        tasks.map(|t| voluntary_switches(&read(&t.path().join("status")))).sum()
    }

    /// Command line and the ends of both outputs.
    pub fn describe(&self) -> String {
        format!("{}\n--- stdout\n{}\n--- stderr\n{}", self.name, tail(&self.out()), tail(&self.err()))
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).expect("a pid")
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process_group(self.raw_pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// CPU time of a process so far, in clock ticks.
pub fn ticks(pid: u32) -> u64 {
    let stat = read(Path::new(&format!("/proc/{pid}/stat")));
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    // proc_pid_stat(5): utime is field 14, stime 15; the third field is the first after the name.
    field(11) + field(12)
}

/// Of a `/proc/PID/task/TID/status`.
fn voluntary_switches(status: &str) -> u64 {
    let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

fn task_state(task: &Path) -> Option<String> {
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().next().map(String::from)
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn tail(text: &str) -> &str {
    let mut at = text.len().saturating_sub(4000);
    while !text.is_char_boundary(at) {
        at += 1;
    }
    &text[at..]
}
