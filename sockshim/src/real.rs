//! libc's own functions under the names that we hook, for what we pass on and cannot do by a system call.

#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};
use libc::c_void;

/// The next definition of a name after ours.
pub struct Real(AtomicPtr<c_void>, &'static CStr);

impl Real {
    pub const fn new(name: &'static CStr) -> Real {
        Real(AtomicPtr::new(core::ptr::null_mut()), name)
    }

    /// It, looked up once; null: there is none.
    pub fn get(&self) -> *mut c_void {
        let found = self.0.load(Acquire);
        if !found.is_null() {
            return found;
        }
        // SAFETY: a lookup by name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.1.as_ptr()) };
        self.0.store(found, Release);
        found
    }
}

/// `real!(name: extern "C" fn(…) -> …)`: libc's function of that name and type, if it has one.
macro_rules! real {
    ($name:ident : $type:ty) => {{
        static REAL: $crate::real::Real = $crate::real::Real::new(
            match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without zero bytes"),
            },
        );
        let found = REAL.get();
        // SAFETY: null is `None`; otherwise libc's function, whose type is the one its manual gives.
        unsafe { core::mem::transmute::<*mut libc::c_void, Option<$type>>(found) }
    }};
}
pub(crate) use real;
