//! The formats of other programs: how each is recognised, where its servers are, and what its times
//! and variables mean.
//!
//! A format is recognised by what a document holds, then by where the file is. The first row that
//! fits counts, so that rows with more to go by come first; the last ones take what is left.

use std::path::{Component, Path, PathBuf};

use crate::config::{
    ConfigFormat,
    node::{ConfigTable, ConfigValue, Node},
};

/// A document, before it is known whose it is.
#[derive(Debug)]
pub(super) struct ForeignDocument<'d> {
    pub(super) table: &'d ConfigTable,
    pub(super) format: ConfigFormat,
    /// Where the file is.
    pub(super) path: PathBuf,
}

/// The format of one program, or of several that agree.
#[derive(Debug)]
pub(super) struct ClientFormat {
    /// What messages call it.
    pub(super) name: &'static str,
    /// The keys that lead to the servers: a table by name, or a list with `name`.
    pub(super) section: &'static [&'static str],
    /// Whether a document that has the section is of this format, whatever the file is called.
    is_content: fn(&ForeignDocument<'_>, &Node) -> bool,
    /// Its files, as they lie in a project: relative paths in them start at the project.
    project_files: &'static [&'static str],
    /// Files that lie with the user.
    user_files: &'static [&'static str],
    /// The unit of a bare number under `timeout`; without one the size of the number tells.
    pub(super) timeout_unit: Option<TimeUnit>,
    /// What the program expands in texts, besides `${X}`.
    pub(super) notations: &'static [Notation],
    /// Whether a command may hold arguments.
    pub(super) command_line: CommandLine,
    /// Names of our own top-level keys that mean something else there.
    pub(super) own_names: &'static [&'static str],
    /// Keys at the top that protect something.
    pub(super) protections: &'static [&'static str],
}

/// The unit of a bare number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TimeUnit {
    Millis,
    Seconds,
}

/// When the text of a command is split into words.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CommandLine {
    Always,
    Never,
    /// Where the server has no arguments beside it.
    WithoutArguments,
}

/// How a text refers to a variable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Notation {
    /// `{env:X}`.
    BracedEnv,
    /// `$X`.
    Dollar,
    /// `$env:X`.
    DollarEnv,
    /// `${{ secrets.X }}`.
    Secrets,
    /// `~/`, the user's directory, before a program and its directory.
    Tilde,
    /// The same before arguments.
    TildeArguments,
}

/// Keys at the top of any document that protect something.
pub(super) const PROTECTIONS: [&str; 12] = [
    "allowedTools",
    "apiKey",
    "api_key",
    "authTokens",
    "bearerKeys",
    "excludeTools",
    "groups",
    "permission",
    "permissions",
    "sandbox",
    "toolsSettings",
    "users",
];

/// What a format has unless its row says otherwise.
const DEFAULT: ClientFormat = ClientFormat {
    name: "",
    section: &["mcpServers"],
    is_content: |_, _| false,
    project_files: &[],
    user_files: &[],
    timeout_unit: None,
    notations: &[],
    command_line: CommandLine::Never,
    own_names: &[],
    protections: &[],
};

/// The document of VS Code and its kin.
pub(super) const VS_CODE: &str = "VS Code";
/// The state of Claude Code, with servers for single projects.
pub(super) const CLAUDE_CODE: &str = "Claude Code";
/// The older gateway.
pub(super) const BRIDGE: &str = "MCP bridge";
pub(super) const GEMINI: &str = "Gemini CLI";
/// Its empty lists of tools allow all.
pub(super) const GOOSE: &str = "Goose";
/// Its time limit is one for listing and for calls.
pub(super) const OPENCODE: &str = "opencode";
/// `mcpServers` of a program that nothing tells.
const OTHER: &str = "mcpServers";

pub(super) const FORMATS: &[ClientFormat] = &[
    ClientFormat {
        name: "Mistral Vibe",
        section: &["mcp_servers"],
        is_content: |_, servers| servers.as_list().is_some(),
        project_files: &[".vibe/config.toml"],
        timeout_unit: Some(TimeUnit::Seconds),
        command_line: CommandLine::Always,
        own_names: &["agents", "profiles"],
        protections: &["tools", "disabled_tools", "enabled_tools"],
        ..DEFAULT
    },
    ClientFormat {
        name: "Codex",
        section: &["mcp_servers"],
        is_content: |document, _| document.format == ConfigFormat::Toml,
        project_files: &[".codex/config.toml", ".grok/config.toml"],
        timeout_unit: Some(TimeUnit::Seconds),
        own_names: &["agents", "audit", "log", "profiles"],
        protections: &["approval_policy", "sandbox_mode", "sandbox_workspace_write"],
        ..DEFAULT
    },
    ClientFormat {
        name: "Hermes",
        section: &["mcp_servers"],
        is_content: |_, servers| servers.as_table().is_some(),
        user_files: &[".hermes/config.yaml"],
        timeout_unit: Some(TimeUnit::Seconds),
        notations: &[Notation::Tilde],
        own_names: &["agents"],
        protections: &["approvals", "security"],
        ..DEFAULT
    },
    ClientFormat {
        name: "Zed",
        section: &["context_servers"],
        is_content: |_, servers| servers.as_table().is_some(),
        project_files: &[".zed/settings.json"],
        user_files: &["zed/settings.json"],
        timeout_unit: Some(TimeUnit::Seconds),
        own_names: &["agents", "profiles", "log"],
        ..DEFAULT
    },
    ClientFormat {
        name: VS_CODE,
        section: &["mcp", "servers"],
        is_content: |_, servers| servers.children().all(|server| server.as_table().is_some()),
        project_files: &[".vscode/settings.json"],
        notations: &[Notation::Tilde, Notation::TildeArguments],
        ..DEFAULT
    },
    ClientFormat {
        name: VS_CODE,
        section: &["mcp.servers"],
        is_content: |_, servers| servers.as_table().is_some(),
        notations: &[Notation::Tilde, Notation::TildeArguments],
        ..DEFAULT
    },
    ClientFormat {
        name: "Augment",
        section: &["augment.advanced", "mcpServers"],
        is_content: |_, _| true,
        ..DEFAULT
    },
    ClientFormat {
        name: OPENCODE,
        section: &["mcp"],
        is_content: is_opencode,
        project_files: &[
            ".opencode/opencode.json",
            ".opencode/opencode.jsonc",
            "opencode.json",
            "opencode.jsonc",
        ],
        timeout_unit: Some(TimeUnit::Millis),
        notations: &[Notation::BracedEnv],
        own_names: &["agents", "log", "profiles"],
        protections: &["tools"],
        ..DEFAULT
    },
    ClientFormat {
        name: "Crush",
        section: &["mcp"],
        is_content: |_, servers| has_server_key(servers, &["command", "type", "url"]),
        project_files: &["crush.json", ".crush.json"],
        timeout_unit: Some(TimeUnit::Seconds),
        notations: &[Notation::Dollar, Notation::Tilde],
        own_names: &["agents"],
        ..DEFAULT
    },
    ClientFormat {
        name: GOOSE,
        section: &["extensions"],
        is_content: |_, servers| {
            has_server_key(servers, &["bundled", "cmd", "env_keys", "envs", "uri"])
        },
        user_files: &["goose/config.yaml"],
        timeout_unit: Some(TimeUnit::Seconds),
        ..DEFAULT
    },
    ClientFormat {
        name: "Amp",
        section: &["amp.mcpServers"],
        is_content: |_, servers| servers.as_table().is_some(),
        project_files: &[".amp/settings.json", ".amp/settings.jsonc"],
        user_files: &["amp/settings.json", "amp/settings.jsonc"],
        protections: &["amp.permissions", "amp.tools.disable"],
        ..DEFAULT
    },
    ClientFormat {
        name: "mcpproxy",
        is_content: |_, servers| {
            servers.as_list().is_some()
                && has_server_key(servers, &["protocol", "quarantined", "working_dir"])
        },
        timeout_unit: Some(TimeUnit::Seconds),
        own_names: &["data_dir", "limits", "listen", "log", "tls"],
        protections: &[
            "disable_management",
            "docker_isolation",
            "output_sanitisation",
            "quarantine_enabled",
            "read_only_mode",
            "require_mcp_auth",
            "sensitive_data_detection",
        ],
        ..DEFAULT
    },
    ClientFormat {
        name: "Continue",
        is_content: |_, servers| servers.as_list().is_some(),
        project_files: &[
            ".continue/mcpServers/mcp.yaml",
            ".continue/config.yaml",
            ".continue/config.json",
        ],
        timeout_unit: Some(TimeUnit::Millis),
        notations: &[Notation::Secrets],
        own_names: &["agents"],
        ..DEFAULT
    },
    ClientFormat {
        name: BRIDGE,
        is_content: |document, servers| {
            document.has_key(&["bridge"]) || has_server_key(servers, &super::bridge::SERVER_KEYS)
        },
        timeout_unit: Some(TimeUnit::Seconds),
        ..DEFAULT
    },
    ClientFormat {
        name: "1MCP",
        is_content: |document, servers| {
            document.has_key(&["mcpTemplates", "serverDefaults", "templateSettings"])
                || has_server_key(
                    servers,
                    &["envFilter", "inheritParentEnv", "requestTimeout"],
                )
        },
        timeout_unit: Some(TimeUnit::Millis),
        ..DEFAULT
    },
    ClientFormat {
        name: "LibreChat",
        is_content: |document, servers| {
            document.has_key(&["endpoints", "mcpSettings"])
                || has_server_key(
                    servers,
                    &[
                        "chatMenu",
                        "customUserVars",
                        "initTimeout",
                        "requiresOAuth",
                        "serverInstructions",
                    ],
                )
        },
        user_files: &["librechat.yaml", "librechat.yml"],
        timeout_unit: Some(TimeUnit::Millis),
        own_names: &["agents"],
        protections: &["mcpSettings"],
        ..DEFAULT
    },
    ClientFormat {
        name: "Cherry Studio",
        is_content: |_, servers| has_server_key(servers, &["isActive"]),
        timeout_unit: Some(TimeUnit::Seconds),
        ..DEFAULT
    },
    ClientFormat {
        name: "mcporter",
        is_content: |_, servers| {
            has_server_key(
                servers,
                &["baseUrl", "bearerToken", "bearerTokenEnv", "tokenCacheDir"],
            )
        },
        project_files: &["config/mcporter.json", "config/mcporter.jsonc"],
        user_files: &["mcporter.json", "mcporter.jsonc"],
        timeout_unit: Some(TimeUnit::Millis),
        notations: &[Notation::DollarEnv],
        command_line: CommandLine::WithoutArguments,
        ..DEFAULT
    },
    ClientFormat {
        name: "MCPHub",
        is_content: |document, _| document.has_key(&["bearerKeys", "systemConfig"]),
        timeout_unit: Some(TimeUnit::Millis),
        protections: &["systemConfig"],
        ..DEFAULT
    },
    ClientFormat {
        name: "MCP proxy",
        is_content: |document, servers| {
            document.has_key(&["mcpProxy"]) || has_server_key(servers, &["options"])
        },
        protections: &["mcpProxy"],
        ..DEFAULT
    },
    ClientFormat {
        name: GEMINI,
        is_content: |document, servers| {
            document.has_key(&["contextFileName"])
                || document.table.get("mcp").is_some_and(|mcp| {
                    mcp.node.get("allowed").is_some() || mcp.node.get("excluded").is_some()
                })
                || has_server_key(
                    servers,
                    &[
                        "authProviderType",
                        "excludeTools",
                        "httpUrl",
                        "includeTools",
                        "trust",
                    ],
                )
        },
        project_files: &[".gemini/settings.json", ".qwen/settings.json"],
        user_files: &["gemini-extension.json", "qwen-extension.json"],
        timeout_unit: Some(TimeUnit::Millis),
        notations: &[Notation::Dollar],
        own_names: &["agents", "profiles"],
        protections: &[
            "coreTools",
            "security",
            "tools",
            "allowedTools",
            "toolSandboxing",
        ],
        ..DEFAULT
    },
    ClientFormat {
        name: "Cline",
        is_content: |_, servers| has_server_key(servers, &["transportType"]),
        user_files: &["cline_mcp_settings.json"],
        timeout_unit: Some(TimeUnit::Seconds),
        ..DEFAULT
    },
    ClientFormat {
        name: "Amazon Q or Kiro",
        project_files: &[
            ".amazonq/mcp.json",
            ".amazonq/default.json",
            ".aws/amazonq/mcp.json",
            ".aws/amazonq/cli-agents/agent.json",
            ".kiro/settings/mcp.json",
        ],
        timeout_unit: Some(TimeUnit::Millis),
        protections: &["tools"],
        ..DEFAULT
    },
    ClientFormat {
        name: "Roo Code",
        is_content: |_, servers| has_server_key(servers, &["alwaysAllow", "watchPaths"]),
        project_files: &[".roo/mcp.json", ".kilocode/mcp.json"],
        user_files: &["mcp_settings.json"],
        timeout_unit: Some(TimeUnit::Seconds),
        ..DEFAULT
    },
    ClientFormat {
        name: "Copilot CLI",
        is_content: |_, servers| has_server_key(servers, &["tools"]) && has_local_type(servers),
        project_files: &[".copilot/mcp-config.json", ".github/mcp.json"],
        user_files: &["mcp-config.json"],
        timeout_unit: Some(TimeUnit::Millis),
        ..DEFAULT
    },
    ClientFormat {
        name: CLAUDE_CODE,
        is_content: |document, _| document.has_local_scope(),
        project_files: &[
            ".mcp.json",
            ".claude-plugin/plugin.json",
            ".claude/settings.json",
        ],
        user_files: &[".claude.json"],
        timeout_unit: Some(TimeUnit::Millis),
        own_names: &["agents"],
        protections: &["permissions"],
        ..DEFAULT
    },
    ClientFormat {
        name: "LM Studio",
        user_files: &[".lmstudio/mcp.json", "lm-studio/mcp.json"],
        timeout_unit: Some(TimeUnit::Millis),
        ..DEFAULT
    },
    ClientFormat {
        name: OTHER,
        is_content: |_, _| true,
        project_files: &[
            ".agents/mcp_config.json",
            ".ai/mcp/mcp.json",
            ".augment/settings.json",
            ".cursor/mcp.json",
            ".devin/mcp_config.json",
            ".factory/mcp.json",
            ".junie/mcp/mcp.json",
            ".trae/mcp.json",
            ".warp/.mcp.json",
            ".windsurf/mcp.json",
        ],
        user_files: &[
            ".codeium/windsurf/mcp_config.json",
            "claude_desktop_config.json",
        ],
        ..DEFAULT
    },
    ClientFormat {
        name: VS_CODE,
        section: &["servers"],
        is_content: is_vs_code,
        project_files: &[".vscode/mcp.json"],
        notations: &[Notation::Tilde, Notation::TildeArguments],
        ..DEFAULT
    },
];

/// The keys that a document of VS Code has at the top.
const VS_CODE_KEYS: [&str; 4] = ["$schema", "inputs", "sandbox", "servers"];

/// Keys that its servers have and ours have not.
const VS_CODE_SERVER_KEYS: [&str; 5] = ["dev", "envFile", "gallery", "sandboxEnabled", "type"];

fn is_vs_code(document: &ForeignDocument<'_>, servers: &Node) -> bool {
    let mut keys = document.table.keys();
    document.has_key(&["inputs"])
        || (document.format == ConfigFormat::Json
            && keys.all(|key| VS_CODE_KEYS.contains(&key.as_str()))
            && has_server_key(servers, &VS_CODE_SERVER_KEYS))
}

fn is_opencode(document: &ForeignDocument<'_>, servers: &Node) -> bool {
    let schema = document.table.get("$schema");
    let is_named = schema
        .and_then(|schema| schema.node.as_text())
        .is_some_and(|schema| schema.contains("opencode"));
    let is_switch = |server: &Node| {
        server
            .as_table()
            .is_some_and(|keys| keys.len() == 1 && keys.contains_key("enabled"))
    };
    let has_type = servers.children().any(|server| {
        let kind = server.get("type").and_then(|kind| kind.node.as_text());
        matches!(kind, Some("local" | "remote")) || is_switch(server)
    });
    is_named || has_type || has_server_key(servers, &["environment"])
}

fn has_server_key(servers: &Node, keys: &[&str]) -> bool {
    servers
        .children()
        .any(|server| keys.iter().any(|key| server.get(key).is_some()))
}

fn has_local_type(servers: &Node) -> bool {
    servers.children().any(|server| {
        let kind = server.get("type").and_then(|kind| kind.node.as_text());
        kind == Some("local")
    })
}

impl ForeignDocument<'_> {
    fn has_key(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.table.contains_key(*key))
    }

    /// Whether it has servers for single projects, as the state of Claude Code.
    pub(super) fn has_local_scope(&self) -> bool {
        let projects = self.table.get("projects");
        projects.is_some_and(|projects| has_server_key(&projects.node, &["mcpServers"]))
    }

    fn section(&self, path: &[&str]) -> Option<&Node> {
        let (first, rest) = path.split_first()?;
        let mut node = &self.table.get(*first)?.node;
        for key in rest {
            node = &node.get(key)?.node;
        }
        let is_section = matches!(node.value, ConfigValue::List(_) | ConfigValue::Table(_));
        is_section.then_some(node)
    }

    /// Whose it is; `None` for one of our own, or one that nobody knows.
    pub(super) fn detect(&self) -> Option<&'static ClientFormat> {
        let with_section = || {
            FORMATS
                .iter()
                .filter_map(|row| Some((row, self.section(row.section)?)))
        };
        let named = with_section()
            .filter_map(|(row, servers)| Some((row.file_of(&self.path)?, row, servers)))
            .max_by_key(|(file, ..)| Path::new(file).components().count())
            .map(|(_, row, servers)| (row, servers));
        let by_content = with_section().find(|(row, servers)| (row.is_content)(self, servers));
        match (by_content, named) {
            // What is told by nothing but the section is told better by its place.
            (Some((by_content, _)), Some((named, _))) if by_content.name == OTHER => Some(named),
            (Some((by_content, _)), _) => Some(by_content),
            (None, Some((named, _))) => Some(named),
            (None, None) if self.has_local_scope() => {
                FORMATS.iter().find(|row| row.name == CLAUDE_CODE)
            }
            (None, None) => None,
        }
    }
}

impl ClientFormat {
    /// Which of its files `path` is.
    pub(super) fn file_of(&self, path: &Path) -> Option<&'static str> {
        let mut files = self.project_files.iter().chain(self.user_files);
        files.find(|file| path.ends_with(file)).copied()
    }

    /// Whether it is known whose it is.
    pub(super) fn is_named(&self) -> bool {
        self.name != OTHER
    }

    /// Whether it is known whose it is, and nobody writes our keys in such a document.
    pub(super) fn is_specific(&self) -> bool {
        ![OTHER, BRIDGE, VS_CODE].contains(&self.name)
    }
}

/// The project that the file at `path` belongs to, when it lies where a client has it.
pub(super) fn project_of(path: &Path) -> Option<PathBuf> {
    let directory = path.parent()?;
    let files = || FORMATS.iter().flat_map(|row| row.project_files.iter());
    let named = files()
        .filter(|file| path.ends_with(file))
        .max_by_key(|file| Path::new(file).components().count());
    if let Some(file) = named {
        return ancestor(path, Path::new(file).components().count());
    }
    // Another file beside it, in a directory that only clients have.
    let folders = files().filter_map(|file| Path::new(file).parent());
    let folder = folders
        .filter(|folder| folder.to_string_lossy().starts_with('.'))
        .filter(|folder| directory.ends_with(folder))
        .max_by_key(|folder| folder.components().count())?;
    ancestor(directory, folder.components().count())
}

/// `path` without its last `count` parts.
fn ancestor(path: &Path, count: usize) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = path.components().collect();
    let kept = parts.len().checked_sub(count).filter(|kept| *kept > 0)?;
    Some(parts[..kept].iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_of_a_file() {
        let check = |path: &str, expect: Option<&str>| {
            assert_eq!(
                project_of(Path::new(path)),
                expect.map(PathBuf::from),
                "{path}"
            );
        };
        check("/p/.cursor/mcp.json", Some("/p"));
        check("/p/.vscode/other.json", Some("/p"));
        check("/p/.kiro/settings/mcp.json", Some("/p"));
        check("/p/.continue/mcpServers/docs.yaml", Some("/p"));
        check("/p/.mcp.json", Some("/p"));
        check("/p/config/mcporter.json", Some("/p"));
        check("/p/config/mcp.json", None);
        check("/p/mcp.json", None);
    }
}
