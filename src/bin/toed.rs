//! The daemon of the offload engine.

use clap::Parser;
use std::process::ExitCode;

/// The daemon of the offload engine
#[derive(Parser)]
#[command(name = "toed", version)]
struct Toed {
    #[command(flatten)]
    args: toe::cli::toed::DaemonArgs,
}

fn main() -> ExitCode {
    toe::cli::toed::run(&Toed::parse().args)
}
