//! Stores against real servers, started on loopback. What is not installed is skipped, by name.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "tests, with real servers")]

mod errors;
mod remote;
mod scripted;
mod servers;
