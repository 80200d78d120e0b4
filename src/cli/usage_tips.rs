//! Tips for command lines that mean something else here than where they were learnt.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// How files end that are configs.
const CONFIG_ENDINGS: [&str; 5] = [".toml", ".yaml", ".yml", ".json", ".jsonc"];

/// Commands of other programs, and what does the same here.
const COMMAND_TIPS: [(&[&str], &str); 8] = [
    (&["add"], "use `tollbridge server add NAME url=URL`"),
    (
        &["init", "install", "new", "setup"],
        "a config needs one section `[servers.NAME]`; a client's file such as `.mcp.json` can be used \
         as it is: `tollbridge serve --config FILE`",
    ),
    (
        &["status", "ps", "health"],
        "use `tollbridge list servers`, or ask the running gateway for `/status`",
    ),
    (
        &["run", "start", "up", "server", "gateway"],
        "use `tollbridge serve`",
    ),
    (&["validate", "test"], "use `tollbridge check --connect`"),
    (
        &["tools", "ls", "servers"],
        "use `tollbridge list tools` or `tollbridge list servers`",
    ),
    (
        &["log", "logs"],
        "the log is on stderr of `tollbridge serve`; `tollbridge audit` shows calls",
    ),
    (
        &["reload", "restart"],
        "a running gateway reads a changed config itself",
    ),
];

/// Flags of other programs, and what does the same here.
const FLAG_TIPS: [(&[&str], &str); 3] = [
    (
        &["--port", "-p", "--host", "--bind", "--addr", "--address"],
        "use `--listen ADDRESS:PORT`, such as `--listen 127.0.0.1:8080`",
    ),
    (
        &["-c", "--config"],
        "write `--config FILE` after the last subcommand",
    ),
    (
        &["-v", "--verbose", "--debug"],
        "set `level = \"debug\"` in the section `[log]` of the config",
    ),
];

/// `error` with a tip, where its command line is one that is known.
pub(super) fn with_tip(mut error: clap::Error) -> clap::Error {
    let written = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let kind = error.kind();
    let tip = if kind == ErrorKind::InvalidSubcommand {
        let command = written(ContextKind::InvalidSubcommand);
        command.and_then(|command| find_tip(&COMMAND_TIPS, &command))
    } else if kind == ErrorKind::UnknownArgument {
        let argument = written(ContextKind::InvalidArg);
        argument.and_then(|argument| argument_tip(&argument))
    } else if kind == ErrorKind::ArgumentConflict {
        // As in `audit --config FILE verify`.
        let has_command = error.get(ContextKind::InvalidSubcommand).is_some();
        let before = written(ContextKind::PriorArg).filter(|_| has_command);
        before.and_then(|flag| argument_tip(flag.split(' ').next()?))
    } else {
        None
    };
    if let Some(tip) = tip {
        let tips = ContextValue::StyledStrs(vec![tip.to_owned().into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

fn argument_tip(argument: &str) -> Option<&'static str> {
    if CONFIG_ENDINGS
        .iter()
        .any(|ending| argument.ends_with(ending))
    {
        return Some("to read a config, use `--config FILE`");
    }
    find_tip(&FLAG_TIPS, argument.split('=').next()?)
}

fn find_tip(tips: &[(&[&str], &'static str)], written: &str) -> Option<&'static str> {
    let tip = tips.iter().find(|(names, _)| names.contains(&written));
    tip.map(|(_, tip)| *tip)
}
