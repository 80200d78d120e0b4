//! The gateway as a process: what it says of itself, and what the system says of it.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout},
    time::{Instant, sleep},
};

use crate::{
    binary::{Place, bounded},
    clients::{self, Answered},
    seeded_random::Dice,
};

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Connections that stay open to servers for the next call, at most.
const POOLED: usize = 24;

pub(crate) struct Gateway {
    pub(crate) child: Child,
    pub(crate) url: String,
    log: PathBuf,
    children: BTreeSet<u32>,
    _stdout: BufReader<ChildStdout>,
}

impl Gateway {
    pub(crate) async fn start(place: &Place) -> Self {
        let log = place.file("log");
        let mut child = place
            .command(&["serve", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::from(File::create(&log).unwrap()))
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        bounded(stdout.read_line(&mut line)).await.unwrap();
        Self {
            child,
            url: line
                .trim()
                .strip_prefix("listening on ")
                .unwrap()
                .to_owned(),
            log,
            children: BTreeSet::new(),
            _stdout: stdout,
        }
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.child.id().unwrap()))
    }

    /// The last lines of its log.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Waits until every server is connected.
    pub(crate) async fn until_connected(&mut self, servers: &[String], patience: Duration) {
        let end = Instant::now() + patience;
        loop {
            let status = self.status().await;
            let reports = status["servers"].as_array().unwrap();
            let is_connected = |name: &String| {
                reports
                    .iter()
                    .any(|report| report["name"] == **name && report["state"] == "connected")
            };
            if servers.iter().all(is_connected) {
                return;
            }
            assert!(
                Instant::now() < end,
                "not all came back: {status:#}\n{}",
                self.log_tail()
            );
            sleep(LOOK).await;
        }
    }

    /// Waits until each server answers a call again; a breaker may still answer for one.
    pub(crate) async fn all_serve(&self, servers: &[String], patience: Duration) {
        let end = Instant::now() + patience;
        for server in servers {
            while clients::one_call(&self.url, server).await != Answered::Result {
                assert!(Instant::now() < end, "{server}: {}", self.log_tail());
                sleep(LOOK).await;
            }
        }
    }

    async fn status(&mut self) -> Value {
        let status = clients::get(&format!("{}/status?format=json", self.url)).await;
        let status: Value = serde_json::from_str(&status).unwrap();
        let pids = status["servers"].as_array().unwrap().iter();
        let pids = pids.filter_map(|report| u32::try_from(report["pid"].as_u64()?).ok());
        self.children.extend(pids);
        status
    }

    /// The children that were seen.
    pub(crate) fn children_seen(&self) -> Vec<u32> {
        self.children.iter().copied().collect()
    }

    /// Kills the program of one server.
    pub(crate) async fn kill_one_of_its_children(&mut self, dice: &mut Dice) {
        let status = self.status().await;
        let reports = status["servers"].as_array().unwrap();
        let pids: Vec<u64> = reports
            .iter()
            .filter_map(|report| report["pid"].as_u64())
            .collect();
        if pids.is_empty() {
            return;
        }
        let pid = i32::try_from(*dice.one_of(&pids))
            .ok()
            .and_then(Pid::from_raw);
        // It may have died already.
        kill_process(pid.unwrap(), Signal::KILL).ok();
    }

    /// Open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(self.proc("fd")).unwrap().count()
    }

    /// Waits until no more are open than once were, but for connections that are kept for others.
    #[expect(clippy::print_stdout, reason = "how a run went is of interest")]
    pub(crate) async fn descriptors_come_back_to(&self, quiet: usize, patience: Duration) {
        let end = Instant::now() + patience;
        while self.descriptors() > quiet + POOLED {
            assert!(
                Instant::now() < end,
                "{} descriptors are open, {quiet} were at first: {:?}",
                self.descriptors(),
                self.open_files()
            );
            sleep(LOOK).await;
        }
        println!(
            "descriptors: {quiet} at first, {} at the end",
            self.descriptors()
        );
    }

    fn open_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.proc("fd")).unwrap();
        let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.collect()
    }

    /// Resident memory.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}
