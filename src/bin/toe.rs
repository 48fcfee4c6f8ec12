//! `toe`: runs programs over the engine, shows its state, compares it with the kernel.

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use toe::cli::{rules, run, status, toed};

/// Runs programs over the offload engine, shows its state, compares it with the kernel
#[derive(Parser)]
#[command(name = "toe", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program over the engine
    Run(run::Args),
    /// Show links, listeners, connections and counters
    Status(status::Args),
    /// The same programs over the kernel's TCP and over the engine
    Compare(toe::compare::Args),
    /// Which stack a connection would use
    #[command(subcommand)]
    Rules(Rules),
    /// (Used by `run`)
    #[command(hide = true)]
    SpawnDaemon { socket: PathBuf },
    /// The daemon (also a program of its own, `toed`)
    #[command(hide = true)]
    Toed(toed::DaemonArgs),
}

#[derive(Subcommand)]
enum Rules {
    /// Say what would happen to one connection or listener, and by which rule
    Check(rules::Args),
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Compare(args) => toe::compare::run(&args),
        Command::Rules(Rules::Check(args)) => rules::check(&args),
        Command::Toed(args) => toed::run(&args),
        Command::SpawnDaemon { socket } => run::spawn_daemon(&socket),
    }
}
