//! What Linux does to keep a program from what is not its business.
//!
//! Files are covered in a mount namespace, or Landlock grants all but them (see `hide_paths`). A Landlock
//! domain of its own closes `/proc/PID/mem`, `/proc/PID/environ` and the like of all processes that the
//! program did not start, and lets signals and connections to abstract Unix sockets (X11, D-Bus) reach
//! only those that it did; a user namespace does the first too. The program has no capabilities and
//! cannot gain any.

use std::{
    collections::BTreeSet,
    ffi::{CString, OsStr, OsString},
    fs,
    io::{self, ErrorKind},
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::{Component, Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};
use nix::{
    sched::{CloneFlags, unshare},
    unistd::{Uid, User, initgroups, setresgid, setresuid},
};
use rustix::{
    fs::{Mode, OFlags, open},
    mount::{
        MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change,
        mount_remount,
    },
    process::{
        DumpableBehavior, Signal, getegid, geteuid, getpid, set_child_subreaper,
        set_dumpable_behavior, set_parent_process_death_signal,
    },
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

use super::{Confined, Hiding, LaunchError, LaunchSpec};

/// More capabilities than there are.
const CAPABILITIES_MAX: u32 = 64;
/// Symbolic links that are followed in one path, as many as Linux follows (`path_resolution(7)`).
const LINKS_MAX: usize = 40;

/// Makes this process the parent of what its descendants leave behind.
pub(super) fn adopt_orphans() {
    // Every Linux since 3.4 can.
    set_child_subreaper(Some(getpid())).ok();
}

/// Lets this process be killed when its parent ends.
pub(super) fn set_parent_death_signal() {
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
}

/// Whether it makes sense to try this way.
pub(super) fn is_worth_trying(hiding: Hiding) -> bool {
    let may_mount =
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    hiding != Hiding::Mounts || may_mount()
}

/// Confines this process; gives the variables of the user that it runs as from here on, where that is
/// another. `here` is its working directory.
pub(super) fn confine(
    spec: &LaunchSpec,
    hiding: Hiding,
    here: Option<&OsStr>,
) -> Result<(Confined, Vec<(OsString, OsString)>), LaunchError> {
    let hidden = canonical_existing(&spec.hidden);
    let hidden = merge_directories(&hidden, spec, here);
    let leading = ancestor_paths(&spec.hidden, &hidden);
    let cannot = |error: io::Error| LaunchError::Hiding(error.to_string());
    if hiding == Hiding::Mounts {
        unshare(CloneFlags::CLONE_NEWNS).map_err(|error| cannot(error.into()))?;
        hide_paths(&hidden, &leading).map_err(cannot)?;
    }
    drop_bounding_set();
    let user = spec.user.as_deref().map(switch_user).transpose()?;
    if hiding == Hiding::UserNamespace {
        enter_user_namespace().map_err(cannot)?;
        hide_paths(&hidden, &leading).map_err(cannot)?;
    }
    set_no_new_privs(true).map_err(|error| cannot(error.into()))?;
    let (is_isolated, signals_scoped) = enter_landlock(hiding, &hidden, &leading)?;
    drop_capabilities().map_err(cannot)?;
    // Who becomes another user has to say so again.
    set_parent_death_signal();
    let is_covered = matches!(hiding, Hiding::Mounts | Hiding::UserNamespace);
    let confined = Confined {
        hiding,
        is_replaceable: is_covered && hidden.iter().any(|path| !path.is_dir()),
        is_isolated: is_isolated || hiding == Hiding::UserNamespace,
        signals_scoped,
        tried: Vec::new(),
    };
    Ok((
        confined,
        user.flatten().map(user_environment).unwrap_or_default(),
    ))
}

/// What of `paths` there is, by the names that no link changes.
fn canonical_existing(paths: &[OsString]) -> BTreeSet<PathBuf> {
    let paths = paths.iter().filter_map(|path| fs::canonicalize(path).ok());
    paths.collect()
}

/// `hidden` with directories in place of all that is in them, unless the program needs them: a cover on
/// a file ends when another file takes its place, one on its directory does not.
fn merge_directories(
    hidden: &BTreeSet<PathBuf>,
    spec: &LaunchSpec,
    here: Option<&OsStr>,
) -> BTreeSet<PathBuf> {
    let mut all = hidden.clone();
    let parents: BTreeSet<&Path> = hidden.iter().filter_map(|path| path.parent()).collect();
    for parent in parents {
        let is_full = fs::read_dir(parent).is_ok_and(|mut entries| {
            entries.all(|entry| entry.is_ok_and(|entry| hidden.contains(&entry.path())))
        });
        if is_full && !is_needed_by(spec, here, parent) {
            all.insert(parent.to_owned());
        }
    }
    // What is below another needs no cover of its own.
    let is_outermost = |path: &PathBuf| !path.ancestors().skip(1).any(|above| all.contains(above));
    all.iter()
        .filter(|path| is_outermost(path))
        .cloned()
        .collect()
}

/// Whether something that the program is told of lies in `directory`.
fn is_needed_by(spec: &LaunchSpec, here: Option<&OsStr>, directory: &Path) -> bool {
    let places = ["HOME", "TMPDIR", "XDG_RUNTIME_DIR"];
    let variables = spec.inherited.iter().chain(&spec.env);
    let of_places = variables
        .filter(|(name, _)| places.iter().any(|place| name == place))
        .map(|(_, value)| value.as_os_str());
    let cwd = spec.cwd.as_deref().or(here);
    let mut paths = of_places.chain(cwd);
    let name = directory.as_os_str().as_bytes();
    let words = std::iter::once(&spec.program)
        .chain(&spec.args)
        .chain(spec.env.iter().map(|(_, value)| value));
    let mut words = words.filter(|word| !word.is_empty());
    paths.any(|path| fs::canonicalize(path).is_ok_and(|path| path.starts_with(directory)))
        || words.any(|word| memchr::memmem::find(word.as_bytes(), name).is_some())
}

/// The directories and symbolic links on the way to `paths`, also to those that do not exist, outermost
/// first; what is `hidden` itself is left out.
fn ancestor_paths(paths: &[OsString], hidden: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let mut leading = BTreeSet::new();
    for path in paths {
        let mut at = PathBuf::from("/");
        let mut left = Vec::new();
        let to_come = |path: &Path, left: &mut Vec<OsString>| {
            let parts = path.components().rev();
            left.extend(parts.map(|part| part.as_os_str().to_owned()));
        };
        to_come(&std::path::absolute(path).unwrap_or_default(), &mut left);
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == Component::ParentDir.as_os_str() {
                at.pop();
                continue;
            }
            let next = at.join(part);
            match (fs::symlink_metadata(&next), fs::read_link(&next)) {
                (Ok(_), Ok(target)) if links < LINKS_MAX => {
                    links += 1;
                    to_come(&target, &mut left);
                }
                (Ok(entry), _) if entry.is_dir() => at.clone_from(&next),
                _ => break,
            }
            leading.insert(next);
        }
    }
    // Nobody renames the root or a process.
    let fixed = |path: &Path| path == Path::new("/") || path.starts_with("/proc");
    let is_hidden = |path: &Path| path.ancestors().any(|above| hidden.contains(above));
    leading.retain(|path| !fixed(path) && !is_hidden(path));
    leading
}

/// Makes `path` a mountpoint with what it is already: it can be used as before, except that it cannot be
/// renamed, removed or replaced.
fn bind_mount_self(path: &Path) -> io::Result<()> {
    // mount(2) would follow a link.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = open(path, flags, Mode::empty())?;
    let itself = format!("/proc/self/fd/{}", entry.as_raw_fd());
    Ok(mount_bind_recursive(&itself, &itself)?)
}

/// Puts something over each of `hidden` that nobody can open. What is mounted later by others appears
/// here too.
fn hide_paths(hidden: &BTreeSet<PathBuf>, leading: &BTreeSet<PathBuf>) -> io::Result<()> {
    mount_change(
        "/",
        MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM,
    )?;
    // Whoever renames a directory takes along what is mounted below it, and may put another in its place.
    for path in leading {
        bind_mount_self(path)?;
    }
    let (directories, files): (Vec<_>, Vec<_>) = hidden.iter().partition(|path| path.is_dir());
    let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mut nothing = PathBuf::from("/dev/null");
    for directory in directories {
        mount("tmpfs", directory, "tmpfs", quiet, c"mode=0000,size=4k")?;
        if !nothing.starts_with(directory) && nothing == Path::new("/dev/null") && !files.is_empty()
        {
            nothing = directory.join("nothing");
            let mut options = fs::File::options();
            options
                .write(true)
                .create_new(true)
                .mode(0o000)
                .open(&nothing)?;
        }
    }
    for file in &files {
        mount_bind(&nothing, *file)?;
    }
    for directory in hidden.iter().filter(|path| path.is_dir()) {
        mount_remount(directory, quiet | MountFlags::RDONLY, c"mode=0000")?;
    }
    Ok(())
}

/// Goes into a user namespace with a mount namespace, in which this process may mount.
fn enter_user_namespace() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // Whoever has become another user does not own its own entries in `/proc`.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Becomes `wanted`; gives what the system knows of that user, unless this process is that one already.
fn switch_user(wanted: &str) -> Result<Option<User>, LaunchError> {
    let named = User::from_name(wanted).ok().flatten();
    let numbered = || {
        let number = wanted.parse().ok()?;
        User::from_uid(Uid::from_raw(number)).ok().flatten()
    };
    let user = named
        .or_else(numbered)
        .ok_or_else(|| LaunchError::User("no such user".to_owned()))?;
    if user.uid == Uid::effective() {
        return Ok(None);
    }
    let name = CString::new(user.name.as_bytes()).unwrap_or_default();
    initgroups(&name, user.gid)
        .and_then(|()| setresgid(user.gid, user.gid, user.gid))
        .and_then(|()| setresuid(user.uid, user.uid, user.uid))
        .map_err(|error| {
            let why = "starting programs as another user requires a gateway running as root";
            LaunchError::User(format!("{why} ({error})"))
        })?;
    Ok(Some(user))
}

/// The variables that tell a program who it is.
fn user_environment(user: User) -> Vec<(OsString, OsString)> {
    vec![
        ("HOME".into(), user.dir.into()),
        ("USER".into(), user.name.clone().into()),
        ("LOGNAME".into(), user.name.into()),
        ("SHELL".into(), user.shell.into()),
    ]
}

/// Puts this process into a Landlock domain: whether the system has them, and whether it keeps signals
/// and connections to abstract sockets in.
fn enter_landlock(
    hiding: Hiding,
    hidden: &BTreeSet<PathBuf>,
    leading: &BTreeSet<PathBuf>,
) -> Result<(bool, bool), LaunchError> {
    let cannot = |error: RulesetError| LaunchError::Hiding(error.to_string());
    let scoped = with_scope(Ruleset::default());
    let signals_scoped = scoped.is_ok();
    let rules = scoped
        .unwrap_or_default()
        .set_compatibility(CompatLevel::HardRequirement);
    if hiding == Hiding::Landlock {
        let all = AccessFs::from_all(ABI::V5);
        let rules = rules
            .handle_access(AccessFs::from_all(ABI::V1))
            .and_then(|rules| {
                let rules = rules.set_compatibility(CompatLevel::BestEffort);
                rules.handle_access(all)
            })
            .and_then(Ruleset::create)
            .map_err(cannot)?;
        // A link must not be replaced by another either.
        let links = leading.iter().filter(|path| path.is_symlink());
        let hidden = hidden.iter().chain(links).cloned().collect();
        grant_siblings(rules, &hidden, all).map_err(cannot)?;
        return Ok((true, signals_scoped));
    }
    // A domain that restricts any access to files also forbids to mount and unmount, which a user
    // namespace of the program's own would allow: without its mounts nothing is covered. What is
    // restricted is what nobody without capabilities can do anyway.
    let rules = rules
        .handle_access(AccessFs::MakeBlock | AccessFs::Refer)
        .and_then(Ruleset::create)
        .and_then(|rules| match PathFd::new("/") {
            Ok(root) => rules.add_rule(PathBeneath::new(root, AccessFs::Refer)),
            Err(_) => Ok(rules),
        });
    let is_isolated = rules.and_then(RulesetCreated::restrict_self).is_ok();
    if !is_isolated && hiding == Hiding::UserNamespace {
        // Without Landlock, no user namespace in ours does the same.
        fs::write("/proc/sys/user/max_user_namespaces", "0").map_err(|error| {
            LaunchError::Hiding(format!("cannot disable user namespaces: {error}"))
        })?;
    }
    Ok((is_isolated, is_isolated && signals_scoped))
}

fn with_scope(rules: Ruleset) -> Result<Ruleset, RulesetError> {
    rules
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(Scope::Signal | Scope::AbstractUnixSocket)
}

/// Grants all files but `hidden`. What appears later beside a directory that leads to one of them is not
/// granted.
fn grant_siblings(
    rules: RulesetCreated,
    hidden: &BTreeSet<PathBuf>,
    all: landlock::BitFlags<AccessFs>,
) -> Result<(), RulesetError> {
    let (mut granted, mut listed) = (Vec::new(), Vec::new());
    let mut leading = vec![PathBuf::from("/")];
    while let Some(directory) = leading.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            // What a link leads to is granted where it lies.
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if is_link || hidden.contains(&path) {
                continue;
            }
            if hidden.iter().any(|one| one.starts_with(&path)) {
                leading.push(path);
            } else {
                granted.push(path);
            }
        }
        listed.push(directory);
    }
    rules
        .add_rules(path_beneath_rules(granted, all))?
        .add_rules(path_beneath_rules(listed, AccessFs::ReadDir))?
        .restrict_self()?;
    Ok(())
}

/// No program that is started from here on gets a capability; needs one itself, and does nothing without.
fn drop_bounding_set() {
    for number in 0..CAPABILITIES_MAX {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        remove_capability_from_bounding_set(capability).ok();
    }
}

fn drop_capabilities() -> io::Result<()> {
    drop_bounding_set();
    match clear_ambient_capability_set() {
        // Linux before 4.3 has none.
        Err(error) if io::Error::from(error).kind() != ErrorKind::InvalidInput => {
            return Err(error.into());
        }
        _ => {}
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, none)?)
}

#[cfg(test)]
mod tests {
    use std::{
        os::{
            linux::net::SocketAddrExt,
            unix::net::{SocketAddr, UnixListener, UnixStream},
        },
        thread,
    };

    use super::*;

    /// A domain holds for the thread that enters it.
    #[test]
    fn landlock_grants_all_but_what_is_hidden() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        let file = |name: &str| root.join(name);
        for directory in ["data", "data/control", "beside", "linked"] {
            fs::create_dir(file(directory)).unwrap();
        }
        for name in ["config", "data/db", "beside/file", "sibling"] {
            fs::write(file(name), name).unwrap();
        }
        std::os::unix::fs::symlink("data", file("link")).unwrap();
        std::os::unix::fs::symlink("../config", file("linked/config")).unwrap();
        let hidden = BTreeSet::from([file("config"), file("data")]);
        let named = ["linked/config", "data"].map(|name| file(name).into());
        let leading = ancestor_paths(&named, &hidden);
        let tried = thread::spawn(move || {
            if enter_landlock(Hiding::Landlock, &hidden, &leading).is_err() {
                // Kernels without it are told of at the start.
                return;
            }
            let file = |name: &str| root.join(name);
            for name in ["config", "data/db", "link/db"] {
                let error = fs::read(file(name)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{name}");
                fs::write(file(name), "").unwrap_err();
            }
            fs::write(file("data/control/new"), "").unwrap_err();
            fs::remove_file(file("linked/config")).unwrap_err();
            fs::rename(file("linked"), file("renamed")).unwrap_err();
            assert_eq!(fs::read(file("sibling")).unwrap(), b"sibling");
            fs::write(file("sibling"), "more").unwrap();
            fs::write(file("beside/new"), "new").unwrap();
            fs::rename(file("beside/new"), file("beside/newer")).unwrap();
            assert_eq!(fs::read_dir(&root).unwrap().count(), 6);
        });
        tried.join().unwrap();
    }

    /// They have no file that could be hidden.
    #[test]
    fn abstract_sockets_of_others_are_out_of_reach() {
        let name = format!("tollbridge-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let _others = UnixListener::bind_addr(&address).unwrap();
        UnixStream::connect_addr(&address).unwrap();
        let tried = thread::spawn(move || {
            let none = BTreeSet::new();
            let (_, is_scoped) = enter_landlock(Hiding::Nothing, &none, &none).unwrap();
            // Kernels without it are told of at the start.
            if is_scoped {
                let error = UnixStream::connect_addr(&address).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            }
        });
        tried.join().unwrap();
    }

    /// Whatever could be replaced to put another file in the place of a hidden one.
    #[test]
    fn all_that_leads_to_a_hidden_file_is_known() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        let file = |name: &str| root.join(name);
        for directory in ["real/etc", "dots/data", "other"] {
            fs::create_dir_all(file(directory)).unwrap();
        }
        fs::write(file("dots/config"), "").unwrap();
        for (target, name) in [
            ("real", "home"),
            ("../../dots/config", "real/etc/config"),
            ("loop", "loop"),
        ] {
            std::os::unix::fs::symlink(target, file(name)).unwrap();
        }
        let above: BTreeSet<_> = root.ancestors().map(Path::to_owned).collect();
        let known = |name: &str, hidden: &str| {
            let hidden = BTreeSet::from([file(hidden)]);
            let leading = ancestor_paths(&[file(name).into()], &hidden);
            assert!(!leading.contains(Path::new("/")));
            let inside = leading.difference(&above);
            let inside = inside.map(|path| path.strip_prefix(&root).unwrap().to_owned());
            inside
                .map(|path| path.into_os_string().into_string().unwrap())
                .collect::<Vec<_>>()
        };
        let by_links = ["dots", "home", "real", "real/etc", "real/etc/config"];
        assert_eq!(known("home/etc/config", "dots/config"), by_links);
        assert_eq!(
            known("home/etc/./../etc/config", "dots"),
            ["home", "real", "real/etc", "real/etc/config"]
        );
        assert_eq!(known("real/etc/none/config", "other"), ["real", "real/etc"]);
        assert_eq!(known("loop/config", "other"), ["loop"]);
        assert_eq!(known("dots/data", "dots/data"), ["dots"]);
    }

    /// A directory of secrets alone is hidden as a whole, unless the program is told of it.
    #[test]
    fn a_directory_with_nothing_else_is_hidden() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        let of_config = root.join("etc");
        fs::create_dir(&of_config).unwrap();
        let (config, key) = (of_config.join("config"), of_config.join("key"));
        for path in [&config, &key] {
            fs::write(path, "").unwrap();
        }
        let mut spec = LaunchSpec {
            program: "sh".into(),
            args: Vec::new(),
            inherited: Vec::new(),
            env: Vec::new(),
            cwd: Some(root.clone().into()),
            user: None,
            hidden: Vec::new(),
        };
        let both = BTreeSet::from([config.clone(), key.clone()]);
        let whole = BTreeSet::from([of_config.clone()]);
        assert_eq!(merge_directories(&both, &spec, None), whole);
        let one = BTreeSet::from([config]);
        assert_eq!(merge_directories(&one, &spec, None), one);
        spec.args = vec![key.into()];
        assert_eq!(merge_directories(&both, &spec, None), both);
        spec.args = Vec::new();
        spec.cwd = Some(of_config.into());
        assert_eq!(merge_directories(&both, &spec, None), both);
    }
}
