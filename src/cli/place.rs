//! Where the other parts stand: beside this program, as installed or as cargo leaves them.

use std::io;
use std::path::{Path, PathBuf};

/// File name of the shim.
const SHIM: &str = "libsockshim.so";

/// The directory of the running program.
fn here() -> io::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    exe.parent().map(Path::to_path_buf).ok_or_else(|| io::Error::other("the running program has no directory"))
}

/// The shim.
pub fn shim() -> io::Result<PathBuf> {
    shim_near(&here()?)
}

/// The daemon: its program, and the words that come first. That is `toed` beside us, unless it is missing or older than we
/// are: `cargo run` builds `toe` alone, which then is its own daemon.
pub fn toed() -> io::Result<(PathBuf, &'static [&'static str])> {
    let own = std::env::current_exe()?;
    let age = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    let toed = here()?.join("toed");
    match age(&toed) {
        Some(t) if Some(t) >= age(&own) => Ok((toed, &[])),
        _ => Ok((own, &["toed"])),
    }
}

/// `cargo run` leaves it in `deps`; `cargo build --workspace` puts a copy beside the programs, which the next `cargo run` does
/// not renew: the newest is right. Installed it is in `../lib/toe`.
fn shim_near(dir: &Path) -> io::Result<PathBuf> {
    let places = [dir.join(SHIM), dir.join("deps").join(SHIM), dir.join("../lib/toe").join(SHIM)];
    let built = |path: &PathBuf| path.metadata().and_then(|m| m.modified()).ok();
    let newest = places.into_iter().filter_map(|p| built(&p).map(|t| (t, p))).max();
    let Some((_, path)) = newest else {
        let text = format!("no {SHIM} in {0}, {0}/deps or {0}/../lib/toe", dir.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    };
    let path = path.canonicalize()?;
    match path.as_os_str().as_encoded_bytes().iter().any(|b| b" :\t\n".contains(b)) {
        true => {
            Err(io::Error::other(format!("{}: LD_PRELOAD cannot name a path with blanks or colons", path.display())))
        }
        false => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use std::fs::{self, File};
    use std::time::{Duration, SystemTime};

    #[test]
    fn the_newest_shim_is_taken() {
        let dir = TempDir::new();
        let bin = dir.path().join("bin");
        fs::create_dir_all(bin.join("deps")).unwrap();
        fs::create_dir_all(dir.path().join("lib/toe")).unwrap();
        assert!(shim_near(&bin).unwrap_err().to_string().contains(SHIM));
        let start = SystemTime::now();
        for (i, place) in ["lib/toe", "bin", "bin/deps"].into_iter().enumerate() {
            let file = dir.path().join(place).join(SHIM);
            File::create(&file).unwrap().set_modified(start + Duration::from_secs(i as u64)).unwrap();
            assert_eq!(shim_near(&bin).unwrap(), file.canonicalize().unwrap());
        }
    }

    #[test]
    fn paths_that_the_loader_would_split_are_refused() {
        let dir = TempDir::new();
        let odd = dir.path().join("a b");
        fs::create_dir(&odd).unwrap();
        File::create(odd.join(SHIM)).unwrap();
        assert!(shim_near(&odd).unwrap_err().to_string().contains("LD_PRELOAD"));
    }
}
