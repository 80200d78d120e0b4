//! `tollbridge policy`

mod token;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Subcommand};

use super::{
    args::{self, ConfigArgs},
    block_on,
    gateway::{self, Gateway},
    gateway_target::GatewayTarget,
    output::{OutputFormat, eprint, print, print_json},
    report_failure,
    suggest::did_you_mean,
    usage_error,
};
use crate::{
    catalog::Kind,
    config::{Config, Naming},
    governance::{ItemQuery, PolicyQuestion, PolicySubject, check_vendor_method, policy::ItemKind},
    names::{Scope, ServerName},
};

/// How a script knows what came of it.
const EXIT_CODES: &str = "\
Exit code: 0 when the agent may use it, 1 when it may not or a server that may have it is missing, \
2 for a wrong command line or config.";

/// Explain effective policies
#[derive(Args, Debug)]
pub(super) struct PolicyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Explain whether an agent may use a tool, prompt, resource or method
    Explain(ExplainArgs),
}

#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "clap's form of flags, of which one is given at most"
)]
struct ExplainArgs {
    /// Name or id of the agent; left out with --token
    #[arg(required_unless_present = "token")]
    agent: Option<String>,
    /// The tool: exposed name or `server/tool`
    #[arg(required_unless_present = "token")]
    name: Option<String>,
    /// Explain the access token in this file (`-`: stdin): whether it is good, and which agent its subject is
    #[arg(long, value_name = "FILE")]
    token: Option<PathBuf>,
    /// NAME is a prompt
    #[arg(long, conflicts_with = "resource")]
    prompt: bool,
    /// NAME is a resource URI
    #[arg(long)]
    resource: bool,
    /// NAME is a vendor method, `server/method`
    #[arg(long, conflicts_with_all = ["prompt", "resource", "profile"])]
    method: bool,
    /// Through this profile
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl PolicyArgs {
    pub(super) fn run(&self) -> ExitCode {
        match &self.command {
            Command::Explain(args) => args.run(),
        }
    }
}

/// What is to be explained.
#[expect(clippy::struct_excessive_bools, reason = "those of the flags")]
struct Explain {
    agent: String,
    name: String,
    prompt: bool,
    resource: bool,
    method: bool,
    profile: Option<String>,
    json: bool,
}

impl ExplainArgs {
    fn run(&self) -> ExitCode {
        let config = match self
            .config
            .load_with_quiet_log(OutputFormat::from_flag(self.json))
        {
            Ok(config) => config,
            Err(code) => return code,
        };
        match (&self.token, &self.agent, &self.name) {
            (None, Some(agent), Some(name)) => self.of(agent, name).run(config),
            (Some(file), name, None) => self.explain_token(file, name.as_deref(), config),
            (_, _, _) => usage_error("with --token there is no agent: it is that of the token"),
        }
    }

    fn of(&self, agent: &str, name: &str) -> Explain {
        Explain {
            agent: agent.to_owned(),
            name: name.to_owned(),
            prompt: self.prompt,
            resource: self.resource,
            method: self.method,
            profile: self.profile.clone(),
            json: self.json,
        }
    }

    /// Explains a token, and what its agent may do with `name`.
    fn explain_token(&self, file: &Path, name: Option<&str>, mut config: Config) -> ExitCode {
        let profile = self.profile.as_ref();
        let profile = match profile
            .map(|name| args::find_profile(name, &config))
            .transpose()
        {
            Ok(profile) => profile,
            Err(code) => return code,
        };
        let read = match token::read(file) {
            Ok(read) => read,
            Err(error) => return usage_error(&format!("{}: {error}", file.display())),
        };
        let mut explained = None;
        let work = async {
            explained = Some(token::explain(&read, &config, profile.as_ref()).await);
            ExitCode::SUCCESS
        };
        block_on(1, work);
        let Some(explained) = explained else {
            return ExitCode::FAILURE;
        };
        let printed = match (self.json, name) {
            (true, Some(_)) => ExitCode::SUCCESS,
            (true, None) => print_json(&explained.json),
            (false, _) => print(&format!("{}\n", explained.text)),
        };
        let Some(agent) = explained.agent else {
            if self.json && name.is_some() {
                print_json(&explained.json);
            }
            return ExitCode::FAILURE;
        };
        let Some(name) = name else {
            return printed;
        };
        // The terms of the user in place of those of the agent.
        let base = config
            .agents
            .values_mut()
            .find(|base| base.id == agent.base);
        let Some(base) = base else {
            return self.of(&agent.base.to_string(), name).run(config);
        };
        base.terms = agent.terms.clone();
        base.profiles.clone_from(&agent.profiles);
        base.team.clone_from(&agent.team);
        let base = base.name.clone();
        self.of(&base, name).run(config)
    }
}

impl Explain {
    fn run(&self, config: Config) -> ExitCode {
        if self.method {
            return match self.resolve_method(&config) {
                Ok((server, method)) => self.explain_method(server, method, config),
                Err(code) => code,
            };
        }
        let profile = self.profile.as_ref();
        let profile = match profile
            .map(|name| args::find_profile(name, &config))
            .transpose()
        {
            Ok(profile) => profile,
            Err(code) => return code,
        };
        let target = GatewayTarget::all_servers(config.clone())
            .with_agent(Some(&self.agent))
            .read_only();
        let work = async |gateway: &Gateway| {
            let scope = profile.clone().map_or(Scope::All, Scope::Profile);
            let find = || self.find(&scope, gateway);
            let (found, candidates) = gateway
                .wait_for_item(self.kinds()[0], &self.name, find)
                .await;
            if let Some(found) = found {
                return self.explain(&found, &scope, gateway);
            }
            if let Some(code) = self.report_hidden(&scope, &config.naming, gateway) {
                return code;
            }
            match self.report_unlisted(&scope, &candidates, gateway) {
                Some(unlisted) => self.explain(&unlisted, &scope, gateway),
                None => self.not_found(&candidates, gateway),
            }
        };
        block_on(
            1,
            gateway::with(target, OutputFormat::from_flag(self.json), work),
        )
    }

    /// The server and the method that are meant; what is wrong goes to stderr.
    fn resolve_method(&self, config: &Config) -> Result<(ServerName, String), ExitCode> {
        let name = &self.name;
        let Some((server, method)) = name.split_once('/') else {
            let why = format!("--method: `{name}` is not `server/method`");
            return Err(usage_error(&why));
        };
        let server = args::find_server(server, config)?;
        check_vendor_method(method).map_err(|why| usage_error(&format!("--method: {why}")))?;
        Ok((server, method.to_owned()))
    }

    /// No server needs to be asked whether it has such a method.
    fn explain_method(&self, server: ServerName, method: String, mut config: Config) -> ExitCode {
        for server in config.servers.values_mut() {
            server.enabled = false;
        }
        let target = GatewayTarget::all_servers(config.clone())
            .with_agent(Some(&self.agent))
            .read_only();
        let scope = Scope::Server(server.clone());
        let found = PolicySubject::Method { server, method };
        let work = async |gateway: &Gateway| self.explain(&found, &scope, gateway);
        block_on(
            1,
            gateway::with(target, OutputFormat::from_flag(self.json), work),
        )
    }

    fn explain(&self, found: &PolicySubject, scope: &Scope, gateway: &Gateway) -> ExitCode {
        let question = PolicyQuestion {
            agent: gateway.agent(),
            scope,
            subject: found,
            params: None,
            profile_hint: "; see --profile",
        };
        let explained = match gateway.proxy().governance().explain(&question) {
            Ok(explained) => explained,
            Err(error) => return report_failure(&error),
        };
        let printed = if self.json {
            print_json(&explained)
        } else {
            print(&format!("{}\n", explained.because))
        };
        if explained.allowed == Some(true) {
            printed
        } else {
            ExitCode::FAILURE
        }
    }

    fn query(&self) -> ItemQuery<'_> {
        let kind = if self.prompt {
            ItemKind::Prompt
        } else if self.resource {
            ItemKind::Resource
        } else {
            ItemKind::Tool
        };
        let name = &self.name;
        ItemQuery { kind, name }
    }

    fn kinds(&self) -> &'static [Kind] {
        self.query().kinds()
    }

    /// The item meant, by any of its names on the route.
    fn find(&self, scope: &Scope, gateway: &Gateway) -> Option<PolicySubject> {
        self.query().find(&gateway.catalog(), scope)
    }

    /// Says that the config or the profile of `scope` hides the item meant, where that is so.
    fn report_hidden(&self, scope: &Scope, naming: &Naming, gateway: &Gateway) -> Option<ExitCode> {
        let whole = gateway.proxy().whole_catalog(gateway.agent(), naming);
        let why = self.query().hidden_by(&gateway.catalog(), scope, &whole)?;
        eprint(&format!("{why}\n"));
        Some(ExitCode::FAILURE)
    }

    /// What the item would be by its name, of a server that may have it and is not listed; says why that is
    /// not.
    fn report_unlisted(
        &self,
        scope: &Scope,
        candidates: &[ServerName],
        gateway: &Gateway,
    ) -> Option<PolicySubject> {
        let board = gateway.proxy().catalog_store();
        let kind = self.kinds()[0];
        let qualified = self.name.split_once('/').and_then(|(server, item)| {
            let server = candidates.iter().find(|it| it.is_called(server))?;
            Some((Scope::Server(server.clone()), item))
        });
        let owners = gateway.owners();
        let mut unlisted = match &qualified {
            Some((server, item)) => board.unlisted_candidates((&owners, server), kind, item),
            None => board.unlisted_candidates((&owners, scope), kind, &self.name),
        };
        if unlisted.is_empty() {
            return None;
        }
        let first = unlisted.swap_remove(0);
        gateway.report_unhealthy_where(self.kinds(), |server| *server == first.server);
        Some(PolicySubject::Unlisted(first))
    }

    /// Without all servers that may have it, it is not known whether the name is wrong.
    fn not_found(&self, candidates: &[ServerName], gateway: &Gateway) -> ExitCode {
        let (noun, name) = (self.query().kind.noun(), &self.name);
        let catalog = gateway.catalog();
        let lists = self
            .kinds()
            .iter()
            .map(|kind| catalog.list(&Scope::All, *kind));
        let entries = lists.flat_map(|list| list.entries());
        let names = entries.map(|entry| [&*entry.exposed, &*entry.original]);
        let ending = did_you_mean(name, names);
        let complete =
            gateway.report_unhealthy_where(self.kinds(), |server| candidates.contains(server));
        if complete {
            return usage_error(&format!("unknown {noun} `{name}`{ending}"));
        }
        eprint(&format!(
            "cannot tell whether there is a {noun} `{name}`: not every server is listed{ending}\n"
        ));
        ExitCode::FAILURE
    }
}
