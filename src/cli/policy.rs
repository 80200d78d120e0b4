//! `tollbridge policy`

mod token;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    args::{self, ConfigArgs},
    block_on,
    gateway::{self, Gateway, hidden_reason},
    gateway_target::GatewayTarget,
    output::{OutputFormat, eprint, print, print_json},
    report_failure,
    suggest::did_you_mean,
    usage_error,
};
use crate::{
    auth::Agent,
    catalog::{Candidate, Catalog, ConfiguredNames, Kind, ListEntry, Lookup, ServerOffer},
    config::{Config, Naming, RuleKind, key_path},
    governance::{ExplainedRule, Explanation, Visibility, policy::PolicyItem},
    mcp::Method,
    names::{ProfileName, Scope, ServerName},
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
        let observed = |agent: &Agent| is_policy_observed(agent, profile.as_ref(), &config);
        let target = GatewayTarget::all_servers(config.clone())
            .with_agent(Some(&self.agent))
            .read_only();
        let work = async |gateway: &Gateway| {
            let scope = profile.clone().map_or(Scope::All, Scope::Profile);
            let find = || self.find(&scope, gateway);
            let (found, candidates) = gateway
                .wait_for_item(self.kinds()[0], &self.name, find)
                .await;
            let observed = observed(gateway.agent());
            if let Some(found) = found {
                return self.explain(&found, &scope, observed, gateway);
            }
            if let Some(code) = self.report_hidden(&scope, &config.naming, gateway) {
                return code;
            }
            match self.report_unlisted(&scope, &candidates, gateway) {
                Some(unlisted) => self.explain(&unlisted, &scope, observed, gateway),
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
        if !matches!(Method::parse(method), Method::Other(_)) {
            return Err(usage_error(&format!(
                "--method: policies do not apply to the protocol method `{method}`; use the tool, \
                 prompt or resource instead"
            )));
        }
        Ok((server, method.to_owned()))
    }

    /// No server needs to be asked whether it has such a method.
    fn explain_method(&self, server: ServerName, method: String, mut config: Config) -> ExitCode {
        for server in config.servers.values_mut() {
            server.enabled = false;
        }
        let observed = |agent: &Agent| is_policy_observed(agent, None, &config);
        let target = GatewayTarget::all_servers(config.clone())
            .with_agent(Some(&self.agent))
            .read_only();
        let scope = Scope::Server(server.clone());
        let found = PolicySubject::Method { server, method };
        let work = async |gateway: &Gateway| {
            let observed = observed(gateway.agent());
            self.explain(&found, &scope, observed, gateway)
        };
        block_on(
            1,
            gateway::with(target, OutputFormat::from_flag(self.json), work),
        )
    }

    fn explain(
        &self,
        found: &PolicySubject,
        scope: &Scope,
        observed: bool,
        gateway: &Gateway,
    ) -> ExitCode {
        let governance = gateway.proxy().governance();
        let agent = gateway.agent();
        let item = found.item();
        let profile = match scope {
            Scope::Profile(profile) => Some(profile),
            Scope::All | Scope::Server(_) => None,
        };
        let Explanation {
            reason: mut because,
            mut argument_rules,
        } = match governance.explain(agent, profile, &item) {
            Ok(explanation) => explanation,
            Err(error) => return report_failure(&error),
        };
        let visibility = governance.visibility(agent, scope);
        let allowed = match &visibility {
            Visibility::Hidden(_) => false,
            Visibility::All | Visibility::Filtered(_) => found.is_shown(&visibility),
        };
        let is_known = !matches!(found, PolicySubject::Unlisted(_));
        if !agent.enabled {
            because = format!("{} is disabled.", agent.name);
        } else if let Visibility::Hidden(why) = visibility {
            // `--method` goes without a profile.
            because = match scope {
                Scope::Server(_) => format!("{} {why}.", agent.name),
                Scope::All | Scope::Profile(_) => format!("{}.", hidden_reason(agent, &why, scope)),
            };
        } else if observed {
            because.push_str(" The policy is only observed: refusals are counted, not enforced.");
        }
        if !allowed {
            argument_rules.clear();
        }
        because.push_str(&argument_rules_text(&argument_rules));
        if !is_known {
            let (server, noun) = (item.server, item.kind.noun());
            because = format!("`{server}` may not have this {noun}. If it has: {because}");
        }
        let explanation = Explanation {
            reason: because,
            argument_rules,
        };
        self.report(is_known.then_some(allowed), &explanation, &item, gateway)
    }

    /// Prints whether the agent may use `item`; `None` where it is not known that there is one.
    fn report(
        &self,
        allowed: Option<bool>,
        explanation: &Explanation,
        item: &PolicyItem<'_>,
        gateway: &Gateway,
    ) -> ExitCode {
        let because = &explanation.reason;
        let rules = explanation.argument_rules.iter();
        let rules = rules.map(|rule| json!({ "name": rule.name, "observed": rule.observed }));
        let printed = if self.json {
            let agent = gateway.agent();
            print_json(&json!({
                "allowed": allowed,
                "because": because,
                "agent": agent.name,
                "agent_id": agent.id,
                "profile": self.profile,
                "kind": item.kind.noun(),
                "server": item.server.as_str(),
                "original": item.original,
                "exposed": item.exposed,
                "argument_rules": rules.collect::<Vec<_>>(),
            }))
        } else {
            print(&format!("{because}\n"))
        };
        if allowed == Some(true) {
            printed
        } else {
            ExitCode::FAILURE
        }
    }

    fn kinds(&self) -> &'static [Kind] {
        if self.prompt {
            &[Kind::Prompts]
        } else if self.resource {
            &[Kind::Resources, Kind::Templates]
        } else {
            &[Kind::Tools]
        }
    }

    fn noun(&self) -> &'static str {
        if self.prompt {
            "prompt"
        } else if self.resource {
            "resource"
        } else {
            "tool"
        }
    }

    /// The item meant, by any of its names on the route.
    fn find(&self, scope: &Scope, gateway: &Gateway) -> Option<PolicySubject> {
        let catalog = gateway.catalog();
        if let Some((kind, entry)) = self.find_entry(&catalog, scope) {
            return Some(PolicySubject::Listed(kind, entry));
        }
        if !self.resource {
            return None;
        }
        match catalog.resource(scope, &self.name) {
            Lookup::Found { server, original } => Some(PolicySubject::Resource {
                names: catalog.resource_names(&server, Kind::Resources, &original),
                server,
                original,
            }),
            Lookup::Ambiguous { .. } | Lookup::NotFound => None,
        }
    }

    /// The same in the lists of `catalog`.
    fn find_entry(&self, catalog: &Catalog, scope: &Scope) -> Option<(Kind, ListEntry)> {
        let mut kinds = self.kinds().iter();
        kinds.find_map(|kind| {
            let mut entries = catalog.list(scope, *kind).entries().iter();
            let entry = entries.find(|entry| self.matches_name(entry))?;
            Some((*kind, entry.clone()))
        })
    }

    fn matches_name(&self, entry: &ListEntry) -> bool {
        let qualified = self.name.split_once('/');
        [&*entry.exposed, &*entry.merged].contains(&self.name.as_str())
            || qualified.is_some_and(|(server, item)| {
                entry.server.is_called(server) && item == &*entry.original
            })
    }

    /// Says that the config or the profile of `scope` hides the item meant, where that is so.
    fn report_hidden(&self, scope: &Scope, naming: &Naming, gateway: &Gateway) -> Option<ExitCode> {
        let (noun, name) = (self.noun(), &self.name);
        let offers = gateway.proxy().catalog_store().offers();
        let (board, owners) = (gateway.proxy().catalog_store(), gateway.owners());
        let seen = offers
            .iter()
            .filter(|offer| board.sees(&owners, &offer.server));
        let offers: Vec<ServerOffer> = seen.map(ServerOffer::unfiltered).collect();
        let whole = Catalog::build(naming, &offers);
        let why = match scope {
            Scope::Profile(profile) if self.find(&Scope::All, gateway).is_some() => {
                format!("the profile `{profile}` does not show the {noun} `{name}`")
            }
            Scope::All | Scope::Profile(_) | Scope::Server(_) => {
                let (kind, entry) = self.find_entry(&whole, &Scope::All)?;
                let table = key_path("servers", entry.server.as_str());
                let table = format!(
                    "{table}.{}",
                    PolicyItem::of_entry(kind, &entry).kind.policy_list()
                );
                format!("the {noun} `{name}` is hidden by `allow` or `deny` of `[{table}]`")
            }
        };
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
        let (noun, name) = (self.noun(), &self.name);
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

/// What was asked about.
enum PolicySubject {
    /// An entry of a list.
    Listed(Kind, ListEntry),
    /// A resource that no list has, such as one of a template.
    Resource {
        server: ServerName,
        names: ConfiguredNames,
        original: String,
    },
    /// What only the route of the server has.
    Method { server: ServerName, method: String },
    /// What a server that is not listed may have.
    Unlisted(Candidate),
}

impl PolicySubject {
    fn item(&self) -> PolicyItem<'_> {
        match self {
            Self::Listed(kind, entry) => PolicyItem::of_entry(*kind, entry),
            Self::Resource {
                server,
                names,
                original,
            } => PolicyItem::of_resource(server, names, original),
            Self::Method { server, method } => PolicyItem::of_method(server, method),
            Self::Unlisted(candidate) => {
                let (original, names) = candidate.originals.first().expect("never none");
                PolicyItem::of_candidate(candidate, (original, names))
            }
        }
    }

    fn is_shown(&self, visibility: &Visibility) -> bool {
        match self {
            Self::Listed(kind, entry) => visibility.shows(*kind, entry),
            Self::Resource {
                server,
                names,
                original,
            } => visibility.shows_resource(server, names, original),
            Self::Method { server, method } => visibility.shows_method(server, method),
            Self::Unlisted(candidate) => visibility.may_show_candidate(candidate),
        }
    }
}

/// What the arguments of a call are held to beside the policy; nothing where that is nothing.
fn argument_rules_text(rules: &[ExplainedRule]) -> String {
    let named = |rule: &ExplainedRule| {
        let only = if rule.observed {
            " (only observed)"
        } else {
            ""
        };
        format!("`{}`{only}", rule.name)
    };
    match rules {
        [] => String::new(),
        [rule] => format!(" Argument rule: {}.", named(rule)),
        rules => {
            let rules: Vec<String> = rules.iter().map(named).collect();
            format!(" Argument rules: {}.", rules.join(", "))
        }
    }
}

/// Whether the policy refuses nothing and only counts.
fn is_policy_observed(agent: &Agent, profile: Option<&ProfileName>, config: &Config) -> bool {
    let profile = profile.and_then(|name| config.profiles.get(name));
    let profile = profile.map(|profile| &profile.terms);
    [Some(&agent.terms), profile, Some(&config.governance.terms)]
        .into_iter()
        .flatten()
        .any(|terms| terms.observe.contains(&RuleKind::Policy))
}
