//! Shim on equals shim off: `toe-conform` prints the same lines on kernel sockets and over the engine. What differs, and why,
//! stands in `docs/COMPATIBILITY.md`; a difference that is not listed fails, and so does one that is listed and gone.

#[path = "common/mod.rs"]
mod common;

use common::{Cmd, Proc, TempDir, alone, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
/// All cases of one run; the longest one may take as long as the program lets it.
const RUN: Duration = Duration::from_secs(540);
const CONFORM: &str = env!("CARGO_BIN_EXE_toe-conform");
/// The kernel's address and the engine's.
const V4: [&str; 2] = ["127.0.0.1", "127.77.8.1"];
const V6: [&str; 2] = ["::1", "fd77:8::1"];
/// The address that both share; lines of the table for it alone begin with it.
const LOOPBACK: [&str; 2] = ["127.0.0.1", "127.0.0.1"];

/// What each case printed.
type Traces = BTreeMap<String, String>;

fn traces(out: &str) -> Traces {
    let split = |line: &str| line.split_once(": ").map(|(name, trace)| (name.to_string(), trace.to_string()));
    out.lines().filter_map(split).collect()
}

/// A daemon that is its own peer.
fn daemon(dir: &Path, socket: &Path) -> Proc {
    let file = dir.join("toed.toml");
    let toml = format!(
        "[daemon]\nsocket = \"{}\"\npin = false\n\n[[nic]]\nname = \"local\"\nkind = \"local\"\naddr = [\"{}/24\", \"{}/64\"]\n",
        socket.display(),
        V4[1],
        V6[1]
    );
    std::fs::write(&file, toml).expect("configuration");
    let toed = Cmd::new(&[], env!("CARGO_BIN_EXE_toed"), dir).args("--print-ready --config").arg(file.display());
    let mut proc = toed.spawn();
    proc.until("ready ", LIMIT);
    proc
}

/// The tables of differences, as patterns of case names (`*`: any text): those there must be, and those there may be, as kernels
/// differ among themselves.
fn listed() -> [Vec<&'static str>; 2] {
    let text = include_str!("../docs/COMPATIBILITY.md");
    let tables = text.split_once("\n## Where kernels differ").expect("two tables");
    let pattern = |line: &'static str| Some(line.strip_prefix("| `")?.split_once("` | ")?.0);
    [tables.0, tables.1].map(|table| table.lines().filter_map(pattern).collect())
}

/// Does `name` match `pattern`?
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut open = false;
    for part in parts {
        open = true;
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty() || open && pattern.ends_with('*')
}

/// Where two traces part, with the word before.
fn parting(kernel: &str, engine: &str) -> String {
    let (k, e): (Vec<&str>, Vec<&str>) = (kernel.split(' ').collect(), engine.split(' ').collect());
    let same = k.iter().zip(&e).take_while(|(a, b)| a == b).count();
    let tail = |words: &[&str]| words[same.saturating_sub(2)..].iter().take(12).copied().collect::<Vec<_>>().join(" ");
    format!("    kernel … {}\n    engine … {}", tail(&k), tail(&e))
}

/// Which lines of the table must be needed by a run; the others may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    General,
    Loopback,
    None,
}

impl Lines {
    fn holds(self, pattern: &str) -> bool {
        match self {
            Lines::General => !pattern.starts_with(LOOPBACK[0]),
            Lines::Loopback => pattern.starts_with(LOOPBACK[0]),
            Lines::None => false,
        }
    }
}

fn compare(kernel: &Traces, engine: &Traces, lines: Lines) {
    let names: BTreeSet<&String> = kernel.keys().chain(engine.keys()).collect();
    let nothing = String::from("(did not run)");
    let (mut wrong, mut used) = (vec![], BTreeSet::new());
    let [must, may] = listed();
    let listed: Vec<&str> = must.iter().chain(&may).copied().collect();
    for name in names {
        let (k, e) = (kernel.get(name).unwrap_or(&nothing), engine.get(name).unwrap_or(&nothing));
        if k == e {
            continue;
        }
        let dead = ["HANG", "SIGNAL", "EXIT"].iter().any(|w| e.contains(w));
        let local = format!("{} {name}", LOOPBACK[0]);
        let here = |p: &str| matches(p, name) || lines == Lines::Loopback && matches(p, &local);
        match listed.iter().position(|pattern| here(pattern)) {
            Some(at) if !dead => _ = used.insert(at),
            _ => wrong.push(format!("{name}\n{}", parting(k, e))),
        }
    }
    assert!(wrong.is_empty(), "{} cases differ and are not listed:\n{}", wrong.len(), wrong.join("\n"));
    let gone: Vec<&&str> =
        must.iter().enumerate().filter(|(i, p)| lines.holds(p) && !used.contains(i)).map(|(_, p)| p).collect();
    assert!(gone.is_empty(), "listed in docs/COMPATIBILITY.md, but no difference any more: {gone:?}");
}

fn status(dir: &Path, socket: &Path) -> serde_json::Value {
    let toe = Cmd::new(&[], env!("CARGO_BIN_EXE_toe"), dir).args("status --json --toed").arg(socket.display());
    toe.run_ok(LIMIT).json()
}

/// The cases really went through the engine.
fn used(status: &serde_json::Value) {
    let count = |v: &serde_json::Value| v.as_u64().unwrap_or(0);
    let tcp = &status["counters"];
    let (opens, taken) = (count(&tcp["TcpActiveOpens"]), count(&tcp["TcpPassiveOpens"]));
    let segs = count(&status["cores"][0]["in_segs"]);
    assert!(opens > 1000 && taken > 1000 && segs > 3000, "the engine was hardly used: {status:#}");
}

#[test]
fn the_engine_is_as_the_kernel() {
    run(V4, Lines::General);
}

#[test]
fn the_engine_is_as_the_kernel_v6() {
    // What is listed is seen to differ with IPv4.
    run(V6, Lines::None);
}

/// Programs under the shim meet over the engine at the kernel's own address.
#[test]
fn the_engine_is_as_the_kernel_on_loopback() {
    run(LOOPBACK, Lines::Loopback);
}

fn run([kernel, engine]: [&str; 2], lines: Lines) {
    let _alone = alone();
    let dir = TempDir::new();
    let socket = dir.path().join("toed.sock");
    let _daemon = daemon(dir.path(), &socket);
    let kernel = traces(&Cmd::new(&[], CONFORM, dir.path()).args("--addr").arg(kernel).run_ok(RUN).out);
    assert!(kernel.len() > 1000, "only {} cases ran", kernel.len());
    let shim = Cmd::new(&[], env!("CARGO_BIN_EXE_toe"), dir.path()).args("run --no-spawn --toed").arg(socket.display());
    let engine = traces(&shim.arg("--").arg(CONFORM).args("--addr").arg(engine).run_ok(RUN).out);
    used(&status(dir.path(), &socket));
    compare(&kernel, &engine, lines);
    wait_for("the end of all flows", LIMIT, || {
        let now = status(dir.path(), &socket);
        let none = |what: &str| now[what].as_array().is_some_and(Vec::is_empty);
        let empty = none("flows") && none("listeners") && none("regions") && now["cores"][0]["rx_chunks_in_use"] == 0;
        empty.then_some(())
    });
}

#[test]
fn patterns() {
    assert!(matches("a::b", "a::b") && !matches("a::b", "a::bc") && !matches("a::b", "xa::b"));
    assert!(matches("a::*::c", "a::b::c") && matches("a::*", "a::b") && !matches("a::*::c", "a::b::d"));
    assert!(!matches("a::*::c", "a::b::cd"));
}
