//! From files and environment to a [`Config`]: the order of the stages.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::FileTypeExt as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    str::Utf8Error,
    sync::Arc,
    time::Duration,
};

use etcetera::BaseStrategy;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    io::Errno,
};

use super::{
    Config, ConfigEntry, ConfigErrors, EntryKey, EntrySection, Environment, FaultyEntry, FilePlace,
    Notice, SecretUse, Severity,
    diagnostics::{
        redact::{self, HiddenRanges},
        report::{ConfigTexts, Diagnostic, Diagnostics, SourceText},
    },
    file,
    file_access::FileAccess,
    import::{self, ImportContext},
    node::{ConfigValue, Node, join_path},
    resolve::{self, ResolveContext},
    source::{decode, environment, json, secret_values::SecretValues, toml, variables, yaml},
    validate,
    written::WrittenConfig,
};

/// The largest config file, bytes; what is larger is no config.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// How long a pipe may say nothing: what writes a config does so at once.
const PIPE_TIMEOUT: Duration = Duration::from_secs(5);

/// The names a config file has where it is not named, best first.
const DEFAULT_NAMES: [&str; 4] = [
    "tollbridge.toml",
    "tollbridge.yaml",
    "tollbridge.yml",
    "tollbridge.json",
];

/// A config that may run, and what its operator should know.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// What to run.
    pub config: Config,
    /// All of severity [`Severity::Warning`].
    pub warnings: Vec<Notice>,
    /// The files, as they were named, that hold nothing, not even a comment.
    pub blank: Vec<String>,
}

/// What a config is read for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LoadScope<'n> {
    /// To use this server, and those that are enabled.
    EnabledAnd(&'n str),
    /// To use the servers that are enabled.
    Enabled,
    /// To look into the data directory: no server is used, and nobody calls with a key.
    DataDir,
    /// The same, but for this server.
    OneServer(&'n str),
}

impl LoadScope<'_> {
    /// Whether the server `name` is used.
    pub(super) fn includes_server(self, name: &str, is_enabled: bool) -> bool {
        match self {
            Self::EnabledAnd(wanted) => is_enabled || name == wanted,
            Self::Enabled => is_enabled,
            Self::DataDir => false,
            Self::OneServer(wanted) => name == wanted,
        }
    }

    /// Whether nobody calls anything, and servers are used by their names alone.
    pub(super) fn is_of_data_dir(self) -> bool {
        matches!(self, Self::DataDir | Self::OneServer(_))
    }
}

/// The text of one config, with what is needed to read it.
#[derive(Clone, Debug)]
pub struct ConfigText {
    /// How messages name it; usually the path as the operator wrote it.
    pub name: String,
    /// How it is written.
    pub format: ConfigFormat,
    /// All of it.
    pub text: String,
    /// Where relative paths in it start.
    pub directory: PathBuf,
}

/// How a config is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConfigFormat {
    /// JSON; comments and trailing commas are accepted.
    Json,
    /// TOML 1.1.
    Toml,
    /// YAML 1.2.
    Yaml,
}

impl ConfigFormat {
    /// The format of files that end like `path`.
    pub fn from_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_lowercase().as_str() {
            "json" | "jsonc" => Some(Self::Json),
            "toml" => Some(Self::Toml),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

/// Reads `files`, later ones over earlier ones, and the overrides of `environment` over all.
///
/// # Errors
/// Everything that is wrong with them.
pub fn load(files: &[PathBuf], environment: &Environment) -> Result<LoadedConfig, ConfigErrors> {
    load_with(files, LoadScope::Enabled, environment)
}

/// Like [`load`], for who will make this use of it: only variables that are needed for that must have
/// values.
///
/// # Errors
/// Everything that is wrong with the files.
pub fn load_with(
    files: &[PathBuf],
    used: LoadScope<'_>,
    environment: &Environment,
) -> Result<LoadedConfig, ConfigErrors> {
    let mut loading = ConfigLoader::default();
    let mut sources = Vec::new();
    for file in files {
        match read_source(file) {
            Ok(source) => {
                if is_world_readable(file) {
                    loading.readable.insert(source.name.clone());
                }
                sources.push(source);
            }
            Err(finding) => {
                loading.findings.add(finding);
                loading.is_incomplete = true;
            }
        }
    }
    let absolute = files
        .iter()
        .filter_map(|file| std::path::absolute(file).ok());
    loading.files = absolute.collect();
    loading.run(sources, used, environment, FileAccess::FILESYSTEM)
}

/// Like [`load`], from texts instead of files: no file is opened, and every file that a config
/// names is taken to exist and to hold nothing.
///
/// # Errors
/// Everything that is wrong with them.
pub fn parse(
    sources: impl IntoIterator<Item = ConfigText>,
    environment: &Environment,
) -> Result<LoadedConfig, ConfigErrors> {
    ConfigLoader::default().run(
        sources,
        LoadScope::Enabled,
        environment,
        FileAccess::ASSUME_PRESENT,
    )
}

/// Whether a file with this `text` says nothing, not even in a comment.
pub fn is_blank(text: &str) -> bool {
    strip_bom(text).trim().is_empty()
}

/// `text` without the byte order mark with which some editors begin a file; no format has a use for
/// it.
fn strip_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The config that is used where none is named: `tollbridge.toml` (or `.yaml`, `.yml`, `.json`) in
/// the working directory, else in `tollbridge` below the user's config directory.
pub fn find_default() -> Option<PathBuf> {
    let user = etcetera::choose_base_strategy()
        .ok()
        .map(|dirs| dirs.config_dir().join("tollbridge"));
    let directories = [Some(PathBuf::new()), user];
    directories
        .into_iter()
        .flatten()
        .find_map(|directory| find_in(&directory))
}

/// Where state is kept unless a config says: `tollbridge` in the user's data directory, which is
/// `~/.local/share` (XDG) or, on macOS, `~/Library/Application Support`.
fn default_data_dir() -> Option<PathBuf> {
    let user = etcetera::base_strategy::choose_native_strategy().ok()?;
    Some(user.data_dir().join("tollbridge"))
}

/// The config in `directory`.
fn find_in(directory: &Path) -> Option<PathBuf> {
    DEFAULT_NAMES
        .iter()
        .map(|name| directory.join(name))
        .find(|path| path.is_file())
}

/// The JSON Schema of a config file.
pub fn schema() -> serde_json::Value {
    file::type_schema()
}

fn read_source(file: &Path) -> Result<ConfigText, Diagnostic> {
    let name = file.display().to_string();
    let cannot = |error: &dyn std::fmt::Display| {
        Diagnostic::error(format!("cannot read the config: {error}")).in_file(&name)
    };
    let Some(format) = ConfigFormat::from_path(file) else {
        return Err(
            Diagnostic::error("cannot tell the config format from the file name")
                .in_file(&name)
                .help("use the extension `.toml`, `.yaml` or `.json`"),
        );
    };
    let text = read(file).map_err(|error| cannot(&error))?;
    let directory = std::path::absolute(file).map_err(|error| cannot(&error))?;
    let directory = directory.parent().unwrap_or(Path::new("/")).to_owned();
    Ok(ConfigText {
        name,
        format,
        text,
        directory,
    })
}

/// Whether everybody on this machine may read the regular file `path`.
fn is_world_readable(path: &Path) -> bool {
    let known = fs::metadata(path);
    known.is_ok_and(|known| known.is_file() && known.permissions().mode() & 0o004 != 0)
}

/// Whether everybody on this machine may write to what is open; to a terminal only who is asked may.
fn is_world_writable(about: &fs::Metadata) -> bool {
    let kind = about.file_type();
    !kind.is_dir() && !kind.is_char_device() && about.permissions().mode() & 0o002 != 0
}

/// The text of `file`, unless it is larger than a config is or other users could have written it.
fn read(file: &Path) -> io::Result<String> {
    // Else a named pipe that nobody writes to would not even be opened.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut file = File::from(rustix::fs::open(file, flags, Mode::empty())?);
    let about = file.metadata()?;
    if is_world_writable(&about) {
        let why = "the file is writable by other users, who could change what the gateway does: run \
            `chmod o-w`";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(too_large_error(about.len()));
    }
    let mut bytes = Vec::new();
    if about.is_file() || about.is_dir() {
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    } else {
        read_pipe(&mut file, &mut bytes)?;
    }
    let size = bytes.len() as u64;
    if size > FILE_BYTES_MAX {
        return Err(too_large_error(size));
    }
    String::from_utf8(bytes).map_err(|error| not_utf8_error(error.as_bytes(), error.utf8_error()))
}

/// Reads what a pipe or a device has to say, to its end or until it is more than a config.
fn read_pipe(pipe: &mut File, bytes: &mut Vec<u8>) -> io::Result<()> {
    let wait = Timespec::try_from(PIPE_TIMEOUT).map_err(io::Error::other)?;
    let mut part = vec![0; 64 * 1024];
    while bytes.len() as u64 <= FILE_BYTES_MAX {
        let mut waited = [PollFd::new(pipe, PollFlags::IN)];
        match poll(&mut waited, Some(&wait)) {
            Ok(0) => {
                let seconds = PIPE_TIMEOUT.as_secs();
                let why = format!("not a regular file, and no data arrived within {seconds} s");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match pipe.read(&mut part) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Says where `bytes` are no text: `error` is why.
fn not_utf8_error(bytes: &[u8], error: Utf8Error) -> io::Error {
    let end = error.valid_up_to();
    let why = if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        "the file is UTF-16: save it as UTF-8".to_owned()
    } else {
        let line = bytes[..end].split(|byte| *byte == b'\n').count();
        let byte = bytes[end];
        format!("invalid UTF-8 (byte 0x{byte:02x} in line {line}): save the file as UTF-8")
    };
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn too_large_error(size: u64) -> io::Error {
    let why = format!("{size} bytes exceed the maximum of {FILE_BYTES_MAX}");
    io::Error::new(io::ErrorKind::FileTooLarge, why)
}

#[derive(Debug, Default)]
struct ConfigLoader {
    sources: ConfigTexts,
    findings: Diagnostics,
    /// Whether a file could not be read: nothing is said to be missing then, since it may stand in
    /// that file.
    is_incomplete: bool,
    /// The names of files that say nothing.
    blank: Vec<String>,
    /// The names of files that everybody on this machine may read.
    readable: HashSet<String>,
    /// The files that are read.
    files: Vec<PathBuf>,
    /// The files that values are read from.
    value_files: Vec<PathBuf>,
    /// Where secrets of the store stand.
    secret_uses: Vec<SecretUse>,
    /// The entries of the store that count, by the number of their source.
    entries: BTreeMap<usize, StoredNode>,
    /// Those that do not.
    faulty_entries: Vec<FaultyEntry>,
    /// Why none could be read.
    unread_entries: Option<String>,
    /// What the files say.
    written: Node,
    /// What the variables say that override keys.
    overrides: Node,
}

/// An entry of the store as a tree in our shape.
#[derive(Debug)]
struct StoredNode {
    key: EntryKey,
    node: Node,
}

impl FileAccess {
    /// Those of this machine.
    const FILESYSTEM: Self = Self {
        is_file: Path::is_file,
        read,
        are_real: true,
    };
    /// None is opened.
    pub(super) const ASSUME_PRESENT: Self = Self {
        is_file: |_| true,
        read: |_| Ok(String::new()),
        are_real: false,
    };
}

impl ConfigLoader {
    fn run(
        mut self,
        sources: impl IntoIterator<Item = ConfigText>,
        used: LoadScope<'_>,
        environment: &Environment,
        files: FileAccess,
    ) -> Result<LoadedConfig, ConfigErrors> {
        let schema = match file::editor_schema() {
            Ok(schema) => schema,
            Err(error) => {
                self.findings.add(unreadable(&error));
                return self.finish(None);
            }
        };
        let mut tree = Node::empty();
        for source in sources {
            match self.read_tree(source, &schema, environment) {
                Some(node) => tree.merge_over(node),
                None => self.is_incomplete = true,
            }
        }
        let Self {
            sources,
            findings,
            is_incomplete,
            overrides,
            written,
            ..
        } = &mut self;
        written.clone_from(&tree);
        if !*is_incomplete {
            *overrides =
                environment::override_keys(&mut tree, &schema, environment, sources, findings);
        }
        let mut values = SecretValues::new(used, files, environment);
        let scope = (used, environment);
        variables::expand_settings(&mut tree, scope, sources, (&mut values, findings));
        values.set_up(&tree, sources, default_data_dir());
        let file_places = self.file_places(&tree);
        self.read_entries(&tree, &values);
        let mut config = self.resolve_with_entries(&tree, &schema, scope, values);
        if let Some(config) = &mut config {
            config.entries.in_files = file_places;
        }
        self.finish(config)
    }

    /// Where the entries stand that `tree`, which is of files alone, has.
    fn file_places(&self, tree: &Node) -> BTreeMap<EntryKey, FilePlace> {
        let mut places = BTreeMap::new();
        for section in EntrySection::ALL {
            let entries = tree.get(section.as_str());
            let entries = entries.and_then(|it| it.node.as_table());
            for (name, entry) in entries.into_iter().flatten() {
                let place = self.sources.place(entry.key);
                places.insert(EntryKey::new(section, name), place);
            }
        }
        places
    }

    /// Reads the entries of the store, which count where no file has an entry of that name.
    fn read_entries(&mut self, tree: &Node, values: &SecretValues<'_>) {
        // Whoever uses the store says what is wrong with it.
        let entries = values.entries().unwrap_or_else(|why| {
            self.unread_entries = Some(why);
            Vec::new()
        });
        for ConfigEntry { key, document } in entries {
            let section = key.section.as_str();
            let written = tree.get(section).and_then(|it| it.node.get(&key.name));
            if let Some(written) = written {
                let message = format!("the config overrides the {key} of the store");
                let warning = Diagnostic::warning(message).at(Some(written.key), "here");
                self.findings.add(warning);
                self.faulty_entries.push(FaultyEntry {
                    key,
                    fault: "a config file has an entry of this name, which counts".to_owned(),
                });
                continue;
            }
            let source = self
                .sources
                .add(format!("store: {key}"), document, PathBuf::new());
            self.sources.mark_stored(source);
            let text = &self.sources.get(source).text;
            let mut trial = self.findings.trial();
            match json::read(source, text, &mut trial) {
                // `null` elsewhere is a key that is not written; this entry is.
                Some(node) if matches!(node.value, ConfigValue::Null) => {
                    self.faulty_entries.push(FaultyEntry {
                        key,
                        fault: "it is `null` and must be an object".to_owned(),
                    });
                }
                Some(node) => {
                    self.sources
                        .hide(source, |hidden, text| hidden.add_secrets(&node, text));
                    self.entries.insert(source, StoredNode { key, node });
                }
                None => self.faulty_entries.push(FaultyEntry {
                    key,
                    fault: "it is not JSON".to_owned(),
                }),
            }
        }
    }

    /// Resolves `tree` with the entries of the store. One that is wrong costs itself alone: without it everything is
    /// resolved again.
    fn resolve_with_entries(
        &mut self,
        tree: &Node,
        schema: &serde_json::Value,
        scope: (LoadScope<'_>, &Environment),
        values: SecretValues<'_>,
    ) -> Option<Config> {
        let mut values = values;
        loop {
            let mut whole = tree.clone();
            for StoredNode { key, node } in self.entries.values() {
                whole.insert_entry(key, node.clone());
            }
            let trial = self.findings.trial();
            let before = std::mem::replace(&mut self.findings, trial);
            let mut tried = values.clone();
            let config = self.expand_and_resolve(&mut whole, schema, scope, &mut tried);
            let is_stored = |source| self.entries.contains_key(&source);
            let mistakes = self.findings.mistakes_in(is_stored);
            let found = std::mem::replace(&mut self.findings, before);
            if mistakes.is_empty() {
                self.findings.append(found);
                self.value_files = tried.named_files;
                self.secret_uses = tried.uses;
                return config;
            }
            values.keep_read(tried);
            for (source, fault) in mistakes {
                let Some(StoredNode { key, .. }) = self.entries.remove(&source) else {
                    continue;
                };
                let message = format!("the {key} of the store is left out: {fault}");
                self.findings.add(Diagnostic::warning(message));
                self.faulty_entries.push(FaultyEntry { key, fault });
            }
        }
    }

    fn expand_and_resolve<'e>(
        &mut self,
        tree: &mut Node,
        schema: &serde_json::Value,
        scope: (LoadScope<'e>, &'e Environment),
        values: &mut SecretValues<'e>,
    ) -> Option<Config> {
        variables::expand_variables(tree, scope, &self.sources, (values, &mut self.findings));
        self.secret_uses.clone_from(&values.uses);
        let (used, environment) = scope;
        let access = (values.files(), environment);
        self.skip_faulty_servers(tree, schema, used, access);
        self.resolve_tree(tree, schema, used, access)
    }

    /// One source as a tree in our shape.
    fn read_tree(
        &mut self,
        source: ConfigText,
        schema: &serde_json::Value,
        environment: &Environment,
    ) -> Option<Node> {
        let text = strip_bom(&source.text).to_owned();
        if is_blank(&text) {
            self.blank.push(source.name.clone());
        }
        let number = self.sources.add(source.name, text, source.directory);
        let text = &self.sources.get(number).text;
        let read = match source.format {
            ConfigFormat::Json => json::read(number, text, &mut self.findings),
            ConfigFormat::Toml => toml::read(number, text, &mut self.findings),
            ConfigFormat::Yaml => yaml::read(number, text, &mut self.findings),
        };
        match &read {
            Some(node) => self
                .sources
                .hide(number, |hidden, text| hidden.add_secrets(node, text)),
            None => self.sources.hide(number, HiddenRanges::add_unparsed),
        }
        if let Some(node) = &read {
            self.warn_if_world_readable(number, node);
        }
        for node in self.findings.take_duplicate_values() {
            self.sources.hide_values(&node);
        }
        let mut node = read?;
        let Self {
            sources, findings, ..
        } = self;
        let context = ImportContext {
            source: number,
            format: source.format,
            environment,
            schema,
        };
        import::import_document(&mut node, context, sources, findings);
        Some(node)
    }

    /// Warns of a file with secrets, written out, that everybody on this machine may read.
    fn warn_if_world_readable(&mut self, source: usize, node: &Node) {
        let SourceText { name, text, .. } = self.sources.get(source);
        if self.readable.contains(name) && redact::has_secret(node, text) {
            let warning = Diagnostic::warning(
                "the file contains secrets and is readable by other \
                users",
            );
            let help = "run `chmod 600`, or use `${VARIABLE}` instead";
            self.findings.add(warning.in_file(name).help(help));
        }
    }

    /// Takes the servers out of `tree` that other programs have switched off and that we could not run:
    /// nobody uses them.
    fn skip_faulty_servers(
        &mut self,
        tree: &mut Node,
        schema: &serde_json::Value,
        used: LoadScope<'_>,
        access: (FileAccess, &Environment),
    ) {
        let servers = tree.as_table_mut().and_then(|top| top.get_mut("servers"));
        let Some(servers) = servers.and_then(|servers| servers.node.as_table_mut()) else {
            return;
        };
        let trial = self.findings.trial();
        let findings = std::mem::replace(&mut self.findings, trial);
        let mut skipped = Vec::new();
        servers.retain(|name, entry| {
            let is_foreign = self.sources.get(entry.key.source).is_foreign;
            let is_off = variables::is_switched_off(&entry.node);
            if !is_foreign || !is_off || used.includes_server(name, false) {
                return true;
            }
            let mut alone = Node::one_server(name, entry);
            self.resolve_tree(&mut alone, schema, used, access);
            let found = std::mem::replace(&mut self.findings, findings.trial());
            let mistake = found.first_mistake().map(str::to_owned);
            let is_right = mistake.is_none();
            skipped.extend(mistake.map(|mistake| (name.clone(), entry.key, mistake)));
            is_right
        });
        self.findings = findings;
        for (name, key, mistake) in skipped {
            self.written.remove_server(&name);
            let path = join_path("servers", &name);
            self.findings.add(
                Diagnostic::warning(format!("`{path}` is skipped: {mistake}"))
                    .at(Some(key), "disabled"),
            );
        }
    }

    fn resolve_tree(
        &mut self,
        tree: &mut Node,
        schema: &serde_json::Value,
        used: LoadScope<'_>,
        (files, environment): (FileAccess, &Environment),
    ) -> Option<Config> {
        let mut conforming = tree.clone();
        validate::remove_invalid(
            &mut conforming,
            schema,
            &mut self.sources,
            &mut self.findings,
        );
        tree.mark_removed_items(&conforming);
        match decode::decode(&conforming) {
            Ok(file) => {
                let data_dir = default_data_dir();
                let context = ResolveContext {
                    sources: &self.sources,
                    config_files: &self.files,
                    files,
                    environment,
                    scope: used,
                    data_dir: data_dir.as_deref(),
                    is_incomplete: self.is_incomplete,
                    secret_uses: &self.secret_uses,
                };
                Some(resolve::config(file, tree, context, &mut self.findings))
            }
            Err(error) => {
                self.findings.add(unreadable(&error));
                None
            }
        }
    }

    fn finish(mut self, mut config: Option<Config>) -> Result<LoadedConfig, ConfigErrors> {
        let mut named_files = self.value_files;
        for StoredNode { key, node } in self.entries.values() {
            self.written.insert_entry(key, node.clone());
        }
        if let Some(config) = &mut config {
            config.entries.in_store = self.entries.into_values().map(|it| it.key).collect();
            config.entries.faulty = self.faulty_entries;
            config.entries.unread = self.unread_entries;
            config.named_files.append(&mut named_files);
            named_files.clone_from(&config.named_files);
        }
        let notices = self.findings.into_notices(&self.sources);
        if let Some(config) = &mut config {
            config.entries.written = Some(Arc::new(WrittenConfig {
                tree: self.written,
                overrides: self.overrides,
                texts: self.sources,
            }));
        }
        let is_right = notices
            .iter()
            .all(|notice| notice.severity == Severity::Warning);
        match config {
            Some(config) if is_right => Ok(LoadedConfig {
                config,
                warnings: notices,
                blank: self.blank,
            }),
            _ => Err(ConfigErrors {
                notices,
                named_files,
            }),
        }
    }
}

fn unreadable(error: &impl std::fmt::Display) -> Diagnostic {
    Diagnostic::error(format!("cannot read the config: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_name_in_a_directory_is_found() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(find_in(directory.path()), None);
        for name in ["tollbridge.json", "tollbridge.yaml", "tollbridge.toml"] {
            let path = directory.path().join(name);
            std::fs::write(&path, "").expect("written");
            assert_eq!(find_in(directory.path()), Some(path));
        }
    }

    #[test]
    fn the_name_tells_the_format() {
        let rows = [
            ("a.toml", Some(ConfigFormat::Toml)),
            ("a.YAML", Some(ConfigFormat::Yaml)),
            ("a.b.yml", Some(ConfigFormat::Yaml)),
            (".mcp.json", Some(ConfigFormat::Json)),
            ("a.jsonc", Some(ConfigFormat::Json)),
            ("toml", None),
            ("a.ini", None),
        ];
        for (name, format) in rows {
            assert_eq!(ConfigFormat::from_path(Path::new(name)), format, "{name}");
        }
    }
}
