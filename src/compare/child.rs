//! Programs under measurement: output in files, CPU time from `/proc`, ended with all their children when dropped.

use super::place::{WorkDir, search};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::ops::Add;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// CPU time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// In programs.
    pub user: f64,
    /// In the kernel on their behalf.
    pub system: f64,
}

impl Usage {
    /// What was used between two readings.
    pub fn between(before: Usage, after: Usage) -> Usage {
        Usage { user: (after.user - before.user).max(0.0), system: (after.system - before.system).max(0.0) }
    }

    /// Both.
    pub fn total(self) -> f64 {
        self.user + self.system
    }
}

impl Add for Usage {
    type Output = Usage;
    fn add(self, other: Usage) -> Usage {
        Usage { user: self.user + other.user, system: self.system + other.system }
    }
}

/// A program and its arguments.
pub struct Words(pub Vec<String>);

impl Words {
    /// A program without arguments yet.
    pub fn new(program: impl AsRef<Path>) -> Words {
        Words(vec![program.as_ref().display().to_string()])
    }

    /// One more argument.
    pub fn arg(mut self, arg: impl ToString) -> Words {
        self.0.push(arg.to_string());
        self
    }

    /// More arguments, separated by blanks.
    pub fn args(mut self, args: &str) -> Words {
        self.0.extend(args.split_whitespace().map(String::from));
        self
    }
}

/// What a program that ended has left.
pub struct Done {
    /// Both outputs.
    pub text: String,
    /// Its CPU time, children that it waited for included.
    pub usage: Usage,
    /// From start to end.
    pub wall: Duration,
}

/// A running program.
pub struct Child {
    child: std::process::Child,
    name: String,
    output: PathBuf,
    start: Instant,
}

impl Child {
    /// Starts `prefix words`, standard output and error into one file.
    pub fn start(prefix: &[String], words: Words, dir: &WorkDir) -> Result<Child, String> {
        let mut all = prefix.to_vec();
        all.extend(words.0);
        // Ended by the kernel if we are; after a namespace is entered, since that clears the request.
        if search("setpriv").is_some() {
            let at = if all[0] == "nsenter" { all.iter().position(|w| w == "--").map_or(0, |i| i + 1) } else { 0 };
            all.splice(at..at, ["setpriv", "--pdeathsig", "KILL"].map(String::from));
        }
        let output = dir.file("out");
        let file = std::fs::File::create(&output).map_err(|e| format!("{}: {e}", output.display()))?;
        let same = file.try_clone().map_err(|e| e.to_string())?;
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).process_group(0).current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(file).stderr(same);
        let child = command.spawn().map_err(|e| format!("{}: {e}", all[0]))?;
        Ok(Child { child, name: all.join(" "), output, start: Instant::now() })
    }

    /// CPU time so far of its process group.
    pub fn usage(&self) -> Usage {
        group_usage(self.child.id())
    }

    /// Waits until it has said `text`.
    pub fn until(&mut self, text: &str, limit: Duration) -> Result<(), String> {
        while !self.text().contains(text) {
            self.check()?;
            if self.start.elapsed() > limit {
                return Err(format!("{}: never said {text:?}:\n{}", self.name, self.tail()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Still running?
    pub fn check(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            other => Err(format!("{} ended ({other:?}):\n{}", self.name, self.tail())),
        }
    }

    /// Waits for its end; anything but exit status 0 is an error.
    pub fn finish(mut self, limit: Duration) -> Result<Done, String> {
        let pid = self.pid();
        // A zombie still tells its times: look before it is reaped.
        let ended = || {
            rustix::process::waitid(
                WaitId::Pid(pid),
                WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG,
            )
        };
        while matches!(ended(), Ok(None)) {
            if self.start.elapsed() > limit {
                return Err(format!("{}: still running after {limit:?}:\n{}", self.name, self.tail()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let (wall, usage) = (self.start.elapsed(), self.usage());
        let status = self.child.wait().map_err(|e| e.to_string())?;
        match status.success() {
            true => Ok(Done { text: self.text(), usage, wall }),
            false => Err(format!("{}: {status}\n{}", self.name, self.tail())),
        }
    }

    /// Asks it to end, and waits a while for it to do so.
    pub fn stop(&mut self, limit: Duration) {
        let _ = rustix::process::kill_process(self.pid(), Signal::TERM);
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The end of its output.
    pub fn tail(&self) -> String {
        tail(&self.text()).to_string()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The last 2,000 bytes or so of a text.
pub fn tail(text: &str) -> &str {
    let mut at = text.len().saturating_sub(2000);
    while !text.is_char_boundary(at) {
        at += 1;
    }
    &text[at..]
}

/// Sums the processes of a group (proc_pid_stat(5): fields 5 and 14 to 17).
fn group_usage(group: u32) -> Usage {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let mut sum = Usage::default();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_pid = entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit());
        if !is_pid {
            continue;
        }
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |n: usize| fields.get(n - 3).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
        if fields.len() > 14 && field(5) == f64::from(group) {
            let add = Usage { user: (field(14) + field(16)) / ticks, system: (field(15) + field(17)) / ticks };
            sum = sum + add;
        }
    }
    sum
}
