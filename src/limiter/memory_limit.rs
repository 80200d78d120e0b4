//! How much memory there is for this process.

use std::{fs, path::Path};

/// The part of the memory that messages may have: each is there up to three times while it is parsed,
/// rewritten and sent, and servers, the store and lists need some too.
const MEMORY_FRACTION: usize = 4;

/// What is assumed where the system does not say.
const ASSUMED_BYTES: usize = 1 << 30;

/// Bytes of messages that may be held at once where the config does not say.
pub(super) fn bytes_max() -> usize {
    available_memory(Path::new("/")).unwrap_or(ASSUMED_BYTES) / MEMORY_FRACTION
}

/// The memory of the machine, or what its control group allows the process if that is less, as the files
/// below `root` say.
fn available_memory(root: &Path) -> Option<usize> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let machine = read("proc/meminfo").and_then(|text| parse_mem_total(&text));
    let groups = read("proc/self/cgroup").unwrap_or_default();
    let mut least = machine;
    for path in cgroup_limit_files(&groups) {
        // `max` in version 2, and a number beyond all memory in version 1, are no limit.
        let limit = read(&path).and_then(|text| text.trim().parse::<usize>().ok());
        least = [least, limit].into_iter().flatten().min();
    }
    least
}

fn parse_mem_total(meminfo: &str) -> Option<usize> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The files with the limits of the groups that `groups` names, and of all groups around them.
fn cgroup_limit_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (tree, file) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        for group in Path::new(path).ancestors() {
            files.push(format!("{tree}{}/{file}", group.display()).replace("//", "/"));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expect: Option<usize>) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(available_memory(root.path()), expect, "{files:?}");
    }

    #[test]
    fn the_tightest_limit_counts() {
        const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:    1024 kB\nMemFree: 1 kB\n");
        const GROUP: (&str, &str) = ("proc/self/cgroup", "0::/a/b\n");
        check(&[], None);
        check(&[MACHINE], Some(1 << 20));
        check(
            &[MACHINE, GROUP, ("sys/fs/cgroup/a/b/memory.max", "max\n")],
            Some(1 << 20),
        );
        check(
            &[MACHINE, GROUP, ("sys/fs/cgroup/a/b/memory.max", "4096\n")],
            Some(4096),
        );
        check(
            &[MACHINE, GROUP, ("sys/fs/cgroup/a/memory.max", "8192\n")],
            Some(8192),
        );
        // In a container the tree begins with its own group.
        check(
            &[
                MACHINE,
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/memory.max", "512\n"),
            ],
            Some(512),
        );
        let first = ("proc/self/cgroup", "3:cpu:/x\n2:memory:/x\n");
        let file = "sys/fs/cgroup/memory/x/memory.limit_in_bytes";
        check(&[MACHINE, first, (file, "2048\n")], Some(2048));
        check(
            &[MACHINE, first, (file, "9223372036854771712\n")],
            Some(1 << 20),
        );
    }
}
