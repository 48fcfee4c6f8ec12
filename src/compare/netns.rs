//! Network namespaces without names: each is held by a `cat` that ends when this process does, however it ends, and the
//! namespace with it. So nothing is ever left over, and nothing needs sweeping.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A network namespace; without root, inside a user namespace of its own.
pub struct Netns {
    holder: Child,
    user: bool,
}

impl Netns {
    /// A fresh one with `lo` up; `None` where the system does not allow it.
    pub fn new() -> Option<Netns> {
        let user = !rustix::process::geteuid().is_root();
        Netns::start(Command::new("unshare").arg(if user { "-Urn" } else { "-n" }), user)
    }

    /// A second one next to this (in the same user namespace).
    pub fn sibling(&self) -> Option<Netns> {
        let prefix = self.prefix();
        Netns::start(Command::new(&prefix[0]).args(&prefix[1..]).args(["unshare", "-n"]), self.user)
    }

    fn start(command: &mut Command, user: bool) -> Option<Netns> {
        let sysctl = "/proc/sys/net";
        let script = format!(
            "ip link set lo up && ip addr add ::1/128 dev lo 2>/dev/null; \
             echo cubic >{sysctl}/ipv4/tcp_congestion_control; \
             for d in default all; do echo 0 >{sysctl}/ipv6/conf/$d/accept_dad; done; \
             echo ready; exec cat"
        );
        let mut holder = command
            .args(["sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        let read = BufReader::new(holder.stdout.take()?).read_line(&mut line);
        if read.is_ok() && line.trim() == "ready" {
            return Some(Netns { holder, user });
        }
        let _ = holder.wait();
        None
    }

    /// Words that start a program inside.
    pub fn prefix(&self) -> Vec<String> {
        let pid = self.holder.id().to_string();
        let words: &[&str] = match self.user {
            true => &["nsenter", "--preserve-credentials", "-U", "-n", "-t", &pid, "--"],
            false => &["nsenter", "-n", "-t", &pid, "--"],
        };
        words.iter().map(|w| w.to_string()).collect()
    }

    /// Process that holds it.
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Runs a shell line inside. `false`: it failed.
    pub fn try_sh(&self, line: &str) -> bool {
        let prefix = self.prefix();
        let status = Command::new(&prefix[0]).args(&prefix[1..]).args(["sh", "-ec", line]).status();
        status.is_ok_and(|s| s.success())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
