//! The rules of the code that no compiler checks: who may import whom, and how long a file may be.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read its own tree has nothing to say"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Component, Path, PathBuf},
};

/// What each module may import of ours. A module stands below those that may import it; `proxy`
/// and `app` are the only joins.
const LAYERS: Layers = &[
    ("app", &["*"]),
    ("cli", &["*"]),
    (
        "api",
        &[
            "agent_change",
            "status",
            "proxy",
            "discovery",
            "backend",
            "governance",
            "scan",
            "catalog",
            "session",
            "router",
            "audit",
            "auth",
            "store",
            "sealing",
            "config_change",
            "config",
            "mcp",
            "names",
            "money",
            "task",
            "clock",
            "lock",
            "escape",
            "control_socket",
            "views",
        ],
    ),
    (
        "dashboard",
        &["api", "browser_login", "clock", "config", "escape", "names"],
    ),
    (
        "agent_change",
        &[
            "audit",
            "auth",
            "config",
            "escape",
            "governance",
            "names",
            "store",
        ],
    ),
    (
        "config_change",
        &["audit", "store_reader", "store", "config"],
    ),
    (
        "http",
        &[
            "dashboard",
            "api",
            "control_socket",
            "proxy",
            "session",
            "status",
            "audit",
            "auth",
            "authorization_server",
            "browser_login",
            "mcp",
            "names",
            "config",
            "clock",
            "escape",
            "task",
            "body",
            "lock",
            "limiter",
            "telemetry",
            "oauth_client",
            "sign_in",
        ],
    ),
    (
        "stdio",
        &[
            "http", "proxy", "session", "backend", "auth", "mcp", "names", "config", "task",
            "limiter",
        ],
    ),
    ("control_socket", &["launcher", "task"]),
    (
        "status",
        &[
            "control_socket",
            "proxy",
            "backend",
            "governance",
            "audit",
            "catalog",
            "names",
            "telemetry",
            "limiter",
            "escape",
            "clock",
            "lock",
            "store",
        ],
    ),
    (
        "proxy",
        &[
            "browser_login",
            "discovery",
            "auth",
            "audit",
            "session",
            "router",
            "governance",
            "backend",
            "catalog",
            "config",
            "mcp",
            "names",
            "store",
            "limiter",
            "clock",
            "task",
            "oauth_client",
            "sign_in",
            "views",
        ],
    ),
    (
        "discovery",
        &[
            "backend",
            "catalog",
            "mcp",
            "config",
            "json_schema",
            "names",
            "store",
            "task",
            "clock",
            "lock",
            "views",
        ],
    ),
    (
        "backend",
        &[
            "control_socket",
            "governance",
            "session",
            "catalog",
            "builtin",
            "egress",
            "auth",
            "mcp",
            "config",
            "telemetry",
            "launcher",
            "names",
            "task",
            "clock",
            "lock",
            "body",
            "limiter",
            "oauth_client",
            "store",
        ],
    ),
    (
        "governance",
        &[
            "router",
            "catalog",
            "session",
            "store",
            "audit",
            "scan",
            "auth",
            "mcp",
            "config",
            "json_schema",
            "telemetry",
            "limiter",
            "names",
            "money",
            "task",
            "clock",
            "lock",
        ],
    ),
    ("router", &["session", "catalog", "mcp", "names"]),
    (
        "session",
        &["auth", "mcp", "config", "names", "clock", "lock"],
    ),
    (
        "catalog",
        &["views", "mcp", "config", "json_schema", "names"],
    ),
    ("views", &["store", "names", "clock"]),
    ("builtin", &["clock"]),
    (
        "authorization_server",
        &[
            "auth", "store", "egress", "sealing", "config", "names", "clock", "lock",
        ],
    ),
    (
        "auth",
        &["store", "egress", "config", "names", "clock", "lock"],
    ),
    (
        "audit",
        &[
            "store", "key_file", "config", "names", "money", "task", "escape", "clock", "lock",
        ],
    ),
    (
        "store",
        &[
            "key_file", "sealing", "config", "names", "money", "clock", "lock",
        ],
    ),
    ("scan", &["mcp", "config", "json_schema"]),
    (
        "sign_in",
        &["auth", "browser_login", "session", "store", "names", "lock"],
    ),
    ("browser_login", &["auth", "store", "names", "lock"]),
    ("sealing", &[]),
    ("store_reader", &["store", "config", "escape", "names"]),
    ("egress", &["config"]),
    (
        "oauth_client",
        &[
            "config", "egress", "sealing", "store", "names", "task", "clock", "lock",
        ],
    ),
    ("config", &["names", "money"]),
    ("launcher", &[]),
    ("mcp", &["names"]),
    ("telemetry", &["config", "escape"]),
    ("body", &["limiter"]),
    (
        "limiter",
        &["config", "telemetry", "names", "clock", "lock"],
    ),
    ("task", &["lock"]),
    ("clock", &[]),
    ("json_schema", &[]),
    ("key_file", &[]),
    ("money", &[]),
    ("lock", &[]),
    ("names", &[]),
    ("escape", &[]),
];

/// Modules, or parts of one, with what each may import of the others.
type Layers = &'static [(&'static str, &'static [&'static str])];

/// The same inside of modules that have folders: what each part may import of the others.
const PARTS: &[(&str, Layers)] = &[
    (
        "backend",
        &[
            (
                "dispatch",
                &["catalog_connection", "instance", "transport", "link"],
            ),
            ("catalog_connection", &["instance", "transport", "link"]),
            ("instance", &["transport", "link"]),
            ("transport", &["link"]),
            ("link", &[]),
        ],
    ),
    (
        "audit",
        &[
            ("read", &["upkeep", "write", "record"]),
            ("upkeep", &["write", "record"]),
            ("write", &["record"]),
            ("record", &[]),
        ],
    ),
    (
        "scan",
        &[
            ("engine", &["detect", "context", "lexicon"]),
            ("detect", &["context", "lexicon"]),
            ("context", &["lexicon"]),
            ("lexicon", &[]),
        ],
    ),
    (
        "config",
        &[
            ("import", &["validate", "schema", "file", "diagnostics"]),
            (
                "validate",
                &["source", "schema", "file", "model", "diagnostics"],
            ),
            ("source", &["schema", "diagnostics"]),
            ("schema", &["diagnostics"]),
            ("resolve", &["file", "model", "diagnostics"]),
            ("file", &["model", "diagnostics"]),
            ("model", &["diagnostics"]),
            ("diagnostics", &[]),
        ],
    ),
];

/// Files that may import each other in a circle.
const CIRCLE_MAX: usize = 3;

/// Type names that may be defined more than once: the subcommands of each command.
const EQUAL_NAMES: &[&str] = &["Command"];

/// Words that names of items and locals once had, and that no reader could guess. The field has terms for all of them; see
/// the names that are used now.
const PRIVATE_WORDS: &[&str] = &[
    "aboard",
    "aftermath",
    "burden",
    "departure",
    "disguise",
    "farewell",
    "ghost",
    "haunt",
    "heed",
    "hushed",
    "lately",
    "law",
    "lineage",
    "lookout",
    "mend",
    "mux",
    "oneself",
    "onlooker",
    "ourselves",
    "outlook",
    "passage",
    "passenger",
    "patient",
    "prospect",
    "purse",
    "rouse",
    "seeker",
    "seldom",
    "shelf",
    "sight",
    "stays",
    "stranger",
    "strays",
    "ticket",
    "told",
    "toll",
    "voucher",
    "whatever",
    "whoever",
];

/// Where the typed model of rmcp may be used: never for messages we relay.
const RMCP: &[&str] = &["builtin", "egress", "oauth_client"];

/// Lines of a source file, inline tests included.
const LINES_MAX: usize = 900;

#[test]
fn modules_import_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for (module, files) in modules() {
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == module) else {
            panic!("src/{module}.rs has no row in LAYERS");
        };
        for file in files {
            for imported in imports(&code(&file)) {
                let own = imported == module;
                if !own && !allowed.contains(&"*") && !allowed.contains(&imported.as_str()) {
                    wrong.push(format!(
                        "{}: {module} may not import {imported}",
                        file.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn parts_of_modules_import_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for (file, imported) in file_imports() {
        let Some((_, parts)) = PARTS.iter().find(|(module, _)| *module == file[0]) else {
            continue;
        };
        let part = |path: &[String]| path.get(1).cloned().unwrap_or_default();
        let Some((_, allowed)) = parts.iter().find(|(name, _)| *name == part(&file)) else {
            continue;
        };
        let is_part = |name: &str| parts.iter().any(|(part, _)| *part == name);
        for target in imported.iter().filter(|target| target[0] == file[0]) {
            let target = part(target);
            if is_part(&target) && target != part(&file) && !allowed.contains(&target.as_str()) {
                wrong.push(format!("{} may not import {target}", file.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn few_files_import_each_other_in_a_circle() {
    let imports = file_imports();
    let reached = |start: &Vec<String>| {
        let mut reached = BTreeSet::new();
        let mut open = vec![start];
        while let Some(file) = open.pop() {
            for next in &imports[file] {
                // That a file and those in its folder know each other is no circle.
                let is_family = file.starts_with(next) || next.starts_with(file);
                if !is_family && reached.insert(next) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<_, _> = imports.keys().map(|file| (file, reached(file))).collect();
    for (file, others) in &reached {
        let circle = others.iter().filter(|other| reached[*other].contains(file));
        let circle: Vec<_> = circle.map(|file| file.join("::")).collect();
        assert!(circle.len() <= CIRCLE_MAX, "a circle: {circle:?}");
    }
}

#[test]
fn no_two_types_have_one_name() {
    let mut defined: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in modules().into_values().flatten() {
        for line in code(&file).lines() {
            let Some(name) = defined_type(line) else {
                continue;
            };
            let other = defined.insert(name.clone(), file.clone());
            if let Some(other) = other.filter(|_| !EQUAL_NAMES.contains(&name.as_str())) {
                panic!("{} and {} define {name}", other.display(), file.display());
            }
        }
    }
    assert!(defined.len() > 500, "{} types", defined.len());
}

#[test]
fn names_of_items_are_terms_of_the_field() {
    let keywords = [
        "fn ", "struct ", "enum ", "trait ", "type ", "mod ", "const ", "static ", "let mut ",
        "let ",
    ];
    let mut wrong = Vec::new();
    for file in modules().into_values().flatten() {
        for line in code(&file).lines() {
            let name = keywords
                .iter()
                .find_map(|it| Some(word(line.split_once(it)?.1)));
            let name = name.unwrap_or_default();
            if words_of(&name)
                .iter()
                .any(|it| PRIVATE_WORDS.contains(&it.as_str()))
            {
                wrong.push(format!("{}: {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The words of a name in snake or camel case, in lower case.
fn words_of(name: &str) -> Vec<String> {
    let is_camel = name.chars().any(char::is_lowercase);
    let mut spaced = String::new();
    for c in name.chars() {
        if is_camel && c.is_uppercase() {
            spaced.push('_');
        }
        spaced.extend(c.to_lowercase());
    }
    spaced.split('_').map(str::to_owned).collect()
}

/// The type that a line at the root of a file defines.
fn defined_type(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().peekable();
    if line.starts_with("pub") {
        while !words.next()?.ends_with(['b', ')']) {}
    }
    let is_type = ["struct", "enum", "trait", "type"].contains(words.peek()?);
    (is_type && !line.starts_with(' ')).then(|| word(words.nth(1).unwrap_or_default()))
}

#[test]
fn rmcp_is_kept_out_of_the_data_path() {
    for (module, files) in modules() {
        for file in files {
            let uses = code(&file).contains("rmcp::");
            assert!(
                !uses || RMCP.contains(&module.as_str()),
                "{} uses rmcp",
                file.display()
            );
        }
    }
}

#[test]
fn files_can_be_read_in_one_sitting() {
    for file in modules()
        .into_values()
        .flatten()
        .filter(|file| !file.ends_with("tests.rs"))
    {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", file.display());
    }
}

#[test]
fn the_map_names_every_module() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(
        map.lines().count() <= 200,
        "ARCHITECTURE.md is a map, not a book"
    );
    for module in modules().keys() {
        assert!(
            map.contains(&format!("`{module}`")),
            "ARCHITECTURE.md does not name `{module}`"
        );
    }
}

#[test]
fn the_changelog_has_a_head_for_what_is_coming() {
    let changelog = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    assert!(changelog.contains("\n## Unreleased\n"));
}

/// Longest line of a document, characters.
const LINE_MAX: usize = 120;

/// Documents are read in terminals and in reviews.
#[test]
fn documents_have_no_long_lines() {
    let mut long = Vec::new();
    let directories = ["docs", "examples", "src", "tests"];
    let below = directories
        .map(|it| files_named(&root().join(it), "md"))
        .concat();
    let above = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let above = above.filter(|path| path.extension().is_some_and(|it| it == "md"));
    for document in above.chain(below) {
        let text = fs::read_to_string(&document).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            if line.chars().count() > LINE_MAX {
                long.push(format!("{}:{number}", document.display()));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// The recipe of the container copies all that the program is built from.
#[test]
fn the_container_is_built_from_all_that_is_needed() {
    let recipe = fs::read_to_string(root().join("examples/deploy/Containerfile")).unwrap();
    let copied: Vec<PathBuf> = recipe
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|copy| !copy.starts_with("--from"))
        .flat_map(|copy| copy.split_whitespace().rev().skip(1))
        .map(|path| root().join(path))
        .collect();
    let needed = needed_to_build();
    assert!(needed.len() > 5, "{needed:?}");
    for path in &needed {
        assert!(path.exists(), "there is no {}", path.display());
    }
    let is_copied = |path: &&PathBuf| copied.iter().any(|copy| path.starts_with(copy));
    let missing: Vec<_> = needed.iter().filter(|path| !is_copied(path)).collect();
    assert!(missing.is_empty(), "it does not copy {missing:?}");
}

/// What `cargo build` of the program reads: the package, its targets, and what these include.
fn needed_to_build() -> Vec<PathBuf> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let mut needed = ["Cargo.toml", "Cargo.lock", "build.rs", "src/lib.rs"]
        .map(|file| root().join(file))
        .to_vec();
    let kinds = [
        ("bin", "src/bin"),
        ("bench", "benches"),
        ("test", "tests"),
        ("example", "examples"),
    ];
    for (kind, directory) in kinds {
        let targets = manifest.get(kind).and_then(|it| it.as_array());
        for target in targets.into_iter().flatten() {
            let path = target.get("path").and_then(toml::Value::as_str);
            needed.push(root().join(path.unwrap_or(directory)));
        }
    }
    for file in files(&root().join("src")) {
        needed.extend(included(&file));
    }
    needed
}

/// The paths that `file` names in macros which read them when it is compiled.
fn included(file: &Path) -> Vec<PathBuf> {
    let code = code(file);
    let directory = file.parent().unwrap();
    let by = |name, start: PathBuf| {
        let paths = code.split(name).skip(1).filter_map(|rest| {
            let quoted = rest.trim_start().strip_prefix('"')?;
            quoted.split('"').next()
        });
        paths.map(|path| resolved(&start.join(path))).collect()
    };
    let paths: [Vec<PathBuf>; 4] = [
        by("include_str!(", directory.to_path_buf()),
        by("include_bytes!(", directory.to_path_buf()),
        by("include!(", directory.to_path_buf()),
        // This one starts at the root of the package.
        by("migrate!(", root()),
    ];
    paths.concat()
}

/// `path` without the steps back in it.
fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            resolved.pop();
        } else {
            resolved.push(part);
        }
    }
    resolved
}

/// Every module at the root of the crate with its files.
fn modules() -> BTreeMap<String, Vec<PathBuf>> {
    let src = root().join("src");
    let mut modules: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files(&src) {
        let relative = file.strip_prefix(&src).unwrap();
        let first = relative
            .components()
            .next()
            .unwrap()
            .as_os_str()
            .to_str()
            .unwrap();
        let module = first.trim_end_matches(".rs").to_owned();
        if module != "lib" && module != "main" {
            modules.entry(module).or_default().push(file);
        }
    }
    modules
}

fn files(directory: &Path) -> Vec<PathBuf> {
    files_named(directory, "rs")
}

/// The files below `directory` whose names end in `.` and `ending`.
fn files_named(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_named(&path, ending));
        } else if path.extension().is_some_and(|it| it == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Each file of the crate, as the path of its module, with those that its `use` declarations name.
fn file_imports() -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let src = root().join("src");
    let module = |file: &PathBuf| {
        let path = file.strip_prefix(&src).unwrap().with_extension("");
        let parts = path.components().map(Component::as_os_str);
        parts
            .map(|part| part.to_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let files: Vec<_> = modules().into_values().flatten().collect();
    let known: BTreeSet<_> = files.iter().map(module).collect();
    let of_file = |file: &PathBuf| {
        let own = module(file);
        let named = used(&code(file)).into_iter().filter_map(|path| {
            let path = absolute(&own, &path);
            let lengths = (1..=path.len()).rev();
            lengths
                .map(|length| path[..length].to_vec())
                .find(|path| known.contains(path))
        });
        let named = named.filter(|path| *path != own).collect();
        (own, named)
    };
    files.iter().map(of_file).collect()
}

/// `path` of a `use` in the module `own`, from the root of the crate.
fn absolute(own: &[String], path: &str) -> Vec<String> {
    let mut base = own.to_vec();
    let mut parts = path.split("::").peekable();
    if parts.next_if_eq(&"crate").is_some() {
        base.clear();
    }
    while let Some(part) = parts.next_if(|part| ["super", "self"].contains(part)) {
        if part == "super" {
            base.pop();
        }
    }
    base.extend(parts.map(str::to_owned));
    base
}

/// The paths of all `use` declarations at the root of a file, without braces.
fn used(code: &str) -> Vec<String> {
    let lines: Vec<_> = code.lines().collect();
    let is_use =
        |line: &str| line.starts_with("use ") || line.starts_with("pub") && line.contains(" use ");
    let starts = (0..lines.len()).filter(|at| is_use(lines[*at]));
    let declarations = starts.filter_map(|at| {
        let rest = lines[at..].join(" ");
        let (tree, _) = rest.split_once("use ")?.1.split_once(';')?;
        Some(without_braces(&tree.replace(' ', "")))
    });
    declarations.flatten().collect()
}

/// `a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`.
fn without_braces(tree: &str) -> Vec<String> {
    let Some((before, inner)) = tree.split_once('{') else {
        return vec![tree.to_owned()];
    };
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    let mut depth = 0_i32;
    let branches = inner.split(|character| {
        depth += i32::from(character == '{') - i32::from(character == '}');
        character == ',' && depth == 0
    });
    branches
        .filter(|branch| !branch.is_empty())
        .flat_map(without_braces)
        .map(|branch| format!("{before}{branch}"))
        .collect()
}

/// The file without comments and without its inline tests, which may import anything.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let is_test = |part: &OsStr| part == "tests" || part == "tests.rs" || part == "testing.rs";
    let in_src = file.strip_prefix(root().join("src")).unwrap_or(file);
    if in_src.iter().any(is_test) {
        return String::new();
    }
    let product = text
        .split("\n#[cfg(test)]\nmod ")
        .next()
        .unwrap_or_default();
    let lines = product
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// First segments of paths that begin with `crate::`, those in braces included.
fn imports(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in code.split("crate::").skip(1) {
        if let Some(group) = part.strip_prefix('{') {
            found.extend(top_level(group));
        } else {
            found.push(word(part));
        }
    }
    found
}

/// First words of the comma-separated entries of a brace group.
fn top_level(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut entries = vec![String::new()];
    for character in group.chars() {
        match character {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => entries.push(String::new()),
            _ => {}
        }
        if let Some(last) = entries.last_mut()
            && character != ','
        {
            last.push(character);
        }
    }
    entries
        .iter()
        .map(|entry| word(entry.trim()))
        .filter(|entry| !entry.is_empty())
        .collect()
}

fn word(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The tests that the documentation names are there.
#[test]
fn the_named_tests_exist() {
    let text = fs::read_to_string(root().join("docs/src/internals.md")).unwrap();
    let (_, list) = text
        .split_once("## Failures that gateways are known for")
        .unwrap();
    let names = list.split('`').skip(1).step_by(2);
    let mut count = 0;
    for (file, test) in names.filter_map(|name| name.split_once("::")) {
        let is_in = |suite: &str| {
            let path = root().join(format!("tests/{suite}/{file}.rs"));
            let code = fs::read_to_string(path).unwrap_or_default();
            code.contains(&format!("fn {test}("))
        };
        let suites = ["chaos", "cli", "governance", "integration", "settings"];
        assert!(
            suites.into_iter().any(is_in),
            "there is no test {file}::{test}"
        );
        count += 1;
    }
    assert!(count > 20, "{count} tests are named");
}
