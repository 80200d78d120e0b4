//! What the log says of requests that lead nowhere: without a key, from a strange origin, or to a path where
//! nothing is. Most likely a client or a proxy has the wrong settings, which nothing else would show.

use std::{collections::HashMap, io, sync::Mutex};

use http::{HeaderValue, Request, header::USER_AGENT};
use tokio::time::Instant;

use super::oauth::RequestTarget;
use crate::{auth::RefusedRequest, lock::lock, names::PeerAddress, telemetry::LogThrottle};

/// Characters of a text of the client that the log shows: it is as long as a client likes, and no name of a
/// host has more than 253.
const LOGGED_CHARS: usize = 400;

/// Why a request is refused, as far as the log tells them apart.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum RequestFault {
    /// The certificate of a client, or that there is none.
    Certificate,
    /// What else may be wrong in a TLS handshake.
    Handshake,
    Host,
    Key,
    Method,
    OAuth,
    Origin,
    Path,
}

/// What the log has heard of lately.
#[derive(Debug, Default)]
pub(super) struct RequestLog(Mutex<HashMap<RequestFault, LogThrottle>>);

impl RequestLog {
    /// Lets the log hear of a request of `peer`, unless it has just heard of one alike: who sends such
    /// requests may send many.
    pub(super) fn warn<B>(
        &self,
        fault: RequestFault,
        message: &str,
        peer: PeerAddress,
        request: &Request<B>,
    ) {
        let Some(held) = self.suppressed_since(fault) else {
            return;
        };
        let RefusedRequest { path, user_agent } = refused_request(request);
        let (method, message) = (request.method(), shorten(message));
        tracing::warn!(%peer, %method, path, user_agent, more = held, "request rejected: {message}");
    }

    /// Lets the log hear of a TLS handshake that failed, alike. Who only looks whether somebody listens has said
    /// nothing, and is none of these.
    pub(super) fn note_handshake(&self, error: &io::Error, peer: PeerAddress) {
        let cause = error.get_ref().and_then(|it| it.downcast_ref());
        let fault = match cause {
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
                RequestFault::Certificate
            }
            Some(_) => RequestFault::Handshake,
            None => return tracing::debug!(%peer, %error, "TLS handshake failed"),
        };
        if let Some(held) = self.suppressed_since(fault) {
            tracing::info!(%peer, more = held, "TLS handshake failed: {error}");
        }
    }

    /// How many were held back before this one, if it is to be told.
    fn suppressed_since(&self, fault: RequestFault) -> Option<u64> {
        let mut all = lock(&self.0);
        all.entry(fault).or_default().record(Instant::now())
    }
}

/// What the log says of a request.
pub(super) fn refused_request<B>(request: &Request<B>) -> RefusedRequest<'_> {
    refused_target(RequestTarget::of(request))
}

/// What the log says of a request to `target`.
pub(super) fn refused_target(target: RequestTarget<'_>) -> RefusedRequest<'_> {
    let user_agent = target.headers.get(USER_AGENT).map(HeaderValue::to_str);
    RefusedRequest {
        path: shorten(target.uri.path()),
        user_agent: match user_agent {
            Some(Ok(name)) => shorten(name),
            Some(Err(_)) => "(not legible)",
            None => "(none)",
        },
    }
}

/// The beginning of a text that is too long for a line of the log.
fn shorten(text: &str) -> &str {
    let end = text.char_indices().nth(LOGGED_CHARS);
    end.map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_log_hears_of_each_fault_once_a_minute() {
        let log = RequestLog::default();
        assert_eq!(log.suppressed_since(RequestFault::Host), Some(0));
        assert_eq!(log.suppressed_since(RequestFault::Host), None);
        let other = log.suppressed_since(RequestFault::Origin);
        assert_eq!(other, Some(0), "another fault");
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        assert_eq!(log.suppressed_since(RequestFault::Host), Some(1));
    }

    #[test]
    fn what_the_log_shows_has_an_end() {
        let check = |chars: usize, expect: usize| {
            assert_eq!(shorten(&"ä".repeat(chars)).chars().count(), expect);
        };
        check(LOGGED_CHARS - 1, LOGGED_CHARS - 1);
        check(LOGGED_CHARS, LOGGED_CHARS);
        check(LOGGED_CHARS + 1, LOGGED_CHARS);
    }
}
