//! The built-in authorization server of a config.

use std::{path::PathBuf, sync::Arc};

use tokio::sync::watch;

use crate::{
    authorization_server::{OidcIssuer, RegistrationLimits, Settings},
    config::{AuthMethod, Config, OAuthMode},
    control_socket,
    egress::{EgressClient, EgressError},
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
    let data_dir: Arc<PathBuf> = Arc::new(data_dir);
    tasks.spawn("revoked tokens", async move {
        loop {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = stop.cancelled() => return,
            }
            for failure in control_socket::notify_all(&data_dir).await.failures {
                tracing::warn!("a running gateway does not know of a revoked token yet: {failure}");
            }
        }
    });
}
