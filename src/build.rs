//! Compiles `toe-peer` (the standard library alone) beside the `toe` binary's own build, so that `cargo run -- compare` finds it:
//! cargo builds no other binary of this package for that command.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/bin/toe-peer");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let out = Path::new(&var("OUT_DIR")).join("toe-peer");
    let mut rustc = Command::new(var("RUSTC"));
    rustc.args([
        "--edition",
        "2024",
        "--crate-name",
        "toe_peer",
        "--crate-type",
        "bin",
        "-Copt-level=3",
        "--cap-lints=allow",
    ]);
    if var("HOST") != var("TARGET") {
        rustc.args(["--target", &var("TARGET")]);
    }
    let built = rustc.arg("-o").arg(&out).arg("src/bin/toe-peer/main.rs").status();
    let path = match built {
        Ok(status) if status.success() => out.display().to_string(),
        other => {
            println!(
                "cargo::warning=toe-peer was not built beside toe ({other:?}); `toe compare` looks for it in its own folder"
            );
            String::new()
        }
    };
    println!("cargo::rustc-env=TOE_PEER_BUILT={path}");
}
