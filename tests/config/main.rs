//! The config as an operator meets it: what is accepted, and what is said about the rest.

mod arbitrary_input;
mod clients;
mod display;
mod entries;
mod environment;
mod errors;
mod export;
mod files;
mod formats;
mod governance;
mod import;
mod secrets;
mod support;
mod variables;
