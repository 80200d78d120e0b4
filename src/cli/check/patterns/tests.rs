use std::sync::Arc;

use super::*;
use crate::{
    catalog::{ByKind, Listing},
    config::{ConfigFormat, ConfigText, Environment, parse},
    mcp::Raw,
};

const GIT: &str = "[servers.git]\ncommand = 'a'\n";
const FILES: &str = "[servers.files]\ncommand = 'b'\n";

/// Checks what is said of `config`, when servers of these names are listed.
fn check(config: &str, listed: &[&str], only: Option<&str>, expect: &[&str]) {
    let source = ConfigText {
        name: "test.toml".to_owned(),
        format: ConfigFormat::Toml,
        text: config.to_owned(),
        directory: ".".into(),
    };
    let config = parse([source], &Environment::default()).unwrap().config;
    let servers = config.servers.iter();
    let offers = servers.filter(|(name, _)| listed.contains(&name.as_str()));
    let offers: Vec<ServerOffer> = offers
        .map(|(name, server)| ServerOffer {
            server: name.clone(),
            config: Arc::new(server.clone()),
            listing: Arc::new(listing(name)),
            modern_http: false,
            listing_gaps: ByKind::default(),
        })
        .collect();
    let only = only.map(|name| ServerName::parse(name).unwrap());
    let warnings =
        ConfigPatterns::of(&config).warnings(&ServerItems::of(&config, &offers), only.as_ref());
    let said = warnings.iter().map(|it| match &it.suggestion {
        Some(suggestion) => format!("{}; {suggestion}", it.message),
        None => it.message.clone(),
    });
    assert_eq!(said.collect::<Vec<_>>(), expect);
}

/// `git` has tools and a prompt, `files` a resource and a template.
fn listing(server: &ServerName) -> Listing {
    let items = |key: &str, names: &[&str]| {
        let item = |name: &&str| Raw::parse(format!(r#"{{"{key}":"{name}","name":"n"}}"#)).unwrap();
        names.iter().map(item).collect()
    };
    let named = |names: &[&str]| {
        let item = |name: &&str| {
            let text = format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
            Raw::parse(text).unwrap()
        };
        names.iter().map(item).collect()
    };
    if server.as_str() == "git" {
        Listing {
            tools: named(&["log", "delete_branch", r"f\u001bork", "a/b"]),
            prompts: named(&["review"]),
            ..Listing::default()
        }
    } else {
        Listing {
            resources: items("uri", &["file:///a"]),
            templates: items("uriTemplate", &["file:///{path}"]),
            ..Listing::default()
        }
    }
}

#[test]
fn what_matches_is_not_mentioned() {
    let config = format!(
        "[governance]\nargs = [{{ name = 'a', at = '/a', equals = 1 }}]\n\
         [governance.policy]\nmode = 'allowlist'\ntools = ['git/*', 'mcp_git_l*', 'short']\n\
         prompts = ['*', 'git/review']\nresources = ['files/**', 'files+file:///a']\n\
         deny = ['git/delete_*', 'mcp_git_delete_branch', 'files+file:///secret/*']\n\
         [profiles.p]\ntools = ['mcp_git_*']\nrename = {{ mcp_git_log = 'short' }}\n\
         describe = {{ mcp_git_review = 'x', 'files+file:///a' = 'y' }}\n\
         {FILES}[servers.files.resources]\nallow = ['file:///b/*', 'file:///a']\n\
         {GIT}[servers.git.tools]\nallow = ['*', 'a*b']\ndeny = ['delete_*']\nrename = {{ log = 'log' }}\n\
         [servers.git.tools.price]\nlog = '0.1'\ndelete_branch = '1'\n\
         [servers.git.tools.timeout]\nlog = '3s'\n"
    );
    check(&config, &["git", "files"], None, &[]);
}

#[test]
fn what_matches_nothing_is_said_with_its_key() {
    let config = format!(
        "[governance]\nargs = [{{ name = 'a', at = '/a', equals = 1, tools = ['git/fork'] }}]\n\
         policy = {{ mode = 'all', deny = ['git/log', 'delete_*'] }}\n\
         [agents.'a b'.policy]\nmode = 'allowlist'\ntools = ['git/lgo', 'git/review']\n\
         prompts = ['git/log']\nresources = ['git/*']\n\
         [profiles.p]\ntools = ['mcp_svn_*']\nrename = {{ log = 'short' }}\n\
         policy = {{ mode = 'denylist', resources = ['git+x:y'] }}\n\
         {GIT}[servers.git.tools]\nallow = ['log', 'git/log']\ndeny = ['remove_*']\n\
         [servers.git.tools.price]\n'd.b' = '1'\n[servers.git.prompts.describe]\nreviews = 'x'\n"
    );
    let expect = [
        "`governance.policy.deny[1]`: `delete_*` matches nothing; \
         use exposed names or `server/name`: write `*/delete_*`",
        "`governance.args[0].tools[0]`: `git/fork` matches nothing; \
         did you mean `git/f\\u001bork`?",
        "`agents.\"a b\".policy.tools[0]`: `git/lgo` matches nothing; \
         did you mean `git/log`?",
        "`agents.\"a b\".policy.tools[1]`: `git/review` matches nothing",
        "`agents.\"a b\".policy.prompts[0]`: `git/log` matches nothing",
        "`profiles.p.tools[0]`: `mcp_svn_*` matches nothing",
        "`profiles.p.rename.log`: `log` matches nothing; \
         did you mean `mcp_git_log`?",
        "`profiles.p.policy.resources[0]`: `git+x:y` matches nothing",
        "`servers.git.tools.allow[1]`: `git/log` matches nothing; \
         did you mean `log`?",
        "`servers.git.tools.deny[0]`: `remove_*` matches nothing",
        "`servers.git.tools.price.\"d.b\"`: `d.b` matches nothing",
        "`servers.git.prompts.describe.reviews`: `reviews` matches nothing; \
         did you mean `review`?",
    ];
    check(&config, &["git"], None, &expect);
}

/// Nothing is said against patterns that servers may match which are not listed, nor, where one
/// server is tried, about the others.
#[test]
fn of_servers_that_are_not_connected_it_is_unknown() {
    let config = format!(
        "[governance.policy]\nmode = 'denylist'\ntools = ['files/x', 'git/x', 'mcp_x_*', 'git/log']\n\
         {FILES}[servers.files.tools]\ndeny = ['x']\n{GIT}[servers.git.tools]\ndeny = ['y']\n\
         [servers.off]\ncommand = 'c'\nenabled = false\n[servers.off.tools]\ndeny = ['z']\n"
    );
    let of_git = [
        "`governance.policy.tools[1]`: `git/x` matches nothing",
        "`servers.git.tools.deny[0]`: `y` matches nothing",
    ];
    let of_files = "cannot tell whether `governance.policy.tools[0]`, \
                    `servers.files.tools.deny[0]` match anything; not or only partly listed: `files`";
    let of_both = "cannot tell whether `governance.policy.tools[2]` match anything; \
                   not or only partly listed: `files`, `off`";
    let all = [of_git[0], of_git[1], of_files, of_both];
    check(&config, &["git"], None, &all);
    check(&config, &["git"], Some("git"), &of_git);
    check(&config, &[], Some("files"), &[of_files]);
}

/// A pattern that is left over of a server which is gone says so, whoever else is not connected.
#[test]
fn a_server_that_is_gone_is_named() {
    let config = format!(
        "[governance.policy]\nmode = 'denylist'\ntools = ['everything/*', 'gti/log', '*/none']\n{GIT}{FILES}"
    );
    let gone = "`governance.policy.tools[0]`: `everything/*` matches nothing; \
                unknown server `everything`";
    let misspelt = "`governance.policy.tools[1]`: `gti/log` matches nothing; \
                    unknown server `gti`; did you mean `git`?";
    let unknown = "cannot tell whether `governance.policy.tools[2]` match anything; \
                   not or only partly listed: `files`";
    check(&config, &["git"], None, &[gone, misspelt, unknown]);
    check(&config, &["git"], Some("git"), &[]);
    let slashes =
        format!("[naming]\ntemplate = '{{server}}/{{tool}}'\ncharset = 'original'\n{config}");
    let config = slashes.replace("'gti/log', '*/none'", "");
    let unknown = "cannot tell whether `governance.policy.tools[0]` match anything; \
                   not or only partly listed: `files`";
    check(&config, &["git"], None, &[unknown]);
    // Names of merged routes begin with `mcp_` here.
    let config = config.replace("template = '{server}/{tool}'\n", "");
    check(&config, &["git"], None, &[gone]);
}

/// Without any server asked, what names one that the config does not have is told, and nothing else.
#[test]
fn a_server_that_the_config_does_not_have_is_named_without_asking() {
    let config = crate::config::Config::example(&format!(
        "[governance]\nargs = [{{ name = 'a', at = '/a', equals = 1, tools = ['fiels/*', 'files/x'] }}]\n\
         policy = {{ mode = 'all', deny = ['gti/log', 'git/none', '*/x', 'mcp_x_y', '{{git,gti}}/a'] }}\n\
         [profiles.p]\nprompts = ['docs/*']\n{GIT}{FILES}"
    ));
    let said = ConfigPatterns::of(&config).unknown_server_warnings(&config);
    let said: Vec<_> = said.iter().map(|it| it.message.as_str()).collect();
    let expect = [
        "`governance.policy.deny[0]`: `gti/log` matches nothing",
        "`governance.args[0].tools[0]`: `fiels/*` matches nothing",
        "`profiles.p.prompts[0]`: `docs/*` matches nothing",
    ];
    assert_eq!(said, expect);
}

/// A glob that begins as the names of one server do, and matches those of others as well.
#[test]
fn what_spans_servers_is_told() {
    let check = |naming: &str, key: &str, glob: &str, expect: &[&str]| {
        let config = format!(
            "{naming}\n[governance]\n{}\n[servers.git]\ncommand = 'a'\n[servers.git_hub]\ncommand = 'b'\n[servers.docs]\ncommand = 'c'\n",
            key.replace('@', glob)
        );
        let config = crate::config::Config::example(&config);
        let said = ConfigPatterns::of(&config).spanning_warnings(&config);
        let said: Vec<String> = said
            .iter()
            .map(|it| {
                format!(
                    "{}; {}",
                    it.message,
                    it.suggestion.as_deref().unwrap_or_default()
                )
            })
            .collect();
        assert_eq!(said, expect, "{naming} {key} {glob}");
    };
    let allow = "policy = { mode = 'allowlist', tools = ['@'] }";
    let deny = "policy = { mode = 'all', deny = ['@'] }";
    let says = |at: &str, glob: &str, help: &str| {
        format!(
            "`governance.{at}[0]`: `{glob}` matches names of several servers: `git_hub`, `git`; {help}"
        )
    };
    let alone = |server: &str| {
        format!("it allows only those of `{server}` (longest prefix); use `SERVER/...`")
    };
    let all = "it applies to all of them; use `SERVER/...` to select one";
    let hub = says("policy.tools", "mcp_git_hub_*", &alone("git_hub"));
    check("", allow, "mcp_git_hub_*", &[&hub]);
    check(
        "",
        allow,
        "mcp_git_*",
        &[&says("policy.tools", "mcp_git_*", &alone("git"))],
    );
    check(
        "",
        allow,
        "mcp_git*",
        &[&says("policy.tools", "mcp_git*", all)],
    );
    check(
        "",
        deny,
        "mcp_git_hub_*",
        &[&says("policy.deny", "mcp_git_hub_*", all)],
    );
    for glob in [
        "mcp_git_hub_delete",
        "git_hub/*",
        "mcp_docs_*",
        "mcp_git_l*",
        "mcp_*",
        "*",
        "*_delete",
    ] {
        check("", allow, glob, &[]);
        check("", deny, glob, &[]);
    }
    check("naming.template = '{tool}'", allow, "git_*", &[]);
    let behind = "naming.template = '{tool}_{server}'";
    check(behind, deny, "a_*", &[]);
    check(behind, deny, "*_docs", &[]);
}
