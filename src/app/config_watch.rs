//! Sees when the files of the config, those that it names, and secrets of the store change, and hears SIGHUP.
//!
//! What counts is what the files hold, looked at once in a while under the names that the operator
//! gave: so it does not matter whether an editor writes a file in place or puts another in its
//! place, whether a directory behind a symbolic link is swapped, or what kind of file system it is.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use sha2::{Digest, Sha256};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    reload::{ReloadError, Reloader, report_lines},
    storage::ConfigInput,
};
use crate::{
    clock,
    config::{self, Config, ConfigErrors, LoadedConfig},
    config_change::EntryChange,
    task::Tasks,
};

/// How often the files are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a file that changed must stay as it is before it is read: whoever writes it may not be
/// done.
const SETTLE_TIME: Duration = Duration::from_millis(200);
/// The same for a file that became shorter, as one that is half written mostly is: what it does not say
/// yet may be what keeps somebody out.
const SETTLE_TIME_SHRUNK: Duration = Duration::from_secs(3);
/// How often a file that goes on changing is looked at before it is read all the same.
const SETTLE_ROUNDS_MAX: usize = 10;
/// A file that changed more recently may change again without looking different from outside.
const MTIME_GRANULARITY: Duration = Duration::from_secs(3);

/// Where the config of a running gateway comes from.
pub struct ConfigSource {
    files: Vec<PathBuf>,
    load: Box<Load>,
    announce: Box<Announce>,
    /// The files as they were before the config was first read.
    initial: FileStates,
    /// When that was.
    created: SystemTime,
}

type Load = dyn Fn(Option<EntryChange>) -> Result<LoadedConfig, ConfigErrors> + Send + Sync;

type Announce = dyn Fn(ReloadPhase) + Send + Sync;

/// What is announced of reading the config again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReloadPhase {
    /// It begins.
    Started,
    /// It is over: the changed config runs, or the old one goes on.
    Finished,
}

impl std::fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConfigSource({:?})", self.files)
    }
}

impl ConfigSource {
    /// A config that `load` reads from `files`, with a change to an entry of the store if one is given; to
    /// be made before it is read for the first time, so that no change is missed.
    pub fn new(
        files: Vec<PathBuf>,
        load: impl Fn(Option<EntryChange>) -> Result<LoadedConfig, ConfigErrors> + Send + Sync + 'static,
    ) -> Self {
        let created = SystemTime::from(clock::now());
        let initial = stat_files(&files, &FileStates::new());
        Self {
            files,
            load: Box::new(load),
            announce: Box::new(|_| {}),
            initial,
            created,
        }
    }

    /// The config, with `change` to what the store has.
    pub(super) fn load_with(
        &self,
        change: Option<EntryChange>,
    ) -> Result<LoadedConfig, ConfigErrors> {
        (self.load)(change)
    }

    /// Tells `announce` when the config is read again, and when that is over.
    #[must_use]
    pub fn with_announce(mut self, announce: impl Fn(ReloadPhase) + Send + Sync + 'static) -> Self {
        self.announce = Box::new(announce);
        self
    }

    /// Whether a file of it is a pipe: what was in that is gone, and who opens it again waits for whoever
    /// may write to it.
    fn is_piped(&self) -> bool {
        use std::os::unix::fs::FileTypeExt;
        let mut files = self.files.iter().filter_map(|file| fs::metadata(file).ok());
        files.any(|file| file.file_type().is_fifo())
    }
}

/// What was seen of each file.
type FileStates = BTreeMap<PathBuf, FileState>;

/// What a file looks like from outside, and what it holds; nothing when it cannot be read, or is none.
#[derive(Clone, Debug, Default)]
struct FileState {
    stamp: Option<FileStamp>,
    content: Option<[u8; 32]>,
    is_blank: bool,
}

/// What changes when the file or what may be done with it does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct FileStamp {
    modified: SystemTime,
    /// Seconds and nanoseconds: also owner and permissions.
    changed: (i64, i64),
    length: u64,
    inode: u64,
}

impl FileStamp {
    fn of(meta: &fs::Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        Some(Self {
            modified: meta.modified().ok()?,
            changed: (meta.ctime(), meta.ctime_nsec()),
            length: meta.len(),
            inode: meta.ino(),
        })
    }
}

/// Looks at `files`; those that look from outside as they did when they were `known` are not read.
fn stat_files(files: &[PathBuf], known: &FileStates) -> FileStates {
    let look_at = |file: &PathBuf| {
        // What is in a pipe can be read once.
        let meta = fs::metadata(file).ok().filter(fs::Metadata::is_file);
        let stamp = meta.as_ref().and_then(FileStamp::of);
        let is_old = stamp.is_some_and(|stamp| {
            let elapsed = stamp.modified.elapsed();
            elapsed.is_ok_and(|elapsed| elapsed > MTIME_GRANULARITY)
        });
        if let Some(known) = known
            .get(file)
            .filter(|known| is_old && known.stamp == stamp)
        {
            return known.clone();
        }
        let content = stamp.and_then(|_| fs::read(file).ok());
        let text = content.as_deref().map(str::from_utf8);
        FileState {
            stamp,
            is_blank: text.is_some_and(|text| text.is_ok_and(config::is_blank)),
            content: content.map(|content| Sha256::digest(content).into()),
        }
    };
    files
        .iter()
        .map(|file| (file.clone(), look_at(file)))
        .collect()
}

/// Whether any file that both have seen holds something else.
fn have_changed(one: &FileStates, other: &FileStates) -> bool {
    let mut both = one
        .iter()
        .filter_map(|(file, seen)| Some((seen, other.get(file)?)));
    both.any(|(one, other)| one.content != other.content)
}

/// Whether any file that both have seen became shorter.
fn has_shrunk(now: &FileStates, before: &FileStates) -> bool {
    let length = |seen: &FileState| seen.stamp.map(|stamp| stamp.length);
    let mut both = now
        .iter()
        .filter_map(|(file, seen)| Some((length(seen)?, length(before.get(file)?)?)));
    both.any(|(now, before)| now < before)
}

/// Lets the config be read again, for who has changed what the store has for it.
#[derive(Clone, Debug)]
pub(super) struct ReloadRequests(mpsc::Sender<ReloadReply>);

/// Who is told whether the config that was read is the one that runs.
type ReloadReply = oneshot::Sender<Result<(), ReloadError>>;

impl ReloadRequests {
    /// Lets the config be read again, and waits until it runs. `None` where nobody follows it any more.
    ///
    /// # Errors
    /// Why it does not run.
    pub(super) async fn reload(&self) -> Option<Result<(), ReloadError>> {
        let (reply, replied) = oneshot::channel();
        self.0.send(reply).await.ok()?;
        replied.await.ok()
    }
}

/// Follows `source` until the gateway stops.
pub(super) fn start(
    source: Arc<ConfigSource>,
    reloader: &Arc<Reloader>,
    tasks: &Tasks,
) -> ReloadRequests {
    let (requests, asked_for) = mpsc::channel(1);
    let files = source.files.iter().map(|file| file.display().to_string());
    reloader.status().note_files(files.collect());
    // From here on the signal no longer ends the process.
    let asked = signal(SignalKind::hangup());
    let asked = asked.inspect_err(|error| tracing::warn!(%error, "cannot handle SIGHUP"));
    let (reloader, stop) = (Arc::clone(reloader), tasks.stop_token().clone());
    tasks.spawn("config watch", async move {
        tokio::select! {
            () = watch_config(source, reloader, (asked.ok(), asked_for)) => {}
            () = stop.cancelled() => {}
        }
    });
    ReloadRequests(requests)
}

async fn watch_config(
    source: Arc<ConfigSource>,
    reloader: Arc<Reloader>,
    (mut asked, mut requests): (Option<Signal>, mpsc::Receiver<ReloadReply>),
) {
    let mut last = WatchState::default();
    // The files that the config names are followed from now on.
    let mut known = stat_all_files(&source, &reloader, &last, &source.initial).await;
    known.extend(source.initial.clone());
    for (file, state) in &mut known {
        let is_newer = |stamp: FileStamp| stamp.modified >= source.created;
        if !source.initial.contains_key(file) && state.stamp.is_some_and(is_newer) {
            // It was read before that or after it: nobody knows.
            *state = FileState::default();
        }
    }
    let mut stored = reloader.config_input();
    last.blank = blank_files(&known, known.keys()).collect();
    let mut tick = interval(POLL_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut reply = None;
        let mut is_asked = tokio::select! {
            _ = tick.tick() => false,
            () = next_sighup(&mut asked) => true,
            () = next_stored(&mut stored) => true,
            Some(asked_by) = requests.recv() => {
                reply = Some(asked_by);
                true
            }
        };
        let seen = stat_all_files(&source, &reloader, &last, &known).await;
        if !is_asked && !have_changed(&seen, &known) {
            known = seen;
            continue;
        }
        (source.announce)(ReloadPhase::Started);
        // What stands in files may be half written; the store never is.
        let is_of_store = reply.is_some() && !have_changed(&seen, &known);
        let seen = loop {
            if is_of_store {
                break seen;
            }
            let quiet = |now: &FileStates| {
                let may_be_half = !is_asked && has_shrunk(now, &known);
                if may_be_half {
                    SETTLE_TIME_SHRUNK
                } else {
                    SETTLE_TIME
                }
            };
            tokio::select! {
                seen = wait_settled(&source, &reloader, &last, (seen.clone(), quiet)) => break seen,
                // Who asks for it has written it.
                () = next_sighup(&mut asked), if !is_asked => is_asked = true,
            }
        };
        if is_asked || have_changed(&seen, &known) {
            let outcome;
            (last, known, outcome) = reload_config(&source, &reloader, last, seen).await;
            if let Some(reply) = reply {
                // Who asked may have gone.
                drop(reply.send(outcome));
            }
        } else {
            known = seen;
        }
        (source.announce)(ReloadPhase::Finished);
    }
}

/// Completes when secrets or entries of the store changed.
async fn next_stored(changes: &mut watch::Receiver<ConfigInput>) {
    if changes.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Completes at the next SIGHUP.
async fn next_sighup(asked: &mut Option<Signal>) {
    let heard = match asked {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if heard.is_none() {
        std::future::pending::<()>().await;
    }
}

/// The files, which looked like `first`, once they have not changed for as long as `quiet` says of them.
async fn wait_settled(
    source: &ConfigSource,
    reloader: &Reloader,
    last: &WatchState,
    (first, quiet): (FileStates, impl Fn(&FileStates) -> Duration),
) -> FileStates {
    let mut before = first;
    for _ in 0..SETTLE_ROUNDS_MAX {
        sleep(quiet(&before)).await;
        let now = stat_all_files(source, reloader, last, &before).await;
        if !have_changed(&now, &before) {
            return now;
        }
        before = now;
    }
    before
}

/// Looks at the files of the config, and at those that the running one and the one read `last` name.
async fn stat_all_files(
    source: &ConfigSource,
    reloader: &Reloader,
    last: &WatchState,
    known: &FileStates,
) -> FileStates {
    let mut files = source.files.clone();
    files.extend(reloader.named_files());
    files.extend(last.named_files.iter().cloned());
    let known = known.clone();
    let looked = spawn_blocking(move || stat_files(&files, &known)).await;
    looked.unwrap_or_default()
}

/// Which of `files` were `seen` to say nothing.
fn blank_files<'s>(
    seen: &'s FileStates,
    files: impl Iterator<Item = &'s PathBuf> + 's,
) -> impl Iterator<Item = String> + 's {
    let is_blank = |file: &&PathBuf| seen.get(*file).is_some_and(|seen| seen.is_blank);
    files
        .filter(is_blank)
        .map(|file| file.display().to_string())
}

/// What is known of the config since it was read last.
#[derive(Clone, Debug, Default)]
struct WatchState {
    /// The files that say nothing in the one that runs, those that it names included.
    blank: Vec<String>,
    /// The files that it names; where it was refused, the mistake may be in them.
    named_files: Vec<PathBuf>,
}

/// Reads the config, of which `before` is known and whose files were `seen` so; what is known then, and
/// has been seen.
///
/// A file that says nothing any more is refused: who writes a file often empties it first, and may
/// be late or fail with the rest.
async fn reload_config(
    source: &Arc<ConfigSource>,
    reloader: &Arc<Reloader>,
    before: WatchState,
    seen: FileStates,
) -> (WatchState, FileStates, Result<(), ReloadError>) {
    let (source, reloader) = (Arc::clone(source), Arc::clone(reloader));
    let (before_reload, seen_before) = (before.clone(), seen.clone());
    let read = spawn_blocking(move || {
        let (loaded, seen) = if source.is_piped() {
            tracing::warn!("the config was read from a pipe; restart to change it");
            let running = LoadedConfig {
                config: Config::clone(&reloader.running()),
                warnings: Vec::new(),
                blank: Vec::new(),
            };
            // What it names is taken anew.
            (Ok(running), seen)
        } else {
            load_config(&source, seen)
        };
        let (state, outcome) = apply_loaded(loaded, &seen, &reloader, before);
        (state, seen, outcome)
    });
    read.await.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot read the changed config");
        (before_reload, seen_before, Err(ReloadError::Interrupted))
    })
}

/// The config, and its files as they were `seen` before it was read.
fn load_config(
    source: &ConfigSource,
    mut seen: FileStates,
) -> (Result<LoadedConfig, ConfigErrors>, FileStates) {
    let loaded = source.load_with(None);
    let named = match &loaded {
        Ok(loaded) => &loaded.config.named_files,
        Err(mistakes) => &mistakes.named_files,
    };
    if named.iter().all(|file| seen.contains_key(file)) {
        return (loaded, seen);
    }
    // What the others held when they were read nobody knows.
    let mut files = stat_files(named, &seen);
    files.append(&mut seen);
    (source.load_with(None), files)
}

/// Lets the gateway run what was `loaded`, unless that is wrong.
fn apply_loaded(
    loaded: Result<LoadedConfig, ConfigErrors>,
    seen: &FileStates,
    reloader: &Reloader,
    before: WatchState,
) -> (WatchState, Result<(), ReloadError>) {
    let LoadedConfig {
        config,
        warnings,
        blank: mut emptied,
    } = match loaded {
        Ok(loaded) => loaded,
        Err(mistakes) => {
            let named_files = mistakes.named_files.clone();
            let refused = WatchState {
                named_files,
                ..before
            };
            return (refused, Err(reloader.refuse(mistakes.into())));
        }
    };
    let refused = WatchState {
        named_files: config.named_files.clone(),
        ..before
    };
    // What is wrong with those of `tls` is told where they are used.
    let of_tls = |file: &&PathBuf| {
        let tls = config.tls.as_ref();
        tls.is_some_and(|tls| [&tls.cert, &tls.key].contains(file))
    };
    let named = config.named_files.iter().filter(|file| !of_tls(file));
    emptied.extend(blank_files(seen, named));
    if let Some(file) = emptied.iter().find(|file| !refused.blank.contains(file)) {
        let error = ReloadError::Emptied { file: file.clone() };
        return (refused, Err(reloader.refuse(error)));
    }
    if let Err(error) = reloader.check_servers(&config) {
        return (refused, Err(reloader.refuse(error)));
    }
    for warning in &warnings {
        for line in report_lines(&warning.to_string()) {
            tracing::warn!("{line}");
        }
    }
    match reloader.reload(&config) {
        Ok(_) => {
            let taken = WatchState {
                blank: emptied,
                ..refused
            };
            (taken, Ok(()))
        }
        Err(error) => (refused, Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// One that could not be read is read once its permissions are mended, though nothing else is new.
    #[tokio::test]
    async fn a_file_whose_permissions_change_is_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x");
        fs::write(&file, "x").unwrap();
        let written = fs::metadata(&file).unwrap().modified().unwrap() - 2 * MTIME_GRANULARITY;
        let opened = fs::File::options().write(true).open(&file).unwrap();
        opened.set_modified(written).unwrap();
        let files = [file.clone()];
        let mut denied = stat_files(&files, &FileStates::new());
        denied.get_mut(&file).unwrap().content = None;
        assert!(
            !have_changed(&denied, &stat_files(&files, &denied)),
            "nothing is new"
        );
        // The system's own clock may stand still for some milliseconds.
        sleep(Duration::from_millis(20)).await;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(have_changed(&denied, &stat_files(&files, &denied)));
    }
}
