//! A gateway that dies in the middle of a change over its API comes back with what it had acknowledged, and with the
//! one change under way either made or not: nothing is half written.
//!
//! `CHAOS_SEED` says which course it takes.

use std::{collections::BTreeMap, time::Duration};

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    binary::{Place, bounded},
    number,
    process::Gateway,
    seeded_random::Dice,
};

const KEY: &str = "tb_Qm7xN2vKp9sLw4TzR8bYh3CdFj6GaEu5";
const CONFIG: &str = r#"
    [governance]
    auth = "keys"
    [agents.root]
    role = "admin"
    keys = ["tb_Qm7xN2vKp9sLw4TzR8bYh3CdFj6GaEu5"]
    [servers.toolbox]
    transport = "builtin"
"#;
const KILLS: u64 = 20;
/// The longest time for which changes are made between two deaths, milliseconds.
const LIFE_MS: u64 = 700;
/// How often a thing says its mark.
const PARTS: usize = 40;
/// Things of a kind that come and go.
const NAMES: u64 = 4;

/// What is changed.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Agents,
    Profiles,
    Servers,
}

/// What there is of a kind: which mark each thing bears.
type Marks = BTreeMap<String, u64>;

impl Kind {
    const ALL: [Self; 3] = [Self::Agents, Self::Profiles, Self::Servers];

    const fn path(self) -> &'static str {
        match self {
            Self::Agents => "agents",
            Self::Profiles => "profiles",
            Self::Servers => "servers",
        }
    }

    /// What a thing says that bears `mark`; long, so that a half of it could be told.
    fn document(self, mark: u64) -> Value {
        let marks = vec![format!("m{mark}"); PARTS];
        match self {
            Self::Agents => {
                json!({ "team": format!("m{mark}"), "terms": { "policy": { "mode": "allowlist", "tools": marks } } })
            }
            Self::Profiles => json!({ "tools": marks }),
            Self::Servers => json!({ "transport": "builtin", "enabled": false, "tags": marks }),
        }
    }

    /// The mark of a thing that is shown, which all of it must bear.
    fn mark(self, shown: &Value) -> u64 {
        let marks = match self {
            Self::Agents => {
                assert_eq!(
                    shown["team"], shown["terms"]["policy"]["tools"][0],
                    "{shown}"
                );
                &shown["terms"]["policy"]["tools"]
            }
            Self::Profiles => &shown["config"]["tools"],
            Self::Servers => &shown["config"]["tags"],
        };
        let marks = marks.as_array().unwrap_or_else(|| panic!("{shown}"));
        assert_eq!(marks.len(), PARTS, "{shown}");
        assert!(marks.iter().all(|mark| *mark == marks[0]), "{shown}");
        marks[0].as_str().unwrap()[1..].parse().unwrap()
    }

    /// A request that leaves `name`, which is there or not, with `after`.
    fn request(self, name: &str, is_there: bool, after: Option<u64>) -> (Method, String, Value) {
        let path = self.path();
        let one = format!("{path}/{name}");
        let document = after.map(|mark| self.document(mark));
        match (document, self) {
            (None, _) => (Method::DELETE, one, json!({})),
            (Some(settings), Self::Agents) if !is_there => {
                let new = json!({ "name": name, "settings": settings });
                (Method::POST, path.to_owned(), new)
            }
            (Some(config), _) if !is_there => {
                let new = json!({ "name": name, "config": config });
                (Method::POST, path.to_owned(), new)
            }
            (Some(settings), Self::Agents) => (Method::PATCH, one, settings),
            (Some(config), _) if after.is_some_and(|mark| mark % 2 == 0) => {
                (Method::PUT, one, config)
            }
            (Some(config), _) => (Method::PATCH, one, config),
        }
    }
}

/// Makes changes one after another, until the gateway is gone: how many were acknowledged, and what was under way.
async fn write(
    (url, client): (String, Client),
    kind: Kind,
    mut dice: Dice,
    mut marks: Marks,
) -> (Marks, u64, (String, Option<u64>)) {
    let mut acknowledged = 0;
    loop {
        let name = format!("x{}", dice.below(NAMES));
        let is_there = marks.contains_key(&name);
        let is_removed = is_there && dice.below(3) == 0;
        let after = (!is_removed).then(|| dice.below(1 << 40));
        let (method, path, body) = kind.request(&name, is_there, after);
        let request = client.request(method, format!("{url}/api/v1/{path}"));
        let answer = request.bearer_auth(KEY).json(&body).send().await;
        let whole = match answer {
            Ok(answer) => {
                let status = answer.status();
                answer.text().await.map(|text| (status, text))
            }
            Err(gone) => Err(gone),
        };
        let Ok((status, text)) = whole else {
            return (marks, acknowledged, (name, after));
        };
        assert!(status.is_success(), "{kind:?} {name}: {status} {text}");
        acknowledged += 1;
        match after {
            Some(mark) => drop(marks.insert(name, mark)),
            None => drop(marks.remove(&name)),
        }
    }
}

/// What a gateway has of a kind beside the file.
async fn marks_of(url: &str, client: &Client, kind: Kind) -> Marks {
    let listed = client.get(format!("{url}/api/v1/{}?limit=500", kind.path()));
    let listed = bounded(listed.bearer_auth(KEY).send()).await.unwrap();
    let listed: Value = listed.json().await.unwrap();
    let items = listed["items"]
        .as_array()
        .unwrap_or_else(|| panic!("{listed}"));
    let stored = items
        .iter()
        .filter(|item| item["source"]["type"] == "store");
    let marks = stored.map(|item| {
        assert_eq!(item.get("reason"), None, "{item}");
        (item["name"].as_str().unwrap().to_owned(), kind.mark(item))
    });
    marks.collect()
}

/// What was acknowledged, and what was under way: of a change that nobody heard of, each is right.
fn check(
    kind: Kind,
    found: &Marks,
    acknowledged: &Marks,
    under_way: &(String, Option<u64>),
) -> bool {
    let (name, after) = under_way;
    let mut made = acknowledged.clone();
    match after {
        Some(mark) => drop(made.insert(name.clone(), *mark)),
        None => drop(made.remove(name)),
    }
    assert!(
        found == acknowledged || *found == made,
        "{kind:?}: {found:?} is neither {acknowledged:?} nor {made:?}"
    );
    *found == made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_made_or_not_when_the_gateway_is_killed() {
    let seed = number("CHAOS_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("CHAOS_SEED={seed}");
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut dice = Dice::new(seed);
    let place = Place::new(CONFIG);
    let client = Client::new();
    let begun = Instant::now();
    let mut known = [Marks::new(), Marks::new(), Marks::new()];
    let (mut acknowledged, mut kept) = (0, 0);
    let mut gateway = Gateway::start(&place).await;
    for _ in 0..KILLS {
        let writers: Vec<_> = Kind::ALL
            .into_iter()
            .zip(known.clone())
            .map(|(kind, marks)| {
                let to = (gateway.url.clone(), client.clone());
                crate::support::wire::spawn(write(to, kind, dice.fork(), marks))
            })
            .collect();
        sleep(Duration::from_millis(dice.below(LIFE_MS))).await;
        gateway.child.kill().await.unwrap();
        let mut ended = Vec::new();
        for writer in writers {
            ended.push(bounded(writer).await.unwrap());
        }
        gateway = Gateway::start(&place).await;
        for ((kind, known), (marks, count, under_way)) in
            Kind::ALL.into_iter().zip(&mut known).zip(ended)
        {
            *known = marks_of(&gateway.url, &client, kind).await;
            kept += u64::from(check(kind, known, &marks, &under_way));
            acknowledged += count;
        }
    }
    println!(
        "{KILLS} kills in {:?}: {acknowledged} changes acknowledged, {kept} that nobody heard of were made",
        begun.elapsed()
    );
    assert!(acknowledged > 0, "nothing was changed");
    let verify = client.post(format!("{}/api/v1/audit/verify", gateway.url));
    let verified = bounded(verify.bearer_auth(KEY).send()).await.unwrap();
    let verified: Value = verified.json().await.unwrap();
    assert_eq!(verified["ok"], true, "{verified}");
    gateway.child.kill().await.unwrap();
}
