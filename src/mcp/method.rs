//! The request methods the gateway knows, and the names of notifications.

use std::{fmt, sync::Arc};

/// A request method.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Method {
    /// `completion/complete`
    Complete,
    /// `server/discover`
    Discover,
    /// `initialize`
    Initialize,
    /// `subscriptions/listen`
    Listen,
    /// `ping`
    Ping,
    /// `prompts/get`
    PromptsGet,
    /// `prompts/list`
    PromptsList,
    /// `resources/list`
    ResourcesList,
    /// `resources/read`
    ResourcesRead,
    /// `resources/subscribe`
    ResourcesSubscribe,
    /// `resources/unsubscribe`
    ResourcesUnsubscribe,
    /// `logging/setLevel`
    SetLevel,
    /// `resources/templates/list`
    TemplatesList,
    /// `tools/call`
    ToolsCall,
    /// `tools/list`
    ToolsList,
    /// Any other; relayed on the route of one server.
    Other(Arc<str>),
}

impl Method {
    /// The method named `name`.
    pub fn parse(name: &str) -> Self {
        match name {
            "completion/complete" => Self::Complete,
            "server/discover" => Self::Discover,
            "initialize" => Self::Initialize,
            "subscriptions/listen" => Self::Listen,
            "ping" => Self::Ping,
            "prompts/get" => Self::PromptsGet,
            "prompts/list" => Self::PromptsList,
            "resources/list" => Self::ResourcesList,
            "resources/read" => Self::ResourcesRead,
            "resources/subscribe" => Self::ResourcesSubscribe,
            "resources/unsubscribe" => Self::ResourcesUnsubscribe,
            "logging/setLevel" => Self::SetLevel,
            "resources/templates/list" => Self::TemplatesList,
            "tools/call" => Self::ToolsCall,
            "tools/list" => Self::ToolsList,
            other => Self::Other(other.into()),
        }
    }

    /// The name on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Complete => "completion/complete",
            Self::Discover => "server/discover",
            Self::Initialize => "initialize",
            Self::Listen => "subscriptions/listen",
            Self::Ping => "ping",
            Self::PromptsGet => "prompts/get",
            Self::PromptsList => "prompts/list",
            Self::ResourcesList => "resources/list",
            Self::ResourcesRead => "resources/read",
            Self::ResourcesSubscribe => "resources/subscribe",
            Self::ResourcesUnsubscribe => "resources/unsubscribe",
            Self::SetLevel => "logging/setLevel",
            Self::TemplatesList => "resources/templates/list",
            Self::ToolsCall => "tools/call",
            Self::ToolsList => "tools/list",
            Self::Other(name) => name,
        }
    }

    /// Whether the method exists in 2026-07-28 (vendor methods may).
    pub fn is_modern(&self) -> bool {
        match self {
            Self::Initialize
            | Self::Ping
            | Self::ResourcesSubscribe
            | Self::ResourcesUnsubscribe
            | Self::SetLevel => false,
            Self::Complete
            | Self::Discover
            | Self::Listen
            | Self::PromptsGet
            | Self::PromptsList
            | Self::ResourcesList
            | Self::ResourcesRead
            | Self::TemplatesList
            | Self::ToolsCall
            | Self::ToolsList
            | Self::Other(_) => true,
        }
    }

    /// Whether the method exists up to 2025-11-25 (vendor methods may).
    pub fn is_legacy(&self) -> bool {
        !matches!(self, Self::Discover | Self::Listen)
    }

    /// Whether a complete result carries `ttlMs` and `cacheScope` in 2026-07-28.
    pub fn is_cacheable(&self) -> bool {
        matches!(
            self,
            Self::Discover
                | Self::PromptsList
                | Self::ResourcesList
                | Self::ResourcesRead
                | Self::TemplatesList
                | Self::ToolsList
        )
    }

    /// The member of params that the `Mcp-Name` header repeats in 2026-07-28.
    pub fn name_key(&self) -> Option<&'static str> {
        match self {
            Self::PromptsGet | Self::ToolsCall => Some("name"),
            Self::ResourcesRead => Some("uri"),
            Self::Other(name) if is_task_method(name) => Some("taskId"),
            Self::Complete
            | Self::Discover
            | Self::Initialize
            | Self::Listen
            | Self::Ping
            | Self::PromptsList
            | Self::ResourcesList
            | Self::ResourcesSubscribe
            | Self::ResourcesUnsubscribe
            | Self::SetLevel
            | Self::TemplatesList
            | Self::ToolsList
            | Self::Other(_) => None,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Methods of the tasks extension whose task id travels in `Mcp-Name`.
fn is_task_method(name: &str) -> bool {
    matches!(name, "tasks/cancel" | "tasks/get" | "tasks/update")
}

/// Names of notifications.
pub mod notice {
    /// How the name of every notification begins, by the specification. Whatever else comes without
    /// an id is a request that asks for no answer.
    pub const NOTIFICATION_PREFIX: &str = "notifications/";
    /// The request named in `requestId` is no longer wanted.
    pub const CANCELLED: &str = "notifications/cancelled";
    /// An out-of-band elicitation is done.
    pub const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";
    /// The client finished its handshake.
    pub const INITIALIZED: &str = "notifications/initialized";
    /// A log message.
    pub const MESSAGE: &str = "notifications/message";
    /// Progress of the request whose token it carries.
    pub const PROGRESS: &str = "notifications/progress";
    /// The list of prompts changed.
    pub const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
    /// The list of resources changed.
    pub const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
    /// A subscribed resource changed.
    pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";
    /// The client's roots changed.
    pub const ROOTS_CHANGED: &str = "notifications/roots/list_changed";
    /// The first message of a listen stream.
    pub const SUBSCRIPTIONS_ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
    /// The list of tools changed.
    pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
}
