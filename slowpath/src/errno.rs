//! Linux's numbers (asm-generic/errno.h), so that no system header is needed.
#![allow(missing_docs)]

pub(crate) const EACCES: i32 = 13;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOPROTOOPT: i32 = 92;
pub(crate) const EPROTO: i32 = 71;
pub(crate) const EADDRINUSE: i32 = 98;
pub(crate) const EADDRNOTAVAIL: i32 = 99;
pub(crate) const ENETDOWN: i32 = 100;
pub(crate) const ENETUNREACH: i32 = 101;
pub(crate) const ECONNRESET: i32 = 104;
pub(crate) const EISCONN: i32 = 106;
pub(crate) const ETIMEDOUT: i32 = 110;
pub(crate) const ECONNREFUSED: i32 = 111;
pub(crate) const EHOSTUNREACH: i32 = 113;
pub(crate) const ECONNABORTED: i32 = 103;
pub(crate) const EALREADY: i32 = 114;
pub(crate) const EOPNOTSUPP: i32 = 95;
