//! Small cases over the socket calls, each of which prints what a program sees: results, errno, readiness, side effects. It links
//! nothing of the engine. Run on kernel sockets and again under the shim, it must print the same lines
//! (`docs/COMPATIBILITY.md` lists those that differ, with the reason).
//!
//! Each case runs in a process group of its own, so that one that hangs is written down as `HANG`, one that crashes as
//! `SIGNAL n`, and none leaves anything behind.
//!
//! `unsafe` stands only in the macro `c!` of `sys.rs` and in the few functions beside it; every other file calls libc through it.

#![deny(unsafe_code)]

#[macro_use]
mod sys;
mod block;
mod calls;
mod data;
mod dup;
mod epoll;
mod epoll_wake;
mod fault;
mod flags;
mod fork;
mod life;
mod names;
mod options;
mod ready;
mod run;
mod shut;
mod state;
mod state_ops;
mod trace;
mod vectors;

use std::net::IpAddr;
use std::process::ExitCode;
use trace::T;

const USAGE: &str = "toe-conform [--addr IP] [--filter TEXT] [--seconds N] [--list]";

/// One case: what it is called, and what it does.
pub struct Case {
    name: String,
    body: Box<dyn Fn(&T)>,
}

/// A file's table of cases: `cases! { fn name(t) { … } … }`.
macro_rules! cases {
    ($($(#[$doc:meta])* fn $name:ident($t:ident) $body:block)*) => {
        $($(#[$doc])* fn $name($t: &crate::trace::T) $body)*
        /// The cases of this file.
        pub const CASES: &[(&str, fn(&crate::trace::T))] = &[$((stringify!($name), $name)),*];
    };
}
pub(crate) use cases;

/// Cases by name, as the files have them.
type Table = &'static [(&'static str, fn(&T))];

fn all() -> Vec<Case> {
    let tables: [(&str, Table); 14] = [
        ("life", life::CASES),
        ("data", data::CASES),
        ("vectors", vectors::CASES),
        ("flags", flags::CASES),
        ("ready", ready::CASES),
        ("epoll", epoll::CASES),
        ("epoll_wake", epoll_wake::CASES),
        ("options", options::CASES),
        ("names", names::CASES),
        ("dup", dup::CASES),
        ("fork", fork::CASES),
        ("block", block::CASES),
        ("fault", fault::CASES),
        ("shut", shut::CASES),
    ];
    let mut all = vec![];
    for (area, table) in tables {
        for &(name, body) in table {
            all.push(Case { name: format!("{area}::{name}"), body: Box::new(body) });
        }
    }
    all.extend(state::matrix());
    all
}

struct Args {
    addr: IpAddr,
    filter: Option<String>,
    seconds: u64,
    list: bool,
}

fn parse() -> Option<Args> {
    let mut args = Args { addr: IpAddr::from([127, 0, 0, 1]), filter: None, seconds: 10, list: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--list" => args.list = true,
            "--addr" => args.addr = words.next()?.parse().ok()?,
            "--filter" => args.filter = Some(words.next()?),
            "--seconds" => args.seconds = words.next()?.parse().ok()?,
            _ => return None,
        }
    }
    Some(args)
}

fn main() -> ExitCode {
    let Some(args) = parse() else {
        eprintln!("usage: {USAGE}");
        return ExitCode::FAILURE;
    };
    let wanted = |c: &Case| args.filter.as_ref().is_none_or(|f| c.name.contains(f.as_str()));
    for case in all().iter().filter(|c| wanted(c)) {
        if args.list {
            println!("{}", case.name);
        } else {
            println!("{}:{}", case.name, run::run(case.body.as_ref(), args.addr, args.seconds));
        }
    }
    ExitCode::SUCCESS
}
