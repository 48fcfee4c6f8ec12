//! `toe`: runs programs over the engine, shows its state, compares it with the kernel.

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "toe", version, about)]
enum Command {
    /// The same programs over the kernel's TCP and over the engine
    Compare(toe::compare::Args),
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Compare(args) => toe::compare::run(&args),
    }
}
