//! The shim's own descriptors give way to the program's: a program that puts something on a number of ours gets the number,
//! and ours moves. And what libc replaces without calling our `dup2` is forgotten.

#![allow(unsafe_code)]

use crate::ctx;
use crate::real::real;
use crate::table::{Entry, Kind, MAX_LINKS, tables};
use libc::c_int;

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

/// libc puts /dev/null on the standard descriptors by itself.
#[unsafe(no_mangle)]
extern "C" fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
    let Some(call) = real!(daemon: extern "C" fn(c_int, c_int) -> c_int) else { return -1 };
    let outcome = call(no_chdir, no_close);
    if outcome == 0 && no_close == 0 {
        (0..3).for_each(crate::hooks_life::fresh);
    }
    outcome
}
