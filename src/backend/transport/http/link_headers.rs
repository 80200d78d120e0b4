//! Heads of requests: what is settled with the server, and what each message adds to it.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method as Verb,
    header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE},
};

use crate::{
    backend::link::Exchange,
    mcp::{Era, Raw, Revision, Trace, gateway_headers, header, trace::TRACEPARENT},
};

/// What is settled with the server, and the headers that say so.
#[derive(Debug)]
pub(super) struct LinkHeaders {
    /// The headers of the config.
    configured: HeaderMap,
    revision: Option<Revision>,
    session: Option<HeaderValue>,
    /// The headers of messages, which nearly all requests are.
    cached: HeaderMap,
}

impl LinkHeaders {
    /// Nothing is settled; `own` are the headers of the config.
    pub(super) fn new(own: HeaderMap) -> Self {
        let mut headers = Self {
            configured: own,
            revision: None,
            session: None,
            cached: HeaderMap::new(),
        };
        headers.rebuild_cache();
        headers
    }

    pub(super) fn era(&self) -> Option<Era> {
        self.revision.map(Revision::era)
    }

    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    pub(super) fn set_revision(&mut self, revision: Revision) {
        self.revision = Some(revision);
        self.rebuild_cache();
    }

    pub(super) fn set_session(&mut self, session: Option<HeaderValue>) {
        self.session = session;
        self.rebuild_cache();
    }

    /// Forgets revision and session, before a new handshake.
    pub(super) fn reset(&mut self) {
        self.revision = None;
        self.session = None;
        self.rebuild_cache();
    }

    /// The headers of a request with a body of `length` bytes, and the era they are of.
    pub(super) fn for_request(&self, verb: &Verb, length: usize) -> (HeaderMap, Option<Era>) {
        let mut headers = if *verb == Verb::POST {
            self.cached.clone()
        } else {
            self.shared_headers()
        };
        if *verb == Verb::POST {
            headers.insert(CONTENT_LENGTH, length.into());
        } else if *verb == Verb::GET {
            headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        }
        (headers, self.era())
    }

    fn shared_headers(&self) -> HeaderMap {
        let mut headers = self.configured.clone();
        if let Some(revision) = self.revision {
            let value = HeaderValue::from_static(revision.as_str());
            headers.insert(header::PROTOCOL_VERSION, value);
        }
        if let Some(session) = &self.session {
            headers.insert(header::SESSION_ID, session.clone());
        }
        headers
    }

    fn rebuild_cache(&mut self) {
        let json = HeaderValue::from_static("application/json");
        let both = HeaderValue::from_static("application/json, text/event-stream");
        self.cached = self.shared_headers();
        self.cached.insert(CONTENT_TYPE, json);
        self.cached.insert(ACCEPT, both);
        // Each message takes a copy, in which there is no room for more headers: this is its place.
        self.cached
            .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        // But the index of a copy has as much room.
        self.cached.reserve(EXTRA_HEADERS);
    }
}

/// Headers that most messages add: method and name.
const EXTRA_HEADERS: usize = 2;

/// A `server/discover` is one of 2026-07-28, whatever else is spoken: it asks which revisions are.
pub(super) fn add_discover_headers(headers: &mut HeaderMap) {
    let value = HeaderValue::from_static(Revision::MODERN.as_str());
    headers.insert(header::PROTOCOL_VERSION, value);
}

/// Adds the headers in which a request of 2026-07-28 repeats its method, name and arguments.
pub(super) fn add_method_headers(exchange: &Exchange<'_>, headers: &mut HeaderMap) {
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(&header::encode(value)) {
            headers.insert(name, value);
        }
    };
    put(header::METHOD, exchange.method.as_str());
    if let Some(tool) = exchange.tool {
        put(header::NAME, &tool.original);
    } else {
        let member = exchange.method.name_key();
        let name = member.and_then(|member| exchange.params.as_ref()?.get(member));
        if let Some(name) = name.as_ref().and_then(Raw::as_text) {
            put(header::NAME, &name);
        }
    }
    for (name, value) in &exchange.header_params {
        let name = format!("{}{name}", header::PARAM_PREFIX).to_ascii_lowercase();
        if let Ok(name) = HeaderName::try_from(name) {
            put(name, value);
        }
    }
}

/// Continues the trace that the caller named in a header, and counts the gateways that its request passed.
/// What is no trace is left out.
pub(super) fn add_correlation_headers(exchange: &Exchange<'_>, headers: &mut HeaderMap) {
    let Some(named) = exchange.correlation else {
        return;
    };
    if named.hops > 0 {
        gateway_headers::set_hops(headers, named.hops.saturating_add(1));
    }
    if let Some(traceparent) = named.traceparent.as_deref()
        && Trace::parse(traceparent).is_some()
        && let Ok(value) = HeaderValue::from_str(traceparent)
    {
        headers.insert(TRACEPARENT, value);
    }
}
