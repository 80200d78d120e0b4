//! What servers say of their own accord: each notification to the party it belongs to.
//!
//! Called by the link that it comes on.

use std::{borrow::Cow, sync::atomic::Ordering};

use super::{PendingRequests, recipient::Recipient};
use crate::{
    backend::link::recent_calls::LATE_NOTIFICATION_WINDOW,
    catalog::rewrite,
    lock::lock,
    mcp::{Era, Notification, Raw, RpcError, error, json, meta, method::notice},
    session::Event,
};

impl PendingRequests {
    pub(in crate::backend) fn handle_notification(
        &self,
        notification: Notification,
        origin: Option<u64>,
    ) {
        let Notification { method, params } = notification;
        // Where all streams share a pipe, this names the listen stream that a message is on.
        let origin = origin.or_else(|| subscription_id(params.as_ref()));
        match method.as_ref() {
            notice::PROGRESS => self.forward_progress(params, origin),
            notice::CANCELLED if self.speaks_modern() => {
                self.handle_stream_cancelled(params.as_ref());
            }
            notice::CANCELLED => self.handle_cancelled(params.as_ref()),
            notice::TOOLS_CHANGED | notice::RESOURCES_CHANGED | notice::PROMPTS_CHANGED => {
                self.signals.lists_changed();
            }
            notice::RESOURCE_UPDATED | notice::SUBSCRIPTIONS_ACKNOWLEDGED
                if self.is_listen_stream(origin) =>
            {
                self.forward_notification(method, params, origin, false);
            }
            notice::RESOURCE_UPDATED => {
                if let Some(params) = params {
                    self.signals.resource_updated(params);
                }
            }
            notice::SUBSCRIPTIONS_ACKNOWLEDGED => {
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            notice::ELICITATION_COMPLETE => {
                self.handle_elicitation_complete(method, params, origin);
            }
            notice::MESSAGE => self.forward_notification(method, params, origin, true),
            _ => self.forward_notification(method, params, origin, false),
        }
    }

    /// A server of 2026-07-28 ends what it was asked: a listen stream, by the specification
    /// (cancellation). Servers of that era ask nothing that could be meant instead, and over HTTP an
    /// exchange has a stream of its own to end.
    fn handle_stream_cancelled(&self, params: Option<&Raw>) {
        let id = params.and_then(|params| params.get("requestId"));
        let id = id.and_then(|id| id.as_str().parse().ok());
        let Some(id): Option<u64> = id else { return };
        let mut pending = lock(&self.pending);
        if pending
            .get(&id)
            .is_some_and(|entry| entry.responder.is_some())
            && let Some(entry) = pending.remove(&id)
        {
            drop(pending);
            let error = RpcError::new(error::INTERNAL, "the server ended the request");
            entry.complete(Ok(Err(error.to_raw())));
        }
    }

    /// Progress goes to the call whose token it carries, under the token its client gave. Clients of
    /// 2026-07-28 hear of it only where it rises (basic/patterns/progress): older servers may say what
    /// they like.
    fn forward_progress(&self, params: Option<Raw>, origin: Option<u64>) {
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
            entry.activity.note_out_of_band();
        }
        let Some(caller) = &entry.caller else { return };
        let Some(heard) = &caller.progress else {
            return;
        };
        // Another connection may have been as far before this one.
        if caller.client.era() == Era::Modern && !heard.record_if_rising(&params) {
            return;
        }
        let mut patch = json::Patch::new(params.as_bytes());
        patch.replace(span, heard.token.as_bytes());
        let event = Event::Notification {
            method: Cow::Borrowed(notice::PROGRESS),
            params: Some(patch.finish()),
        };
        caller.send(event);
    }

    /// A visit of a client is done, which names itself: the call that led to it may be over. Nobody is
    /// told of one that was not asked for on this link: other servers may have asked for theirs under
    /// the same name.
    fn handle_elicitation_complete(
        &self,
        method: Cow<'static, str>,
        params: Option<Raw>,
        origin: Option<u64>,
    ) {
        let session = self.url_elicitations.complete(params.as_ref());
        let session = session.and_then(|session| session.upgrade());
        // A link that was made anew knows nothing of before; where it has one session, that is meant.
        let Some(session) = session.or_else(|| self.session.clone()) else {
            self.unattributed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let call = origin.and_then(|id| self.recipient(Some(id), LATE_NOTIFICATION_WINDOW));
        let recipient = call.filter(|call| call.is_of(&session));
        if let Some(recipient) = recipient.or_else(|| self.session_recipient(session)) {
            recipient.send(Event::Notification { method, params });
        }
    }

    /// Passes a notification to the party it belongs to; without one it is counted and dropped.
    fn forward_notification(
        &self,
        method: Cow<'static, str>,
        params: Option<Raw>,
        origin: Option<u64>,
        log: bool,
    ) {
        if log {
            self.levels.note(params.as_ref());
        }
        let found = self.notification_recipient(origin);
        let is_meant =
            |it: &Recipient| origin.is_some() || self.is_addressed_to(it, &method, params.as_ref());
        let Some(recipient) = found.filter(is_meant) else {
            self.unattributed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if let (Recipient::Call { activity, .. }, None) = (&recipient, origin) {
            activity.note_out_of_band();
        }
        if !log
            || self
                .levels
                .granted(recipient.logs())
                .accepts(params.as_ref())
        {
            let params = match (params, recipient.uris()) {
                (Some(params), Some(uris)) => {
                    Some(rewrite::rewrite_notification(&method, &params, &uris))
                }
                (params, _) => params,
            };
            recipient.send(Event::Notification { method, params });
        }
    }
}

/// The id of the listen stream that a notification names.
fn subscription_id(params: Option<&Raw>) -> Option<u64> {
    let id = params?.get("_meta")?.get(meta::SUBSCRIPTION_ID)?;
    id.as_str().parse().ok()
}
