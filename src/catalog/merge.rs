//! Building a snapshot: read every offer, lay out each server's own route, then the merged one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use super::{
    ByKind, Catalog, CatalogProblem, Freshness, ItemExcess, Kind, ListEntry, ListingGap,
    NameOutcome, Prefixes, ProblemCause, Profiles, Prompt, RouteTables, ServerOffer, Tool,
    instructions::{self, Instructions},
    item::{self, Item, ItemFilter},
    list_view::ListCache,
    naming::{self, Claim, ClaimVerdict, NameTemplate},
    output_schema, repair,
    resource_routes::{ResourceRoutes, ResourceSite},
    uri_map::UriMap,
    uri_template::ServerTemplates,
};
use crate::config::Naming;
use crate::mcp::json::Raw;
use crate::names::{ServerName, uri_prefix};

/// One offer, read.
struct OfferPart<'a> {
    offer: &'a ServerOffer,
    items: ByKind<Vec<Item<'a>>>,
    /// For resources and templates.
    filter: ItemFilter,
    prefix: String,
    uris: Arc<UriMap>,
}

/// An item and the name or URI it has on a route.
struct PlacedItem<'a> {
    part: usize,
    item: &'a Item<'a>,
    exposed: Arc<str>,
    /// The name or URI on merged routes, empty where these have none for it.
    merged: Arc<str>,
    /// The name that the operator gave a resource, for people.
    label: Option<&'a str>,
}

pub(super) fn build(naming: &Naming, profiles: &Profiles, offers: &[ServerOffer]) -> Catalog {
    let prefixes = profiles.prefixes();
    let mut problems = Vec::new();
    let mut parts: Vec<OfferPart<'_>> = offers
        .iter()
        .map(|offer| read_offer(offer, &mut problems))
        .collect();
    resolve_prefix_conflicts(&mut parts, &mut problems);
    assign_names(prefixes, &mut parts);
    let uri_verdicts = map_uris(naming, &mut parts);
    let sites: Vec<ResourceSite> = parts.iter().map(|part| site(part, prefixes)).collect();
    problems.extend(sites.iter().filter_map(unmatched_templates_problem));
    let mut routes = ResourceRoutes::new(sites, naming.namespace_resources);
    let mut merged = RouteTables::default();
    let mut names = ByKind::from_fn(|_| HashMap::new());
    for kind in Kind::ALL {
        let mut placed = match kind {
            Kind::Tools | Kind::Prompts => place_named(naming, kind, &parts, &mut problems),
            Kind::Resources | Kind::Templates => {
                let placed = place_uris(kind, &parts, &uri_verdicts[kind], &mut problems);
                for PlacedItem {
                    part,
                    item,
                    exposed,
                    ..
                } in &placed
                {
                    let target = (*part, item.original.clone());
                    routes.listed.entry(exposed.clone()).or_insert(target);
                }
                placed
            }
        };
        placed.sort_by(|a, b| a.exposed.cmp(&b.exposed));
        let mut rendered = render(kind, &placed, &parts, &mut problems).into_iter();
        merged.fill(kind, &placed, &parts, |_| {
            rendered.next().expect("one for each that is placed")
        });
        merged.lists[kind].freshness = merged_freshness(kind, offers);
        let known = placed.iter().map(|placed| {
            let key = (placed.part, placed.item.original.clone());
            (key, placed.exposed.clone())
        });
        names[kind] = known.collect();
    }
    merged.instructions = instructions::merge(offers, &mut problems);
    let own = |at| server_tables(at, &parts, &names);
    let servers: foldhash::HashMap<ServerName, RouteTables> = parts
        .iter()
        .enumerate()
        .map(|(at, part)| (part.offer.server.clone(), own(at)))
        .collect();
    let profiles = profiles.build_routes(&merged, offers, &mut problems);
    let mut catalog = Catalog {
        merged: merged.into(),
        servers: servers.into(),
        profiles: profiles.into(),
        routes: routes.into(),
        problems: problems.into(),
        view: None,
        version: 0,
    };
    catalog.version = catalog_version(&catalog);
    catalog
}

/// The merged names of tools and prompts: position of the part, original name -> exposed name.
type MergedNames = ByKind<HashMap<(usize, Arc<str>), Arc<str>>>;

fn read_offer<'a>(offer: &'a ServerOffer, problems: &mut Vec<CatalogProblem>) -> OfferPart<'a> {
    problems.extend(Kind::ALL.into_iter().filter_map(|kind| {
        let cause = match offer.listing_gaps[kind]? {
            ListingGap::Awaited => return None,
            ListingGap::Circular => ProblemCause::CircularPages,
            ListingGap::NoMethod => ProblemCause::MethodNotFound {
                method: kind.method(),
            },
            ListingGap::Unread => ProblemCause::ListUnreadable,
        };
        Some(CatalogProblem {
            server: offer.server.clone(),
            kind: Some(kind),
            cause,
        })
    }));
    problems.extend(Kind::ALL.into_iter().filter_map(|kind| {
        let rest = offer.listing.pages[kind].as_ref()?.rest.as_ref()?;
        let excess = ItemExcess::of(rest, &offer.config.limits)?;
        Some(CatalogProblem {
            server: offer.server.clone(),
            kind: Some(kind),
            cause: ProblemCause::ListMembersDropped { excess },
        })
    }));
    let mut filters = ByKind::from_fn(|kind| ItemFilter::new(offer.rules(kind), kind));
    OfferPart {
        offer,
        items: ByKind::from_fn(|kind| item::read_items(offer, kind, &filters[kind], problems)),
        filter: std::mem::take(&mut filters.resources),
        prefix: uri_prefix(offer.namespace()),
        uris: Arc::new(UriMap::identity()),
    }
}

/// Makes URI prefixes distinct. The config refuses equal ones; should they come here all the same,
/// every one of them gets a hash, so that no server reads in another's name.
fn resolve_prefix_conflicts(parts: &mut [OfferPart<'_>], problems: &mut Vec<CatalogProblem>) {
    let mut users: HashMap<&str, usize> = HashMap::new();
    for part in parts.iter() {
        *users.entry(&part.prefix).or_default() += 1;
    }
    let shared: HashSet<String> = users
        .into_iter()
        .filter(|(_, users)| *users > 1)
        .map(|(prefix, _)| prefix.to_owned())
        .collect();
    for part in parts
        .iter_mut()
        .filter(|part| shared.contains(&part.prefix))
    {
        let hash = naming::name_hash(&part.offer.server, "");
        let used = format!("{}-{}", part.prefix, &hash[..naming::HASH_SUFFIX_DIGITS]);
        let prefix = std::mem::replace(&mut part.prefix, used.clone());
        problems.push(CatalogProblem {
            server: part.offer.server.clone(),
            kind: None,
            cause: ProblemCause::PrefixConflict { prefix, used },
        });
    }
}

/// Gives every item the names that rules know it by.
fn assign_names(prefixes: &Prefixes, parts: &mut [OfferPart<'_>]) {
    for part in parts {
        let prefixed = UriMap::prefixed(part.prefix.clone());
        let server = (&part.offer.server, &*part.offer.config);
        for kind in Kind::ALL {
            for item in &mut part.items[kind] {
                item.names = if kind.has_uris() {
                    prefixes.names_for_uri(&prefixed, kind, &item.original)
                } else {
                    prefixes.names_for_item(server, (kind, &item.original))
                };
            }
        }
    }
}

/// Gives every part its map for merged routes, and says what becomes of equal URIs.
fn map_uris(naming: &Naming, parts: &mut [OfferPart<'_>]) -> ByKind<Vec<ClaimVerdict>> {
    if naming.namespace_resources {
        for part in parts.iter_mut() {
            part.uris = Arc::new(UriMap::prefixed(part.prefix.clone()));
        }
        return ByKind::from_fn(|kind| vec![ClaimVerdict::Kept; visible(kind, parts).count()]);
    }
    let mut shared: HashSet<Arc<str>> = HashSet::new();
    let mut judge = |kind| match kind {
        Kind::Tools | Kind::Prompts => Vec::new(),
        Kind::Resources | Kind::Templates => {
            let claims: Vec<Claim<'_>> = visible(kind, parts)
                .map(|(at, item)| claim_for((item.original.to_string(), 0), (at, item), parts))
                .collect();
            let verdicts = naming::resolve_claims(naming.conflict, &claims);
            let contested = visible(kind, parts)
                .zip(&verdicts)
                .filter(|(_, verdict)| **verdict == ClaimVerdict::Renamed)
                .map(|((_, item), _)| item.original.clone());
            shared.extend(contested);
            verdicts
        }
    };
    let verdicts = ByKind::from_fn(&mut judge);
    let shared = Arc::new(shared);
    for part in parts.iter_mut() {
        part.uris = Arc::new(UriMap::sharing(part.prefix.clone(), shared.clone()));
    }
    verdicts
}

/// The items of `kind` that merged routes show, each with the position of its part.
fn visible<'a>(
    kind: Kind,
    parts: &'a [OfferPart<'a>],
) -> impl Iterator<Item = (usize, &'a Item<'a>)> + 'a {
    let parts = parts
        .iter()
        .enumerate()
        .filter(move |(_, part)| part.offer.shows_kind(kind));
    parts.flat_map(move |(at, part)| part.items[kind].iter().map(move |item| (at, item)))
}

fn claim_for<'a>(
    (name, prefix): (String, usize),
    (at, item): (usize, &'a Item<'a>),
    parts: &'a [OfferPart<'a>],
) -> Claim<'a> {
    let offer = parts[at].offer;
    Claim {
        name,
        server: &offer.server,
        server_prefix_len: prefix,
        order: at,
        priority: offer.config.priority,
        original: &item.original,
    }
}

/// Finds the exposed names of tools or prompts.
fn place_named<'a>(
    naming: &Naming,
    kind: Kind,
    parts: &'a [OfferPart<'a>],
    problems: &mut Vec<CatalogProblem>,
) -> Vec<PlacedItem<'a>> {
    let template = NameTemplate::parse(naming);
    let prefixes = parts
        .iter()
        .map(|part| template.affix_of(part.offer.namespace()).len());
    let prefixes: Vec<usize> = prefixes.collect();
    let items: Vec<(usize, &Item<'_>)> = visible(kind, parts).collect();
    let claims: Vec<Claim<'_>> = items
        .iter()
        .map(|(at, item)| {
            let prefix = prefixes[*at];
            claim_for((item.names.plain.to_string(), prefix), (*at, item), parts)
        })
        .collect();
    let verdicts = naming::resolve_claims(naming.conflict, &claims);
    let names = naming::unique_names(&claims, &verdicts, naming.max_length);
    let placed = (&*verdicts, &*names, naming.max_length);
    report_collisions(kind, &claims, placed, problems);
    place(items, names)
}

/// Finds the exposed URIs of resources or templates.
fn place_uris<'a>(
    kind: Kind,
    parts: &'a [OfferPart<'a>],
    verdicts: &[ClaimVerdict],
    problems: &mut Vec<CatalogProblem>,
) -> Vec<PlacedItem<'a>> {
    let items: Vec<(usize, &Item<'_>)> = visible(kind, parts).collect();
    let names: Vec<Option<String>> = items
        .iter()
        .zip(verdicts)
        .map(|((at, item), verdict)| match verdict {
            ClaimVerdict::Hidden(_) => None,
            ClaimVerdict::Renamed | ClaimVerdict::Kept if kind == Kind::Templates => {
                Some(parts[*at].uris.expose_template(&item.original).into_owned())
            }
            ClaimVerdict::Renamed | ClaimVerdict::Kept => {
                Some(parts[*at].uris.expose(&item.original).into_owned())
            }
        })
        .collect();
    let claims: Vec<Claim<'_>> = items
        .iter()
        .map(|(at, item)| claim_for((item.original.to_string(), 0), (*at, item), parts))
        .collect();
    report_collisions(kind, &claims, (verdicts, &names, usize::MAX), problems);
    place(items, names)
}

fn place<'a>(items: Vec<(usize, &'a Item<'a>)>, names: Vec<Option<String>>) -> Vec<PlacedItem<'a>> {
    let named = items.into_iter().zip(names);
    let placed = named.filter_map(|((part, item), name)| {
        let exposed: Arc<str> = name?.into();
        let label = item.label;
        Some(PlacedItem {
            part,
            item,
            merged: exposed.clone(),
            exposed,
            label,
        })
    });
    placed.collect()
}

fn report_collisions(
    kind: Kind,
    claims: &[Claim<'_>],
    (verdicts, names, limit): (&[ClaimVerdict], &[Option<String>], usize),
    problems: &mut Vec<CatalogProblem>,
) {
    let contested = verdicts
        .iter()
        .any(|verdict| *verdict != ClaimVerdict::Kept);
    let mut claimants: HashMap<&str, Vec<usize>> = HashMap::new();
    if contested {
        for (index, claim) in claims.iter().enumerate() {
            claimants.entry(&claim.name).or_default().push(index);
        }
    }
    // Names that were given and that their owners did not claim, being in collisions of their own.
    let given: HashMap<&str, usize> = names
        .iter()
        .enumerate()
        .filter_map(|(index, name)| Some((name.as_deref()?, index)))
        .filter(|(name, index)| claims[*index].name != *name)
        .collect();
    for (index, (claim, verdict)) in claims.iter().zip(verdicts).enumerate() {
        let name = names[index].clone();
        let outcome = match (verdict, &name) {
            (ClaimVerdict::Kept, Some(name)) if *name == claim.name => continue,
            (ClaimVerdict::Kept, Some(_)) if kind.has_uris() => continue,
            (ClaimVerdict::Kept, Some(name)) if given.contains_key(claim.name.as_str()) => {
                Some(NameOutcome::Exposed(name.clone()))
            }
            (ClaimVerdict::Kept, Some(_)) => None,
            (ClaimVerdict::Renamed, Some(name)) => Some(NameOutcome::Exposed(name.clone())),
            (ClaimVerdict::Hidden(winner), _) => Some(NameOutcome::Hidden(
                winner.map(|at| claims[at].server.clone()),
            )),
            (ClaimVerdict::Renamed | ClaimVerdict::Kept, None) => Some(NameOutcome::Hidden(None)),
        };
        let original = claim.original.to_owned();
        let cause = match outcome {
            None => ProblemCause::NameShortened {
                original,
                exposed: name.unwrap_or_default(),
                limit,
            },
            Some(outcome) => ProblemCause::Collision {
                original,
                name: claim.name.clone(),
                with: competing_servers(index, &claimants, &given, claims),
                outcome,
            },
        };
        problems.push(CatalogProblem {
            server: claim.server.clone(),
            kind: Some(kind),
            cause,
        });
    }
}

fn competing_servers(
    index: usize,
    claimants: &HashMap<&str, Vec<usize>>,
    given: &HashMap<&str, usize>,
    claims: &[Claim<'_>],
) -> Vec<ServerName> {
    let wanted = claims[index].name.as_str();
    let same = claimants.get(wanted).into_iter().flatten().copied();
    let others = same
        .chain(given.get(wanted).copied())
        .filter(|other| *other != index);
    let servers: BTreeSet<&ServerName> = others.map(|other| claims[other].server).collect();
    servers.into_iter().cloned().collect()
}

/// What the route of one server shows, in the server's own order.
fn server_tables(at: usize, parts: &[OfferPart<'_>], names: &MergedNames) -> RouteTables {
    const IDENTITY: &UriMap = &UriMap::identity();
    let part = &parts[at];
    let listing = &part.offer.listing;
    let mut tables = RouteTables {
        instructions: Instructions::of_server(&part.offer.server, listing.instructions.clone()),
        site_index: Some(at),
        ..RouteTables::default()
    };
    for kind in Kind::ALL {
        let items = part.items[kind].iter();
        let placed = items.map(|item| PlacedItem {
            part: at,
            item,
            // Nothing is renamed on the route of one server.
            exposed: item.original.clone(),
            merged: merged_name(kind, at, item, part, names),
            label: None,
        });
        let own = |placed: &PlacedItem<'_>| {
            let PlacedItem { item, exposed, .. } = placed;
            item.render(exposed, None, IDENTITY)
        };
        tables.fill(kind, &placed.collect::<Vec<_>>(), parts, own);
        let page = listing.pages[kind].as_ref();
        tables.lists[kind].freshness = page_freshness(page);
        let limits = &part.offer.config.limits;
        let rest = page.and_then(|page| page.rest.as_ref());
        let rest = rest.filter(|rest| ItemExcess::of(rest, limits).is_none());
        tables.lists[kind].other_members = rest.cloned();
    }
    tables
}

/// What merged routes call an item: the exposed URI of a resource whether it is listed or not, since
/// one that is not listed may be read as well.
fn merged_name(
    kind: Kind,
    at: usize,
    item: &Item<'_>,
    part: &OfferPart<'_>,
    names: &MergedNames,
) -> Arc<str> {
    match kind {
        Kind::Tools | Kind::Prompts => {
            let known = names[kind].get(&(at, item.original.clone()));
            known.cloned().unwrap_or_default()
        }
        Kind::Resources => part.uris.expose(&item.original).into(),
        Kind::Templates => part.uris.expose_template(&item.original).into(),
    }
}

/// Items of one server and kind that merged routes show mended.
#[derive(Default)]
struct RepairedItems {
    /// The first, and its members that were.
    first: Option<(Arc<str>, Vec<&'static str>)>,
    more: usize,
}

impl RepairedItems {
    fn add(&mut self, item: &Item<'_>, members: Vec<&'static str>) {
        match &self.first {
            None => self.first = Some((item.original.clone(), members)),
            Some(_) => self.more += 1,
        }
    }

    fn into_cause(self) -> Option<ProblemCause> {
        let (original, members) = self.first?;
        Some(ProblemCause::Repaired {
            original: original.to_string(),
            members,
            more: self.more,
        })
    }
}

/// The items as merged routes show them, in the order of `placed`.
fn render(
    kind: Kind,
    placed: &[PlacedItem<'_>],
    parts: &[OfferPart<'_>],
    problems: &mut Vec<CatalogProblem>,
) -> Vec<Raw> {
    let mut repaired: BTreeMap<usize, RepairedItems> = BTreeMap::new();
    let mut rendered: Vec<Raw> = Vec::with_capacity(placed.len());
    for PlacedItem {
        part,
        item,
        exposed,
        label,
        ..
    } in placed
    {
        let shown = item.render(exposed, *label, &parts[*part].uris);
        rendered.push(match repair::repair(kind, &shown) {
            Some((shown, members)) => {
                repaired.entry(*part).or_default().add(item, members);
                shown
            }
            None => shown,
        });
    }
    let problem = |part: usize, cause| CatalogProblem {
        server: parts[part].offer.server.clone(),
        kind: Some(kind),
        cause,
    };
    problems.extend(repaired.into_iter().filter_map(|(part, items)| {
        let cause = items.into_cause()?;
        Some(problem(part, cause))
    }));
    if kind == Kind::Tools {
        let faults = output_schema::repair(&mut rendered, |at| placed[at].part).into_iter();
        problems.extend(faults.map(|(at, fault)| {
            let PlacedItem { part, item, .. } = &placed[at];
            let tool = item.original.to_string();
            problem(*part, ProblemCause::OutputSchema { tool, fault })
        }));
    }
    rendered
}

impl RouteTables {
    fn fill(
        &mut self,
        kind: Kind,
        placed: &[PlacedItem<'_>],
        parts: &[OfferPart<'_>],
        mut render: impl FnMut(&PlacedItem<'_>) -> Raw,
    ) {
        let entries = placed.iter().map(|placed| ListEntry {
            server: parts[placed.part].offer.server.clone(),
            original: placed.item.original.clone(),
            exposed: placed.exposed.clone(),
            merged: placed.merged.clone(),
            names: placed.item.names.clone(),
            alias: Arc::default(),
            item: render(placed),
            digest: 0,
        });
        let list = ListCache::of(kind, entries.collect());
        for (entry, PlacedItem { item, .. }) in list.entries().iter().zip(placed) {
            match kind {
                Kind::Tools => {
                    self.tools
                        .insert(entry.exposed.clone(), tool(entry, item).into());
                }
                Kind::Prompts => {
                    self.prompts
                        .insert(entry.exposed.clone(), prompt(entry, item).into());
                }
                Kind::Resources | Kind::Templates => {}
            }
        }
        self.lists[kind] = list;
    }
}

fn tool(entry: &ListEntry, item: &Item<'_>) -> Tool {
    const KEY: &str = "inputSchema";
    let input_schema = entry.item.get(KEY);
    Tool {
        has_repaired_input: input_schema != item.source.get(KEY),
        input_schema,
        server: entry.server.clone(),
        original: entry.original.clone(),
        exposed: entry.exposed.clone(),
        merged: entry.merged.clone(),
        names: entry.names.clone(),
        alias: entry.alias.clone(),
        item: entry.item.clone(),
        source: item.source.clone(),
        headers: item.headers.clone(),
        hints: item.hints,
    }
}

fn prompt(entry: &ListEntry, item: &Item<'_>) -> Prompt {
    Prompt {
        server: entry.server.clone(),
        original: entry.original.clone(),
        exposed: entry.exposed.clone(),
        merged: entry.merged.clone(),
        names: entry.names.clone(),
        alias: entry.alias.clone(),
        item: entry.item.clone(),
        source: item.source.clone(),
    }
}

fn site(part: &OfferPart<'_>, prefixes: &Arc<Prefixes>) -> ResourceSite {
    let listed = part
        .items
        .resources
        .iter()
        .map(|item| item.original.clone());
    let linked = part
        .items
        .tools
        .iter()
        .flat_map(|item| item.linked_uris.iter().cloned());
    let templates = part.items.templates.iter();
    ResourceSite {
        server: part.offer.server.clone(),
        prefix: part.prefix.clone(),
        uris: part.uris.clone(),
        prefixes: Arc::clone(prefixes),
        filter: part.filter.clone(),
        listed_uris: listed.chain(linked).collect(),
        templates: ServerTemplates::new(templates.map(|item| &*item.original)),
        visible: part.offer.shows_kind(Kind::Resources),
        tags: part.offer.config.tags.clone(),
    }
}

/// Says that there are templates without a pattern, where merged routes would ask for it.
fn unmatched_templates_problem(site: &ResourceSite) -> Option<CatalogProblem> {
    let count = site.templates.unmatchable_count();
    (site.visible && count > 0).then(|| CatalogProblem {
        server: site.server.clone(),
        kind: Some(Kind::Templates),
        cause: ProblemCause::TemplatesUnmatched { count },
    })
}

/// The least of all parts: the shortest time, and public only when every part is. A part that says
/// nothing counts as stale and private.
pub(super) fn merged_freshness<'o>(
    kind: Kind,
    offers: impl IntoIterator<Item = &'o ServerOffer>,
) -> Freshness {
    let shown = offers.into_iter().filter(|offer| offer.shows_kind(kind));
    let listed = shown.filter(|offer| {
        let listing = &offer.listing;
        listing.pages[kind].is_some() || !listing.items(kind).is_empty()
    });
    let each = listed.map(|offer| page_freshness(offer.listing.pages[kind].as_ref()));
    let least = each.reduce(|a, b| Freshness {
        ttl_ms: a.ttl_ms.min(b.ttl_ms),
        public: a.public && b.public,
    });
    least.unwrap_or(page_freshness(None))
}

fn page_freshness(page: Option<&super::FirstPage>) -> Freshness {
    Freshness {
        ttl_ms: page.and_then(|page| page.ttl_ms).unwrap_or(0),
        public: page.is_some_and(|page| page.public),
    }
}

fn catalog_version(catalog: &Catalog) -> u64 {
    let servers = catalog.servers.iter();
    let servers = servers.map(|(name, tables)| ("server", name.as_str(), tables));
    let profiles = catalog.profiles.iter();
    let profiles = profiles.map(|(name, view)| ("profile", name.as_str(), &view.tables));
    let mut routes: Vec<_> = servers.chain(profiles).collect();
    routes.sort_by_key(|(route, name, _)| (*route, *name));
    routes.push(("merged", "", &catalog.merged));
    let mut hasher = DefaultHasher::new();
    for (route, name, tables) in routes {
        (route, name).hash(&mut hasher);
        tables.instructions.hash(&mut hasher);
        for kind in Kind::ALL {
            hasher.write_u64(tables.lists[kind].digest());
        }
    }
    hasher.finish()
}
