//! `tollbridge audit events`

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;

use super::{
    super::{
        args::ConfigArgs,
        data_dir::{self, CommandError, blocking},
        gateway::with_progress,
        output::OutputFormat,
        table::TextTable,
    },
    filter::{check_order, parse_time},
    print_lines, truncate_to_latest,
};
use crate::{
    audit::{EventFilter, FoundEvent, latest_events},
    config::{Config, LoadScope},
};

#[derive(Args, Debug)]
pub(super) struct EventsArgs {
    /// Not before: a time (2026-11-22T10:00:00Z, or a date, UTC) or an age (2h)
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    since: Option<Timestamp>,
    /// Before: a time or an age
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    until: Option<Timestamp>,
    /// Maximum number of events
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print a JSON array of events
    #[arg(long)]
    json: bool,
}

impl EventsArgs {
    pub(super) fn run(&self) -> ExitCode {
        match self
            .config
            .load_scope_with_quiet_log(LoadScope::DataDir, OutputFormat::from_flag(self.json))
        {
            Ok(config) => data_dir::run_interruptible(self.show(&config)),
            Err(code) => code,
        }
    }

    async fn show(&self, config: &Config) -> Result<ExitCode, CommandError> {
        check_order(self.since, self.until)?;
        let log_dir = config.data_dir.join("audit");
        let filter = EventFilter {
            since: self.since,
            until: self.until,
            ..EventFilter::default()
        };
        let limit = self.limit;
        let read = blocking(move || latest_events(&log_dir, &filter, limit.saturating_add(1)));
        let mut found = with_progress(read, || "reading the audit".to_owned()).await??;
        truncate_to_latest(&mut found, limit);
        if self.json {
            return Ok(print_lines(found.iter().map(|found| &found.entry)));
        }
        let mut table =
            TextTable::new(["TIME", "EVENT", "SUBJECT", "BY", "DETAIL"]).fit_to_terminal();
        for FoundEvent { event, .. } in &found {
            table.add_verbatim([
                format!("{:.3}", event.ts),
                event.event.as_str().to_owned(),
                event.subject.to_string(),
                event.actor.as_deref().unwrap_or_default().to_owned(),
                event.detail.as_deref().unwrap_or_default().to_owned(),
            ]);
        }
        Ok(table.print())
    }
}
