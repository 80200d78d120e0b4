//! The command line as its users meet it: the binary, run on configs of its own.

mod call;
mod check;
mod confined;
mod governance;
mod list;
mod logs;
mod mistakes;
mod permissions;
mod processes;
mod reload;
mod service;
mod support;
mod terminal;
mod usage;
