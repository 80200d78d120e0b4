//! How a person signs in to servers for an agent: by a link with a one-time code, in a browser.
//!
//! Who may not call a server before they sign in is given a [`SignInLink`]. It opens in a browser in which the agent is
//! logged in (`browser_login`), and nowhere else: nobody connects their account to the agent of another. What comes
//! back from an issuer counts for the browser that went there. Codes are kept in memory; a restart costs a new link.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::time::Instant;
use url::Url;
use uuid::Uuid;

use crate::{
    browser_login::{Expires, LOGIN_LIFETIME, Person, insert_bounded},
    lock::lock,
    names::ServerName,
    session::Session,
    store::GrantOwner,
};

/// How long a link is good for.
pub const LINK_TTL: Duration = Duration::from_secs(10 * 60);
/// A link with less time left is not given out once more.
const LINK_TTL_MIN: Duration = Duration::from_secs(5 * 60);
/// Links and clients that wait, each; the one that ends first gives way.
pub const ENTRIES_MAX: usize = 4096;
/// The characters of codes: none is taken for another, and they make no words.
const CODE_DIGITS: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";
/// Characters of a code, in two halves.
const CODE_LENGTH: usize = 10;

/// Where a person signs in, and with which code.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SignInLink {
    /// The URL, with the code in it.
    pub url: String,
    /// The URL without the code.
    pub page: String,
    /// The code.
    pub code: String,
    /// What an elicitation is called that asks for it.
    pub elicitation: String,
}

/// For whom a link is.
#[derive(Clone, Debug)]
pub struct LinkTarget {
    /// Who signs in.
    pub person: Person,
    /// To which server, where it is for one.
    pub server: Option<ServerName>,
    /// Whether the operator made it (`tollbridge login`), who may act for every agent.
    pub is_by_operator: bool,
}

/// The links that were given out, and the clients that wait.
#[derive(Debug, Default)]
pub struct SignIns {
    /// The URL of the gateway, without a slash at its end.
    base: ArcSwap<String>,
    state: Mutex<SignInState>,
}

#[derive(Debug, Default)]
struct SignInState {
    /// By code.
    links: HashMap<String, PendingLink>,
    /// Elicitations of clients that wait to hear that one is signed in.
    elicitations: HashMap<(String, usize), Elicitation>,
}

#[derive(Debug)]
struct PendingLink {
    target: LinkTarget,
    elicitation: String,
    expires: Instant,
}

#[derive(Debug)]
struct Elicitation {
    owner: GrantOwner,
    server: ServerName,
    session: Weak<Session>,
    expires: Instant,
}

macro_rules! expires {
    ($($kind:ty),*) => { $(
        impl Expires for $kind {
            fn expires(&self) -> Instant {
                self.expires
            }
        }
    )* };
}

expires!(PendingLink, Elicitation);

impl SignIns {
    /// Lets links begin with `base` from now on; until then there is no page that they could lead to.
    pub fn set_base(&self, base: &str) {
        self.base
            .store(Arc::new(base.trim_end_matches('/').to_owned()));
    }

    /// What links begin with.
    pub fn base(&self) -> Arc<String> {
        self.base.load_full()
    }

    /// The path of the page, as browsers know it; for the link with `code`.
    pub fn page_path(&self, code: Option<&str>) -> String {
        let base = Url::parse(&self.base.load());
        let base = base.map(|base| base.path().trim_end_matches('/').to_owned());
        let path = format!("{}/connections", base.unwrap_or_default());
        match code {
            Some(code) => format!("{path}?code={}", normalized_code(code)),
            None => path,
        }
    }

    /// Whether the browsers of this gateway speak TLS to it, as far as its URL says.
    pub fn is_secure(&self) -> bool {
        self.base.load().starts_with("https:")
    }

    /// A link for `target`: the one that was given out before while it is good for long enough. `session` hears of
    /// it when its person has signed in.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn link(
        &self,
        target: LinkTarget,
        session: Option<&Arc<Session>>,
    ) -> Result<SignInLink, getrandom::Error> {
        let now = Instant::now();
        let mut state = self.lock();
        let is_same = |link: &PendingLink| {
            link.target.person.owner() == target.person.owner()
                && link.target.server == target.server
                && link.target.is_by_operator == target.is_by_operator
                && link.expires >= now + LINK_TTL_MIN
        };
        let known = state.links.iter().find(|(_, link)| is_same(link));
        let known = known.map(|(code, link)| (code.clone(), link.elicitation.clone()));
        let (code, elicitation) = match known {
            Some(known) => known,
            None => (new_code()?, Uuid::new_v4().to_string()),
        };
        if let (Some(session), Some(server)) = (session, &target.server) {
            let waiting = Elicitation {
                owner: target.person.owner(),
                server: server.clone(),
                session: Arc::downgrade(session),
                expires: now + LOGIN_LIFETIME,
            };
            let key = (elicitation.clone(), Arc::as_ptr(session).addr());
            insert_bounded(&mut state.elicitations, key, waiting, ENTRIES_MAX);
        }
        if !state.links.contains_key(&code) {
            let link = PendingLink {
                target,
                elicitation: elicitation.clone(),
                expires: now + LINK_TTL,
            };
            insert_bounded(&mut state.links, code.clone(), link, ENTRIES_MAX);
        }
        let page = format!("{}/connections", self.base.load());
        Ok(SignInLink {
            url: format!("{page}?code={code}"),
            page,
            code,
            elicitation,
        })
    }

    /// For whom the link with `code` is; it stays good.
    pub fn target(&self, code: &str) -> Option<LinkTarget> {
        let state = self.lock();
        let link = state.links.get(&normalized_code(code))?;
        (link.expires > Instant::now()).then(|| link.target.clone())
    }

    /// For whom the link with `code` is, which is good no more.
    pub fn take(&self, code: &str) -> Option<LinkTarget> {
        let link = self.lock().links.remove(&normalized_code(code))?;
        (link.expires > Instant::now()).then_some(link.target)
    }

    /// The elicitations that are done now that `owner` has signed in to `server`, and whose sessions wait to hear
    /// of that.
    pub fn finish(&self, owner: GrantOwner, server: &ServerName) -> Vec<(String, Arc<Session>)> {
        let mut state = self.lock();
        let is_done = |owned: GrantOwner, at: &ServerName| owned == owner && at == server;
        state.links.retain(|_, link| {
            let at = link.target.server.as_ref();
            !at.is_some_and(|at| is_done(link.target.person.owner(), at))
        });
        let done = state
            .elicitations
            .extract_if(|_, waiting| is_done(waiting.owner, &waiting.server));
        done.filter_map(|((id, _), waiting)| Some((id, waiting.session.upgrade()?)))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, SignInState> {
        lock(&self.state)
    }
}

fn new_code() -> Result<String, getrandom::Error> {
    let mut code = String::new();
    while code.len() < CODE_LENGTH {
        let mut random = [0; 16];
        getrandom::fill(&mut random)?;
        // No digit is likelier than another.
        let fair = random.iter().filter(|byte| **byte < 240);
        let digits = fair.map(|byte| char::from(CODE_DIGITS[usize::from(byte % 20)]));
        code.extend(digits.take(CODE_LENGTH - code.len()));
    }
    code.insert(CODE_LENGTH / 2, '-');
    Ok(code)
}

/// A code as people may type it.
fn normalized_code(text: &str) -> String {
    let letters = text.chars().filter(char::is_ascii_alphanumeric);
    let mut code: String = letters.map(|it| it.to_ascii_uppercase()).collect();
    if code.len() == CODE_LENGTH {
        code.insert(CODE_LENGTH / 2, '-');
    }
    code
}

/// The host of a URL, for people.
pub fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port()
        .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Agent;

    fn agent(name: &str) -> Person {
        let id = crate::names::AgentId(Uuid::new_v5(&Uuid::nil(), name.as_bytes()));
        Person::Agent(Arc::new(Agent {
            id,
            name: name.to_owned(),
            ..Agent::anonymous()
        }))
    }

    fn signs_in() -> SignIns {
        let signs = SignIns::default();
        signs.set_base("https://gw.example/");
        signs
    }

    fn at(person: &Person, server: &str) -> LinkTarget {
        LinkTarget {
            person: person.clone(),
            server: Some(ServerName::parse(server).unwrap()),
            is_by_operator: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_opens_one_browser_and_within_its_time() {
        let signs = signs_in();
        let ann = agent("ann");
        let link = signs.link(at(&ann, "x"), None).unwrap();
        assert_eq!(
            link.url,
            format!("https://gw.example/connections?code={}", link.code)
        );
        assert_eq!(link.code.len(), CODE_LENGTH + 1);
        assert_eq!(signs.link(at(&ann, "x"), None).unwrap(), link, "one link");
        let other = signs.link(at(&ann, "y"), None).unwrap();
        assert_ne!(other.code, link.code);
        let by_operator = LinkTarget {
            is_by_operator: true,
            ..at(&ann, "x")
        };
        let by_operator = signs.link(by_operator, None).unwrap();
        assert_ne!(by_operator.code, link.code, "it opens without a login");
        let typed = link.code.to_lowercase().replace('-', " ");
        assert_eq!(signs.target(&typed).unwrap().person.name(), "ann");
        assert!(signs.take(&typed).is_some());
        assert!(signs.take(&typed).is_none(), "only once");
        tokio::time::advance(LINK_TTL).await;
        assert!(signs.target(&other.code).is_none());
        assert!(signs.take(&other.code).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_is_given_out_again_while_it_is_good_for_long() {
        let signs = signs_in();
        let ann = agent("ann");
        let first = signs.link(at(&ann, "x"), None).unwrap();
        let spent = LINK_TTL.checked_sub(LINK_TTL_MIN).unwrap();
        tokio::time::advance(spent).await;
        assert_eq!(signs.link(at(&ann, "x"), None).unwrap(), first);
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = signs.link(at(&ann, "x"), None).unwrap();
        assert_ne!(second.code, first.code);
        assert!(
            signs.target(&first.code).is_some(),
            "it is good all the same"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_links_are_kept() {
        let signs = signs_in();
        let link = |number: usize| {
            let person = agent(&number.to_string());
            signs.link(at(&person, "x"), None).unwrap().code
        };
        let first = link(0);
        tokio::time::advance(Duration::from_millis(1)).await;
        let second = link(1);
        for number in 2..ENTRIES_MAX {
            link(number);
        }
        assert!(signs.target(&first).is_some());
        link(ENTRIES_MAX);
        assert!(signs.target(&first).is_none());
        assert!(signs.target(&second).is_some());
    }
}
