//! `examples/governed`: what its README says is run as it stands.

use std::{fs, path::PathBuf};

use crate::support::{Place, bounded};

/// Where the README says that the gateway listens.
const WRITTEN_URL: &str = "http://127.0.0.1:8080";

#[tokio::test]
async fn the_governed_example_does_what_its_readme_says() {
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/governed");
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
    assert!(said.contains("every line is as it was written"), "{said}");
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
    let mut blocks = readme.split("```");
    while let (Some(_), Some(block)) = (blocks.next(), blocks.next()) {
        let (kind, text) = block.split_once('\n').expect("a block has a first line");
        match kind {
            "sh" => steps.push(Step::Run(text.to_owned())),
            "text" => steps.extend(text.lines().map(|line| Step::Expect(line.to_owned()))),
            _ => panic!("a block is `sh` or `text`, not `{kind}`"),
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
