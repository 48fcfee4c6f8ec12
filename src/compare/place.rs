//! Where programs and temporary files are.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Programs that are measured if they are there.
const OPTIONAL: [&str; 7] = ["sockperf", "iperf3", "redis-server", "redis-benchmark", "NPtcp", "nginx", "wrk"];

/// Programs.
pub struct Places {
    /// This one.
    pub toe: PathBuf,
    /// Words that start the daemon.
    pub toed: Vec<String>,
    /// The bundled client and server.
    pub peer: PathBuf,
    /// May this user ask for CUBIC?
    pub cubic: bool,
    /// Programs not found.
    pub missing: Vec<&'static str>,
    found: Vec<(&'static str, PathBuf)>,
}

impl Places {
    /// Looks around.
    pub fn find() -> Result<Places, String> {
        let toe = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
        let beside = |name: &str| toe.parent().map(|d| d.join(name)).filter(|p| p.is_file());
        let (program, first) = crate::cli::place::toed().map_err(|e| format!("toed: {e}"))?;
        let toed = [&[program.to_string_lossy().as_ref()], first].concat().into_iter().map(String::from).collect();
        // `cargo run` builds `toe` alone: then the peer lies where the build put it.
        let built = Path::new(env!("TOE_PEER_BUILT"));
        let age = |p: &PathBuf| p.metadata().and_then(|m| m.modified()).ok();
        let places = [beside("toe-peer"), built.is_file().then(|| built.to_path_buf())];
        let peer = places.into_iter().flatten().max_by_key(age).ok_or("toe-peer is not beside toe")?;
        let (mut found, mut missing) = (vec![], vec![]);
        for name in OPTIONAL {
            match search(name) {
                Some(path) => found.push((name, path)),
                None => missing.push(name),
            }
        }
        Ok(Places { toe, toed, peer, cubic: cubic_allowed(), missing, found })
    }

    /// A program of [`OPTIONAL`], if it is installed.
    pub fn get(&self, name: &str) -> Option<&Path> {
        self.found.iter().find(|(n, _)| *n == name).map(|(_, p)| p.as_path())
    }
}

/// Root may choose any algorithm that is loaded; others only those that root has allowed.
fn cubic_allowed() -> bool {
    let list = if rustix::process::geteuid().is_root() { "available" } else { "allowed" };
    let file = format!("/proc/sys/net/ipv4/tcp_{list}_congestion_control");
    std::fs::read_to_string(file).unwrap_or_default().split_whitespace().any(|name| name == "cubic")
}

/// Finds a program as the shell would, in the system's folders too.
pub fn search(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|d| d.join(name)).find(|p| p.is_file())
}

/// A private directory that goes away with the value, and numbers that are not used twice.
pub struct WorkDir {
    path: PathBuf,
    next_file: AtomicU32,
    next_port: AtomicU16,
}

impl WorkDir {
    /// An empty one.
    pub fn new() -> Result<WorkDir, String> {
        let path = std::env::temp_dir().join(format!("toe-compare-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let first = 14_000 + (std::process::id() % 64) as u16 * 100;
        Ok(WorkDir { path, next_file: AtomicU32::new(0), next_port: AtomicU16::new(first) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path for a new file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{}-{name}", self.next_file.fetch_add(1, Ordering::Relaxed)))
    }

    /// A port that nothing of ours has used yet.
    pub fn port(&self) -> u16 {
        self.next_port.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
