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
    gateway::with_progress,
    output::{OutputFormat, eprint, print_raw_json},
    table::TextTable,
};
use crate::{
    audit::{
        AuditError, ExportFormat, Follow, FoundRecord, IndexLag, Indexer, LogEntry, Query, Record,
        RecordFilter, export, latest_records,
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
            OutputFormat::from_flag(self.json),
            async |roll, store| self.run_query(roll, store).await,
        )
    }

    async fn run_query(
        &self,
        agents: &KnownAgents,
        store: Option<&Store>,
    ) -> Result<ExitCode, CommandError> {
        let wanted = self.filter.resolve(agents)?;
        let follow = self
            .follow
            .then(|| Follow::new(&agents.log_dir(), wanted.filter.clone()));
        let follow = follow.transpose()?;
        let mut found = self.find_records(&wanted, agents, store).await?;
        if found.is_empty() {
            self.filter
                .report_nothing_found(wanted.unknown_agent, agents)?;
        }
        truncate_to_latest(&mut found, self.limit);
        match follow {
            None => Ok(self.print(&found)),
            Some(follow) => self.follow(&found, follow).await,
        }
    }

    /// The latest records, one more than the limit when there are more. Without an index the whole log is
    /// read for them, as where that cannot be brought up to it: on a disk that is full, or read only.
    async fn find_records(
        &self,
        wanted: &RecordQuery,
        agents: &KnownAgents,
        store: Option<&Store>,
    ) -> Result<Vec<FoundRecord>, CommandError> {
        let log_dir = agents.log_dir();
        if let Some(store) = store {
            match self.find_with_index(wanted, &log_dir, store).await {
                Err(CommandError::Index(IndexLag::Store(error))) => eprint(&format!(
                    "the audit index is unavailable; reading the whole log: {error}\n"
                )),
                found => return found,
            }
        }
        let (filter, count) = (wanted.filter.clone(), self.limit.saturating_add(1));
        let found = blocking(move || scan_latest(&log_dir, filter, count));
        Ok(with_progress(found, || "reading the audit".to_owned()).await??)
    }

    async fn find_with_index(
        &self,
        wanted: &RecordQuery,
        log_dir: &Path,
        store: &Store,
    ) -> Result<Vec<FoundRecord>, CommandError> {
        let mut indexer = Indexer::new(log_dir, store.audit.clone());
        let news = with_progress(indexer.catch_up(), || "following the audit log".to_owned());
        match news.await {
            Err(IndexLag::Log(error)) => {
                eprint(&format!(
                    "part of the audit log was not searched: {error}\n"
                ));
            }
            other => other?,
        }
        let count = self.limit.saturating_add(1);
        let found = latest_records(log_dir, &*store.audit, &wanted.filter, count);
        Ok(with_progress(found, || "reading the audit".to_owned()).await?)
    }

    fn print(&self, found: &[FoundRecord]) -> ExitCode {
        if !self.json {
            return records_table(found).print();
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
            let lines = found.iter().map(|found| line_text(&found.entry) + "\n");
            print_raw_json(&lines.collect::<String>())
        } else {
            records_table(found).print()
        };
        while printed == ExitCode::SUCCESS {
            let next = follow.next().await?;
            if shown.contains(&next.record.id) {
                continue;
            }
            printed = if self.json {
                print_raw_json(&(line_text(&next.entry) + "\n"))
            } else {
                records_table(&[next]).without_headings().print()
            };
        }
        Ok(printed)
    }
}

/// The latest `count` records of the log that `filter` wants, oldest of them first.
fn scan_latest(
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
fn truncate_to_latest<T>(found: &mut Vec<T>, limit: usize) {
    if found.len() > limit && limit > 0 {
        let are = if limit == 1 { "is" } else { "are" };
        eprint(&format!(
            "only the latest {limit} {are} shown; --limit shows more\n"
        ));
    }
    found.drain(..found.len().saturating_sub(limit));
}

/// Prints lines of the log as they are, as one array.
fn print_lines<'e>(entries: impl Iterator<Item = &'e LogEntry>) -> ExitCode {
    let lines: Vec<String> = entries
        .map(|entry| format!("\n{}", line_text(entry)))
        .collect();
    print_raw_json(&match lines.as_slice() {
        [] => "[]\n".to_owned(),
        lines => format!("[{}\n]\n", lines.join(",")),
    })
}

fn line_text(entry: &LogEntry) -> String {
    String::from_utf8_lossy(&entry.line).into_owned()
}

fn records_table(found: &[FoundRecord]) -> TextTable<9> {
    let mut table = TextTable::new([
        "TIME", "AGENT", "SERVER", "TOOL", "DECISION", "PRICE", "MS", "ID", "WHY",
    ])
    .fit_to_terminal();
    for FoundRecord { record, .. } in found {
        let why = record.rule.as_deref().or(record.code.as_deref());
        table.add_verbatim([
            format!("{:.3}", record.ts),
            record.agent_name.to_string(),
            record.server.as_deref().unwrap_or_default().to_owned(),
            record_subject(record).to_owned(),
            record.decision.to_string(),
            record.price.to_decimal(),
            record.execution_time.as_millis().to_string(),
            record.id.to_string(),
            why.unwrap_or_default().to_owned(),
        ]);
    }
    table
}

/// The tool; what was asked for where there is none.
fn record_subject<'r>(record: &'r Record<'_>) -> &'r str {
    let tool = record.tool.as_deref().or(record.exposed.as_deref());
    tool.unwrap_or(&record.method)
}

impl Export {
    async fn export(&self, agents: &KnownAgents) -> Result<ExitCode, CommandError> {
        let wanted = self.filter.resolve(agents)?;
        let log_dir = agents.log_dir();
        let format = match self.format {
            FormatName::Jsonl => ExportFormat::JsonLines,
            FormatName::Csv => ExportFormat::Csv,
        };
        let write = blocking(move || {
            let records = Query::new(&log_dir, wanted.filter)?;
            export(records, format, &mut BufWriter::new(io::stdout().lock()))
        });
        match with_progress(write, || "writing records".to_owned()).await? {
            Ok(0) => {
                let unknown = wanted.unknown_agent;
                self.filter.report_nothing_found(unknown, agents)?;
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
