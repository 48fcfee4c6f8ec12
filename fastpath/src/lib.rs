//! (under construction)
mod ranges;
mod reassembly;
mod rtt;
mod space;
mod wheel;
