//! `tollbridge completions`

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use super::{command, output::print};

/// Print a shell completion script
#[derive(Args, Debug)]
pub(super) struct Completions {
    /// Shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) -> ExitCode {
        let mut script = Vec::new();
        let command = command();
        let name = command.get_name().to_owned();
        // What `help` can be asked about is found out with its siblings as they are then, so these learn
        // their arguments before. A `help` of their own is nothing that it can be asked about.
        let mut command = command.mut_subcommands(|subcommand| {
            let full_name = format!("{name} {}", subcommand.get_name());
            let subcommand = subcommand.bin_name(full_name);
            let mut subcommand = subcommand.disable_help_subcommand(true);
            subcommand.build();
            subcommand
        });
        clap_complete::generate(self.shell, &mut command, &name, &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}
