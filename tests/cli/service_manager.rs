//! What a service manager hears.

use rustix::process::Signal;
use tokio::net::UnixDatagram;

use crate::support::{Place, SCRIPT, TOOLBOX, bounded, pids, send};

async fn heard(socket: &UnixDatagram) -> String {
    let mut words = [0; 256];
    let count = bounded(socket.recv(&mut words)).await.expect("a datagram");
    String::from_utf8_lossy(&words[..count]).trim().to_owned()
}

#[tokio::test]
async fn a_service_manager_hears_the_start_the_life_and_the_stop() {
    let place = Place::new(SCRIPT);
    let path = place.file("notify");
    let socket = UnixDatagram::bind(&path).expect("it is bound");
    let serving = place
        .serve_with(&[
            ("NOTIFY_SOCKET", path.to_str().expect("UTF-8")),
            ("WATCHDOG_USEC", "100000"),
        ])
        .await;
    assert_eq!(heard(&socket).await, "READY=1");
    for _ in 0..3 {
        assert_eq!(heard(&socket).await, "WATCHDOG=1");
    }
    let server = pids(&place).await[0];
    let environment = std::fs::read(format!("/proc/{server}/environ")).expect("it runs");
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(!environment.contains("NOTIFY_SOCKET"), "{environment}");

    let ended = serving.end(Signal::TERM).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let last = async { while heard(&socket).await != "STOPPING=1" {} };
    bounded(last).await;
}

/// A reload is over when it is said to be, whether the changed config is taken or refused.
#[tokio::test]
async fn a_service_manager_hears_of_reloads() {
    let place = Place::new(TOOLBOX);
    let path = place.file("notify");
    let socket = UnixDatagram::bind(&path).expect("it is bound");
    let path = path.to_str().expect("UTF-8");
    let serving = place.serve_with(&[("NOTIFY_SOCKET", path)]).await;
    assert_eq!(heard(&socket).await, "READY=1");
    for text in [TOOLBOX, "listen = 5"] {
        std::fs::write(place.file("tollbridge.toml"), text).expect("written");
        send(&serving.child, Signal::HUP);
        let begins = heard(&socket).await;
        let words: Vec<_> = begins.lines().collect();
        let [reloading, time] = *words else {
            panic!("{begins}");
        };
        assert_eq!(reloading, "RELOADING=1");
        let time = time.strip_prefix("MONOTONIC_USEC=");
        assert!(
            time.is_some_and(|time| time.parse::<u64>().is_ok()),
            "{begins}"
        );
        assert_eq!(heard(&socket).await, "READY=1");
    }
    let ended = serving.end(Signal::TERM).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
