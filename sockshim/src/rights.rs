//! Descriptors in messages (SCM_RIGHTS): those that leave are given into the daemon's keeping, those that come are adopted.

#![allow(unsafe_code)]

use crate::adopt;
use crate::keep;
use crate::table::tables;
use libc::{c_int, msghdr};

/// Calls `f` for each descriptor in the message's control data.
fn each_descriptor(message: *const msghdr, mut f: impl FnMut(c_int)) {
    // SAFETY: a header of the program's, or one that the kernel has just filled in; null is nothing.
    unsafe {
        if message.is_null() || (*message).msg_control.is_null() {
            return;
        }
        // musl's length is no size_t.
        #[allow(clippy::unnecessary_cast)]
        let end = (*message).msg_control as usize + (*message).msg_controllen as usize;
        let mut c = libc::CMSG_FIRSTHDR(message);
        while !c.is_null() {
            let data = libc::CMSG_DATA(c).cast::<c_int>();
            let bytes = ((*c).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            let room = end.saturating_sub(data as usize);
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                (0..bytes.min(room) / size_of::<c_int>()).for_each(|i| f(data.add(i).read_unaligned()));
            }
            c = libc::CMSG_NXTHDR(message, c);
        }
    }
}

/// Before a message goes to the kernel.
pub fn leave(message: *const msghdr) {
    if tables().is_some_and(|t| t.any_locals()) {
        keep::at_send(|f| each_descriptor(message, f));
    }
}

/// After one has come: its descriptors have new numbers, what we knew of these is stale.
pub fn arrive(message: *const msghdr) {
    each_descriptor(message, |fd| {
        crate::hooks_life::fresh(fd);
        adopt::receive(fd);
    });
}
