//! The quick start and `examples/governed` are run as they stand.

use std::{fs, path::PathBuf};

use crate::{
    markdown::{root, split},
    support::{Place, bounded},
};

/// Where the README says that the gateway listens.
const WRITTEN_URL: &str = "http://127.0.0.1:8080";

/// What the quick start does outside of the test: it builds the program, and starts the gateway.
const DONE_BY_THE_TEST: [&str; 2] = ["cargo install --path .", "tollbridge serve"];

#[tokio::test]
async fn the_quick_start_works() {
    let page = fs::read_to_string(root().join("docs/src/quick-start.md")).expect("it is there");
    let (blocks, _) = split(&page);
    let config = blocks.iter().find(|block| block.info == "toml");
    let place = Place::new(&config.expect("it has a config").text);
    let serving = place.serve().await;
    let scripts = blocks.iter().filter(|block| block.info == "sh");
    let lines = scripts.flat_map(|block| block.text.lines());
    let mut count = 0;
    for line in lines.filter(|line| !DONE_BY_THE_TEST.contains(line)) {
        let said = run(
            &format!("{line} || echo FAILED").replace(WRITTEN_URL, &serving.url),
            &place,
        )
        .await;
        assert!(!said.contains("FAILED"), "{line}\n---\n{said}");
        count += 1;
    }
    assert!(count > 3, "{count} commands");
}

#[tokio::test]
async fn the_governed_example_does_what_its_readme_says() {
    let example = root().join("examples/governed");
    let read = |name: &str| fs::read_to_string(example.join(name)).expect("it is there");
    let place = Place::new(&read("tollbridge.toml"));
    let serving = place.serve().await;
    let mut said = String::new();
    for step in steps(&read("README.md")) {
        match step {
            Step::Run(script) => {
                let script = script.replace(WRITTEN_URL, &serving.url);
                said = run(&script, &place).await;
            }
            Step::Expect(line) => {
                assert!(
                    said.lines().any(|it| it.starts_with(&line)),
                    "{line}\n---\n{said}"
                );
            }
        }
    }
    assert!(said.contains("verified: "), "{said}");
    let exported = fs::read_to_string(place.file("audit.csv")).expect("it was written");
    let decisions = |word: &str| exported.lines().filter(|line| line.contains(word)).count();
    assert_eq!(decisions(",BUDGET_EXCEEDED,"), 1, "{exported}");
    assert_eq!(decisions(",PII_DETECTED,"), 1, "{exported}");
    assert_eq!(decisions(",allowed,"), 4, "{exported}");
}

enum Step {
    /// A block of commands.
    Run(String),
    /// A line that the commands before it print.
    Expect(String),
}

/// The blocks of code of `readme`, in order.
fn steps(readme: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for block in split(readme).0 {
        match block.info.as_str() {
            "sh" => steps.push(Step::Run(block.text)),
            "text" => steps.extend(block.text.lines().map(|line| Step::Expect(line.to_owned()))),
            kind => panic!("a block is `sh` or `text`, not `{kind}`"),
        }
    }
    assert!(steps.len() > 10, "the README has steps");
    steps
}

/// What a shell and its commands say, on stdout and stderr.
async fn run(script: &str, place: &Place) -> String {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_tollbridge"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = vec![binary.parent().expect("it is in a directory").to_owned()];
    all.extend(std::env::split_paths(&path));
    let mut command = place.shell(&format!("exec 2>&1\n{script}"));
    command.env("PATH", std::env::join_paths(all).expect("no colons"));
    let output = bounded(command.output()).await.expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
