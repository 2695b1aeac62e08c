//! The key under which the cache has what a step made: everything that its outcome depends on.
//!
//! The layers so far are named by their content, so the same step on other files has another key. Limits are no part of it: they decide whether a step
//! succeeds, and only steps that succeeded are remembered. Each project has a cache of its own.

use std::collections::BTreeMap;

use saggar_domain::net::EgressDraft;
use saggar_domain::template::{ContentDigest, LayerEntry, LayerId};
use saggar_domain::{NetworkMode, canonical_json};
use serde::Serialize;

/// Hashed first, so that a change of the form changes every key.
const SCHEMA: &str = "saggar.build-key/v1";

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome<'a> {
    Run {
        program: &'a [String],
        env: &'a BTreeMap<String, String>,
        user: &'a str,
        cwd: &'a str,
        network: Option<NetworkMode>,
        egress: &'a EgressDraft,
    },
    Copy {
        to: &'a str,
        owner: Option<(u32, u32)>,
        mode: Option<u32>,
        /// Names, kinds, permissions, owners and contents.
        content: &'a ContentDigest,
    },
    Directory {
        path: &'a str,
    },
}

pub(crate) fn key(layers: &[LayerEntry], outcome: &Outcome<'_>) -> ContentDigest {
    let layers: Vec<&LayerId> = layers.iter().map(|layer| &layer.id).collect();
    ContentDigest::of(canonical_json(&(SCHEMA, layers, outcome)).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_matters_changes_the_key() {
        let layer = |text: &str| LayerEntry { id: LayerId::of(text.as_bytes()), bytes: 1, entries: 1 };
        let program = ["/bin/sh".to_owned(), "-c".to_owned(), "true".to_owned()];
        let (none, some) = (BTreeMap::new(), BTreeMap::from([("A".to_owned(), "1".to_owned())]));
        let open = EgressDraft { allow: vec!["example.com".parse().unwrap()], ..EgressDraft::default() };
        let closed = EgressDraft::default();
        let content = ContentDigest::of(b"files");
        let run = |program, env, user, cwd, network, egress| Outcome::Run { program, env, user, cwd, network, egress };
        let copy = |to, owner, mode, content| Outcome::Copy { to, owner, mode, content };
        let proxied = Some(NetworkMode::Proxied);
        let keys = [
            key(&[layer("a")], &run(&program, &none, "0", "/", None, &closed)),
            key(&[layer("b")], &run(&program, &none, "0", "/", None, &closed)),
            key(&[layer("a"), layer("b")], &run(&program, &none, "0", "/", None, &closed)),
            key(&[layer("b"), layer("a")], &run(&program, &none, "0", "/", None, &closed)),
            key(&[layer("a")], &run(&program[..2], &none, "0", "/", None, &closed)),
            key(&[layer("a")], &run(&program, &some, "0", "/", None, &closed)),
            key(&[layer("a")], &run(&program, &none, "app", "/", None, &closed)),
            key(&[layer("a")], &run(&program, &none, "0", "/srv", None, &closed)),
            key(&[layer("a")], &run(&program, &none, "0", "/", proxied, &closed)),
            key(&[layer("a")], &run(&program, &none, "0", "/", proxied, &open)),
            key(&[layer("a")], &copy("/x", None, None, &content)),
            key(&[layer("a")], &copy("/y", None, None, &content)),
            key(&[layer("a")], &copy("/x", Some((1, 1)), None, &content)),
            key(&[layer("a")], &copy("/x", None, Some(0o755), &content)),
            key(&[layer("a")], &copy("/x", None, None, &ContentDigest::of(b"other"))),
            key(&[layer("a")], &Outcome::Directory { path: "/x" }),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }
}
