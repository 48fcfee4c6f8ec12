//! What posix_spawn's file actions do to descriptors that are marked close-on-exec: dup2 gives the child a copy without the mark.

#![allow(unsafe_code)]

use core::ffi::c_void;
use libc::c_int;

/// Descriptors of one spawn.
pub type Sources = arrayvec::ArrayVec<c_int, 64>;

/// `posix_spawn_file_actions_t` of glibc (its ABI since 2.1.91).
#[cfg(target_env = "gnu")]
#[repr(C)]
struct Actions {
    allocated: c_int,
    used: c_int,
    actions: *const Action,
}

/// `struct __spawn_action`, word by word: the tag, its padding, then a union, which for dup2 begins with the two numbers.
#[cfg(target_env = "gnu")]
type Action = [u32; 8];

/// What the child gets by dup2.
#[cfg(target_env = "gnu")]
pub fn dup_sources(actions: *const c_void) -> Sources {
    const DUP2: c_int = 1;
    const _: () = assert!(size_of::<usize>() == 8);
    let mut found = Sources::new();
    // SAFETY: null, or the program's initialised object of the type that this libc gives it.
    let Some(all) = (unsafe { actions.cast::<Actions>().as_ref() }) else { return found };
    if all.used <= 0 || all.used > all.allocated || all.actions.is_null() {
        return found;
    }
    // SAFETY: libc's array has `used` actions.
    for action in unsafe { core::slice::from_raw_parts(all.actions, all.used as usize) } {
        if action[0] as c_int == DUP2 {
            let _ = found.try_push(action[2] as c_int);
        }
    }
    found
}

/// Another libc keeps its own secrets.
#[cfg(not(target_env = "gnu"))]
pub fn dup_sources(_: *const c_void) -> Sources {
    Sources::new()
}
