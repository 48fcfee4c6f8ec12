//! `toe compare`: the same unmodified programs over the kernel's TCP and over the engine, interleaved, several rounds.
//!
//! Two daemons in user mode are joined by PCIeLINK, as 127.77.0.1 and 127.77.0.2; the kernel's side is loopback, and with
//! root also a veth pair between two network namespaces. The kernel uses CUBIC. Every number is printed as it was
//! measured, the CPU time of daemons included. The command fails only if bytes were wrong or a program failed.

mod child;
pub mod link;
mod netns;
mod place;
mod stack;
mod table;
mod workload;

use child::{Child, Usage};
use indicatif::{ProgressBar, ProgressStyle};
use place::{Places, WorkDir};
use stack::Stack;
use std::process::ExitCode;
use std::time::Duration;
use table::{Report, Sample};
use workload::{Context, Workload};

/// What the command line says.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// Times that each measurement is taken, on each stack in turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// One round with short measurements
    #[arg(long)]
    pub quick: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Leave one side out
    #[arg(long, value_enum)]
    pub only: Option<Only>,
    /// Only workloads whose name contains this
    #[arg(long)]
    pub filter: Option<String>,
}

/// See [`Args::only`].
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Only {
    /// The kernel's TCP
    Kernel,
    /// The engine
    Engine,
}

/// Runs all of it and prints the report.
pub fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(report) => {
            let text = if args.json { report.json() } else { report.text() };
            print!("{text}");
            if report.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(message) => {
            eprintln!("toe compare: {message}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> Result<Report, String> {
    let places = Places::find()?;
    let dir = WorkDir::new()?;
    let stacks = stack::start(args.only, &places, &dir)?;
    let mut workloads = workload::all(&places);
    if let Some(filter) = &args.filter {
        workloads.retain(|w| w.name.contains(filter.as_str()));
    }
    let rounds = if args.quick { 1 } else { args.rounds };
    let span = Duration::from_millis(if args.quick { 300 } else { 1500 });
    let mut report = Report::new(&stacks, &workloads, rounds, &places);
    let bar = progress(u64::from(rounds) * (workloads.len() * stacks.len() + 1) as u64);
    for round in 0..rounds {
        if args.only != Some(Only::Kernel) {
            bar.set_message("raw PCIeLINK");
            report.link(link::rate(&dir.file("raw-link"), span));
            bar.inc(1);
        }
        for workload in &workloads {
            // Each round starts with another stack, so that none is always measured on a warmer machine.
            for i in 0..stacks.len() {
                let at = (i + round as usize) % stacks.len();
                bar.set_message(format!("{}: {}", workload.name, stacks[at].name));
                report.add(workload, at, one(workload, &stacks[at], &places, &dir, span));
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(report)
}

/// One program pair on one stack.
fn one(w: &Workload, stack: &Stack, places: &Places, dir: &WorkDir, span: Duration) -> Result<Sample, String> {
    let context = Context {
        ip: stack.server.ip.clone(),
        port: dir.port(),
        span,
        cubic: stack.kernel && places.cubic,
        places,
        dir,
    };
    let limit = Duration::from_secs(60) + span * 10;
    let mut server = Child::start(&stack.server.prefix, (w.server)(&context), dir)?;
    match w.ready {
        workload::Ready::Says(text) => server.until(text, Duration::from_secs(20))?,
        workload::Ready::Accepts => {
            let probe = context.peer("probe --seconds 15 --connect").arg(context.addr());
            Child::start(&stack.client.prefix, probe, dir)?.finish(Duration::from_secs(20))?;
        }
        workload::Ready::Retry => {}
    }
    let received = stack.received(places);
    let before = stack.daemon_usage() + server.usage();
    let done = loop {
        let client = Child::start(&stack.client.prefix, (w.client)(&context), dir)?;
        match client.finish(limit) {
            // A server that takes one connection cannot be asked whether it is ready.
            Err(e) if w.ready == workload::Ready::Retry && e.contains("errno=111") => server.check()?,
            other => break other.map_err(|e| format!("{}, {}: {e}\nserver: {}", w.name, stack.name, server.tail()))?,
        }
    };
    let after = stack.daemon_usage() + server.usage();
    if stack.received(places).iter().zip(&received).any(|(after, before)| after <= before) {
        return Err(format!(
            "{}, {}: a daemon carried nothing: the programs used the kernel's TCP",
            w.name, stack.name
        ));
    }
    let values = (w.parse)(&done.text).ok_or_else(|| {
        format!("{}, {}: no figures in the program's output:\n{}", w.name, stack.name, child::tail(&done.text))
    })?;
    Ok(Sample { values, cpu: Usage::between(before, after) + done.usage, wall: done.wall })
}

fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
