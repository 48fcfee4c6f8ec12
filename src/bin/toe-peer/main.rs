//! A client and server for tests and `toe compare`. It uses the standard library alone and links nothing of the engine:
//! to the engine it is one more unmodified program. It prints one line of JSON.
//!
//! Each direction of a connection carries bytes that both ends can compute from a seed and a position, so every byte is
//! compared where it arrives, and a hash of what arrived goes back to the sender.
//!
//! `unsafe` stands only in `sys.rs` (the few libc calls that the standard library does not have).

#![deny(unsafe_code)]

mod args;
mod block;
mod client;
mod data;
mod histogram;
mod idle;
mod polled;
mod proto;
mod report;
mod server;
mod sys;

use std::process::ExitCode;

const USAGE: &str = "\
toe-peer serve   --listen ADDR:PORT [--poll] [--cubic] [--peer ADDR]     complains of connections from elsewhere
toe-peer stream  --connect ADDR:PORT [--connections N] [--up BYTES] [--down BYTES] [--seconds S] [--seed N] [--buf BYTES]
                 [--data prng|pattern] [--poll] [--cubic]
toe-peer ping    --connect ADDR:PORT [--connections N] [--msg BYTES] [--count N | --seconds S] [--cubic]
toe-peer idle    --connect ADDR:PORT [--connections N]      opens, prints `ready`, at end of stdin checks them all
toe-peer reset   --connect ADDR:PORT                        blocks in a read that the server resets
toe-peer hold    --connect ADDR:PORT                        blocks in a read, prints how it ended
toe-peer block   --connect ADDR:PORT --listen ADDR:PORT     blocks in read, write, accept and poll, prints how each ended
toe-peer probe   --connect ADDR:PORT [--seconds S]          tries until a connection is accepted";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mode = words.next().unwrap_or_default();
    let result = args::Args::parse(words).and_then(|args| match mode.as_str() {
        "serve" => server::run(&args),
        "stream" if args.poll => polled::run_client(&args),
        "stream" => client::stream(&args),
        "ping" => client::ping(&args),
        "idle" => idle::run(&args),
        "reset" => block::reset(&args),
        "hold" => block::hold(&args),
        "block" => block::all(&args),
        "probe" => block::probe(&args),
        _ => Err(format!("usage:\n{USAGE}")),
    });
    match result {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("toe-peer: {message}");
            ExitCode::FAILURE
        }
    }
}
