//! The built-in authorization server of a config.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::{broadcast::error::RecvError, watch};

use crate::{
    authorization_server::{OidcIssuer, RegistrationLimits, Settings},
    config::{AuthMethod, Config, OAuthMode},
    control_socket,
    egress::{EgressClient, EgressError},
    oauth_client::{GrantChange, Grants},
    task::Tasks,
};

/// What the config says of the built-in authorization server; `None` where it is off.
pub(super) fn settings(config: &Config) -> Result<Option<Settings>, EgressError> {
    let is_on =
        config.governance.auth.allows(AuthMethod::Oauth) && config.oauth.mode == OAuthMode::Builtin;
    if !is_on {
        return Ok(None);
    }
    let oauth = &config.oauth;
    Ok(Some(Settings {
        access_token_lifetime: oauth.access_token_lifetime,
        refresh_token_lifetime: oauth.refresh_token_lifetime,
        refresh_grace: oauth.refresh_grace,
        metadata_documents: oauth.client_id_metadata_documents,
        registration: oauth.registration.then_some(RegistrationLimits {
            clients_max: oauth.registrations_max,
            unused_max: oauth.registration_lifetime,
        }),
        login: match &oauth.login {
            Some(login) => Some(Arc::new(OidcIssuer::new(login, &config.egress)?)),
            None => None,
        },
        egress: EgressClient::new(&config.egress, [])?,
    }))
}

/// Tells the other processes of the data directory when a token was revoked here.
pub(super) fn spawn_notices(mut changes: watch::Receiver<()>, data_dir: PathBuf, tasks: &Tasks) {
    let stop = tasks.stop_token().clone();
    tasks.spawn("revoked tokens", async move {
        loop {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = stop.cancelled() => return,
            }
            notify_others(&data_dir, "a revoked token").await;
        }
    });
}

/// Tells them when somebody signed in to a server here, or gave that up: they would go on with the token of before.
pub(super) fn spawn_grant_notices(grants: &Grants, data_dir: PathBuf, tasks: &Tasks) {
    let (mut changes, stop) = (grants.subscribe_changes(), tasks.stop_token().clone());
    tasks.spawn("changed grants", async move {
        loop {
            tokio::select! {
                changed = changes.recv() => match changed {
                    // They told us.
                    Ok(GrantChange::Elsewhere) => continue,
                    Ok(GrantChange::Here { .. }) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
                () = stop.cancelled() => return,
            }
            notify_others(&data_dir, "a changed grant").await;
        }
    });
}

pub(super) async fn notify_others(data_dir: &Path, what: &str) {
    for failure in control_socket::notify_all(data_dir).await.failures {
        tracing::warn!("a running gateway does not know of {what} yet: {failure}");
    }
}
