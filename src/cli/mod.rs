//! The `toe` command's parts.

pub mod client;
pub mod place;
pub mod rules;
pub mod run;
pub mod status;
pub mod toed;
