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
    /// Programs not found.
    pub missing: Vec<&'static str>,
    found: Vec<(&'static str, PathBuf)>,
}

impl Places {
    /// Looks around.
    pub fn find() -> Result<Places, String> {
        let toe = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
        let beside = |name: &str| toe.parent().map(|d| d.join(name)).filter(|p| p.is_file());
        // `cargo run` builds this binary alone: then it is its own daemon, and the peer lies where the build put it.
        let toed = match beside("toed") {
            Some(toed) => vec![toed.display().to_string()],
            None => vec![toe.display().to_string(), "toed".into()],
        };
        let built = Path::new(env!("TOE_PEER_BUILT"));
        let peer = beside("toe-peer").or_else(|| built.is_file().then(|| built.to_path_buf()));
        let peer = peer.ok_or("toe-peer is not beside toe")?;
        let (mut found, mut missing) = (vec![], vec![]);
        for name in OPTIONAL {
            match search(name) {
                Some(path) => found.push((name, path)),
                None => missing.push(name),
            }
        }
        Ok(Places { toe, toed, peer, missing, found })
    }

    /// A program of [`OPTIONAL`], if it is installed.
    pub fn get(&self, name: &str) -> Option<&Path> {
        self.found.iter().find(|(n, _)| *n == name).map(|(_, p)| p.as_path())
    }
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
