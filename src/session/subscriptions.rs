//! The resources that one legacy session wants to hear of, by the URIs its client gave them.

use std::sync::Mutex;

use crate::{lock::lock, names::ServerName};

/// Resources a session may be subscribed to.
pub const SUBSCRIPTIONS_MAX: usize = 1024;
/// Bytes of their URIs: they are kept with the session, in memory and in the store.
pub const SUBSCRIPTION_BYTES_MAX: usize = 256 << 10;

/// The session has as many subscriptions as it may.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "a session may have at most {SUBSCRIPTIONS_MAX} subscriptions and {SUBSCRIPTION_BYTES_MAX} \
     bytes of URIs"
)]
pub struct TooManySubscriptions;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Subscriptions(Mutex<Vec<Subscription>>);

#[derive(Debug)]
struct Subscription {
    /// As its client named it.
    uri: String,
    /// The server it was found at, and the URI in its spelling.
    target: Option<(ServerName, String)>,
}

impl Subscription {
    fn to(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            target: None,
        }
    }
}

impl Subscriptions {
    /// Those to `uris`, which a session had before.
    pub(super) fn to(uris: &[String]) -> Self {
        Self(Mutex::new(uris.iter().map(Subscription::to).collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    pub(super) fn uris(&self) -> Vec<String> {
        lock(&self.0).iter().map(|one| one.uri.clone()).collect()
    }

    /// Adds one; whether it is new.
    pub(super) fn add(&self, uri: &str) -> Result<bool, TooManySubscriptions> {
        let mut all = lock(&self.0);
        if all.iter().any(|known| known.uri == uri) {
            return Ok(false);
        }
        let bytes: usize = all.iter().map(|known| known.uri.len()).sum();
        if all.len() >= SUBSCRIPTIONS_MAX || bytes + uri.len() > SUBSCRIPTION_BYTES_MAX {
            return Err(TooManySubscriptions);
        }
        all.push(Subscription::to(uri));
        Ok(true)
    }

    /// Removes one; whether it was there.
    pub(super) fn remove(&self, uri: &str) -> bool {
        let mut all = lock(&self.0);
        let before = all.len();
        all.retain(|known| known.uri != uri);
        all.len() < before
    }

    /// Notes what a URI names: a server, and the URI in its spelling.
    pub(super) fn set_target(&self, uri: &str, server: &ServerName, original: &str) {
        let mut all = lock(&self.0);
        if let Some(one) = all.iter_mut().find(|one| one.uri == uri) {
            one.target = Some((server.clone(), original.to_owned()));
        }
    }

    /// What the URI named when that was noted last.
    pub(super) fn target_of(&self, uri: &str) -> Option<(ServerName, String)> {
        let all = lock(&self.0);
        all.iter().find(|one| one.uri == uri)?.target.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_taken() {
        let subscriptions = Subscriptions::default();
        for number in 0..SUBSCRIPTIONS_MAX {
            assert_eq!(subscriptions.add(&format!("mem:{number}")), Ok(true));
        }
        assert_eq!(subscriptions.add("mem:0"), Ok(false));
        assert_eq!(subscriptions.add("mem:x"), Err(TooManySubscriptions));
        assert!(subscriptions.remove("mem:0"));
        assert_eq!(subscriptions.add("mem:x"), Ok(true));
    }

    #[test]
    fn uris_of_such_length_are_taken() {
        let subscriptions = Subscriptions::default();
        let half = "a".repeat(SUBSCRIPTION_BYTES_MAX / 2);
        assert_eq!(subscriptions.add(&half), Ok(true));
        assert_eq!(
            subscriptions.add(&format!("{half}b")),
            Err(TooManySubscriptions)
        );
        assert_eq!(subscriptions.add(&half.replace('a', "b")), Ok(true));
        assert_eq!(subscriptions.add("c"), Err(TooManySubscriptions));
        assert!(subscriptions.remove(&half));
        assert_eq!(subscriptions.add("c"), Ok(true));
    }
}
