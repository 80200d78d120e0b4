//! The documents: reference pages are what the code says, links lead somewhere, configs are configs and
//! commands are commands.

mod commands;
mod config_keys;
mod error_codes;
mod examples;

mod links;
mod markdown;
mod metrics;

mod reference;
#[path = "../cli/support.rs"]
#[expect(dead_code, reason = "the tests of the command line use all of it")]
mod support;
mod walkthroughs;
