//! Tools that come back with questions of their own choosing (SEP-2322), some in several rounds,
//! some with a state that the client keeps for them.
//!
//! On a handshake connection the same tools push the same questions and need no state.

use rmcp::model::{
    CallToolResponse, ErrorData, InputRequest, InputRequests, InputRequiredResult, InputResponses,
};
use serde::{Deserialize, Serialize};

use crate::ask::{self, Asked};
use crate::tools::{Call, text};

pub(super) async fn call(call: &Call) -> Result<CallToolResponse, ErrorData> {
    match call.request.name.as_ref() {
        "test_input_required_result_elicitation" => {
            let question = one("user_name", name_question("What is your name?"));
            without_state(call, question, |answers| {
                format!("Hello, {}!", ask::filled_in(answers, "user_name", "name"))
            })
            .await
        }
        "test_input_required_result_sampling" => {
            let question = one(
                "capital_question",
                ask::sampling("What is the capital of France?"),
            );
            without_state(call, question, |answers| {
                answers["capital_question"].to_string()
            })
            .await
        }
        "test_input_required_result_list_roots" => {
            let question = one("client_roots", ask::roots());
            without_state(call, question, |answers| {
                answers["client_roots"].to_string()
            })
            .await
        }
        "test_input_required_result_multiple_inputs" => with_state(call, three_questions()).await,
        "test_input_required_result_multi_round" => one_after_the_other(call).await,
        "test_input_required_result_capabilities" => only_what_it_can(call).await,
        _ => {
            let question = ask::elicitation("Please confirm", &ask::form("ok", "boolean"));
            with_state(call, one("confirm", question)).await
        }
    }
}

async fn without_state(
    call: &Call,
    questions: InputRequests,
    answer: impl Fn(&InputResponses) -> String,
) -> Result<CallToolResponse, ErrorData> {
    match call.ask(questions).await? {
        Asked::Answered(answers) => Ok(text(answer(&answers)).into()),
        Asked::Pending(questions) => Ok(InputRequiredResult::from_input_requests(questions).into()),
    }
}

/// Completes only when the client also brings back the state that came with the questions.
async fn with_state(call: &Call, questions: InputRequests) -> Result<CallToolResponse, ErrorData> {
    let asked_before = call.state::<AskedBefore>()?.is_some();
    match call.ask(questions.clone()).await? {
        Asked::Answered(_) if asked_before || !ask::is_modern(&call.context) => {
            Ok(text("state-ok").into())
        }
        Asked::Answered(_) | Asked::Pending(_) => Ok(call.require(questions, &AskedBefore {})),
    }
}

async fn one_after_the_other(call: &Call) -> Result<CallToolResponse, ErrorData> {
    let learned: Learned = call.state()?.unwrap_or_default();
    let name = if let Some(name) = learned.name {
        name
    } else {
        let question = one("step1", name_question("Step 1: What is your name?"));
        match call.ask(question).await? {
            Asked::Answered(answers) => ask::filled_in(&answers, "step1", "name"),
            Asked::Pending(questions) => return Ok(call.require(questions, &Learned::default())),
        }
    };
    let form = ask::form("color", "string");
    let question = one(
        "step2",
        ask::elicitation("Step 2: What is your favorite color?", &form),
    );
    match call.ask(question).await? {
        Asked::Answered(answers) => {
            let color = ask::filled_in(&answers, "step2", "color");
            Ok(text(format!("{name} likes {color}")).into())
        }
        Asked::Pending(questions) => Ok(call.require(questions, &Learned { name: Some(name) })),
    }
}

async fn only_what_it_can(call: &Call) -> Result<CallToolResponse, ErrorData> {
    let client = call.context.client_capabilities().unwrap_or_default();
    let mut questions = three_questions();
    questions.retain(|_, question| ask::is_declared(question, &client));
    if questions.is_empty() {
        return Ok(text("the client can be asked nothing").into());
    }
    without_state(call, questions, |answers| {
        format!("{} answers", answers.len())
    })
    .await
}

/// Sent along to see whether it comes back.
#[derive(Deserialize, Serialize)]
struct AskedBefore {}

/// What `test_input_required_result_multi_round` knows so far.
#[derive(Default, Deserialize, Serialize)]
struct Learned {
    name: Option<String>,
}

fn three_questions() -> InputRequests {
    InputRequests::from([
        ("user_name".to_owned(), name_question("What is your name?")),
        ("greeting".to_owned(), ask::sampling("Generate a greeting")),
        ("client_roots".to_owned(), ask::roots()),
    ])
}

fn name_question(message: &str) -> InputRequest {
    ask::elicitation(message, &ask::form("name", "string"))
}

fn one(key: &str, question: InputRequest) -> InputRequests {
    InputRequests::from([(key.to_owned(), question)])
}
