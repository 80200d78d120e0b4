//! `serve` and its children: none outlives it, however it ends.

use rustix::process::Signal;

use crate::support::{Place, SCRIPT, TOOLBOX, bounded, gone, pids, runs};

#[tokio::test]
async fn signals_end_it_with_its_children() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new(SCRIPT);
        let serving = place.serve().await;
        let listed = place.run(&["list", "--url", &serving.mcp()]).await;
        assert!(listed.stdout.contains("mcp_script_hang"), "{listed:?}");
        let pids = pids(&place).await;
        assert!(
            pids.len() == 2 && pids.iter().all(|pid| runs(*pid)),
            "{pids:?}"
        );
        let ended = serving.end(signal).await;
        assert_eq!(ended.code, Some(0), "{signal:?}: {ended:?}");
        assert!(!pids.iter().any(|pid| runs(*pid)), "{signal:?}: {pids:?}");
    }
}

#[tokio::test]
async fn a_kill_leaves_no_children() {
    let place = Place::new(SCRIPT);
    let mut serving = place.serve().await;
    let pids = pids(&place).await;
    assert!(pids.iter().all(|pid| runs(*pid)), "{pids:?}");
    bounded(serving.child.kill()).await.expect("it is killed");
    gone(&pids).await;
}

#[tokio::test]
async fn only_our_own_lines_are_logged() {
    let place = Place::new(TOOLBOX);
    let serving = place.serve().await;
    let listed = place.run(&["list", "--url", &serving.mcp()]).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let said = serving.end(Signal::INT).await.stderr;
    assert!(
        said.contains("INFO clients connect to http://127.0.0.1:"),
        "{said}"
    );
    for other in ["serve_inner", "WARN", "\u{1b}"] {
        assert!(!said.contains(other), "{said}");
    }
}
