//! The verdict on a case in another runtime, given its claims. Pure.

use anyhow::{Context, Result};

use super::peers::{Kind, Peer, Peers};
use super::results::CaseResult;

/// Worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The attempt could not be made or completed.
    Untried,
    /// Something got through that its makers claim to block.
    Fails,
    /// Something got through that its makers don't mention.
    Open,
    /// Something was allowed by a kernel of its own.
    OwnKernel,
    /// Nothing got through.
    Holds,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Untried => "not tried",
            Self::Fails => "**fails**",
            Self::Open => "open, no claim",
            Self::OwnKernel => "own kernel",
            Self::Holds => "holds",
        }
    }
}

/// A verdict with the members behind it.
#[derive(Debug)]
pub struct Judged<'a> {
    pub verdict: Verdict,
    /// The members that got through and count.
    pub members: Vec<&'a str>,
}

/// Judges one case of one peer.
pub fn judge<'a>(peers: &Peers, peer: &Peer, result: &'a CaseResult) -> Result<Judged<'a>> {
    let mut judged = Judged { verdict: Verdict::Holds, members: Vec::new() };
    if result.obstacle().is_some() {
        judged.verdict = Verdict::Untried;
        return Ok(judged);
    }
    for member in result.breaches() {
        if peers.is_ours(&result.id, member) {
            continue;
        }
        let stance = peer
            .stance_on(&result.id, member)
            .with_context(|| format!("conformance/peers.toml has no word of {} on {}", peer.name, result.id))?;
        let verdict = match stance.kind {
            Kind::Claims => Verdict::Fails,
            Kind::NoClaim => Verdict::Open,
            Kind::OwnKernel => Verdict::OwnKernel,
        };
        judged.verdict = judged.verdict.min(verdict);
        judged.members.push(member);
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS: &str = r#"
ours = [{ cases = ["A1"], members = ["ours"], why = "" }]
[[peer]]
name = "p"
program = "p"
version = "p"
as_root = true
command = "p {}"
about = ""
stance = [
  { kind = "claims", cases = ["A1"], why = "", source = "" },
  { kind = "no-claim", cases = ["A1"], members = ["unsaid"], why = "", source = "" },
  { kind = "own-kernel", cases = ["A2"], why = "", source = "" },
]"#;

    fn check(id: &str, breaches: &[&str], expected: Verdict) {
        let peers = Peers::parse(PEERS).unwrap();
        let result = CaseResult {
            id: id.to_owned(),
            title: String::new(),
            verdict: "fail".to_owned(),
            observed: Default::default(),
            documented: None,
            reasons: breaches.iter().map(|member| format!("{member}: observed allowed, expected refused")).collect(),
        };
        assert_eq!(judge(&peers, &peers.peer[0], &result).unwrap().verdict, expected, "{breaches:?}");
    }

    #[test]
    fn what_gets_through_weighs_as_much_as_was_claimed() {
        check("A1", &[], Verdict::Holds);
        check("A1", &["ours"], Verdict::Holds);
        check("A1", &["unsaid"], Verdict::Open);
        check("A1", &["unsaid", "said"], Verdict::Fails);
        check("A2", &["anything"], Verdict::OwnKernel);
    }

    #[test]
    fn a_case_without_a_word_is_an_error_and_an_attempt_that_did_not_end_is_no_verdict() {
        let peers = Peers::parse(PEERS).unwrap();
        let mut result: CaseResult = serde_json::from_str(
            r#"{"id":"B1","title":"","verdict":"fail","observed":{},"reasons":["x: observed allowed, expected refused"]}"#,
        )
        .unwrap();
        assert!(judge(&peers, &peers.peer[0], &result).is_err());
        result.reasons.push("the attempt did not finish".to_owned());
        assert_eq!(judge(&peers, &peers.peer[0], &result).unwrap().verdict, Verdict::Untried);
    }
}
