//! What `tollbridge login` and `logout` ask of a gateway.

use crate::{
    browser_login::Person,
    control_socket::{SignInAction, SignInCommand, SignInReport},
    names::ServerName,
    oauth_client::GrantStatus,
    proxy::Proxy,
    sign_in::LinkTarget,
};

/// Does what a command asks for.
///
/// # Errors
/// Why not, for people.
pub async fn run_sign_in_command(
    proxy: &Proxy,
    command: &SignInCommand,
) -> Result<SignInReport, String> {
    let server = ServerName::parse(&command.server).map_err(|error| error.to_string())?;
    let person = match &command.agent {
        None => Person::Gateway,
        Some(name) => {
            let agent = proxy.governance().directory().named(name);
            Person::Agent(agent.ok_or_else(|| format!("unknown agent `{name}`"))?)
        }
    };
    let owner = person.owner();
    let grant = async || {
        let connections = proxy.connections(owner).await;
        let found = connections.into_iter().find(|it| it.server == server);
        found.ok_or_else(|| {
            format!(
                "{} cannot sign in to `{server}`: see `auth.grant` and `auth.per_user` of the server",
                person.name()
            )
        })
    };
    let mut grant_now = grant().await?;
    let mut report = SignInReport::default();
    match command.action {
        SignInAction::State => {}
        SignInAction::Link => {
            let target = LinkTarget {
                person: person.clone(),
                server: Some(server.clone()),
                is_by_operator: true,
            };
            let link = proxy.sign_ins().link(target, None);
            let link = link.map_err(|error| error.to_string())?;
            if proxy.sign_ins().base().is_empty() {
                return Err(
                    "the gateway has no page to sign in at: it listens on no port".to_owned(),
                );
            }
            (report.url, report.code) = (Some(link.url), Some(link.code));
        }
        SignInAction::Revoke => {
            if grant_now.status == GrantStatus::NeedsSignIn {
                return Err(format!("{} is not signed in to `{server}`", person.name()));
            }
            proxy.sign_out(&server, &person).await?;
            grant_now = grant().await?;
        }
    }
    grant_now.status.as_str().clone_into(&mut report.status);
    report.granted = grant_now.granted.map(|at| at.to_string());
    report.scopes = grant_now.scopes;
    Ok(report)
}
