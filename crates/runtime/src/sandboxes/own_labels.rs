//! The labels that Saggar gives a run's sandbox. They say which run pays for its calls of models, so clients can neither set
//! nor remove them. Other values of these labels mean nothing, and are the clients' own.

use saggar_domain::{Code, Labels, Problem, RunId};

/// The label of a run's sandbox.
pub(crate) const RUN_LABEL: &str = "run";
/// The label of a run's sandbox that started with the files of another run. Its value is that run's id.
pub(crate) const FILES_OF_LABEL: &str = "files_of";

const OWN: [&str; 2] = [RUN_LABEL, FILES_OF_LABEL];

/// Refuses such labels from a client that creates a sandbox.
pub(super) fn check(given: &Labels) -> Result<(), Problem> {
    after_change(given.clone(), &Labels::default()).map(drop)
}

/// The labels of a sandbox whose client replaces them: it keeps those that Saggar gave it.
pub(super) fn after_change(given: Labels, old: &Labels) -> Result<Labels, Problem> {
    let mut entries = given.entries().clone();
    for key in OWN {
        let (new, kept) = (entries.get(key), own(old, key));
        if new.is_some() && new != kept && (kept.is_some() || own(&given, key).is_some()) {
            let message = format!("the label {key:?} is set by Saggar, and says which run a sandbox belongs to");
            return Err(Problem::new(Code::InvalidValue, message, "use another key for your own label"));
        }
        if let Some(kept) = kept {
            entries.insert(key.to_owned(), kept.clone());
        }
    }
    Labels::parse(entries)
}

/// Labels without those that Saggar gave.
pub(crate) fn without_own(labels: &Labels) -> Result<Labels, Problem> {
    let mut entries = labels.entries().clone();
    entries.retain(|key, _| !OWN.contains(&key.as_str()) || own(labels, key).is_none());
    Labels::parse(entries)
}

fn own<'a>(labels: &'a Labels, key: &str) -> Option<&'a String> {
    labels.entries().get(key).filter(|value| RunId::parse(value).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(entries: &[(&str, &str)]) -> Labels {
        let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Labels::parse(entries.collect()).expect("they are good")
    }

    #[test]
    fn clients_neither_set_nor_remove_the_labels_of_runs() {
        let (one, two) = (RunId::from_random([1; 16]).to_string(), RunId::from_random([2; 16]).to_string());
        let made = labels(&[("run", &one), ("files_of", &two)]);
        let replaced = after_change(labels(&[("team", "blue")]), &made);
        assert_eq!(replaced, Ok(labels(&[("team", "blue"), ("run", &one), ("files_of", &two)])));
        assert_eq!(after_change(made.clone(), &made), Ok(made.clone()), "they may be sent back");
        for wrong in [labels(&[("run", &two)]), labels(&[("run", "mine")]), labels(&[("files_of", &one)])] {
            assert!(after_change(wrong.clone(), &made).is_err(), "{wrong:?}");
        }
        for wrong in [labels(&[("run", &one)]), labels(&[("files_of", &one)])] {
            assert!(check(&wrong).is_err(), "{wrong:?}");
            assert!(after_change(wrong.clone(), &labels(&[("run", "mine")])).is_err(), "{wrong:?}");
        }
        let free = labels(&[("run", "42"), ("files_of", "us")]);
        assert_eq!((check(&free), after_change(free.clone(), &free)), (Ok(()), Ok(free)));
    }

    #[test]
    fn a_copy_has_only_the_labels_of_its_client() {
        let run = RunId::from_random([1; 16]).to_string();
        let copied = without_own(&labels(&[("run", &run), ("files_of", "us"), ("team", "red")]));
        assert_eq!(copied, Ok(labels(&[("files_of", "us"), ("team", "red")])));
    }
}
