//! What the keys of servers mean in documents of other programs.
//!
//! One table serves all programs: where two of them mean different things by one key, the shape of its
//! value tells. A key that is not here is ours, when we have it, and ignored otherwise.

use super::formats::TimeUnit;

/// What a key of a server of another program says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum KeyMeaning {
    /// Tools that may be used.
    Allow,
    /// A credential, or a login.
    Auth,
    /// A bearer token.
    Bearer,
    /// The name of the variable with a bearer token.
    BearerVariable,
    /// A program, perhaps with its arguments.
    Command,
    /// Tools that may not be used.
    Deny,
    /// Whether it is switched off.
    Disabled,
    /// Whether it is switched on.
    Enabled,
    /// Variables of the program.
    Env,
    /// Headers.
    Headers,
    /// Headers, by the names of the variables with their values.
    HeaderVariables,
    /// Headers and more of a request.
    RequestOptions,
    /// A section of switches of an MCP proxy.
    Options,
    /// Something that protects, and that nothing here does.
    Protects,
    /// The same as our key of this name.
    Renamed(&'static str),
    /// A URL of streamable HTTP.
    StreamableUrl,
    /// A time under our name; without a unit, that of the format.
    Time(&'static str, Option<TimeUnit>),
    /// Tools, as a list, a map or rules.
    Tools,
    /// The transport.
    Transport,
    /// Nothing that we do; what to do instead.
    Unsupported(&'static str),
    /// Names of variables of ours that the program gets.
    VariableNames,
}

/// What is said of logins.
pub(super) const NO_OAUTH: &str = "OAuth is not supported by this version: use `auth` or `headers`";

pub(super) const KEYS: &[(&str, KeyMeaning)] = &[
    ("active", KeyMeaning::Enabled),
    ("allowedTools", KeyMeaning::Allow),
    ("allowed_tools", KeyMeaning::Allow),
    ("alwaysAllow", KeyMeaning::Protects),
    ("auth", KeyMeaning::Auth),
    ("authProviderType", KeyMeaning::Unsupported(NO_OAUTH)),
    ("autoApprove", KeyMeaning::Protects),
    ("available_tools", KeyMeaning::Allow),
    ("baseUrl", KeyMeaning::Renamed("url")),
    ("base_url", KeyMeaning::Renamed("url")),
    ("bearerToken", KeyMeaning::Bearer),
    ("bearerTokenEnv", KeyMeaning::BearerVariable),
    ("bearer_token", KeyMeaning::Bearer),
    ("bearer_token_env", KeyMeaning::BearerVariable),
    ("bearer_token_env_var", KeyMeaning::BearerVariable),
    ("blockedTools", KeyMeaning::Deny),
    ("blocked_tools", KeyMeaning::Deny),
    ("cmd", KeyMeaning::Command),
    ("command", KeyMeaning::Command),
    ("connectTimeout", KeyMeaning::Time("connect_timeout", None)),
    ("connect_timeout", KeyMeaning::Time("connect_timeout", None)),
    (
        "connectionTimeout",
        KeyMeaning::Time("startup_timeout", None),
    ),
    ("default_tools_approval_mode", KeyMeaning::Protects),
    ("deniedTools", KeyMeaning::Deny),
    ("denied_tools", KeyMeaning::Deny),
    ("disabled", KeyMeaning::Disabled),
    ("disabledTools", KeyMeaning::Deny),
    ("disabled_tools", KeyMeaning::Deny),
    ("enabled", KeyMeaning::Enabled),
    ("enabledTools", KeyMeaning::Allow),
    ("enabled_tools", KeyMeaning::Allow),
    ("env", KeyMeaning::Env),
    ("envFile", KeyMeaning::Renamed("env_file")),
    ("envFilter", KeyMeaning::Protects),
    ("env_http_headers", KeyMeaning::HeaderVariables),
    ("env_keys", KeyMeaning::VariableNames),
    ("env_vars", KeyMeaning::VariableNames),
    ("environment", KeyMeaning::Env),
    ("envs", KeyMeaning::Env),
    ("excludeTools", KeyMeaning::Deny),
    ("exclude_tools", KeyMeaning::Deny),
    ("executable", KeyMeaning::Command),
    ("headers", KeyMeaning::Headers),
    ("headersHelper", KeyMeaning::Unsupported("use `headers`")),
    ("httpUrl", KeyMeaning::StreamableUrl),
    ("http_headers", KeyMeaning::Headers),
    ("includeTools", KeyMeaning::Allow),
    ("include_tools", KeyMeaning::Allow),
    ("initTimeout", KeyMeaning::Time("startup_timeout", None)),
    ("isActive", KeyMeaning::Enabled),
    ("oauth", KeyMeaning::Unsupported(NO_OAUTH)),
    ("options", KeyMeaning::Options),
    ("protocol", KeyMeaning::Transport),
    ("quarantined", KeyMeaning::Disabled),
    ("requestOptions", KeyMeaning::RequestOptions),
    ("requestTimeout", KeyMeaning::Time("timeout", None)),
    ("requiresOAuth", KeyMeaning::Unsupported(NO_OAUTH)),
    ("serverUrl", KeyMeaning::Renamed("url")),
    ("server_url", KeyMeaning::Renamed("url")),
    ("startup", KeyMeaning::Enabled),
    ("startup_timeout", KeyMeaning::Time("startup_timeout", None)),
    (
        "startup_timeout_ms",
        KeyMeaning::Time("startup_timeout", Some(TimeUnit::Millis)),
    ),
    (
        "startup_timeout_sec",
        KeyMeaning::Time("startup_timeout", Some(TimeUnit::Seconds)),
    ),
    ("timeout", KeyMeaning::Time("timeout", None)),
    (
        "tool_timeout_sec",
        KeyMeaning::Time("timeout", Some(TimeUnit::Seconds)),
    ),
    ("tools", KeyMeaning::Tools),
    ("transport", KeyMeaning::Transport),
    ("transportType", KeyMeaning::Transport),
    ("trust", KeyMeaning::Protects),
    ("type", KeyMeaning::Transport),
    ("uri", KeyMeaning::Renamed("url")),
    ("workingDirectory", KeyMeaning::Renamed("cwd")),
    ("working_dir", KeyMeaning::Renamed("cwd")),
    ("working_directory", KeyMeaning::Renamed("cwd")),
];

pub(super) fn meaning_of(key: &str) -> Option<KeyMeaning> {
    let row = KEYS.iter().find(|(name, _)| *name == key);
    row.map(|(_, meaning)| *meaning)
}

/// Keys of servers that protect something, and that have no meaning here.
pub(super) const UNKNOWN_PROTECTIONS: [&str; 6] = [
    "approval_mode",
    "readOnly",
    "read_only",
    "sandbox",
    "sandboxEnabled",
    "toolFilter",
];

/// Values of `type` of what is no server.
pub(super) const NO_SERVERS: [&str; 8] = [
    "builtin",
    "extension",
    "frontend",
    "inMemory",
    "inline_python",
    "openapi",
    "platform",
    "sdk",
];

/// Documents that are no configs of servers: a key that they have at the top, and what they look like.
pub(super) const OTHER_DOCUMENTS: [(&str, &str); 14] = [
    ("backends", "a config of MCP Gateway"),
    ("binds", "a config of agentgateway"),
    ("compilerOptions", "a `tsconfig.json`"),
    ("dependencies", "a `package.json`"),
    ("devDependencies", "a `package.json`"),
    ("dxt_version", "a manifest of a desktop extension"),
    ("manifest_version", "a manifest of an MCP bundle"),
    ("mcpListeners", "a config of agentgateway"),
    ("openapi", "an OpenAPI document"),
    ("packages", "a `server.json` of the MCP registry"),
    ("registry", "a catalog of Docker MCP"),
    ("remotes", "a `server.json` of the MCP registry"),
    ("services", "a compose file"),
    ("swagger", "an OpenAPI document"),
];
