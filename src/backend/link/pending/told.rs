//! What servers say of their own accord: each notification to the party it belongs to.
//!
//! Called by the link that it comes on.

use std::{borrow::Cow, sync::atomic::Ordering};

use super::{PendingRequests, recipient::Recipient};
use crate::{
    backend::link::recent_calls::TELLINGS,
    catalog::rewrite,
    lock::lock,
    mcp::{Era, Notification, Raw, RpcError, error, json, meta, method::notice},
    session::Event,
};

impl PendingRequests {
    pub(in crate::backend) fn told(&self, notification: Notification, origin: Option<u64>) {
        let Notification { method, params } = notification;
        // Where all streams share a pipe, this names the listen stream that a message is on.
        let origin = origin.or_else(|| subscription(params.as_ref()));
        match method.as_ref() {
            notice::PROGRESS => self.progress(params, origin),
            notice::CANCELLED if self.speaks_modern() => self.given_up(params.as_ref()),
            notice::CANCELLED => self.withdrawn(params.as_ref()),
            notice::TOOLS_CHANGED | notice::RESOURCES_CHANGED | notice::PROMPTS_CHANGED => {
                self.signals.lists_changed();
            }
            notice::RESOURCE_UPDATED | notice::SUBSCRIBED if self.listens(origin) => {
                self.pass(method, params, origin, false);
            }
            notice::RESOURCE_UPDATED => {
                if let Some(params) = params {
                    self.signals.resource_updated(params);
                }
            }
            notice::SUBSCRIBED => {
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            notice::ELICITATION_COMPLETE => self.visited(method, params, origin),
            notice::MESSAGE => self.pass(method, params, origin, true),
            _ => self.pass(method, params, origin, false),
        }
    }

    /// A server of 2026-07-28 ends what it was asked: a listen stream, by the specification
    /// (cancellation). Servers of that era ask nothing that could be meant instead, and over HTTP an
    /// exchange has a stream of its own to end.
    fn given_up(&self, params: Option<&Raw>) {
        let id = params.and_then(|params| params.get("requestId"));
        let id = id.and_then(|id| id.as_str().parse().ok());
        let Some(id): Option<u64> = id else { return };
        let mut pending = lock(&self.pending);
        if pending.get(&id).is_some_and(|entry| entry.tell.is_some())
            && let Some(entry) = pending.remove(&id)
        {
            drop(pending);
            let error = RpcError::new(error::INTERNAL, "the server ended the request");
            entry.end(Ok(Err(error.to_raw())));
        }
    }

    /// Progress goes to the call whose token it carries, under the token its client gave. Clients of
    /// 2026-07-28 hear of it only where it rises (basic/patterns/progress): older servers may say what
    /// they like.
    fn progress(&self, params: Option<Raw>, origin: Option<u64>) {
        let Some(params) = params else { return };
        let Some(span) = params.member("progressToken") else {
            return;
        };
        let id: Option<u64> = params.as_str()[span.clone()].parse().ok();
        let pending = lock(&self.pending);
        let Some(entry) = id.and_then(|id| pending.get(&id)) else {
            return;
        };
        entry.activity.touch();
        if origin.is_none() {
            entry.activity.spoken_beside();
        }
        let Some(caller) = &entry.caller else { return };
        let Some(heard) = &caller.progress else {
            return;
        };
        // Another connection may have been as far before this one.
        if caller.client.era() == Era::Modern && !heard.rises(&params) {
            return;
        }
        let mut patch = json::Patch::new(params.as_bytes());
        patch.replace(span, heard.token.as_bytes());
        let event = Event::Notification {
            method: Cow::Borrowed(notice::PROGRESS),
            params: Some(patch.finish()),
        };
        caller.tell(event);
    }

    /// A visit of a client is done, which names itself: the call that led to it may be over. Nobody is
    /// told of one that was not asked for on this link: other servers may have asked for theirs under
    /// the same name.
    fn visited(&self, method: Cow<'static, str>, params: Option<Raw>, origin: Option<u64>) {
        let session = self.visits.done(params.as_ref());
        let session = session.and_then(|session| session.upgrade());
        // A link that was made anew knows nothing of before; where it has one session, that is meant.
        let Some(session) = session.or_else(|| self.home.clone()) else {
            self.unattributed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let call = origin.and_then(|id| self.recipient(Some(id), TELLINGS));
        let recipient = call.filter(|call| call.is_of(&session));
        if let Some(recipient) = recipient.or_else(|| self.outside(session)) {
            recipient.send(Event::Notification { method, params });
        }
    }

    /// Passes a notification to the party it belongs to; without one it is counted and dropped.
    fn pass(&self, method: Cow<'static, str>, params: Option<Raw>, origin: Option<u64>, log: bool) {
        if log {
            self.levels.note(params.as_ref());
        }
        let found = self.audience(origin);
        let is_meant =
            |it: &Recipient| origin.is_some() || self.is_meant(it, &method, params.as_ref());
        let Some(recipient) = found.filter(is_meant) else {
            self.unattributed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if let (Recipient::Call { activity, .. }, None) = (&recipient, origin) {
            activity.spoken_beside();
        }
        if !log || self.levels.granted(recipient.logs()).want(params.as_ref()) {
            let params = match (params, recipient.uris()) {
                (Some(params), Some(uris)) => Some(rewrite::notification(&method, &params, &uris)),
                (params, _) => params,
            };
            recipient.send(Event::Notification { method, params });
        }
    }
}

/// The id of the listen stream that a notification names.
fn subscription(params: Option<&Raw>) -> Option<u64> {
    let id = params?.get("_meta")?.get(meta::SUBSCRIPTION_ID)?;
    id.as_str().parse().ok()
}
