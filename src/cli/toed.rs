//! `toed`: reads the configuration and runs the daemon. A part of the library, so that `toe` can be its own daemon where cargo
//! has built no other program (`cargo run`).

use crate::config::{Config, ConfigArgs, Machine};
use crate::daemon::{self, RunOptions};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// What the command line says.
#[derive(clap::Args, Debug)]
pub struct DaemonArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// What to log on stderr (tracing's filter syntax) [default: RUST_LOG, else info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Run in a session of its own
    #[arg(long)]
    detach: bool,
    /// Print `ready SOCKET` on stdout when ready
    #[arg(long)]
    print_ready: bool,
    /// End when no program has been registered for so many seconds
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,
}

/// Runs the daemon until it is told to stop.
pub fn run(args: &DaemonArgs) -> ExitCode {
    let filter = args.log.clone().or_else(|| std::env::var("RUST_LOG").ok()).unwrap_or_else(|| "info".to_owned());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(std::io::stderr().is_terminal()).with_target(false).init();
    match start(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("toed: {message}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &DaemonArgs) -> Result<(), String> {
    let mut config = Config::load(&args.config, &Machine::here()).map_err(|e| e.to_string())?;
    if let Some(seconds) = args.idle_exit {
        config.daemon.idle_exit = Some(Duration::from_secs(seconds));
    }
    let options = RunOptions { detach: args.detach, print_ready: args.print_ready };
    daemon::run(config, options).map_err(|e| e.to_string())
}
