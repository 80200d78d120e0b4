//! `config export`: what stands in the store is in the file too.

use crate::support::Place;

#[tokio::test]
async fn agents_of_the_store_are_in_the_export_without_their_keys() {
    let place =
        Place::new("[servers.toolbox]\ntransport = \"builtin\"\n[governance]\nauth = \"keys\"\n");
    let nothing = place.run(&["config", "export"]).await;
    assert_eq!(nothing.code, Some(0), "{nothing:?}");
    assert!(!place.file("data").exists(), "nothing is made");
    let add = [
        "agents", "add", "bob", "--team", "ops", "--budget", "2.50/day",
    ];
    let added = place.run(&add).await;
    assert_eq!(added.code, Some(0), "{added:?}");
    let created = place.run(&["keys", "create", "bob"]).await;
    assert_eq!(created.code, Some(0), "{created:?}");
    let shown = place.run(&["agents", "show", "bob", "--json"]).await.json();
    let first = place.run(&["config", "export"]).await;
    let lacks = "#\n# Not in it: keys of agents that the store has as hashes:\n#   bob: 1\n";
    assert!(first.stdout.contains(lacks), "{first:?}");
    // The variable of the test that overrides the key is no setting of the file.
    assert!(
        first.stdout.contains("#   TOLLBRIDGE_DATA_DIR\n"),
        "{first:?}"
    );
    assert!(!first.stdout.contains("data_dir"), "{first:?}");

    let again = Place::new(&first.stdout);
    let mut made = again.run(&["agents", "show", "bob", "--json"]).await.json();
    assert_eq!(made["origin"], "config");
    for key in ["origin", "created"] {
        made[key] = shown[key].clone();
    }
    assert_eq!(made, shown);
    let second = again.run(&["config", "export"]).await;
    assert_eq!(second.stdout, first.stdout.replace(lacks, ""));
}
