//! The shim's own descriptors give way to the program's: a program that puts something on a number of ours gets the number,
//! and ours moves.

use crate::ctx;
use crate::table::{Entry, Kind, MAX_LINKS, tables};

/// Moves the descriptor `fd` of ours to another number. `false`: it stays, there is no other.
pub fn make_room(fd: i32) -> bool {
    let Some(t) = tables() else { return false };
    let mut moved = false;
    for link in (0..MAX_LINKS).filter_map(ctx::link) {
        match link.move_fd(fd) {
            Ok(Some(new)) => {
                t.swap(new, Entry::new(Kind::Internal, 0));
                moved = true;
            }
            // Not this link's.
            Ok(None) => {}
            Err(_) => return false,
        }
    }
    if moved {
        t.swap(fd, Entry(0));
    }
    moved
}
