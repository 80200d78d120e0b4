//! `reference/commands.md`: the commands as clap knows them.

use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::markdown::{anchor, wrap};

/// The options of every command that reads a config, which are told once.
const SHARED: [&str; 3] = ["config", "log_level", "log_format"];
/// Lines of options that are told again where a sibling has them too.
const SHORT: usize = 3;

pub(crate) fn page() -> String {
    let mut root = tollbridge::cli::command();
    root.build();
    let serve = root.find_subcommand("serve").expect("there is one");
    let mut out =
        "## Common options\n\nEvery command that reads a config takes these:\n\n".to_owned();
    for name in SHARED {
        let found = serve.get_arguments().find(|it| it.get_id() == name);
        out.push_str(&argument(found.expect("every command has it")));
    }
    for command in subcommands(&root) {
        section(command, &mut Vec::new(), &mut out);
    }
    out
}

fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    let all = command.get_subcommands();
    all.filter(|it| !it.is_hide_set() && it.get_name() != "help")
}

/// Writes down `command` and those below it; `told` are options that one of its siblings has too, with
/// its name.
fn section(command: &Command, told: &mut Vec<(String, String)>, out: &mut String) {
    let name = command.get_bin_name().expect("it is built");
    let about = command.get_long_about().or(command.get_about());
    let about = about.expect("every command has help").to_string();
    write!(out, "\n## {name}\n\n").expect("a String takes all");
    for paragraph in about.split("\n\n") {
        let end = if paragraph.ends_with('.') { "" } else { "." };
        out.push_str(&wrap("", &format!("{paragraph}{end}"), 0));
        out.push('\n');
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let lines: Vec<&str> = usage.lines().map(str::trim).collect();
    write!(out, "```text\n{}\n```\n", lines.join("\n")).expect("a String takes all");
    let own = command.get_arguments().filter(|it| is_own(it));
    let own: String = own.map(argument).collect();
    let sibling = told.iter().find(|(options, _)| *options == own);
    if let Some((_, sibling)) = sibling {
        let text = format!("Takes what [{sibling}](#{}) takes.", anchor(sibling));
        write!(out, "\n{text}\n").expect("a String takes all");
    } else if !own.is_empty() {
        write!(out, "\n{own}").expect("a String takes all");
    }
    if own.lines().count() > SHORT {
        told.push((own, name.to_owned()));
    }
    if command.get_arguments().any(|it| it.get_id() == SHARED[0]) {
        out.push_str("\nAlso the [common options](#common-options).\n");
    }
    if let Some(text) = command.get_after_help() {
        write!(out, "\n{}", wrap("", &text.to_string(), 0)).expect("a String takes all");
    }
    let mut told = Vec::new();
    for inner in subcommands(command) {
        section(inner, &mut told, out);
    }
}

fn is_own(argument: &Arg) -> bool {
    let id = argument.get_id().as_str();
    !SHARED.contains(&id) && id != "help" && !argument.is_hide_set()
}

fn argument(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help());
    let mut text = help.expect("every argument has help").to_string();
    text.push('.');
    let values = argument.get_possible_values();
    if !values.is_empty() && argument.get_action().takes_values() {
        let values: Vec<_> = values
            .iter()
            .map(|it| format!("`{}`", it.get_name()))
            .collect();
        write!(text, " Values: {}.", values.join(", ")).expect("a String takes all");
    }
    let defaults = argument.get_default_values().iter();
    for default in defaults.filter(|_| argument.get_action().takes_values()) {
        write!(text, " Default: `{}`.", default.display()).expect("a String takes all");
    }
    let shown = argument.to_string();
    let short = argument.get_short();
    let short = short.map(|it| format!("`-{it}`, ")).unwrap_or_default();
    wrap(&format!("- {short}`{shown}`: "), &text, 2)
}
