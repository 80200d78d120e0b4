//! What is left behind by whoever does not wait for the end of a call.

use std::{borrow::Cow, sync::OnceLock};

use futures_util::FutureExt as _;
use tempfile::TempDir;

use super::*;
use crate::{
    audit::{self, AuditLog},
    auth::{Agent, AgentDirectory},
    clock,
    config::{self, Budget, Config, ConfigText, Durability, Environment, Window},
    governance::{
        Seal, Storage,
        budget::{self, AppliedBudget, Budgets},
    },
    mcp::{Id, LogFilter, Method, Raw, Request, Revision, error},
    names::Scope,
    session::{Call, Client, ClientInfo, Interest},
    store::{BudgetSubject, Store},
};

const PRICE: Micros = Micros::new(15_000);

#[tokio::test]
async fn whoever_gives_up_an_answer_leaves_its_record_and_its_price_behind() {
    for charge in [false, true] {
        // Given up while other lines may join the record, and while it is on its way to the disk.
        check_given_up(Durability::Process, 1, charge).await;
        check_given_up(Durability::Disk, 2, charge).await;
    }
}

/// What callers make up is looked at once, however many lines say it.
#[test]
fn names_are_masked_once() {
    let mut call = call();
    call.method = Method::PromptsGet;
    let context = CallContext::open(&call);
    call.params = Some(Raw::from_static(r#"{"name":"ann.lee@example.org"}"#).into());
    let named = CallContext::open(&call);
    let ended = RecordedOutcome::failed("not_found", false);
    let [first, second] = [(); 2].map(|()| named.record(&ended, None));
    let other = context.record(&ended, None);
    let place =
        |name: &Option<Cow<'_, str>>| name.as_deref().map(|name| (name.to_owned(), name.as_ptr()));
    for (one, two) in [
        (&first.exposed, &second.exposed),
        (&first.client, &second.client),
        (&first.client, &other.client),
    ] {
        assert_eq!(one.as_deref(), Some("[EMAIL]"));
        assert_eq!(place(one), place(two), "it is the same");
    }
}

async fn check_given_up(durability: Durability, polls: usize, charge: bool) {
    let place = TempDir::new().unwrap();
    let store = Store::open(place.path()).await.unwrap();
    let directory = place.path().join("audit");
    let governance = governance(&store, &directory, durability);
    let budgets = governance.storage.budgets.clone().unwrap();
    let limit = Micros::new(2 * PRICE.get());
    let window = Window::Total;
    let two_calls = [AppliedBudget::new(
        BudgetSubject::team("t"),
        Budget { limit, window },
    )];
    let mut context = governance.open(&call());
    context.price = PRICE;
    let held = budgets.hold(&two_calls, PRICE, clock::now()).await;
    context.hold = Some(held.unwrap());
    let ending = CallOutcome::Failed {
        error: RpcError::new(error::INTERNAL, "gone"),
        delivered: charge,
        reason: FailureReason::Lost,
    };
    let mut settled = Box::pin(governance.settle(context, ending));
    // The writer may be done already, and the disk.
    if settled.as_mut().now_or_never().is_none() {
        let early = budgets.hold(&two_calls, limit, clock::now()).await;
        assert!(early.is_err(), "the price is held until there is a record");
        let _ = (1..polls).any(|_| settled.as_mut().now_or_never().is_some());
    }
    drop(settled);

    let chain = governance.audit().chain().unwrap();
    let total = audit::chain_total(&directory, chain).unwrap().unwrap();
    let spent = if charge { PRICE } else { Micros::ZERO };
    assert_eq!(total.calls, 1);
    assert_eq!(
        total.charged.values().map(|sum| sum.get()).sum::<u64>(),
        spent.get()
    );
    let left = limit.get() - spent.get();
    let rest = budgets.hold(&two_calls, Micros::new(left), clock::now());
    rest.await.unwrap().settle();
    let none = budgets.hold(&two_calls, PRICE, clock::now()).await;
    assert!(
        matches!(none, Err(budget::BudgetRefusal::Exceeded(_))),
        "{none:?}"
    );
}

pub(in crate::governance) fn governance(
    store: &Store,
    directory: &std::path::Path,
    durability: Durability,
) -> Governance {
    let config = config();
    let audit = config::Audit {
        durability,
        ..config.audit
    };
    let storage = Storage {
        directory: Arc::new(AgentDirectory::new(
            config.governance.auth,
            std::iter::empty(),
        )),
        audit: Arc::new(AuditLog::open(directory, audit).unwrap()),
        budgets: Some(Arc::new(Budgets::new(Arc::clone(&store.leases), "test"))),
        seal: Seal::new(&[0; 32]),
        tasks: Some(Arc::clone(&store.tasks)),
    };
    Governance::new(&config, storage).unwrap()
}

fn config() -> Config {
    let source = ConfigText {
        name: "test.toml".to_owned(),
        format: config::ConfigFormat::Toml,
        text: String::new(),
        directory: std::path::PathBuf::new(),
    };
    config::parse([source], &Environment::default())
        .unwrap()
        .config
}

fn call() -> Box<Call> {
    let request = Request {
        id: Id::number(1),
        method: Method::ToolsCall,
        params: Some(Raw::from_static(r#"{"name":"echo"}"#).into()),
    };
    let opening = ClientInfo {
        revision: Revision::LEGACY,
        info: Some(Raw::from_static(r#"{"name":"ann.lee@example.org"}"#)),
        display_name: OnceLock::new(),
        capabilities: Raw::from_static("{}"),
        profile: Arc::default(),
    };
    let client = Client {
        agent: Arc::new(Agent::anonymous()),
        client_info: Arc::new(opening),
        session: None,
        forwarded: None,
        missing_scopes: None,
    };
    let wants = Interest {
        logs: LogFilter::None,
        progress_token: None,
    };
    Call::new(request, Arc::new(client), Scope::All, wants).0
}
