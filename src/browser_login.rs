//! Who is logged in to the gateway in a browser, for all of its pages.
//!
//! A browser is known by a random cookie, [`BrowserCookie`]; of a browser in which nobody is logged in nothing is
//! kept. [`BrowserLogins`] knows, by the hash of the cookie, who is: by the key of an agent, a login code, or an issuer
//! of OpenID Connect ([`BrowserLogin::new`]), or by a link that proves no more than that its person may act for an
//! agent at servers ([`BrowserLogin::by_link`]). A login has a cookie of its own, so that one that somebody placed in
//! the browser beforehand opens nothing. Logins are kept in memory: after a restart people log in again.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, Hash},
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    HeaderMap, HeaderValue,
    header::{COOKIE, SET_COOKIE},
};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{
    auth::{Agent, AgentDirectory, token::TokenSubject},
    lock::lock,
    names::AgentId,
    store::GrantOwner,
};

/// How long somebody stays logged in where they sign in to servers.
pub const LOGIN_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// How long somebody stays logged in in the dashboard: a working day.
pub const DASHBOARD_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// How long a code opens the dashboard.
pub const DASHBOARD_CODE_LIFETIME: Duration = Duration::from_secs(5 * 60);
/// Codes for the dashboard at a time; the one that ends first gives way.
const DASHBOARD_CODES_MAX: usize = 64;
/// Logins at a time; the one that ends first gives way.
pub const LOGINS_MAX: usize = 4096;

/// The pages that know a browser by one cookie, and in which the same person is logged in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BrowserPages {
    /// Where people sign in to servers and let clients in. Issuers and clients link there.
    SignIn,
    /// The dashboard. No other site leads into it logged in.
    Dashboard,
}

impl BrowserPages {
    /// The name of the cookie. Where browsers speak TLS they take one with this prefix from this host alone, over
    /// TLS; without TLS is for this machine.
    fn cookie_name(self, is_secure: bool) -> &'static str {
        match (self, is_secure) {
            (Self::SignIn, true) => "__Host-tollbridge",
            (Self::SignIn, false) => "tollbridge",
            (Self::Dashboard, true) => "__Host-tollbridge-dashboard",
            (Self::Dashboard, false) => "tollbridge-dashboard",
        }
    }

    /// Which requests that other sites make come with the cookie: links, or none.
    fn same_site(self) -> &'static str {
        match self {
            Self::SignIn => "Lax",
            Self::Dashboard => "Strict",
        }
    }

    /// How long somebody stays logged in.
    fn lifetime(self) -> Duration {
        match self {
            Self::SignIn => LOGIN_LIFETIME,
            Self::Dashboard => DASHBOARD_LIFETIME,
        }
    }
}

/// Who uses a browser.
#[derive(Clone, Debug)]
pub enum Person {
    /// Whoever uses the agent.
    Agent(Arc<Agent>),
    /// The operator, for all agents.
    Gateway,
}

impl Person {
    /// Whose their grants towards servers are.
    pub fn owner(&self) -> GrantOwner {
        match self {
            Self::Agent(agent) => GrantOwner::Agent(agent.id),
            Self::Gateway => GrantOwner::Gateway,
        }
    }

    /// Whether it is who uses the agent `id`.
    pub fn is_agent(&self, id: AgentId) -> bool {
        self.owner() == GrantOwner::Agent(id)
    }

    /// What people call them.
    pub fn name(&self) -> &str {
        match self {
            Self::Agent(agent) => &agent.name,
            Self::Gateway => "the gateway",
        }
    }
}

/// Somebody who is logged in.
#[derive(Clone, Debug)]
pub struct BrowserLogin {
    /// Who it is.
    pub person: Person,
    /// As whom they may grant clients access; `None` for who came by a link.
    pub subject: Option<TokenSubject>,
    /// What they are called, such as by the issuer where they logged in.
    pub name: String,
}

impl BrowserLogin {
    /// That of who has shown to be `subject`, which is `agent`.
    pub fn new(agent: Arc<Agent>, subject: TokenSubject, name: String) -> Self {
        Self {
            person: Person::Agent(agent),
            subject: Some(subject),
            name,
        }
    }

    /// That of who has shown a link for `person` and nothing else.
    pub fn by_link(person: Person) -> Self {
        Self {
            name: person.name().to_owned(),
            person,
            subject: None,
        }
    }

    /// Whether they may stay: neither was the agent disabled or removed since, nor one of its credentials revoked.
    pub fn is_valid(&self, directory: &AgentDirectory) -> bool {
        match &self.person {
            Person::Agent(agent) => agent.enabled && directory.is_still_authorized(agent),
            Person::Gateway => true,
        }
    }
}

/// The logins that last.
#[derive(Debug)]
pub struct BrowserLogins {
    /// Where they are logged in.
    pages: BrowserPages,
    /// By the hash of their cookie.
    logins: Mutex<HashMap<[u8; 32], KeptLogin>>,
}

#[derive(Debug)]
struct KeptLogin {
    login: BrowserLogin,
    expires: Instant,
}

impl Expires for KeptLogin {
    fn expires(&self) -> Instant {
        self.expires
    }
}

impl BrowserLogins {
    /// None yet, for `pages`.
    pub fn new(pages: BrowserPages) -> Self {
        Self {
            pages,
            logins: Mutex::default(),
        }
    }

    /// Keeps a login, in place of the one of the browser with the cookie `before`: the cookie that the browser is
    /// known by from now on.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn open(
        &self,
        login: BrowserLogin,
        before: &BrowserCookie,
    ) -> Result<BrowserCookie, getrandom::Error> {
        let cookie = BrowserCookie::new()?;
        let expires = Instant::now() + self.pages.lifetime();
        let mut logins = lock(&self.logins);
        logins.remove(&before.hash());
        let kept = KeptLogin { login, expires };
        insert_bounded(&mut logins, cookie.hash(), kept, LOGINS_MAX);
        Ok(cookie)
    }

    /// Who is logged in in the browser with this cookie, as far as `directory` lets them stay.
    pub fn get(&self, cookie: &BrowserCookie, directory: &AgentDirectory) -> Option<BrowserLogin> {
        let mut logins = lock(&self.logins);
        let kept = logins.get(&cookie.hash())?;
        if kept.expires > Instant::now() && kept.login.is_valid(directory) {
            return Some(kept.login.clone());
        }
        logins.remove(&cookie.hash());
        None
    }

    /// Ends the login of the browser with this cookie.
    pub fn close(&self, cookie: &BrowserCookie) {
        lock(&self.logins).remove(&cookie.hash());
    }
}

/// The value of the cookie that a browser is known by.
#[derive(Clone)]
pub struct BrowserCookie(String);

impl BrowserCookie {
    /// One for a browser of which nothing is known.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)?;
        Ok(Self(URL_SAFE_NO_PAD.encode(random)))
    }

    /// The one that a browser sends.
    pub fn of(headers: &HeaderMap, pages: BrowserPages, is_secure: bool) -> Option<Self> {
        let name = pages.cookie_name(is_secure);
        let lines = headers.get_all(COOKIE).iter();
        let lines = lines.filter_map(|line| line.to_str().ok());
        let mut pairs = lines.flat_map(|line| line.split(';'));
        pairs.find_map(|pair| {
            let (found, value) = pair.trim().split_once('=')?;
            (found == name && !value.is_empty()).then(|| Self(value.to_owned()))
        })
    }

    /// Lets the browser that gets a response with `headers` keep it for `pages`. No script reads it.
    pub fn set_in(&self, headers: &mut HeaderMap, pages: BrowserPages, is_secure: bool) {
        let name = pages.cookie_name(is_secure);
        let secure = if is_secure { "; Secure" } else { "" };
        let (cookie, seconds, same_site) = (&self.0, pages.lifetime().as_secs(), pages.same_site());
        let value = format!(
            "{name}={cookie}; Path=/; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}"
        );
        if let Ok(mut value) = HeaderValue::try_from(value) {
            value.set_sensitive(true);
            headers.insert(SET_COOKIE, value);
        }
    }

    /// What the browser proves itself with where it comes back from elsewhere: no secret of its pages.
    pub fn binding(&self) -> String {
        self.derived("binding")
    }

    /// What a form must have that was made for the browser, so that no other site can send one (CSRF).
    pub fn form_token(&self) -> String {
        self.derived("form")
    }

    /// Whether `token` is that of the browser. How long that takes says nothing of it.
    pub fn is_form_token(&self, token: &str) -> bool {
        Sha256::digest(token) == Sha256::digest(self.form_token())
    }

    fn derived(&self, purpose: &str) -> String {
        let hash = Sha256::new_with_prefix(purpose).chain_update(&self.0);
        URL_SAFE_NO_PAD.encode(hash.finalize())
    }

    fn hash(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }
}

impl fmt::Debug for BrowserCookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrowserCookie(***)")
    }
}

/// One-time codes that open the dashboard as the operator, whom the command line knows.
#[derive(Debug, Default)]
pub struct DashboardCodes {
    /// When each ends, by its hash.
    codes: Mutex<HashMap<[u8; 32], CodeEnd>>,
}

#[derive(Debug)]
struct CodeEnd(Instant);

impl Expires for CodeEnd {
    fn expires(&self) -> Instant {
        self.0
    }
}

impl DashboardCodes {
    /// A new code, good once within [`DASHBOARD_CODE_LIFETIME`].
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn add(&self) -> Result<String, getrandom::Error> {
        let BrowserCookie(code) = BrowserCookie::new()?;
        let (hash, end) = (
            Sha256::digest(&code).into(),
            Instant::now() + DASHBOARD_CODE_LIFETIME,
        );
        insert_bounded(
            &mut lock(&self.codes),
            hash,
            CodeEnd(end),
            DASHBOARD_CODES_MAX,
        );
        Ok(code)
    }

    /// Whether `code` is good, which it is no more.
    pub fn take(&self, code: &str) -> bool {
        let hash: [u8; 32] = Sha256::digest(code).into();
        let found = lock(&self.codes).remove(&hash);
        found.is_some_and(|CodeEnd(end)| end > Instant::now())
    }
}

/// The fields of a form, or of a query.
#[derive(Clone, Debug, Default)]
pub struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// Those of a body or query of `application/x-www-form-urlencoded`.
    pub fn parse(encoded: &[u8]) -> Self {
        let fields = url::form_urlencoded::parse(encoded);
        Self(fields.into_owned().collect())
    }

    /// The field `name`; empty where there is none.
    pub fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let fields = self.0.iter();
        fields.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// What ends at a time.
pub trait Expires {
    /// When it ends.
    fn expires(&self) -> Instant;
}

/// Adds an entry, after those whose time has passed are gone; the one that ends first gives way where there are `max`.
pub fn insert_bounded<K: Clone + Eq + Hash, V: Expires, S: BuildHasher>(
    entries: &mut HashMap<K, V, S>,
    key: K,
    value: V,
    max: usize,
) {
    let now = Instant::now();
    entries.retain(|_, entry| entry.expires() > now);
    if entries.len() >= max {
        let oldest = entries.iter().min_by_key(|(_, entry)| entry.expires());
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            entries.remove(&key);
        }
    }
    entries.insert(key, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Authentication;

    fn directory() -> AgentDirectory {
        AgentDirectory::new(Authentication::ANONYMOUS, std::iter::empty())
    }

    fn login(number: usize) -> BrowserLogin {
        let subject = TokenSubject::Agent(AgentId::ANONYMOUS);
        BrowserLogin::new(Arc::new(Agent::anonymous()), subject, number.to_string())
    }

    fn cookie() -> BrowserCookie {
        BrowserCookie::new().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn somebody_is_logged_in_in_one_browser_for_a_while() {
        let (logins, directory) = (BrowserLogins::new(BrowserPages::SignIn), directory());
        let before = cookie();
        let first = logins.open(login(1), &before).unwrap();
        assert!(logins.get(&before, &directory).is_none(), "a new cookie");
        assert_eq!(logins.get(&first, &directory).unwrap().name, "1");
        let second = logins.open(login(2), &first).unwrap();
        assert!(logins.get(&first, &directory).is_none(), "it is another's");
        let other = logins.open(login(3), &cookie()).unwrap();
        logins.close(&other);
        assert!(logins.get(&other, &directory).is_none());
        let last = Duration::from_secs(1);
        tokio::time::advance(LOGIN_LIFETIME.saturating_sub(last)).await;
        assert!(logins.get(&second, &directory).is_some());
        tokio::time::advance(last).await;
        assert!(logins.get(&second, &directory).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_logins_are_kept() {
        let (logins, directory) = (BrowserLogins::new(BrowserPages::SignIn), directory());
        let open = async |number| {
            tokio::time::advance(Duration::from_millis(1)).await;
            logins.open(login(number), &cookie()).unwrap()
        };
        let (first, second) = (open(0).await, open(1).await);
        for number in 2..LOGINS_MAX {
            open(number).await;
        }
        assert!(logins.get(&first, &directory).is_some());
        open(LOGINS_MAX).await;
        assert!(logins.get(&first, &directory).is_none());
        assert!(logins.get(&second, &directory).is_some());
    }

    #[tokio::test]
    async fn who_may_not_come_in_any_longer_is_logged_out() {
        let (logins, directory) = (BrowserLogins::new(BrowserPages::SignIn), directory());
        let mut agent = Agent::anonymous();
        agent.revocations += 1;
        let subject = TokenSubject::Agent(agent.id);
        let revoked = BrowserLogin::new(Arc::new(agent), subject, "x".to_owned());
        let revoked = logins.open(revoked, &cookie()).unwrap();
        assert!(logins.get(&revoked, &directory).is_none());
        let disabled = BrowserLogin::by_link(Person::Agent(Arc::new(Agent::unauthenticated())));
        let disabled = logins.open(disabled, &cookie()).unwrap();
        assert!(logins.get(&disabled, &directory).is_none());
        let operator = BrowserLogin::by_link(Person::Gateway);
        let operator = logins.open(operator, &cookie()).unwrap();
        assert!(logins.get(&operator, &directory).is_some());
    }

    #[test]
    fn cookies_are_for_this_site_and_no_script() {
        let made = cookie();
        let (sign_in, dashboard) = (BrowserPages::SignIn, BrowserPages::Dashboard);
        for (pages, is_secure, start, end) in [
            (
                sign_in,
                true,
                "__Host-tollbridge=",
                "; Max-Age=3600; HttpOnly; SameSite=Lax; Secure",
            ),
            (sign_in, false, "tollbridge=", "; HttpOnly; SameSite=Lax"),
            (
                dashboard,
                true,
                "__Host-tollbridge-dashboard=",
                "; Max-Age=43200; HttpOnly; SameSite=Strict; Secure",
            ),
            (
                dashboard,
                false,
                "tollbridge-dashboard=",
                "; HttpOnly; SameSite=Strict",
            ),
        ] {
            let mut headers = HeaderMap::new();
            made.set_in(&mut headers, pages, is_secure);
            let set = headers[SET_COOKIE].to_str().unwrap();
            assert!(set.starts_with(start) && set.ends_with(end), "{set}");
            assert!(
                set.contains("; Path=/;") && !set.contains("Domain"),
                "{set}"
            );
            assert!(headers[SET_COOKIE].is_sensitive());
            let pair = set.split(';').next().unwrap();
            let sent = format!("a=b; {pair}; c=d");
            let sent = HeaderMap::from_iter([(COOKIE, sent.parse().unwrap())]);
            let found = BrowserCookie::of(&sent, pages, is_secure).unwrap();
            assert_eq!(found.0, made.0);
            assert!(BrowserCookie::of(&sent, pages, !is_secure).is_none());
            let other = if pages == sign_in { dashboard } else { sign_in };
            assert!(BrowserCookie::of(&sent, other, is_secure).is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_for_the_dashboard_is_good_once_and_for_a_while() {
        let codes = DashboardCodes::default();
        let (used, old) = (codes.add().unwrap(), codes.add().unwrap());
        assert!(codes.take(&used));
        assert!(!codes.take(&used), "once");
        assert!(!codes.take("another"));
        tokio::time::advance(DASHBOARD_CODE_LIFETIME).await;
        assert!(!codes.take(&old), "for a while");
        let first = codes.add().unwrap();
        tokio::time::advance(Duration::from_millis(1)).await;
        for _ in 0..DASHBOARD_CODES_MAX {
            codes.add().unwrap();
        }
        assert!(!codes.take(&first), "so many at a time");
    }

    #[test]
    fn what_pages_have_of_a_cookie_is_not_the_cookie() {
        let (one, other) = (cookie(), cookie());
        assert!(one.is_form_token(&one.form_token()));
        assert!(!other.is_form_token(&one.form_token()));
        assert!(!one.is_form_token(&one.binding()));
        assert_ne!(one.binding(), other.binding());
        for made in [one.form_token(), one.binding(), format!("{one:?}")] {
            assert!(!made.contains(&one.0), "{made}");
        }
    }
}
