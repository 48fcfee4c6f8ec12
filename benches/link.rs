//! Raw rate of PCIeLINK: frames of 64 KiB from one end to the other, no TCP. `cargo bench --bench link`.

use std::time::Duration;

fn main() {
    let socket = std::env::temp_dir().join(format!("toe-bench-link-{}", std::process::id()));
    for round in 1..=5 {
        match toe::compare::link::rate(&socket, Duration::from_secs(1)) {
            Ok(rate) => println!("raw PCIeLINK, 64 KiB frames, round {round}: {rate:.1} Gb/s"),
            Err(e) => println!("raw PCIeLINK, round {round}: {e}"),
        }
    }
    let _ = std::fs::remove_file(&socket);
}
