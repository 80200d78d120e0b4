//! Values that do not stand in a config but where it says: `${secret:NAME}` in the store, where the owner of a server
//! has it, `${file:PATH}` in a file, `${exec:COMMAND ARGS}` on the stdout of a command.
//!
//! Nothing of that is asked for what nobody uses, nor where the files of a config are not opened at all.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::exec;
use crate::{
    config::{
        ConfigEntry, Environment, LoadScope, Secret, SecretKeyPlace, SecretUse,
        diagnostics::report::ConfigTexts, file_access::FileAccess, node::Node,
    },
    names::{SecretName, ServerOwner},
};

/// The longest value, bytes: longer ones are no secrets.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// Reads what the store of a data directory has for configs; whoever loads one says how.
pub trait StoreReader: Send + Sync {
    /// The values of all secrets of the store in `data_dir`, which need not be there, by their names; each
    /// with why it cannot be read, if so.
    ///
    /// # Errors
    /// Why there are none.
    fn secrets(&self, data_dir: &Path, key: &SecretKeyPlace) -> Result<ReadSecrets, String>;

    /// The entries of the config that the store in `data_dir`, which need not be there, has.
    ///
    /// # Errors
    /// Why there are none.
    fn entries(&self, data_dir: &Path) -> Result<Vec<ConfigEntry>, String>;
}

/// Values of secrets, or why they cannot be read.
pub type ReadSecrets = HashMap<SecretName, Result<Secret, String>>;

/// How a value is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::config) enum ValueForm {
    Exec,
    File,
    Secret,
}

impl ValueForm {
    /// As it is written.
    pub(in crate::config) fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::File => "file",
            Self::Secret => "secret",
        }
    }

    /// The form of `${inner}`, and what comes behind its colon.
    pub(in crate::config) fn parse(inner: &str) -> Option<(Self, &str)> {
        let (form, rest) = inner.split_once(':')?;
        let form = match form {
            "exec" => Self::Exec,
            "file" => Self::File,
            "secret" => Self::Secret,
            _ => return None,
        };
        Some((form, rest))
    }
}

/// Why there is no value.
#[derive(Clone, Debug)]
pub(in crate::config) struct MissingValue {
    pub(in crate::config) message: String,
    pub(in crate::config) help: String,
}

/// Where the values of one config come from.
#[derive(Clone)]
pub(in crate::config) struct SecretValues<'e> {
    environment: &'e Environment,
    files: FileAccess,
    /// Whether servers are used and files opened.
    is_used: bool,
    /// Whether the data directory alone is looked into.
    is_of_data_dir: bool,
    settings: SecretSettings,
    stored: Option<Result<ReadSecrets, String>>,
    outputs: HashMap<Vec<String>, Result<String, String>>,
    /// The files that values were to be read from.
    pub(in crate::config) named_files: Vec<PathBuf>,
    /// Where secrets of the store stand in the config.
    pub(in crate::config) uses: Vec<SecretUse>,
}

/// What must be known before a value is looked for.
#[derive(Clone, Debug, Default)]
struct SecretSettings {
    data_dir: PathBuf,
    key: SecretKeyPlace,
    allows_exec: bool,
}

impl<'e> SecretValues<'e> {
    pub(in crate::config) fn new(
        used: LoadScope<'_>,
        files: FileAccess,
        environment: &'e Environment,
    ) -> Self {
        Self {
            environment,
            files,
            is_used: used != LoadScope::DataDir && files.are_real,
            is_of_data_dir: used.is_of_data_dir(),
            settings: SecretSettings::default(),
            stored: None,
            outputs: HashMap::new(),
            named_files: Vec::new(),
            uses: Vec::new(),
        }
    }

    /// Takes what `tree` says of the store and of commands, which is expanded as far.
    pub(in crate::config) fn set_up(
        &mut self,
        tree: &Node,
        sources: &ConfigTexts,
        default_data_dir: Option<PathBuf>,
    ) {
        let path = |node: &Node| {
            let base = sources.get(node.span.source).base_dir();
            let path = base.join(node.as_text()?);
            Some(std::path::absolute(&path).unwrap_or(path))
        };
        let data_dir = tree.get("data_dir").and_then(|entry| path(&entry.node));
        let section = tree.get("secrets").map(|entry| &entry.node);
        let key_file = section.and_then(|it| it.get("key_file"));
        let key_file = key_file.and_then(|entry| path(&entry.node));
        let exec = section.and_then(|section| section.get("exec"));
        self.settings = SecretSettings {
            data_dir: data_dir.or(default_data_dir).unwrap_or_default(),
            key: SecretKeyPlace::find(key_file, self.environment, self.files.is_file),
            allows_exec: exec.is_some_and(|entry| entry.node.is_true()),
        };
    }

    /// What files are opened with.
    pub(in crate::config) fn files(&self) -> FileAccess {
        self.files
    }

    /// Takes from `other`, of whose uses nothing remains, what it has read, so that nothing is read twice.
    pub(in crate::config) fn keep_read(&mut self, other: Self) {
        self.stored = other.stored;
        self.outputs = other.outputs;
    }

    /// The entries that the store has, where files are opened at all.
    pub(in crate::config) fn entries(&self) -> Result<Vec<ConfigEntry>, String> {
        match self.environment.store_reader() {
            Some(reader) if self.files.are_real => reader.entries(&self.settings.data_dir),
            Some(_) | None => Ok(Vec::new()),
        }
    }

    /// The secret that its `owner` calls `name`, which `path` of the config uses; nothing where nobody needs it.
    pub(in crate::config) fn secret(
        &mut self,
        (owner, name): (&ServerOwner, &str),
        path: &str,
        is_needed: bool,
    ) -> Result<Option<String>, MissingValue> {
        let parsed = SecretName::parse_of(owner, name).map_err(|error| MissingValue {
            message: format!("`{path}` has a secret with an invalid name"),
            help: error.to_string(),
        })?;
        self.uses.push(SecretUse {
            name: parsed.clone(),
            path: path.to_owned(),
        });
        let Some(reader) = self.environment.store_reader() else {
            return Ok(None);
        };
        if !self.is_used || !is_needed {
            return Ok(None);
        }
        let SecretSettings { data_dir, key, .. } = &self.settings;
        let stored = self
            .stored
            .get_or_insert_with(|| reader.secrets(data_dir, key));
        let found = match stored {
            Ok(stored) => stored.get(&parsed).cloned().transpose(),
            Err(why) => Err(why.clone()),
        };
        match found {
            Ok(Some(value)) => Ok(Some(value.expose().to_owned())),
            Ok(None) => Err(MissingValue {
                message: format!("there is no secret `{parsed}` in {}", data_dir.display()),
                help: format!("set it: `tollbridge secret set {parsed}`"),
            }),
            Err(why) => Err(MissingValue {
                message: format!("the secret `{parsed}` cannot be read"),
                help: why,
            }),
        }
    }

    /// What the file `written` holds, without the line break at its end; a relative path starts at `base`.
    pub(in crate::config) fn file(
        &mut self,
        written: &str,
        base: &Path,
        is_needed: bool,
    ) -> Result<Option<String>, MissingValue> {
        let path = base.join(written);
        let path = std::path::absolute(&path).unwrap_or(path);
        self.named_files.push(path.clone());
        if !self.is_used || !is_needed {
            return Ok(None);
        }
        let missing = |why: String| {
            MissingValue {
            message: format!("the file {} cannot be read: {why}", path.display()),
            help: "`${file:PATH}` is the text of a file; relative paths start at the directory of the config \
                file"
                .to_owned(),
        }
        };
        let text = (self.files.read)(&path).map_err(|error| missing(error.to_string()))?;
        let value = check_value(text.trim_end_matches(['\n', '\r'])).map_err(missing)?;
        Ok(Some(value))
    }

    /// What `command` prints, without the line break at its end; it runs in `base`.
    pub(in crate::config) fn output(
        &mut self,
        command: Vec<String>,
        base: &Path,
        is_needed: bool,
    ) -> Result<Option<String>, MissingValue> {
        if !self.settings.allows_exec && !self.is_of_data_dir {
            return Err(MissingValue {
                message: "`${exec:...}` is off, so that no config runs commands by accident"
                    .to_owned(),
                help: "set `exec = true` in `[secrets]`".to_owned(),
            });
        }
        if !self.is_used || !is_needed {
            return Ok(None);
        }
        let program = command.first().cloned().unwrap_or_default();
        let environment = self.environment;
        let output = self.outputs.entry(command).or_insert_with_key(|command| {
            let output = exec::run(command, base, environment)?;
            let text =
                String::from_utf8(output).map_err(|_| "its output is not UTF-8".to_owned())?;
            check_value(text.trim_end_matches(['\n', '\r']))
        });
        output.clone().map(Some).map_err(|why| MissingValue {
            message: format!("the command `{program}` gives no value: {why}"),
            help: "run it by hand to see why; its stderr is not read".to_owned(),
        })
    }
}

/// `text`, if it can be the value of a secret.
///
/// # Errors
/// Why it cannot, without the text.
pub fn check_value(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.len() > VALUE_BYTES_MAX {
        let size = text.len();
        return Err(format!(
            "{size} bytes exceed the maximum of {VALUE_BYTES_MAX}"
        ));
    }
    if text.contains('\0') {
        return Err("it has a NUL character".to_owned());
    }
    Ok(text.to_owned())
}

/// How a reader is held.
pub(in crate::config) type SharedReader = Arc<dyn StoreReader>;
