//! `tollbridge config`

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{
    args::ConfigArgs,
    data_dir::{self, AccessMode},
    output::{OutputFormat, print},
    report_failure,
};
use crate::api::{ExportFailure, export_config};

/// Print the config in one file
#[derive(Args, Debug)]
pub(super) struct ConfigCommandArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print one TOML file that says what the config files and the store say. Secrets are
    /// references; comments tell what it lacks
    Export(ConfigArgs),
}

impl ConfigCommandArgs {
    pub(super) fn run(&self) -> ExitCode {
        let Command::Export(args) = &self.command;
        data_dir::with_data_dir(
            args,
            OutputFormat::Text,
            AccessMode::Read,
            async |data_dir| match export_config(&data_dir.config, Some(&data_dir.store)).await {
                Ok(text) => Ok(print(&text)),
                Err(ExportFailure::Store(error)) => Err(error.into()),
                Err(error @ ExportFailure::Config(_)) => Ok(report_failure(&error)),
            },
        )
    }
}
