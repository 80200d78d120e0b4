//! What programs are told of although they cannot see it.

use std::path::{Path, PathBuf};

use crate::config::{
    Config, StdioCommand, Transport,
    diagnostics::report::{Diagnostic, Diagnostics},
    node::ValuePath,
};

/// Warns of programs that lie in what is hidden from them, work there, or are given a path to it.
pub(super) fn check(config: &Config, root: &ValuePath<'_>, findings: &mut Diagnostics) {
    let hidden = config.hidden();
    let servers = root.key("servers");
    let enabled = config.servers.iter().filter(|(_, server)| server.enabled);
    for (name, server) in enabled {
        let at = servers.key(name.as_str());
        if server.replicas.is_empty() {
            of_program(&server.transport, &hidden, &at, findings);
        }
        let replicas = at.key("replicas");
        for (index, replica) in server.replicas.iter().enumerate() {
            of_program(&replica.transport, &hidden, &replicas.item(index), findings);
        }
    }
}

fn of_program(
    transport: &Transport,
    hidden: &[PathBuf],
    at: &ValuePath<'_>,
    findings: &mut Diagnostics,
) {
    let Transport::Stdio(command) = transport else {
        return;
    };
    let is_hidden = |path: &Path| hidden.iter().any(|hidden| path.starts_with(hidden));
    let mut warn = |at: &ValuePath<'_>| {
        let finding = format!("`{}` is hidden from programs", at.path());
        findings.add(
            Diagnostic::warning(finding)
                .at(at.span(), "its program cannot open this")
                .help(
                    "programs see neither the config, nor its files of variables and keys, nor the data \
                     directory: keep what they need elsewhere",
                ),
        );
    };
    if command.cwd.as_deref().is_some_and(is_hidden) {
        warn(&at.key("cwd"));
    }
    if is_hidden(Path::new(&command.program)) {
        warn(&at.key("command"));
    }
    for (index, arg) in command.args.iter().enumerate() {
        if paths(arg, command).iter().any(|path| is_hidden(path)) {
            warn(&at.key("args").item(index));
        }
    }
}

/// The paths that `arg` may be, as the program reads it.
fn paths(arg: &str, command: &StdioCommand) -> [PathBuf; 2] {
    let value = arg.rsplit_once('=').map_or(arg, |(_, value)| value);
    let cwd = command.cwd.as_deref().unwrap_or(Path::new(""));
    [arg, value].map(|path| cwd.join(path))
}
