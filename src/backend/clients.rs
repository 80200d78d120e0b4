//! What a server hears of a client outside of its calls: the notifications it sends.

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::time::timeout;

use super::{Backend, Failure};
use crate::{
    mcp::{Notification, Raw},
    session::{Client, Session},
};

impl Backend {
    /// Passes a notification to the connection that serves `session`, which is made where there is
    /// none. Whether it is on its way.
    pub(crate) fn tell(
        self: &Arc<Self>,
        session: &Arc<Session>,
        notification: &Notification,
    ) -> bool {
        let Some(client) = Client::of(session) else {
            return false;
        };
        let bytes = notification
            .params
            .as_ref()
            .map_or(0, |params| params.as_bytes().len());
        if bytes > self.config.limits.request {
            tracing::debug!(server = %self.name, bytes, "a notification is larger than limits.request");
            return false;
        }
        // Nothing that the client asks next may overtake it where the connection stands.
        if let Some(Ok(served)) = self.connection(&client).now_or_never() {
            let link = &served.connection.link;
            link.try_notify(&notification.method, notification.params.as_ref());
            return true;
        }
        let (backend, notification) = (Arc::clone(self), notification.clone());
        self.maker.tasks.spawn("notification of a client", async move {
            let told = backend.tell_later(&client, &notification.method, notification.params.as_ref());
            if let Err(failure) = told.await {
                tracing::debug!(server = %backend.name, %failure, "a notification was not taken");
            }
        });
        true
    }

    async fn tell_later(
        &self,
        client: &Client,
        method: &str,
        params: Option<&Raw>,
    ) -> Result<(), Failure> {
        let after = self.config.timeout;
        let served = timeout(after, self.connection(client)).await;
        let served = served.unwrap_or(Err(Failure::Timeout { after }))?;
        served.connection.link.notify(method, params).await
    }
}
