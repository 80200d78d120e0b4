//! How the sign-ins of clients differ, as data. Each value was read in documents of the vendors or in reports of
//! their users.

/// A client that people connect to MCP servers.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one thing that clients do or do not"
)]
pub(super) struct KnownClient {
    pub(super) name: &'static str,
    /// It connects from its vendor's servers, not from the machine of the user.
    pub(super) is_hosted: bool,
    /// It looks for metadata of the resource in well-known places where the challenge names none.
    pub(super) finds_metadata: bool,
    /// Without metadata of the resource it takes the origin of the URL for the authorization server, as revision
    /// 2025-03-26 has it.
    pub(super) assumes_server: bool,
    /// What the metadata has to say about the resource.
    pub(super) resource: ResourceCheck,
    /// It refuses metadata of an authorization server that name another issuer.
    pub(super) checks_issuer: bool,
    /// It refuses an authorization server whose metadata do not name PKCE.
    pub(super) wants_pkce_named: bool,
    /// The URL of its metadata document (CIMD).
    pub(super) document: Option<&'static str>,
    /// It uses that only where `none` is an authentication method of the token endpoint.
    pub(super) document_wants_none: bool,
    /// The redirect URIs that it registers.
    pub(super) redirect_uris: &'static [&'static str],
    /// The one that it uses; where it listens on a free port, that is any.
    pub(super) redirect_uri: &'static str,
    /// It asks for `scopes_supported` of the resource where the challenge names no scopes.
    pub(super) reads_scopes: bool,
    /// Where people enter a client id.
    pub(super) client_id_setting: &'static str,
}

/// What metadata have to say about the resource.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ResourceCheck {
    /// Nothing: it is sent on as it is.
    Any,
    /// The URL, or one above it.
    Covers,
    /// Exactly the URL.
    Exact,
}

impl KnownClient {
    /// The client whose name is `name`, as people write it.
    pub(super) fn find(name: &str) -> Result<&'static Self, String> {
        let plain = |text: &str| text.to_lowercase().replace([' ', '-'], "");
        let found = KNOWN_CLIENTS
            .iter()
            .find(|it| plain(it.name) == plain(name));
        found.ok_or_else(|| {
            let names: Vec<&str> = KNOWN_CLIENTS.iter().map(|it| it.name).collect();
            format!("one of: {}", names.join(", "))
        })
    }
}

/// A port that is as good as any other: clients take a free one.
const LOOPBACK: &str = "http://127.0.0.1:60005/";

/// Sources: claude.com/docs/connectors/building/authentication, developers.openai.com/plugins/build/auth,
/// microsoft/vscode#278512 and #259251, erp-mafia/accounted#2225 (Cursor), Altinity/altinity-mcp#169 (Cursor),
/// github/app#3254, github/copilot-cli#4582 and #4793, home-assistant/core#179326 and #181542,
/// empires-security/mcp-oauth2-aws-cognito#9, zed-industries/zed#60358.
pub(super) const KNOWN_CLIENTS: &[KnownClient] = &[
    // claude.ai, Claude Desktop and the mobile apps.
    KnownClient {
        name: "Claude",
        is_hosted: true,
        finds_metadata: true,
        assumes_server: true,
        resource: ResourceCheck::Exact,
        checks_issuer: false,
        wants_pkce_named: false,
        document: Some("https://claude.ai/oauth/mcp-oauth-client-metadata"),
        document_wants_none: true,
        redirect_uris: &["https://claude.ai/api/mcp/auth_callback"],
        redirect_uri: "https://claude.ai/api/mcp/auth_callback",
        reads_scopes: true,
        client_id_setting: "the advanced settings of the connector",
    },
    KnownClient {
        name: "Claude Code",
        is_hosted: false,
        finds_metadata: true,
        assumes_server: true,
        resource: ResourceCheck::Covers,
        checks_issuer: false,
        wants_pkce_named: false,
        document: Some("https://claude.ai/oauth/claude-code-client-metadata"),
        document_wants_none: true,
        redirect_uris: &["http://localhost:60005/callback"],
        redirect_uri: "http://localhost:60005/callback",
        reads_scopes: true,
        client_id_setting: "`claude mcp add --client-id`",
    },
    KnownClient {
        name: "ChatGPT",
        is_hosted: true,
        finds_metadata: true,
        assumes_server: false,
        resource: ResourceCheck::Any,
        checks_issuer: false,
        wants_pkce_named: true,
        document: Some("https://chatgpt.com/oauth/client.json"),
        document_wants_none: false,
        redirect_uris: &["https://chatgpt.com/connector_platform_oauth_redirect"],
        redirect_uri: "https://chatgpt.com/connector_platform_oauth_redirect",
        reads_scopes: true,
        client_id_setting: "the OAuth settings of the connector",
    },
    KnownClient {
        name: "VS Code",
        is_hosted: false,
        finds_metadata: true,
        assumes_server: true,
        resource: ResourceCheck::Exact,
        checks_issuer: false,
        wants_pkce_named: false,
        document: Some("https://vscode.dev/oauth/client-metadata.json"),
        document_wants_none: false,
        redirect_uris: &[
            "https://insiders.vscode.dev/redirect",
            "https://vscode.dev/redirect",
            "http://127.0.0.1/",
            "http://127.0.0.1:33418/",
        ],
        redirect_uri: LOOPBACK,
        reads_scopes: true,
        client_id_setting: "the dialog that it shows",
    },
    KnownClient {
        name: "Cursor",
        is_hosted: false,
        finds_metadata: true,
        assumes_server: true,
        resource: ResourceCheck::Covers,
        checks_issuer: false,
        wants_pkce_named: true,
        document: None,
        document_wants_none: false,
        redirect_uris: &[
            "cursor://anysphere.cursor-mcp/oauth/callback",
            "https://www.cursor.com/agents/mcp/oauth/callback",
            "http://localhost:8787/callback",
        ],
        redirect_uri: "cursor://anysphere.cursor-mcp/oauth/callback",
        reads_scopes: true,
        client_id_setting: "`auth.CLIENT_ID` in mcp.json",
    },
    // The app and the command line. Its document names port 33418, but it listens on any.
    KnownClient {
        name: "Copilot",
        is_hosted: false,
        finds_metadata: false,
        assumes_server: false,
        resource: ResourceCheck::Covers,
        checks_issuer: true,
        wants_pkce_named: false,
        document: Some("https://github.com/copilot/cli/client-metadata.json"),
        document_wants_none: false,
        redirect_uris: &[LOOPBACK],
        redirect_uri: LOOPBACK,
        reads_scopes: false,
        client_id_setting: "`oauthClientId` in mcp-config.json",
    },
];
