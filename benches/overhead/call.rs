//! The messages of both eras: what the load generator says, and whether the answer is the one.
//!
//! `client` sends them, `echo` answers them. Every call carries a text that no other call of the
//! run has, so an answer that went to the wrong caller is noticed even if its id fits.

use std::borrow::Cow;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, CONTENT_TYPE},
};
use serde::Deserialize;

use crate::Fault;

/// The two ways to speak MCP over HTTP.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Era {
    /// A session that `initialize` opens.
    Legacy,
    /// Every request says for itself what it needs.
    Modern,
}

impl Era {
    pub(crate) const ALL: [Self; 2] = [Self::Legacy, Self::Modern];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }

    /// The newest revision of the era.
    pub(crate) fn revision(self) -> &'static str {
        match self {
            Self::Legacy => "2025-11-25",
            Self::Modern => "2026-07-28",
        }
    }
}

/// Header that names the session of a legacy client.
pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// What a modern request says about itself, as clients send it.
const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"overhead","version":"1.0.0"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{}}}"#;

/// A message with the headers that belong to it.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The first request of a legacy client.
pub(crate) fn initialize() -> Message {
    let body = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"overhead","version":"1.0.0"}}}"#;
    let mut headers = headers(Era::Legacy, "initialize", None);
    // The version is not settled before this request is answered.
    headers.remove(PROTOCOL_VERSION);
    Message {
        headers,
        body: Bytes::from_static(body.as_bytes()),
    }
}

/// What a legacy client says once it has read the answer to `initialize`.
pub(crate) fn initialized() -> Message {
    let body = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    Message {
        headers: headers(Era::Legacy, "notifications/initialized", None),
        body: Bytes::from_static(body.as_bytes()),
    }
}

/// Asks for the tools.
pub(crate) fn list(era: Era, id: u64) -> Message {
    let params = match era {
        Era::Legacy => String::new(),
        Era::Modern => META.to_owned(),
    };
    let body =
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list","params":{{{params}}}}}"#);
    Message {
        headers: headers(era, "tools/list", None),
        body: Bytes::from(body),
    }
}

/// Headers of a call of `tool`, the same for every call of it.
pub(crate) fn call_headers(era: Era, tool: &str) -> HeaderMap {
    headers(era, "tools/call", Some(tool))
}

/// Body of a call of `tool`; `text` needs no escape in JSON.
pub(crate) fn call_body(era: Era, tool: &str, id: u64, text: &str) -> Bytes {
    let (comma, meta) = match era {
        Era::Legacy => ("", ""),
        Era::Modern => (",", META),
    };
    Bytes::from(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{{"text":"{text}"}}{comma}{meta}}}}}"#
    ))
}

/// A text that only this call has, and as long as that of any other.
pub(crate) fn call_text(connection: usize, id: u64) -> String {
    format!("connection {connection:04} makes call {id:08}, and this is all it says")
}

fn headers(era: Era, method: &str, name: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(
        ACCEPT,
        HeaderValue::from_static("application/json, text/event-stream"),
    );
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(era.revision()));
    if era == Era::Modern {
        let value = |text: &str| HeaderValue::from_str(text).expect("method and tool are ASCII");
        headers.insert(METHOD, value(method));
        if let Some(name) = name {
            headers.insert(NAME, value(name));
        }
    }
    headers
}

#[derive(Deserialize)]
struct Answer<'a> {
    id: u64,
    #[serde(borrow)]
    result: ToolResult<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    #[serde(borrow)]
    content: Vec<Content<'a>>,
    #[serde(borrow)]
    result_type: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// Checks that `answer` is the one to the call `id` with `text`.
pub(crate) fn check(answer: &[u8], era: Era, id: u64, text: &str) -> Result<(), Fault> {
    let wrong = || {
        format!(
            "call {id} ({text}) was answered {}",
            String::from_utf8_lossy(answer)
        )
    };
    let answer: Answer<'_> = serde_json::from_slice(answer).map_err(|_| wrong())?;
    let echoed = matches!(&answer.result.content[..], [content] if content.text == text);
    let complete = match era {
        Era::Legacy => answer.result.result_type.is_none(),
        Era::Modern => answer.result.result_type.as_deref() == Some("complete"),
    };
    if answer.id == id && echoed && complete {
        Ok(())
    } else {
        Err(wrong().into())
    }
}

/// The names in an answer to `tools/list`.
pub(crate) fn listed(answer: &[u8]) -> Result<Vec<String>, Fault> {
    #[derive(Deserialize)]
    struct Listing {
        result: Tools,
    }
    #[derive(Deserialize)]
    struct Tools {
        tools: Vec<Tool>,
    }
    #[derive(Deserialize)]
    struct Tool {
        name: String,
    }
    let listing: Listing = serde_json::from_slice(answer).map_err(|_| {
        format!(
            "tools/list was answered {}",
            String::from_utf8_lossy(answer)
        )
    })?;
    Ok(listing
        .result
        .tools
        .into_iter()
        .map(|tool| tool.name)
        .collect())
}
