//! The `forebay` command as a library: the binary and the Python wheel's command are both a call of [`main`].
//!
//! One module per command. A command writes to the [`Console`] it is given, never to the process's own streams, and
//! ends with a [`Status`].

mod cache;
mod command;
mod console;
mod demo;
mod doctor;
mod hint;
mod mirror;
mod pack;
mod parity;
mod progress;
mod quantity;
mod scan;
mod storage;
mod tokenize;

pub use command::{main, run};
pub use console::{Console, Status};
