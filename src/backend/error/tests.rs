use super::*;

#[tokio::test(start_paused = true)]
async fn who_comes_too_early_is_told_when_to_come_back() {
    let wait = Duration::from_millis(1500);
    for (failure, expect) in [
        (BackendError::BreakerOpen { retry_after: wait }, 1500),
        (
            BackendError::BackingOff {
                cause: Box::new(BackendError::SessionGone),
                until: Instant::now() + wait,
            },
            1500,
        ),
        (
            BackendError::InstancesBusy {
                limit: 1,
                key: "pool_size",
            },
            1000,
        ),
        (
            BackendError::Overloaded {
                in_flight: 1,
                queue: 0,
                waited: None,
                retry_after: wait,
            },
            1500,
        ),
        (
            BackendError::Http {
                status: StatusCode::TOO_MANY_REQUESTS,
                body: String::new(),
                retry_after: Some(wait),
            },
            1500,
        ),
        (
            BackendError::StartsLimited {
                starts: 10,
                until: Instant::now() + wait,
            },
            1500,
        ),
    ] {
        let server = ServerName::parse("x").unwrap();
        let data = failure.to_error(&server, None).data.unwrap();
        assert_eq!(data["retryAfterMs"], expect, "{data}");
        assert_eq!(data["retryable"], true, "{data}");
    }
}

/// A client hears no more of `failure`, which has a secret, than `expect`.
fn check(failure: &BackendError, expect: &str) {
    let shown = failure.to_string();
    assert!(shown.contains("secret"), "{shown}");
    let server = ServerName::parse("x").unwrap();
    let error = failure.to_error(&server, None).to_raw();
    let expect = format!("server `x`: {expect}");
    let message = error.get("message");
    let message = message.as_ref().and_then(Raw::as_text);
    assert_eq!(message.as_deref(), Some(&*expect));
    assert!(!error.as_str().contains("secret"), "{}", error.as_str());
}

#[test]
fn a_client_is_told_nothing_that_the_server_wrote() {
    let text = || "a secret".to_owned();
    check(
        &BackendError::ProtocolViolation {
            what: "it is none".to_owned(),
            quoted: text(),
        },
        "protocol violation: it is none",
    );
    check(
        &BackendError::Http {
            status: StatusCode::BAD_GATEWAY,
            body: text(),
            retry_after: None,
        },
        "the server responded with HTTP 502 Bad Gateway",
    );
    check(
        &BackendError::Lost {
            reason: format!("it exited (exit status: 3){STDERR_SEPARATOR}a secret"),
        },
        "connection lost: it exited (exit status: 3)",
    );
    check(
        &BackendError::Lost {
            reason: "it exited (exit status: 0)".to_owned(),
        }
        .with_stray_lines(&[text()]),
        "connection lost: it exited (exit status: 0)",
    );
    check(
        &BackendError::Startup {
            after: Duration::from_secs(1),
            key: "startup_timeout",
            odd: vec![text()],
        },
        "start timed out after 1s (`startup_timeout`)",
    );
    check(
        &BackendError::WorkingDirectory {
            path: text().into(),
            problem: "does not exist",
        },
        "cannot start its program",
    );
    check(
        &BackendError::Refused {
            error: Raw::from_value(&serde_json::json!({ "message": "secret" })),
        },
        "handshake refused",
    );
    check(
        &BackendError::Revision { offered: text() },
        "no common protocol revision",
    );
    check(
        &BackendError::Spawn {
            program: text(),
            error: text(),
        },
        "cannot start its program",
    );
}
