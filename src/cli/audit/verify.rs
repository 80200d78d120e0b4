//! `tollbridge audit verify` and `tollbridge audit public-key`

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde_json::{Value, json};

use super::super::{
    args::ConfigArgs,
    data_dir::{self, CommandError, blocking, open_index},
    gateway::with_progress,
    output::{OutputFormat, eprint, format_time, print, print_json},
};
use crate::{
    audit::{
        ChainReport, Hash, IndexLag, PublicKey, TruncatedSegment, TrustAnchors, VerifyReport,
        chains, verify_by, verify_with,
    },
    config::{Config, LoadScope},
    store::{Store, StoreError},
};

/// What is right and what is wrong, for scripts.
const EXIT_CODES: &str = "\
Exit code: 0 when the log is intact, 1 when a line was changed, is missing or cannot be read, or there is \
no log, 2 for a wrong command line or config. Changes made without audit.key are detected up to the last signed line of \
each chain. Truncated or deleted chains are detected only through the index, until a gateway has \
recorded the loss (event `log_shortened`), or through --expect. For that, keep the public key and hashes \
(from --json, or from the log lines `audit checkpoint`) on another machine.";

#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub(super) struct Verify {
    #[command(flatten)]
    config: ConfigArgs,
    /// Require a line with this hash. May be repeated
    #[arg(long, value_name = "HASH")]
    expect: Vec<Hash>,
    /// Trust this public key instead of the data directory's. May be repeated
    #[arg(long, value_name = "KEY")]
    key: Vec<PublicKey>,
    /// Print JSON: every chain with its last hash
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(super) fn run(&self) -> ExitCode {
        match self
            .config
            .load_scope_with_quiet_log(LoadScope::DataDir, OutputFormat::from_flag(self.json))
        {
            Ok(config) => data_dir::run_interruptible(self.verify(&config)),
            Err(code) => code,
        }
    }

    async fn verify(&self, config: &Config) -> Result<ExitCode, CommandError> {
        let log_dir = config.data_dir.join("audit");
        let shown = log_dir.display().to_string();
        let trust = self.trusted_keys(&log_dir)?;
        let store = open_index(config, warn_not_compared).await;
        let look = verify_log(log_dir, &trust, store.as_ref());
        let (report, indexed) = with_progress(look, || format!("reading {shown}")).await?;
        if let Some(store) = &store {
            store.close().await;
        }
        // Who has a log verified knows of one.
        let is_missing = report.is_valid() && report.chains.is_empty();
        let is_valid = report.is_valid() && !is_missing;
        if is_missing {
            eprint(&format!(
                "no audit log in {shown}: no gateway has written one there; check `data_dir`\n"
            ));
        }
        let printed = if self.json {
            print_json(&json!({
                "ok": is_valid,
                "chains": report.chains.iter().map(to_json).collect::<Vec<_>>(),
                "indexed": indexed,
                "missing": report.missing.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "shortened": report.shortened.iter().map(truncated_to_json).collect::<Vec<_>>(),
            }))
        } else {
            print(&report_text(&report))
        };
        Ok(if is_valid { printed } else { ExitCode::FAILURE })
    }

    fn trusted_keys(&self, log_dir: &Path) -> Result<TrustAnchors, CommandError> {
        let local = match &self.key[..] {
            [] => TrustAnchors::local(log_dir)?,
            keys => TrustAnchors {
                keys: keys.to_vec(),
                ..TrustAnchors::default()
            },
        };
        if local.keys.is_empty() && !chains(log_dir)?.is_empty() {
            eprint("no audit.key to verify signatures; use --key\n");
        }
        Ok(TrustAnchors {
            expected: self.expect.clone(),
            ..local
        })
    }
}

#[derive(Args, Debug)]
pub(super) struct PublicKeyArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

impl PublicKeyArgs {
    pub(super) fn run(&self) -> ExitCode {
        match self
            .config
            .load_scope_with_quiet_log(LoadScope::DataDir, OutputFormat::Text)
        {
            Ok(config) => data_dir::run_interruptible(async { Self::show(&config) }),
            Err(code) => code,
        }
    }

    fn show(config: &Config) -> Result<ExitCode, CommandError> {
        let log_dir = config.data_dir.join("audit");
        if let Some(key) = PublicKey::load(&log_dir)? {
            return Ok(print(&format!("{key}\n")));
        }
        let dir = config.data_dir.display();
        eprint(&format!(
            "no audit.key in {dir}: no gateway has written an audit log there\n"
        ));
        Ok(ExitCode::FAILURE)
    }
}

/// What is found in `log_dir`, and whether it was compared with the index of `store`.
async fn verify_log(
    log_dir: PathBuf,
    trust: &TrustAnchors,
    store: Option<&Store>,
) -> Result<(VerifyReport, bool), CommandError> {
    if let Some(store) = store {
        match verify_with(&log_dir, &*store.audit, trust).await {
            Err(IndexLag::Store(error)) => warn_not_compared(&error),
            looked => return Ok((looked?, true)),
        }
    }
    let trust = trust.clone();
    Ok((blocking(move || verify_by(&log_dir, &trust)).await??, false))
}

fn warn_not_compared(error: &StoreError) {
    eprint(&format!(
        "the audit log was not compared with its index: {error}\n"
    ));
}

fn report_text(report: &VerifyReport) -> String {
    let chains = report.chains.len();
    let faults = report.chains.iter().filter_map(|chain| {
        let fault = chain.fault.as_ref()?;
        Some(format!("chain {}, {fault}\n", chain.chain))
    });
    let shortened = report
        .shortened
        .iter()
        .map(|it| format!("chain {}, segment {}: {it}\n", it.chain, it.segment));
    let missing = report.missing.iter();
    let missing = missing.map(|hash| format!("no line has the hash {hash}\n"));
    let broken: String = faults.chain(shortened).chain(missing).collect();
    if chains == 0 && broken.is_empty() {
        return String::new();
    }
    if broken.is_empty() {
        let lines: u64 = report.chains.iter().map(|chain| chain.lines).sum();
        let plural = if chains == 1 { "" } else { "s" };
        let unsigned: u64 = report.chains.iter().map(|chain| chain.unsigned).sum();
        let unsigned = match unsigned {
            0 => String::new(),
            unsigned => format!(", {unsigned} not signed yet"),
        };
        return format!("verified: {lines} lines in {chains} chain{plural}{unsigned}\n");
    }
    broken
}

fn truncated_to_json(it: &TruncatedSegment) -> Value {
    json!({
        "chain": it.chain.to_string(),
        "segment": it.segment,
        "bytes_known": it.bytes_known,
        "bytes_found": it.bytes_found,
        "changed": it.is_changed,
    })
}

fn to_json(chain: &ChainReport) -> Value {
    json!({
        "chain": chain.chain.to_string(),
        "segments": chain.segments,
        "lines": chain.lines,
        "first": chain.first.map(format_time),
        "last": chain.last.map(format_time),
        "ended": chain.ended,
        "begins_at": chain.begins_at,
        "ends_at": chain.ends_at,
        "hash": chain.hash,
        "unsigned": chain.unsigned,
        "torn_bytes": chain.torn_bytes,
        "fault": chain.fault.as_ref().map(|at| json!({
            "segment": at.segment,
            "line": at.line,
            "seq": at.seq,
            "message": at.fault.to_string(),
        })),
    })
}
