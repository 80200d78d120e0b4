//! What the command line asks of this gateway over its control socket.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use super::{
    entry_writer::EntryWriter, sign_in_command::run_sign_in_command, storage::StorageKeeper,
};
use crate::{
    api::ConfigWriter as _,
    audit::EventKind,
    auth::Agent,
    control_socket::{
        ControlCommands, ControlSocket, GatewayIdentity, OTHER_CONFIG_REPLY, RestartCommand,
        SessionRequest, SessionServer, SignInCommand, SignInReport, canonical_files,
    },
    http::HttpEdge,
    names::{ProfileName, Scope, ServerName},
    proxy::Proxy,
    status::{Status, StatusAccess},
    stdio::StdioEdge,
    task::Tasks,
};

/// The commands of one gateway.
#[derive(Clone, Debug)]
pub(super) struct Control(Arc<ControlState>);

#[derive(Debug)]
struct ControlState {
    storage: Arc<StorageKeeper>,
    writer: Arc<EntryWriter>,
    proxy: Arc<Proxy>,
    status: Arc<Status>,
    tasks: Tasks,
    /// The name of the control socket.
    socket: OnceLock<String>,
    /// The listener whose dashboard links lead to, and the URL that they begin with, where it is not that of clients.
    dashboard: OnceLock<(Arc<HttpEdge>, Option<String>)>,
    /// The config files, absolute, of a gateway that serves more than one client.
    files: OnceLock<Vec<PathBuf>>,
}

impl Control {
    pub(super) fn new(
        (storage, writer): (&Arc<StorageKeeper>, &Arc<EntryWriter>),
        proxy: &Arc<Proxy>,
        status: &Arc<Status>,
        tasks: &Tasks,
    ) -> Self {
        Self(Arc::new(ControlState {
            storage: Arc::clone(storage),
            writer: Arc::clone(writer),
            proxy: Arc::clone(proxy),
            status: Arc::clone(status),
            tasks: tasks.clone(),
            socket: OnceLock::new(),
            dashboard: OnceLock::new(),
            files: OnceLock::new(),
        }))
    }

    /// Answers commands on a socket in the data directory.
    pub(super) fn listen(&self) {
        let Self(state) = self;
        match ControlSocket::bind(state.storage.data_dir()) {
            Ok(socket) => {
                // Once for each gateway.
                drop(state.socket.set(socket.name()));
                let serving = socket.serve(state.tasks.clone(), self.clone());
                state.tasks.spawn("control socket", serving);
            }
            Err(error) => tracing::warn!(
                %error,
                "no control socket: changes made by the command line apply within {:?}",
                super::storage::REREAD_INTERVAL
            ),
        }
    }

    /// Lets links lead to the dashboard of `edge`, at `admin_url` where it has a listener of its own.
    pub(super) fn allow_dashboard(&self, edge: &Arc<HttpEdge>, admin_url: Option<String>) {
        // Once for each gateway.
        drop(self.0.dashboard.set((Arc::clone(edge), admin_url)));
    }

    /// Lets commands that use the config `files` open sessions, and recognize this gateway.
    pub(super) fn allow_sessions(&self, files: &[PathBuf]) {
        let Ok(files) = canonical_files(files) else {
            return;
        };
        if let Some(socket) = self.0.socket.get() {
            let id = GatewayIdentity::new(socket.clone(), &files);
            self.0.status.note_gateway_identity(id);
        }
        // Once for each gateway.
        drop(self.0.files.set(files));
    }
}

impl ControlCommands for Control {
    async fn refresh(&self) -> Result<(), String> {
        if let Some(grants) = self.0.proxy.backends().grants() {
            grants.reread();
        }
        if self.0.storage.refresh().await? {
            let applied = self.0.writer.apply_stored().await;
            applied.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn status(&self) -> Result<String, String> {
        let status = self.0.status.to_json(&StatusAccess::Full);
        let status = status.map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&status).into_owned())
    }

    fn dashboard_link(&self) -> Result<String, String> {
        let dashboard = self.0.dashboard.get();
        let (edge, admin_url) =
            dashboard.ok_or("this gateway has no listener, and no dashboard")?;
        let path = edge.dashboard_link().map_err(|error| error.to_string())?;
        let base = match admin_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => self.0.proxy.sign_ins().base().to_string(),
        };
        let governance = self.0.proxy.governance();
        governance.record_event(EventKind::DashboardLinkMade, "dashboard", Some("cli"), None);
        Ok(format!("{base}{path}"))
    }

    fn restart(&self, command: &RestartCommand) -> Result<(), String> {
        self.0.check_config(&command.files)?;
        let server = &command.server;
        let name = ServerName::parse(server).map_err(|error| error.to_string())?;
        if !self.0.writer.restart_server(&name) {
            return Err(format!("the server `{server}` does not run"));
        }
        let governance = self.0.proxy.governance();
        let (event, detail) = (EventKind::ServerDisconnected, Some("restarted"));
        governance.record_event(event, server, Some("cli"), detail);
        Ok(())
    }

    async fn sign_in(&self, command: &SignInCommand) -> Result<SignInReport, String> {
        self.0.check_config(&command.files)?;
        run_sign_in_command(&self.0.proxy, command).await
    }

    fn session(&self, request: &SessionRequest) -> Result<SessionServer, String> {
        let Self(state) = self;
        state.check_config(&request.files)?;
        let agent = state.agent(request)?;
        let scope = state.scope(request, &agent)?;
        let (proxy, tasks) = (Arc::clone(&state.proxy), state.tasks.clone());
        Ok(Box::new(move |stream| {
            let edge = StdioEdge::new(proxy, agent, scope, &tasks);
            let stop = tasks.stop_token().child_token();
            let (input, output) = stream.into_split();
            Box::pin(async move {
                edge.serve(input, output, stop).await;
            })
        }))
    }
}

impl ControlState {
    /// Fails where a command has another config.
    fn check_config(&self, files: &[PathBuf]) -> Result<(), String> {
        let own = self.files.get().filter(|own| !own.is_empty());
        let is_same = own.is_some_and(|own| own == files);
        is_same
            .then_some(())
            .ok_or_else(|| OTHER_CONFIG_REPLY.to_owned())
    }

    fn agent(&self, request: &SessionRequest) -> Result<Arc<Agent>, String> {
        let directory = self.proxy.governance().directory();
        match &request.agent {
            Some(name) => directory
                .named(name)
                .ok_or_else(|| format!("unknown agent `{name}`")),
            None if directory.is_anonymous() => Ok(Arc::new(Agent::anonymous())),
            None => Err("an agent is required".to_owned()),
        }
    }

    fn scope(&self, request: &SessionRequest, agent: &Agent) -> Result<Scope, String> {
        match (&request.server, &request.profile) {
            (Some(name), _) => {
                let server = ServerName::parse(name).map_err(|error| error.to_string())?;
                let scope = self.proxy.resolve_route(agent, Scope::Server(server));
                let is_enabled = |scope: &Scope| match scope {
                    Scope::All | Scope::Profile(_) | Scope::View { .. } => true,
                    Scope::Server(server) => {
                        let backend = self.proxy.backends().get(server);
                        backend.is_some_and(|backend| backend.is_enabled())
                    }
                };
                let scope = scope.filter(is_enabled);
                scope.ok_or_else(|| format!("no enabled server `{name}`"))
            }
            (None, Some(name)) => {
                let profile = ProfileName::parse(name).map_err(|error| error.to_string())?;
                Ok(Scope::Profile(profile))
            }
            (None, None) => Ok(Scope::All),
        }
    }
}
