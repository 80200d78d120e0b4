//! The gateway that is measured: the built program, configured as a user would.
//!
//! `plan`, `memory` and `startup` start it. Every gateway has a home of its own under the
//! directory of the run, so nothing of one start or of the user's own config shows in the next.

use std::{
    fmt::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    Fault,
    call::Era,
    cell::Target,
    client::{Client, Tool},
    echo,
    process::Process,
};

/// Longest time until every server is listed.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Where gateways come from and where they live.
#[derive(Debug)]
pub(crate) struct Stable {
    /// The program.
    pub(crate) program: PathBuf,
    /// Holds the home of each.
    pub(crate) directory: tempfile::TempDir,
}

impl Stable {
    /// Gateways of `program`, with a directory for this run.
    pub(crate) fn new(program: &Path) -> Result<Self, Fault> {
        Ok(Self {
            program: program.canonicalize()?,
            directory: tempfile::tempdir()?,
        })
    }
}

/// How a gateway reaches its servers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Transport {
    Http,
    Stdio,
}

impl Transport {
    pub(crate) const ALL: [Self; 2] = [Self::Http, Self::Stdio];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Stdio => "stdio",
        }
    }
}

/// Every step has something to do and lets the call pass.
macro_rules! governance {
    ($budget:literal) => {
        concat!(
            "\n[governance]\nprice = \"0.015\"\nbudget = ",
            $budget,
            "\npolicy = { mode = \"allowlist\", tools = [\"echo*/*\"], deny = [\"delete_*\"] }\n",
            "rate = { calls = 1000000, per = \"1s\" }\n",
            "args = [{ name = \"no-root\", at = \"/path\", equals = \"/\" }]\n",
            "scan = { arguments = { \"*\" = \"redact\" }, results = { \"*\" = \"redact\" } }\n",
        )
    };
}

/// The key of the agent that may call everything, where agents show keys.
const PAYING_KEY: &str = "tbk_paying_5d0c1e7f9a3b48d2a6c4e8f0b1d3a5c7";
/// The key of the agent that may call nothing.
pub(crate) const FLOODING_KEY: &str = "tbk_flooding_9f8e7d6c5b4a39281706f5e4d3c2b1a0";

/// What calls pass on their way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Rules {
    /// Nothing refuses or records them.
    Open,
    /// Policy, rate, argument rules and scans; nothing records them.
    Governed,
    /// The same, budgets, and a record of each.
    Audited,
    /// The same for an agent with a key; another agent may call nothing.
    Keyed,
}

impl Rules {
    pub(crate) const ALL: [Self; 3] = [Self::Open, Self::Governed, Self::Audited];

    /// What follows the name of the transport in the name of a path.
    fn suffix(self) -> &'static str {
        match self {
            Self::Open => "",
            Self::Governed => "-governed",
            Self::Audited => "-audited",
            Self::Keyed => "-keyed",
        }
    }

    fn config(self) -> String {
        const AUDITED: &str = governance!("{ limit = \"1000000.00\" }");
        let agents = || {
            format!(
                "auth = \"keys\"\n[agents.paying]\nkeys = [\"{PAYING_KEY}\"]\n\
                 [agents.flooding]\nkeys = [\"{FLOODING_KEY}\"]\npolicy = {{ mode = \"none\" }}\n"
            )
        };
        match self {
            Self::Open => "\n[audit]\nenabled = false\n".to_owned(),
            Self::Governed => {
                concat!("\n[audit]\nenabled = false\n", governance!("\"off\"")).to_owned()
            }
            Self::Audited => AUDITED.to_owned(),
            Self::Keyed => format!("{AUDITED}{}", agents()),
        }
    }

    /// What a client shows, where it has to.
    pub(crate) fn key(self) -> Option<&'static str> {
        (self == Self::Keyed).then_some(PAYING_KEY)
    }
}

/// The servers of one gateway, all of them echo servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Servers {
    pub(crate) era: Era,
    pub(crate) transport: Transport,
    pub(crate) count: usize,
    pub(crate) rules: Rules,
    /// The echo server that those on HTTP are paths of.
    pub(crate) echo: SocketAddr,
    /// Sessions that one agent may have.
    pub(crate) sessions: usize,
}

impl Servers {
    /// What the report and `--path` call this gateway.
    pub(crate) fn name(&self) -> String {
        let (transport, rules) = (self.transport.name(), self.rules.suffix());
        match self.count {
            1 => format!("{transport}{rules}"),
            count => format!("{transport}-{count}{rules}"),
        }
    }

    /// Starts a gateway in front of them; `purpose` names its home.
    pub(crate) async fn start(&self, stable: &Stable, purpose: &str) -> Result<Process, Fault> {
        let home = stable.directory.path().join(purpose);
        Process::gateway(&stable.program, &self.config()?, &home).await
    }

    /// Waits until `gateway` lists every tool of these servers.
    pub(crate) async fn ready(&self, gateway: &Process) -> Result<Target, Fault> {
        let expected: Vec<String> = self
            .names()
            .map(|server| format!("mcp_{server}_{}", echo::TOOL))
            .collect();
        let deadline = Instant::now() + PATIENCE;
        let mut client = Client::open(gateway.address(), self.era, self.rules.key()).await?;
        loop {
            let listed = client.tools().await?;
            if expected.iter().all(|name| listed.contains(name)) {
                break;
            }
            if Instant::now() > deadline {
                return Err(format!("lists {listed:?} where {expected:?} should be").into());
            }
            sleep(POLL).await;
        }
        client.close().await?;
        let tools = expected
            .into_iter()
            .map(|name| Tool::new(name, self.era))
            .collect();
        Ok(Target {
            address: gateway.address(),
            pid: gateway.pid(),
            tools,
        })
    }

    fn config(&self) -> Result<String, Fault> {
        let program = std::env::current_exe()?;
        let program = utf8(&program)?;
        let era = self.era.name();
        let sessions = self.sessions;
        let mut config = format!("limits = {{ sessions_per_agent = {sessions} }}\n");
        config.push_str(&self.rules.config());
        for name in self.names() {
            writeln!(config, "\n[servers.{name}]")?;
            match self.transport {
                Transport::Http => {
                    writeln!(config, "url = \"http://{}/{name}\"", self.echo)?;
                    writeln!(config, "transport = \"http\"")?;
                }
                Transport::Stdio => {
                    writeln!(config, "command = '{program}'")?;
                    writeln!(config, "args = [\"echo-stdio\", \"--era\", \"{era}\"]")?;
                }
            }
        }
        Ok(config)
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let single = self.count == 1;
        (0..self.count).map(move |index| {
            if single {
                "echo".to_owned()
            } else {
                format!("echo{index}")
            }
        })
    }
}

fn utf8(path: &Path) -> Result<&str, Fault> {
    path.to_str()
        .ok_or_else(|| format!("no UTF-8: {}", path.display()).into())
}
