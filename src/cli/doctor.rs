//! `tollbridge doctor`

mod clients;
mod discovery;
mod walk;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use url::Url;

use super::{
    args::NoConfig,
    block_on,
    output::{OutputFormat, escape_terminal, print, print_json},
    report_failure,
    table::TextTable,
    url_target::with_endpoint_path,
    usage_error,
};
use crate::{
    config::{self, ConfigFormat, ConfigText, EgressTarget, Environment, with_scheme},
    egress::EgressClient,
};
use clients::{KNOWN_CLIENTS, KnownClient};
use discovery::Fetcher;

/// How a script knows what came of it.
const EXIT_CODES: &str = "\
Exit code: 0 when every client can sign in, 1 when one cannot, 2 for a wrong command line.";

/// Find out why something does not work
#[derive(Args, Debug)]
pub(super) struct DoctorArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Try to sign in to an MCP server as Claude, ChatGPT, VS Code, Cursor and Copilot do
    ///
    /// Walks discovery, registration and the start of the login for each client, and says which step fails, why,
    /// and what to do. Where the authorization server registers clients, one is registered for each, and deleted
    /// where that is possible. Nobody logs in.
    Oauth(DoctorOauth),
}

#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
struct DoctorOauth {
    /// URL of the MCP server or gateway. Default path: `/mcp`
    url: String,
    /// Only as this client: claude, claude-code, chatgpt, vs-code, cursor or copilot. May be repeated
    #[arg(long, value_name = "NAME", value_parser = KnownClient::find)]
    client: Vec<&'static KnownClient>,
    /// The client id to use, as people enter one in their client where it cannot register itself
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Host, address or network that may be reached although it is private, as with `egress.allow`; the host of
    /// URL always may. May be repeated
    #[arg(long, value_name = "HOST")]
    allow: Vec<EgressTarget>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How far one client comes.
#[derive(Debug, Serialize)]
struct ClientReport {
    client: &'static str,
    /// Whether it can sign in, as far as that can be told before somebody does.
    ok: bool,
    steps: Vec<StepReport>,
}

/// What came of one step.
#[derive(Clone, Debug, Serialize)]
struct StepReport {
    step: SignInStep,
    result: StepResult,
    detail: String,
    /// What to do.
    advice: Option<String>,
}

/// The steps of a sign-in, in their order.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum SignInStep {
    /// A request without a token.
    Connect,
    /// `WWW-Authenticate` of its response.
    Challenge,
    /// RFC 9728.
    ResourceMetadata,
    /// RFC 8414 or OpenID Connect Discovery.
    ServerMetadata,
    Pkce,
    /// By a metadata document of the client, or dynamic.
    Registration,
    /// The page where people log in.
    Authorization,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum StepResult {
    Ok,
    /// The client goes on, others may not.
    Warning,
    Failed,
}

impl SignInStep {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Challenge => "challenge",
            Self::ResourceMetadata => "resource metadata",
            Self::ServerMetadata => "server metadata",
            Self::Pkce => "PKCE",
            Self::Registration => "registration",
            Self::Authorization => "authorization",
        }
    }
}

impl DoctorArgs {
    pub(super) fn run(&self) -> ExitCode {
        match &self.command {
            Command::Oauth(oauth) => oauth.run(),
        }
    }
}

impl DoctorOauth {
    fn run(&self) -> ExitCode {
        let url = match self.parse_url() {
            Ok(url) => url,
            Err(problem) => return usage_error(&problem),
        };
        let http = match self.client_for(&url) {
            Ok(http) => http,
            Err(code) => return code,
        };
        block_on(1, self.examine(&url, http))
    }

    fn parse_url(&self) -> Result<Url, String> {
        let given = self.url.trim();
        if let Some(complete) = with_scheme(given) {
            return Err(format!(
                "{given}: missing scheme; did you mean `{complete}`?"
            ));
        }
        let url = Url::parse(&with_endpoint_path(given));
        let url = url.map_err(|error| format!("{given}: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{given}: only `http:` and `https:` URLs are tried"));
        }
        Ok(url)
    }

    /// Requests go the ways of the environment, to public addresses and to those that were named.
    fn client_for(&self, url: &Url) -> Result<EgressClient, ExitCode> {
        let source = ConfigText {
            name: "no config".to_owned(),
            format: ConfigFormat::Json,
            text: "{}".to_owned(),
            directory: PathBuf::new(),
        };
        let mut config = config::parse([source], &Environment::proxies_of_process())
            .map_err(|mistakes| NoConfig::from(mistakes).report(OutputFormat::Text))?
            .config;
        config.egress.allow.clone_from(&self.allow);
        EgressClient::new(&config.egress, [url]).map_err(|error| report_failure(&error))
    }

    async fn examine(&self, url: &Url, http: EgressClient) -> ExitCode {
        let fetcher = Fetcher::new(http);
        let mut reports = Vec::new();
        for client in KNOWN_CLIENTS {
            let is_wanted = self.client.iter().any(|it| it.name == client.name);
            if is_wanted || self.client.is_empty() {
                reports.push(walk::walk(client, url, self.client_id.as_deref(), &fetcher).await);
            }
        }
        let ok = reports.iter().all(|report| report.ok);
        let printed = if self.json {
            print_json(&json!({ "ok": ok, "url": url, "clients": reports }))
        } else {
            print_reports(&reports)
        };
        if ok { printed } else { ExitCode::FAILURE }
    }
}

/// One line for each client that can sign in, and one for whatever is wrong.
fn print_reports(reports: &[ClientReport]) -> ExitCode {
    let mut table = TextTable::new(["CLIENT", "SIGN-IN", "STEP", "DETAIL"]);
    let mut advice = Vec::new();
    for report in reports {
        let name = report.client.to_owned();
        let mut odd = report.steps.iter().filter(|it| it.result != StepResult::Ok);
        let worst = odd.clone().find(|it| it.result == StepResult::Failed);
        let first = worst.or(odd.next()).or(report.steps.last());
        for step in report.steps.iter().filter(|step| {
            step.result != StepResult::Ok || first.is_some_and(|it| std::ptr::eq(it, *step))
        }) {
            let result = match step.result {
                StepResult::Ok => "ok",
                StepResult::Warning => "warning",
                StepResult::Failed => "fails",
            };
            table.add([
                name.clone(),
                result.to_owned(),
                step.step.as_str().to_owned(),
                step.detail.clone(),
            ]);
            advice.extend(step.advice.clone().map(|it| (report.client, it)));
        }
    }
    let printed = table.print();
    for (index, (_, text)) in advice.iter().enumerate() {
        if advice[..index].iter().any(|(_, told)| told == text) {
            continue;
        }
        let same = advice.iter().filter(|(_, other)| other == text);
        let mut names: Vec<&str> = same.map(|(client, _)| *client).collect();
        names.dedup();
        print(&escape_terminal(&format!(
            "\nTo do for {}: {text}\n",
            names.join(", ")
        )));
    }
    printed
}
