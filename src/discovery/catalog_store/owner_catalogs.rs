//! What agents see that see servers of a workspace or of their own beside the gateway's.
//!
//! Such a catalog is built when it is first needed, and again with each change of one of its servers for as long
//! as somebody uses it. It is found by the owners whose servers are in it: agents of one workspace share it.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use indexmap::IndexMap;

use super::{CatalogPlan, CatalogState, ServerCatalogs, Snapshots};
use crate::{
    catalog::{Audience, Catalog, Prefixes, Profiles},
    config::{self, Server},
    lock::lock,
    names::{OwnerSet, ProfileName, ServerName, ServerOwner, to_strict_char, uri_prefix},
};

/// Catalogs that are kept at most; those that nobody used lately go first.
const OWNER_CATALOGS_MAX: usize = 256;

/// The servers that some agents see, and what profiles show of them.
#[derive(Debug)]
pub(super) struct OwnerPlan {
    pub(super) profiles: Profiles,
    /// In the config's order.
    pub(super) servers: Vec<(ServerName, Arc<Server>)>,
    names: HashSet<ServerName>,
}

impl OwnerPlan {
    /// That of agents who see the servers of `owners`.
    pub(super) fn new(
        profiles: &IndexMap<ProfileName, config::Profile>,
        (servers, prefixes): (&[(ServerName, Arc<Server>)], &Prefixes),
        owners: &OwnerSet,
    ) -> Self {
        let seen = servers.iter().filter(|(name, _)| owners.sees(name));
        let seen: Vec<_> = seen.cloned().collect();
        let own: Vec<_> = seen.iter().filter(|(name, _)| name.is_of_agent()).collect();
        let is_hidden = |server: &&PlannedServer| own.iter().any(|own| is_hidden_by(own, server));
        let servers: Vec<_> = seen.iter().filter(|it| !is_hidden(it)).cloned().collect();
        Self {
            profiles: Profiles::new(profiles, Arc::new(prefixes.seen_with(owners))),
            names: servers.iter().map(|(name, _)| name.clone()).collect(),
            servers,
        }
    }

    /// Whether `server` is among them.
    pub(super) fn has(&self, server: &ServerName) -> bool {
        self.names.contains(server)
    }
}

/// A server of the config.
type PlannedServer = (ServerName, Arc<Server>);

/// Whether an agent's `own` server hides one of its workspace, since clients could not tell the names of the
/// two apart.
fn is_hidden_by(
    (first, first_config): &PlannedServer,
    (second, second_config): &PlannedServer,
) -> bool {
    if !second.is_owned() || second.is_of_agent() {
        return false;
    }
    let shown = [(first, first_config), (second, second_config)]
        .map(|(name, config)| config.namespace.as_deref().unwrap_or(name.local()));
    let [first_strict, second_strict] =
        shown.map(|name| name.chars().map(to_strict_char).collect::<String>());
    let [first_uri, second_uri] = shown.map(uri_prefix);
    first.local() == second.local() || first_strict == second_strict || first_uri == second_uri
}

/// What the agents see that see the servers of the same owners.
#[derive(Debug)]
pub(super) struct OwnerCatalog {
    pub(super) plan: Arc<OwnerPlan>,
    pub(super) snapshots: Snapshots,
    /// Whether anybody has used it since it was built.
    is_used: AtomicBool,
}

impl OwnerCatalog {
    fn build(
        plan: Arc<OwnerPlan>,
        catalog_plan: &CatalogPlan,
        offers: &ServerCatalogs,
    ) -> Arc<Self> {
        Arc::new(Self {
            snapshots: Snapshots::build(&catalog_plan.naming, &plan, offers),
            plan,
            is_used: AtomicBool::new(false),
        })
    }
}

type CatalogMap = HashMap<OwnerSet, Arc<OwnerCatalog>>;

/// The catalogs of a state. Readers of those that are there wait for nobody.
#[derive(Debug, Default)]
pub(super) struct OwnerCatalogs {
    built: ArcSwap<CatalogMap>,
    /// Held by who builds one.
    build_lock: Mutex<()>,
}

impl OwnerCatalogs {
    /// Those that are built.
    pub(super) fn all(&self) -> Vec<Arc<OwnerCatalog>> {
        self.built.load().values().map(Arc::clone).collect()
    }

    pub(super) fn has(&self, owners: &OwnerSet) -> bool {
        self.built.load().contains_key(owners)
    }

    fn get(&self, owners: &OwnerSet) -> Option<Arc<OwnerCatalog>> {
        let known = self.built.load().get(owners).map(Arc::clone)?;
        if !known.is_used.load(Ordering::Relaxed) {
            known.is_used.store(true, Ordering::Relaxed);
        }
        Some(known)
    }
}

impl CatalogState {
    /// What agents see that see the servers of `owners`.
    pub(super) fn of_owners(&self, owners: &OwnerSet) -> Arc<OwnerCatalog> {
        if let Some(known) = self.owner_catalogs.get(owners) {
            return known;
        }
        let _alone = lock(&self.owner_catalogs.build_lock);
        if let Some(known) = self.owner_catalogs.get(owners) {
            return known;
        }
        let plan = Arc::new(self.plan.of_owners(owners));
        let known = OwnerCatalog::build(plan, &self.plan, &self.offers);
        known.is_used.store(true, Ordering::Relaxed);
        let mut built = CatalogMap::clone(&self.owner_catalogs.built.load());
        if built.len() >= OWNER_CATALOGS_MAX {
            built.retain(|_, known| known.is_used.swap(false, Ordering::Relaxed));
        }
        if built.len() >= OWNER_CATALOGS_MAX
            && let Some(any) = built.keys().next().cloned()
        {
            built.remove(&any);
        }
        built.insert(owners.clone(), Arc::clone(&known));
        self.owner_catalogs.built.store(Arc::new(built));
        known
    }

    /// What those of `audience` see.
    pub(super) fn catalog_of(&self, owners: &OwnerSet, audience: Audience) -> Arc<Catalog> {
        if owners.is_empty() {
            return self.snapshots.of(audience);
        }
        self.of_owners(owners).snapshots.of(audience)
    }

    /// The servers that agents see who see those of `owners`.
    pub(super) fn owner_plan(&self, owners: &OwnerSet) -> Arc<OwnerPlan> {
        if owners.is_empty() {
            Arc::clone(&self.plan.shared)
        } else {
            Arc::clone(&self.of_owners(owners).plan)
        }
    }

    /// Builds the catalogs anew that are used and that `server` is in, or all where the plan has changed.
    pub(super) fn rebuild_owner_catalogs(&mut self, server: Option<&ServerName>) {
        let before = self.owner_catalogs.built.load_full();
        let mut built = CatalogMap::with_capacity(before.len());
        for (owners, known) in &*before {
            if server.is_some_and(|server| !known.plan.has(server)) {
                built.insert(owners.clone(), Arc::clone(known));
            } else if known.is_used.load(Ordering::Relaxed) {
                let plan = match server {
                    Some(_) => Arc::clone(&known.plan),
                    None => Arc::new(self.plan.of_owners(owners)),
                };
                let known = OwnerCatalog::build(plan, &self.plan, &self.offers);
                built.insert(owners.clone(), known);
            }
        }
        self.owner_catalogs = Arc::new(OwnerCatalogs {
            built: ArcSwap::from_pointee(built),
            build_lock: Mutex::default(),
        });
    }
}

impl CatalogPlan {
    /// Whether `server`, of a workspace, is hidden by one that the agent of `owners` has itself.
    pub(super) fn is_hidden(&self, server: &ServerName, owners: &OwnerSet) -> bool {
        let Some(agent) = owners.agent() else {
            return false;
        };
        if !server.is_owned() || server.is_of_agent() {
            return false;
        }
        let Some(server) = self.servers.iter().find(|(name, _)| name == server) else {
            return false;
        };
        let is_own = |name: &ServerName| name.owner() == ServerOwner::Agent(agent);
        let mut own = self.servers.iter().filter(|(name, _)| is_own(name));
        own.any(|own| is_hidden_by(own, server))
    }

    fn of_owners(&self, owners: &OwnerSet) -> OwnerPlan {
        OwnerPlan::new(&self.profiles, (&self.servers, &self.prefixes), owners)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        backend::Backends,
        catalog::{Kind, Scope},
        config::{ConfigFormat, ConfigText, Environment},
        discovery::catalog_store::{CatalogStore, tests::list},
        names::AgentId,
        task::Tasks,
    };

    const AGENTS: [&str; 3] = ["ann", "bob", "eve"];
    const TEAMS: [&str; 3] = ["science", "ops", "art"];

    /// The name of a server: which of some names, and whose.
    fn name((local, owner): (usize, usize)) -> String {
        match owner {
            0 => format!("s{local}"),
            1..=3 => format!("s{local}@{}", TEAMS[owner - 1]),
            _ => format!("s{local}@{}", AgentId::from_name(AGENTS[owner - 4])),
        }
    }

    fn board(names: &BTreeSet<String>, tasks: &Tasks) -> Arc<CatalogStore> {
        let servers = names
            .iter()
            .map(|name| format!("[servers.\"{name}\"]\ncommand = 'a'\n"));
        let source = ConfigText {
            name: "test.toml".to_owned(),
            format: ConfigFormat::Toml,
            text: servers.collect::<String>() + "[profiles.p]\n",
            directory: ".".into(),
        };
        let config = config::parse([source], &Environment::default());
        let config = config.unwrap().config;
        let (backends, _) = Backends::new(&config, None, None, tasks);
        let stop = tasks.stop_token().clone();
        Arc::new(CatalogStore::new(&config, &backends, Arc::default(), stop))
    }

    /// What the agent `who` of `team` sees of `names`, by the words of the documentation.
    fn seen(names: &BTreeSet<String>, who: &str, team: Option<&str>) -> BTreeSet<String> {
        let own = format!("@{}", AgentId::from_name(who));
        let of_team = team.map(|team| format!("@{team}"));
        let is_seen = |name: &&String| match &of_team {
            _ if !name.contains('@') || name.ends_with(&own) => true,
            Some(of_team) => {
                let local = name.strip_suffix(of_team.as_str());
                local.is_some_and(|local| !names.contains(&format!("{local}{own}")))
            }
            None => false,
        };
        names.iter().filter(is_seen).cloned().collect()
    }

    fn check(board: &CatalogStore, names: &BTreeSet<String>, listed: &BTreeSet<String>) {
        let teams = TEAMS.iter().map(|team| Some(*team)).chain([None]);
        for (who, team) in teams.flat_map(|team| AGENTS.map(|who| (who, team))) {
            let expect = seen(names, who, team);
            let owners = board.owners_seen(|index| index.seen_by(AgentId::from_name(who), team));
            let profile = ProfileName::parse("p").unwrap();
            for audience in [Audience::Plain, Audience::Interactive] {
                let catalog = board.catalog_for((&owners, &Scope::All), audience);
                for scope in [Scope::All, Scope::Profile(profile.clone())] {
                    let entries = catalog.list(&scope, Kind::Tools).entries().iter();
                    let found: BTreeSet<String> =
                        entries.map(|entry| entry.server.to_string()).collect();
                    let expect: BTreeSet<String> = expect.intersection(listed).cloned().collect();
                    assert_eq!(found, expect, "{who} {team:?} {names:?}");
                }
                for server in names {
                    let server = ServerName::parse(server).unwrap();
                    let is_seen = expect.contains(server.as_str());
                    let scope = Scope::Server(server.clone());
                    let shown = catalog.list(&scope, Kind::Tools).entries().len();
                    let is_listed = listed.contains(server.as_str());
                    assert_eq!(shown, usize::from(is_seen && is_listed), "{server} {who}");
                    assert_eq!(board.sees(&owners, &server), is_seen, "{server} {who}");
                    let route = (&owners, &scope);
                    let candidates = board.unlisted_candidates(route, Kind::Tools, "x");
                    assert_eq!(candidates.len(), usize::from(is_seen && !is_listed));
                    assert_eq!(board.may_show((&owners, &Scope::All), &server), is_seen);
                }
            }
            for local in 0..3 {
                let tool = format!("mcp_s{local}_x");
                for server in board.possible_servers(&owners, Kind::Tools, &tool) {
                    assert!(expect.contains(server.as_str()), "{server} {who} {team:?}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Whoever owns what, everybody sees the gateway's servers, those of the workspace and their own, before
        /// and after each of them is listed.
        #[test]
        fn everybody_sees_their_own(all in prop::collection::btree_set((0..3_usize, 0..7_usize), 1..9)) {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let _inside = runtime.enter();
            let of_gateway: BTreeSet<usize> =
                all.iter().filter(|it| it.1 == 0).map(|it| it.0).collect();
            let is_free = |it: &&(usize, usize)| it.1 == 0 || !of_gateway.contains(&it.0);
            let names: BTreeSet<String> = all.iter().filter(is_free).map(|it| name(*it)).collect();
            let tasks = Tasks::new();
            let board = board(&names, &tasks);
            let mut listed = BTreeSet::new();
            check(&board, &names, &listed);
            for server in &names {
                list(&board, server);
                listed.insert(server.clone());
                check(&board, &names, &listed);
            }
        }
    }

    /// What is not used is given up once there are too many.
    #[tokio::test]
    async fn owner_catalogs_are_bounded() {
        let tasks = Tasks::new();
        let names: BTreeSet<String> = (0..=OWNER_CATALOGS_MAX)
            .map(|at| format!("s@t{at}"))
            .collect();
        let board = board(&names, &tasks);
        for at in 0..=OWNER_CATALOGS_MAX {
            let team = format!("t{at}");
            let who = AgentId::from_name("ann");
            let owners = board.owners_seen(|index| index.seen_by(who, Some(&team)));
            board.catalog((&owners, &Scope::All));
            let built = board.current.load().owner_catalogs.all().len();
            assert!(built <= OWNER_CATALOGS_MAX, "{built}");
        }
        // Those that nobody asked for since are not built again.
        list(&board, "s@t0");
        list(&board, "s@t0");
        let built = board.current.load().owner_catalogs.all().len();
        assert!(built < OWNER_CATALOGS_MAX, "{built}");
    }
}
