//! The offload engine, assembled.
