//! `tollbridge audit`

mod events;
mod filter;
mod verify;

use std::{
    collections::{HashSet, VecDeque},
    io::{self, BufWriter},
    path::Path,
    process::ExitCode,
};

use clap::{Args, Subcommand, ValueEnum};

use super::{
    args::ConfigArgs,
    data_dir::{self, CommandError, KnownAgents, blocking},
    gateway::patiently,
    output::{OutputFormat, print_raw_json, say},
    table::TextTable,
};
use crate::{
    audit::{
        AuditError, ExportFormat, Follow, FoundRecord, IndexLag, Indexer, LogEntry, Query, Record,
        RecordFilter, export, latest,
    },
    store::Store,
};
use events::EventsArgs;
use filter::{FilterArgs, RecordQuery};
use verify::{PublicKeyArgs, Verify};

/// Query, export and verify the audit log
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct AuditArgs {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    look: RecordsArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the latest records, oldest first (the default command)
    Query(RecordsArgs),
    /// Show events other than calls, such as changes of agents, keys and budgets
    Events(EventsArgs),
    /// Write records to stdout, oldest first
    Export(Export),
    /// Verify the hash chains and signatures of the audit log
    Verify(Verify),
    /// Print the public key of the audit log, for `verify --key`
    PublicKey(PublicKeyArgs),
}

#[derive(Args, Debug)]
struct RecordsArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Maximum number of records
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: usize,
    /// Keep printing new records
    #[arg(long, conflicts_with = "until")]
    follow: bool,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print a JSON array of records; with --follow one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Export {
    #[command(flatten)]
    filter: FilterArgs,
    /// `jsonl`: the lines of the log, unchanged. `csv`: for spreadsheets
    #[arg(long, value_name = "FORMAT", default_value = "jsonl")]
    format: FormatName,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    Jsonl,
    Csv,
}

impl AuditArgs {
    pub(super) fn run(&self) -> ExitCode {
        match &self.command {
            None => self.look.run(),
            Some(Command::Query(look)) => look.run(),
            Some(Command::Events(events)) => events.run(),
            Some(Command::Export(export)) => {
                data_dir::with_audit(&export.config, OutputFormat::Text, async |roll, _| {
                    export.export(roll).await
                })
            }
            Some(Command::Verify(verify)) => verify.run(),
            Some(Command::PublicKey(public_key)) => public_key.run(),
        }
    }
}

impl RecordsArgs {
    fn run(&self) -> ExitCode {
        data_dir::with_audit(
            &self.config,
            OutputFormat::of(self.json),
            async |roll, store| self.look(roll, store).await,
        )
    }

    async fn look(
        &self,
        roll: &KnownAgents,
        store: Option<&Store>,
    ) -> Result<ExitCode, CommandError> {
        let wanted = self.filter.resolve(roll)?;
        let follow = self
            .follow
            .then(|| Follow::new(&roll.log_dir(), wanted.filter.clone()));
        let follow = follow.transpose()?;
        let mut found = self.find(&wanted, roll, store).await?;
        if found.is_empty() {
            self.filter.nothing_found(wanted.unknown_agent, roll)?;
        }
        only_latest(&mut found, self.limit);
        match follow {
            None => Ok(self.print(&found)),
            Some(follow) => self.follow(&found, follow).await,
        }
    }

    /// The latest records, one more than the limit when there are more. Without an index the whole log is
    /// read for them, as where that cannot be brought up to it: on a disk that is full, or read only.
    async fn find(
        &self,
        wanted: &RecordQuery,
        roll: &KnownAgents,
        store: Option<&Store>,
    ) -> Result<Vec<FoundRecord>, CommandError> {
        let log_dir = roll.log_dir();
        if let Some(store) = store {
            match self.find_indexed(wanted, &log_dir, store).await {
                Err(CommandError::Index(IndexLag::Store(error))) => say(&format!(
                    "the index of the audit cannot be used, and the whole log is read: {error}\n"
                )),
                found => return found,
            }
        }
        let (filter, count) = (wanted.filter.clone(), self.limit.saturating_add(1));
        let found = blocking(move || latest_of_all(&log_dir, filter, count));
        Ok(patiently(found, || "reading the audit".to_owned()).await??)
    }

    async fn find_indexed(
        &self,
        wanted: &RecordQuery,
        log_dir: &Path,
        store: &Store,
    ) -> Result<Vec<FoundRecord>, CommandError> {
        let mut indexer = Indexer::new(log_dir, store.audit.clone());
        let news = patiently(indexer.catch_up(), || {
            "reading what is new in the audit".to_owned()
        });
        match news.await {
            Err(IndexLag::Log(error)) => {
                say(&format!("some of the audit is not searched: {error}\n"));
            }
            other => other?,
        }
        let count = self.limit.saturating_add(1);
        let found = latest(log_dir, &*store.audit, &wanted.filter, count);
        Ok(patiently(found, || "reading the audit".to_owned()).await?)
    }

    fn print(&self, found: &[FoundRecord]) -> ExitCode {
        if !self.json {
            return table(found).print();
        }
        print_lines(found.iter().map(|found| &found.entry))
    }

    async fn follow(
        &self,
        found: &[FoundRecord],
        mut follow: Follow,
    ) -> Result<ExitCode, CommandError> {
        let shown: HashSet<_> = found.iter().map(|found| found.record.id).collect();
        let mut printed = if self.json {
            let lines = found.iter().map(|found| line(&found.entry) + "\n");
            print_raw_json(&lines.collect::<String>())
        } else {
            table(found).print()
        };
        while printed == ExitCode::SUCCESS {
            let next = follow.next().await?;
            if shown.contains(&next.record.id) {
                continue;
            }
            printed = if self.json {
                print_raw_json(&(line(&next.entry) + "\n"))
            } else {
                table(&[next]).without_headings().print()
            };
        }
        Ok(printed)
    }
}

/// The latest `count` records of the log that `filter` wants, oldest of them first.
fn latest_of_all(
    log_dir: &Path,
    filter: RecordFilter,
    count: usize,
) -> Result<Vec<FoundRecord>, AuditError> {
    let mut kept = VecDeque::new();
    for found in Query::new(log_dir, filter)? {
        kept.push_back(found?);
        if kept.len() > count {
            kept.pop_front();
        }
    }
    Ok(kept.into())
}

/// Drops the oldest beyond `limit`, and says that there were more.
fn only_latest<T>(found: &mut Vec<T>, limit: usize) {
    if found.len() > limit && limit > 0 {
        let are = if limit == 1 { "is" } else { "are" };
        say(&format!(
            "only the latest {limit} {are} shown; --limit shows more\n"
        ));
    }
    found.drain(..found.len().saturating_sub(limit));
}

/// Prints lines of the log as they are, as one array.
fn print_lines<'e>(entries: impl Iterator<Item = &'e LogEntry>) -> ExitCode {
    let lines: Vec<String> = entries.map(|entry| format!("\n{}", line(entry))).collect();
    print_raw_json(&match lines.as_slice() {
        [] => "[]\n".to_owned(),
        lines => format!("[{}\n]\n", lines.join(",")),
    })
}

fn line(entry: &LogEntry) -> String {
    String::from_utf8_lossy(&entry.line).into_owned()
}

fn table(found: &[FoundRecord]) -> TextTable<9> {
    let mut table = TextTable::new([
        "TIME", "AGENT", "SERVER", "TOOL", "DECISION", "PRICE", "MS", "ID", "WHY",
    ])
    .fitting();
    for FoundRecord { record, .. } in found {
        let why = record.rule.as_deref().or(record.code.as_deref());
        table.add_whole([
            format!("{:.3}", record.ts),
            record.agent_name.to_string(),
            record.server.as_deref().unwrap_or_default().to_owned(),
            subject(record).to_owned(),
            record.decision.to_string(),
            record.price.exact(),
            record.execution_time.as_millis().to_string(),
            record.id.to_string(),
            why.unwrap_or_default().to_owned(),
        ]);
    }
    table
}

/// The tool; what was asked for where there is none.
fn subject<'r>(record: &'r Record<'_>) -> &'r str {
    let tool = record.tool.as_deref().or(record.exposed.as_deref());
    tool.unwrap_or(&record.method)
}

impl Export {
    async fn export(&self, roll: &KnownAgents) -> Result<ExitCode, CommandError> {
        let wanted = self.filter.resolve(roll)?;
        let log_dir = roll.log_dir();
        let format = match self.format {
            FormatName::Jsonl => ExportFormat::JsonLines,
            FormatName::Csv => ExportFormat::Csv,
        };
        let write = blocking(move || {
            let records = Query::new(&log_dir, wanted.filter)?;
            export(records, format, &mut BufWriter::new(io::stdout().lock()))
        });
        match patiently(write, || "writing records".to_owned()).await? {
            Ok(0) => {
                let unknown = wanted.unknown_agent;
                self.filter.nothing_found(unknown, roll)?;
                Ok(ExitCode::SUCCESS)
            }
            Ok(_) => Ok(ExitCode::SUCCESS),
            // Whoever reads has read enough.
            Err(AuditError::Export { source }) if source.kind() == io::ErrorKind::BrokenPipe => {
                Ok(ExitCode::FAILURE)
            }
            Err(error) => Err(error.into()),
        }
    }
}
