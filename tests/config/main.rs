//! The config as an operator meets it: what is accepted, and what is said about the rest.

mod environment;
mod files;
mod foreign;
mod formats;
mod governing;
mod mistakes;
mod odd;
mod secrets;
mod shown;
mod support;
mod variables;
