//! What programs are told of although they cannot see it.

use std::path::{Path, PathBuf};

use crate::config::{
    Config, StdioCommand, Transport,
    diagnostics::report::{Diagnostic, Diagnostics},
    node::ValuePath,
};

/// Warns of programs that lie in what is hidden from them, work there, or are given a path to it.
pub(super) fn check(config: &Config, root: &ValuePath<'_>, diagnostics: &mut Diagnostics) {
    let hidden = config.hidden_paths();
    let servers = root.child("servers");
    let enabled = config.servers.iter().filter(|(_, server)| server.enabled);
    for (name, server) in enabled {
        let at = servers.child(name.as_str());
        if server.replicas.is_empty() {
            check_program(&server.transport, &hidden, &at, diagnostics);
        }
        let replicas = at.child("replicas");
        for (index, replica) in server.replicas.iter().enumerate() {
            check_program(
                &replica.transport,
                &hidden,
                &replicas.item_at(index),
                diagnostics,
            );
        }
    }
}

fn check_program(
    transport: &Transport,
    hidden: &[PathBuf],
    at: &ValuePath<'_>,
    diagnostics: &mut Diagnostics,
) {
    let Transport::Stdio(command) = transport else {
        return;
    };
    let is_hidden = |path: &Path| hidden.iter().any(|hidden| path.starts_with(hidden));
    let mut warn = |at: &ValuePath<'_>| {
        let diagnostic = format!("`{}` is hidden from programs", at.path());
        diagnostics.add(
            Diagnostic::warning(diagnostic)
                .at(at.span(), "the program cannot open this")
                .help(
                    "the config, its env and key files and the data directory are hidden from \
                     server programs: keep files they need elsewhere",
                ),
        );
    };
    if command.cwd.as_deref().is_some_and(is_hidden) {
        warn(&at.child("cwd"));
    }
    if is_hidden(Path::new(&command.program)) {
        warn(&at.child("command"));
    }
    for (index, arg) in command.args.iter().enumerate() {
        if candidate_paths(arg, command)
            .iter()
            .any(|path| is_hidden(path))
        {
            warn(&at.child("args").item_at(index));
        }
    }
}

/// The paths that `arg` may be, as the program reads it.
fn candidate_paths(arg: &str, command: &StdioCommand) -> [PathBuf; 2] {
    let value = arg.rsplit_once('=').map_or(arg, |(_, value)| value);
    let cwd = command.cwd.as_deref().unwrap_or(Path::new(""));
    [arg, value].map(|path| cwd.join(path))
}
