//! Cases: what is attempted, in which sandbox, and with which required outcome. They are data. If any part can't be
//! parsed, the whole file is refused.

use std::collections::BTreeMap;

use saggar_domain::{Code, Draft, Problem, Tier, User};
use serde::Deserialize;

use crate::check::HostCheck;
use crate::expect::Expectation;
use crate::fixture::Workspace;

const FILES: &[(&str, &str)] = &[
    ("F.toml", include_str!("../../../conformance/F.toml")),
    ("S.toml", include_str!("../../../conformance/S.toml")),
    ("P.toml", include_str!("../../../conformance/P.toml")),
    ("M.toml", include_str!("../../../conformance/M.toml")),
    ("V.toml", include_str!("../../../conformance/V.toml")),
    ("NS.toml", include_str!("../../../conformance/NS.toml")),
    ("T.toml", include_str!("../../../conformance/T.toml")),
    ("G.toml", include_str!("../../../conformance/G.toml")),
    ("U.toml", include_str!("../../../conformance/U.toml")),
    ("D.toml", include_str!("../../../conformance/D.toml")),
    ("E.toml", include_str!("../../../conformance/E.toml")),
    ("N.toml", include_str!("../../../conformance/N.toml")),
    ("R.toml", include_str!("../../../conformance/R.toml")),
    ("H.toml", include_str!("../../../conformance/H.toml")),
];

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Its number in the list of threats, with a letter for a variant.
    pub id: String,
    pub title: String,
    /// Why it would be harmful if it worked.
    pub why: String,
    /// The attempt that the attacker makes inside, if any.
    #[serde(default)]
    pub attempt: Option<String>,
    /// The attempt's arguments; placeholders `{…}` are filled in by the bench.
    #[serde(default)]
    pub args: Vec<String>,
    /// What is checked on the host, after the attempt or instead of one.
    #[serde(default)]
    pub(crate) check: Option<HostCheck>,
    #[serde(default)]
    pub(crate) sandbox: SandboxDraft,
    /// The users that make the attempt.
    #[serde(default = "as_user")]
    pub(crate) users: Vec<User>,
    /// The required outcomes, by tier.
    #[serde(default)]
    pub(crate) expect: BTreeMap<Tier, Expectation>,
    /// The page that documents what is not stopped here.
    #[serde(default)]
    pub documented: Option<String>,
    /// What the servers of a small internet may see, such as `tcp 203.0.113.10 80`: exactly that, and each of it. Without this
    /// field there is no such internet.
    #[serde(default)]
    pub(crate) world: Option<Vec<String>>,
    /// Capabilities the host must have; without them the case doesn't apply.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Whether inheritable descriptors are left open for the sandbox to find.
    #[serde(default)]
    pub(crate) leaky: bool,
    /// Whether nothing else may run at the same time.
    #[serde(default)]
    pub(crate) alone: bool,
    /// Why it says nothing about another runtime, if the other fields don't show that.
    #[serde(default)]
    pub(crate) only_here: Option<String>,
}

fn as_user() -> Vec<User> {
    vec![User::User]
}

/// A spec's draft, with a fixture as the workspace.
#[derive(Clone, Debug, Default)]
pub(crate) struct SandboxDraft {
    pub(crate) workspace: Option<Workspace>,
    pub(crate) draft: Draft,
}

impl<'de> Deserialize<'de> for SandboxDraft {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let mut table = toml::Table::deserialize(deserializer)?;
        let workspace = table.remove("workspace").map(Workspace::deserialize).transpose().map_err(D::Error::custom)?;
        let draft = Draft::deserialize(table).map_err(D::Error::custom)?;
        Ok(Self { workspace, draft })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Family {
    case: Vec<Case>,
}

/// All cases, in the order of the files.
pub fn cases() -> Result<Vec<Case>, Problem> {
    let mut all = Vec::new();
    for (name, text) in FILES {
        let family: Family = toml::from_str(text).map_err(|error| {
            Problem::new(
                Code::InvalidSpec,
                format!("conformance/{name} can't be read: {error}"),
                "this is a defect of the build; report it",
            )
        })?;
        all.extend(family.case);
    }
    Ok(all)
}

/// The cases with these ids, or all of them. An id without a letter also selects its variants.
pub fn select(all: Vec<Case>, ids: &[String]) -> Result<Vec<Case>, Problem> {
    let is_meant = |case: &Case, id: &str| {
        case.id == id
            || case
                .id
                .strip_prefix(id)
                .is_some_and(|rest| rest.len() == 1 && rest.bytes().all(|byte| byte.is_ascii_lowercase()))
    };
    if let Some(unknown) = ids.iter().find(|id| !all.iter().any(|case| is_meant(case, id))) {
        let family: String = unknown.chars().take_while(char::is_ascii_alphabetic).collect();
        let near: Vec<&str> = all
            .iter()
            .map(|case| case.id.as_str())
            .filter(|id| !family.is_empty() && id.trim_end_matches(|c: char| !c.is_ascii_uppercase()) == family)
            .collect();
        let help = if near.is_empty() {
            "`saggar probe --json` names every case".to_owned()
        } else {
            format!("cases of {family}: {}", near.join(", "))
        };
        return Err(Problem::new(Code::InvalidValue, format!("there is no case {unknown:?}"), help));
    }
    Ok(all.into_iter().filter(|case| ids.is_empty() || ids.iter().any(|id| is_meant(case, id))).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn every_case_is_well_formed() {
        let all = cases().unwrap();
        let mut ids = BTreeSet::new();
        for case in &all {
            assert!(ids.insert(case.id.clone()), "{} occurs twice", case.id);
            assert!(!case.title.is_empty() && !case.why.is_empty(), "{}", case.id);
            assert!(case.attempt.is_some() || case.check.is_some(), "{} does nothing", case.id);
            assert!(
                case.attempt.is_none() || case.expect.contains_key(&Tier::Namespace),
                "{} expects nothing",
                case.id
            );
            assert!(!case.users.is_empty(), "{} is tried as no user", case.id);
        }
        assert!(all.len() > 100, "{}", all.len());
    }

    #[test]
    fn every_attempt_is_in_a_case_and_every_case_names_one_there_is() {
        let directory = std::env::temp_dir().join(format!("saggar-conformance-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let program = directory.join("attacker");
        std::fs::write(&program, crate::attacker_image::ATTACKER_IMAGE).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let listed = std::process::Command::new(&program).arg("--list").output().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        let known: BTreeSet<String> = String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect();
        // Used by checks and by other attempts, not by a case directly.
        let indirect = ["say-identity", "leave-marks", "end", "write-here", "change-when-told", "hold-counters"]
            .map(str::to_owned);
        let named: BTreeSet<String> =
            cases().unwrap().into_iter().filter_map(|case| case.attempt).chain(indirect).collect();
        assert_eq!(named, known);
    }

    #[test]
    fn documented_pages_are_there() {
        let page = include_str!("../../../THREAT_MODEL.md");
        for case in cases().unwrap() {
            let Some(documented) = case.documented else { continue };
            let heading = documented
                .strip_prefix("THREAT_MODEL.md#")
                .unwrap_or_else(|| panic!("{} names no page of the threat model", case.id));
            let is_there = page.lines().any(|line| {
                line.starts_with('#') && line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-") == heading
            });
            assert!(is_there, "{}: no heading {heading:?}", case.id);
        }
    }

    /// Words of the page that look like a case id.
    fn ids(text: &str) -> BTreeSet<&str> {
        let is_id = |word: &&str| {
            let digits = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
            let letter = digits.trim_start_matches(|c: char| c.is_ascii_digit());
            matches!((word.len() - digits.len(), digits.len() - letter.len(), letter.len()), (1..=2, 2, 0..=1))
        };
        text.split(|c: char| !c.is_ascii_alphanumeric()).filter(is_id).collect()
    }

    #[test]
    fn the_threat_model_names_every_case_and_no_other() {
        let page = include_str!("../../../THREAT_MODEL.md");
        let all = cases().unwrap();
        let known: BTreeSet<&str> = all.iter().map(|case| case.id.as_str()).collect();
        // Attempts on the server have ids of the same form, and are separate tests.
        let others =
            page.split("\n## ").find(|part| part.starts_with("The server\n")).expect("the page has such a part");
        // So have the attempts on a managed network that are tests.
        let network = page.split("\n## ").find(|part| part.starts_with(NETWORK)).expect("the page has such a part");
        let page = &page.replace(others, "").replace(network, "");
        let named = ids(page);
        assert_eq!(named.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new(), "named, but no such case");
        assert_eq!(
            known.difference(&named).collect::<Vec<_>>(),
            Vec::<&&str>::new(),
            "a case that the page doesn't name"
        );
        let inside = page.split("\n## ").find(|part| part.starts_with("What an attacker inside")).unwrap_or_default();
        let claims: Vec<&str> = inside.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert!(claims.len() > 15, "the table was not found");
        for claim in claims {
            let shown = claim.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
            // Secrets need TLS inside, which the attacker has not: tests show them.
            assert!(!ids(shown).is_empty() || shown.contains("/tests/"), "no case shows this: {claim}");
        }
        // Cases documented as not stopped must be named in that section.
        let residual = ids(page.split("### What it does not stop").nth(1).unwrap_or_default());
        for case in all.iter().filter(|case| case.documented.is_some()) {
            assert!(residual.contains(case.id.as_str()), "{} is not in that section", case.id);
        }
    }

    const NETWORK: &str = "The managed network, case by case\n";

    #[test]
    fn the_tests_and_cases_of_the_managed_network_are_there() {
        let page = include_str!("../../../THREAT_MODEL.md");
        let part = page.split("\n## ").find(|part| part.starts_with(NETWORK)).expect("the page has such a part");
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut sources = String::new();
        for folder in ["cli/tests", "egress/tests/egress", "egress/tests/wires", "domain/src/net", "domain/tests/net"] {
            for file in std::fs::read_dir(crates.join(folder)).unwrap().map(|file| file.unwrap().path()) {
                if file.extension().is_some_and(|end| end == "rs") {
                    sources.push_str(&std::fs::read_to_string(file).unwrap());
                }
            }
        }
        let all = cases().unwrap();
        let rows: Vec<&str> = part.lines().filter(|line| line.starts_with("| N") || line.starts_with("| E")).collect();
        assert!(rows.len() >= 30, "{rows:?}");
        for row in rows {
            let shown = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
            for id in ids(shown) {
                assert!(all.iter().any(|case| case.id == id), "{row}: no case {id}");
            }
            for name in shown.split('`').skip(1).step_by(2) {
                assert!(sources.contains(&format!("fn {name}(")), "{row}: no test {name}");
            }
        }
    }

    #[test]
    fn an_id_names_its_variants_and_an_unknown_one_is_told_of() {
        let chosen = select(cases().unwrap(), &["F12".to_owned()]).unwrap();
        assert!(chosen.iter().all(|case| case.id.starts_with("F12")) && chosen.len() >= 2);
        let problem = select(cases().unwrap(), &["F99".to_owned()]).unwrap_err();
        assert!(problem.message.contains("F99") && problem.help.contains("F02"), "{problem:?}");
    }

    #[test]
    fn unknown_fields_are_errors() {
        for wrong in [
            "colour = 1",
            "sandbox = { netwrok = \"none\" }",
            "expect = { namespace = { default = \"fine\" } }",
            "check = \"none-such\"",
        ] {
            let text = format!("[[case]]\nid = \"X01\"\ntitle = \"t\"\nwhy = \"w\"\nattempt = \"hang\"\n{wrong}\n");
            assert!(toml::from_str::<Family>(&text).is_err(), "{wrong}");
        }
    }
}
