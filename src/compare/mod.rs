//! `toe compare`: being built.

use std::process::ExitCode;

/// What the command line says.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {}

/// Says that it is not there yet.
pub fn run(_args: &Args) -> ExitCode {
    eprintln!("toe compare: being built, not there yet");
    ExitCode::FAILURE
}
