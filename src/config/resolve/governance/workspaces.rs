//! Workspaces: which agents they have, and what these may spend.

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::{
    config::{
        Workspace,
        diagnostics::{report::Diagnostic, suggest},
        file,
        node::ValuePath,
        resolve::{Resolver, quoted_or_hidden},
    },
    names::WorkspaceName,
};

impl Resolver<'_> {
    /// Gives the agents that workspaces name their team.
    pub(in crate::config::resolve) fn add_workspace_members(
        &mut self,
        workspaces: &IndexMap<String, Workspace>,
        agents: &mut IndexMap<String, file::AgentSection>,
        root: &ValuePath<'_>,
    ) {
        let mut taken: HashMap<&str, (&str, ValuePath<'_>)> = HashMap::new();
        for (name, workspace) in workspaces {
            let at = root.child("workspaces").child(name).child("members");
            for (index, member) in workspace.members.iter().enumerate() {
                let item = at.item_at(index);
                if let Some((other, before)) = taken.insert(member, (name.as_str(), item.clone())) {
                    self.findings.add(
                        Diagnostic::error(format!(
                            "{} is named by the workspaces `{other}` and `{name}`",
                            quoted_or_hidden(member, &item)
                        ))
                        .at(item.span(), "here")
                        .at(before.span(), "and here")
                        .help("an agent has one team: remove it from one of them"),
                    );
                }
                let agent = root.child("agents").child(member);
                match agents.get_mut(member) {
                    Some(section) => {
                        self.set_team((name.as_str(), &mut section.team), &item, &agent);
                    }
                    None => self.warn_of_unknown_member(member, agents, &item),
                }
            }
        }
    }

    fn set_team(
        &mut self,
        (workspace, team): (&str, &mut Option<String>),
        item: &ValuePath<'_>,
        agent: &ValuePath<'_>,
    ) {
        let written = team.get_or_insert_with(|| workspace.to_owned());
        if written != workspace {
            let team = agent.child("team");
            self.findings.add(
                Diagnostic::error(format!("`{}` is not `{workspace}`", team.path()))
                    .at(item.span(), "a member of this workspace")
                    .at(team.span(), "another team")
                    .help("an agent has one team: remove one of them"),
            );
        }
    }

    /// Warns where one of the config is meant. The store may have others.
    fn warn_of_unknown_member(
        &mut self,
        member: &str,
        agents: &IndexMap<String, file::AgentSection>,
        item: &ValuePath<'_>,
    ) {
        let close = suggest::closest(member, agents.keys().map(String::as_str));
        if let (Some(close), false) = (close, self.context.is_incomplete) {
            self.findings.add(
                Diagnostic::warning(format!(
                    "no config file has an agent {}",
                    quoted_or_hidden(member, item)
                ))
                .at(item.span(), "the store may have it")
                .help(format!("did you mean \"{close}\"?")),
            );
        }
    }

    /// Checks the names of workspaces, and that each has one budget at most.
    pub(in crate::config::resolve) fn workspaces(
        &mut self,
        workspaces: IndexMap<String, Workspace>,
        root: &ValuePath<'_>,
    ) -> IndexMap<WorkspaceName, Workspace> {
        let mut resolved = IndexMap::new();
        let teams = root.child("governance").child("teams");
        for (name, workspace) in workspaces {
            let at = root.child("workspaces").child(&name);
            let (budget, other) = (at.child("budget"), teams.child(&name).child("budget"));
            if budget.is_written() && other.is_written() {
                let (here, there) = (budget.path(), other.path());
                self.findings.add(
                    Diagnostic::error(format!("`{here}` and `{there}` are the same budget"))
                        .at(budget.span(), "one")
                        .at(other.span(), "the other")
                        .help("remove one of them"),
                );
            }
            match WorkspaceName::parse(&name) {
                Ok(name) => drop(resolved.insert(name, workspace)),
                Err(error) => self.findings.add(
                    Diagnostic::error("invalid workspace name")
                        .at(at.key_span(), error.to_string())
                        .help(
                            "it follows the `@` of the names of its servers: for example `science`",
                        ),
                ),
            }
        }
        resolved
    }
}
