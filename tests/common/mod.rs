//! What the end-to-end tests stand on: processes that end with their test, network namespaces that end with theirs, and
//! rigs of daemons and stacks.
#![allow(dead_code, unused_imports)]

#[path = "../../src/compare/netns.rs"]
mod netns;
mod proc;
mod proof;
mod rig;
#[path = "../../src/testing.rs"]
mod testing;
mod wait;

pub use netns::Netns;
pub use proc::{Cmd, Proc};
pub use proof::{Moved, carried};
pub use rig::{Alone, Ip, Rig, RigSpec, Side, alone};
pub use testing::TempDir;
pub use wait::wait_for;

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

/// Says on the real stderr (the test runner captures `eprintln!`) that a test did not run, and why. In CI a program that is
/// missing is a failure: CI installs them all.
pub fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {why}");
}

/// The path of a program, or a skip.
pub fn program(test: &str, name: &str) -> Option<PathBuf> {
    let found = find(name);
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none_or(|v| v != "true"), "{name} is not installed, and this is CI");
        skip(test, &format!("{name} is not installed"));
    }
    found
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // System directories first: wrappers in a user's PATH (version managers) would run a shell before the program.
    let system = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(PathBuf::from);
    system.into_iter().chain(std::env::split_paths(&path)).map(|d| d.join(name)).find(|p| p.is_file())
}

/// Bytes each way of the large transfers: `TOE_TEST_BYTES`, else 1 GiB; 64 MiB without optimisation.
pub fn bulk_bytes() -> u64 {
    env_bytes("TOE_TEST_BYTES", if cfg!(debug_assertions) { 64 << 20 } else { 1 << 30 })
}

/// Bytes each way of transfers over a link with faults: `TOE_TEST_FAULT_BYTES`, else a quarter of the large ones.
pub fn fault_bytes() -> u64 {
    env_bytes("TOE_TEST_FAULT_BYTES", bulk_bytes() / 4)
}

fn env_bytes(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(v) => v.parse().unwrap_or_else(|_| panic!("{name}={v}: not a number of bytes")),
        Err(_) => default,
    }
}

/// A port that no other test of this process uses.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    21_000 + (std::process::id() % 64) as u16 * 100 + NEXT.fetch_add(1, Ordering::Relaxed) % 6_000
}

/// A file below `tests/programs`.
pub fn script(name: &str) -> String {
    format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}
