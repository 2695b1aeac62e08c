//! The measured part of the page: date, machine, commands, and a table of verdicts with the reasons.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Result, ensure};

use super::peers::{Peer, Peers};
use super::results::{CaseResult, Results, is_open};
use super::verdict::{Judged, Verdict, judge};
use crate::machine::Machine;

/// Number of members named per case; the rest is only counted.
const MEMBERS_SHOWN: usize = 6;

pub struct Page<'a> {
    pub machine: &'a Machine,
    pub peers: &'a Peers,
    pub ours: &'a Results,
    pub theirs: &'a [(&'a Peer, Results)],
}

impl Page<'_> {
    pub fn text(&self) -> Result<String> {
        self.check_members()?;
        let mut text = format!("- tried on {}, with `make compare`\n- {}\n", self.machine.date, self.machine.text());
        let count = |verdict: &str| self.ours.0.iter().filter(|result| result.verdict == verdict).count();
        text.push_str(&format!(
            "- Saggar's own suite here: of {} cases {} pass and {} show what is documented as not stopped; {} of them are portable\n",
            self.ours.0.len(),
            count("pass"),
            count("documented"),
            self.portable().count()
        ));
        for peer in &self.peers.peer {
            text.push_str(&format!("- {}: {}\n", peer.name, version(peer)));
        }
        text.push_str(&self.summary()?);
        text.push_str(&self.table()?);
        text.push_str(&self.readings()?);
        text.push_str(&self.better());
        text.push_str(&self.commands());
        text.push_str(&self.not_portable());
        Ok(text)
    }

    /// The cases that every runtime was tried on, in the order of the data.
    fn portable(&self) -> impl Iterator<Item = &CaseResult> {
        let is_portable =
            |id: &str| self.theirs.iter().all(|(_, results)| results.of(id).is_some_and(CaseResult::is_applicable));
        // Our results come in the order of completion; theirs, one after the other, in the order of the data.
        let ordered = self.theirs.first().into_iter().flat_map(|(_, results)| &results.0);
        ordered.filter(move |result| is_portable(&result.id)).filter_map(|result| self.ours.of(&result.id))
    }

    /// A member name that no runtime ever printed is a mistake in the data.
    fn check_members(&self) -> Result<()> {
        let all = || self.theirs.iter().map(|(_, results)| results).chain([self.ours]);
        let ours = self.peers.ours.iter().map(|ours| (&ours.cases, &ours.members));
        let stances =
            self.peers.peer.iter().flat_map(|peer| &peer.stance).map(|stance| (&stance.cases, &stance.members));
        for (cases, members) in ours.chain(stances) {
            for member in members {
                let is_seen = cases.iter().any(|case| {
                    all().any(|results| results.of(case).is_some_and(|result| result.observed.contains_key(member)))
                });
                ensure!(is_seen, "conformance/peers.toml names {member:?} of {cases:?}, which no runtime reported");
            }
        }
        Ok(())
    }

    fn judged<'a>(&self, peer: &Peer, results: &'a Results, id: &str) -> Result<Judged<'a>> {
        match results.of(id) {
            Some(result) => judge(self.peers, peer, result),
            None => Ok(Judged { verdict: Verdict::Untried, members: Vec::new() }),
        }
    }

    fn summary(&self) -> Result<String> {
        let kinds = [Verdict::Holds, Verdict::OwnKernel, Verdict::Open, Verdict::Fails, Verdict::Untried];
        let mut text = String::from("\n| of the portable cases |");
        kinds.iter().for_each(|kind| text.push_str(&format!(" {} |", kind.as_str())));
        text.push_str(&format!("\n|---|{}\n", "---:|".repeat(kinds.len())));
        let count = |verdict: &str| self.portable().filter(|result| result.verdict == verdict).count();
        let (held, documented) = (count("pass"), count("documented"));
        let rest = self.portable().count() - held - documented;
        text.push_str(&format!("| Saggar | {held} | 0 | {documented} | {rest} | 0 |\n"));
        for (peer, results) in self.theirs {
            let verdicts = self
                .portable()
                .map(|result| Ok(self.judged(peer, results, &result.id)?.verdict))
                .collect::<Result<Vec<_>>>()?;
            text.push_str(&format!("| {} |", peer.name));
            for kind in kinds {
                text.push_str(&format!(" {} |", verdicts.iter().filter(|verdict| **verdict == kind).count()));
            }
            text.push('\n');
        }
        Ok(text)
    }

    fn table(&self) -> Result<String> {
        let mut text = String::from("\n### Case by case\n\n| case | attempt | Saggar |");
        self.theirs.iter().for_each(|(peer, _)| text.push_str(&format!(" {} |", peer.name)));
        text.push_str(&format!("\n|---|---|---|{}\n", "---|".repeat(self.theirs.len())));
        for ours in self.portable() {
            text.push_str(&format!("| {} | {} | {} |", ours.id, ours.title, own_cell(ours)));
            for (peer, results) in self.theirs {
                let judged = self.judged(peer, results, &ours.id)?;
                let tried = results.of(&ours.id).map_or(0, |result| result.observed.len());
                text.push_str(&match judged.members.len() {
                    0 => format!(" {} |", judged.verdict.as_str()),
                    count => format!(" {} ({count}/{tried}) |", judged.verdict.as_str()),
                });
            }
            text.push('\n');
        }
        Ok(text)
    }

    /// What got through in each peer, with what its makers say about it.
    fn readings(&self) -> Result<String> {
        let mut text = String::new();
        for (peer, results) in self.theirs {
            text.push_str(&format!("\n### What got through: {}\n\n{}\n\n", peer.name, peer.about));
            for stance in &peer.stance {
                let mut found = Vec::new();
                for case in self.portable().filter(|case| stance.cases.contains(&case.id)) {
                    let judged = self.judged(peer, results, &case.id)?;
                    let meant: Vec<&str> = judged
                        .members
                        .into_iter()
                        .filter(|member| peer.stance_on(&case.id, member).is_some_and(|one| std::ptr::eq(one, stance)))
                        .collect();
                    if !meant.is_empty() {
                        found.push(format!("{} ({})", case.id, shortened(&meant)));
                    }
                }
                if !found.is_empty() {
                    let kind = match stance.kind {
                        super::peers::Kind::Claims => "claimed, and **fails**",
                        super::peers::Kind::NoClaim => "not claimed",
                        super::peers::Kind::OwnKernel => "in a kernel of its own",
                    };
                    text.push_str(&format!("- {kind}: {} [{}]\n  {}\n", stance.why, stance.source, found.join("; ")));
                }
            }
            for case in self.portable() {
                if let Some(why) = results.of(&case.id).and_then(CaseResult::obstacle) {
                    text.push_str(&format!("- not tried: {}: {}\n", case.id, cell(why)));
                }
            }
        }
        Ok(text)
    }

    /// What a peer blocks and Saggar, by its own documentation, does not.
    fn better(&self) -> String {
        let mut text = String::from("\n### Where another does better than Saggar\n\n");
        for (peer, results) in self.theirs {
            let mut found = Vec::new();
            for ours in self.portable().filter(|result| result.documented.is_some()) {
                let Some(theirs) = results.of(&ours.id) else { continue };
                let open = ours.observed.iter().filter(|(_, outcome)| is_open(outcome)).map(|(member, _)| member);
                let kept: Vec<&str> = open
                    .filter(|member| theirs.observed.get(*member).is_some_and(|outcome| !is_open(outcome)))
                    .map(String::as_str)
                    .collect();
                if !kept.is_empty() {
                    found.push(format!("{} ({} of them: {})", ours.id, kept.len(), shortened(&kept)));
                }
            }
            let found = if found.is_empty() { "nothing that these cases show".to_owned() } else { found.join("; ") };
            text.push_str(&format!("- {}: {found}\n", peer.name));
        }
        text
    }

    fn commands(&self) -> String {
        let mut text = String::from("\n### Commands\n\n");
        for peer in &self.peers.peer {
            let (user, flag) = if peer.as_root { ("root", "--as-root ") } else { ("an ordinary user", "") };
            let command = peer.command.replace("{repository}/", "");
            let line = format!("saggar probe --json {flag}--via '{command}'");
            text.push_str(&format!("{}, by {user}:\n\n```\n{line}\n```\n\n", peer.name));
        }
        text.push_str("Members that judge a choice of Saggar's own, and no other runtime:\n\n");
        for ours in &self.peers.ours {
            text.push_str(&format!("- {} ({}): {}\n", ours.cases.join(", "), ours.members.join(", "), ours.why));
        }
        text
    }

    fn not_portable(&self) -> String {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        if let Some((_, results)) = self.theirs.first() {
            for result in results.0.iter().filter(|result| !result.is_applicable()) {
                let reason = result.reasons.first().map_or("", String::as_str);
                by_reason.entry(reason.trim_start_matches("not portable: ")).or_default().push(&result.id);
            }
        }
        let mut text = String::from("\n### Cases that say nothing about others\n\n");
        for (reason, ids) in by_reason {
            text.push_str(&format!("- {reason}: {}\n", ids.join(", ")));
        }
        text
    }
}

fn own_cell(result: &CaseResult) -> String {
    let open = result.observed.values().filter(|outcome| is_open(outcome)).count();
    match result.verdict.as_str() {
        "pass" => "holds".to_owned(),
        "documented" => format!("holds, {open} documented"),
        "fail" => "**fails**".to_owned(),
        other => other.to_owned(),
    }
}

fn shortened(members: &[&str]) -> String {
    let shown: Vec<String> = members.iter().take(MEMBERS_SHOWN).map(|member| cell(member)).collect();
    match members.len().checked_sub(MEMBERS_SHOWN) {
        Some(rest) if rest > 0 => format!("{} and {rest} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}

/// A runtime's output, with markup removed.
fn cell(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || "|<`*[]\\".contains(c) { ' ' } else { c }).collect()
}

/// The first line of its version output.
fn version(peer: &Peer) -> String {
    let mut words = peer.version.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    // runc is in sbin, which is not in everyone's PATH.
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").args(words);
    let said = command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    said.lines().next().map_or_else(|| format!("{} is not installed", peer.program), cell)
}
