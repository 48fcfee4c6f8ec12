//! The test daemon as a program: `loopd DIR` serves `DIR/toed.sock` until its standard input ends.

use std::io::Read;

fn main() -> std::io::Result<()> {
    let dir = std::env::args_os().nth(1).expect("usage: loopd DIR");
    let daemon = toe_core::app::testing::LoopDaemon::start(std::path::Path::new(&dir))?;
    println!("ready");
    let _ = std::io::stdin().read(&mut [0; 1]);
    drop(daemon);
    Ok(())
}
