//! Hints for command lines that can't be parsed, where the intention is likely and clap's own suggestion misleads.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Replaces the suggestions of an error with a better one, if there is one. `words` is the command line without the
/// program's name.
pub(crate) fn improve(error: &mut clap::Error, words: &[String]) {
    let Some(hint) = hint(error.kind(), words) else { return };
    error.remove(ContextKind::Suggested);
    error.remove(ContextKind::SuggestedSubcommand);
    // With a suggestion, the usage is that of the suggested argument.
    if error.remove(ContextKind::SuggestedArg).is_some() {
        error.remove(ContextKind::Usage);
    }
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
}

fn hint(kind: ErrorKind, words: &[String]) -> Option<String> {
    let word = |index: usize| words.get(index).map_or("", String::as_str);
    let has = |flag: &str| words.iter().any(|word| word == flag || word.starts_with(&format!("{flag}=")));
    let hint = match (kind, word(0), word(1)) {
        (ErrorKind::InvalidSubcommand, "exec", _) => "did you mean `saggar run` or `saggar sandbox exec`?",
        (ErrorKind::InvalidSubcommand, other, _) if is_nearly(other, "run") => {
            "did you mean `saggar run` or `saggar runs`?"
        }
        (ErrorKind::UnknownArgument, "run", _) if has("-m") => "did you mean --memory?",
        (ErrorKind::UnknownArgument, "serve", _) if has("-p") => "did you mean --port?",
        (ErrorKind::UnknownArgument, "sandbox", "create") if has("--timeout") => "did you mean --ttl?",
        (ErrorKind::UnknownArgument, "key", "list" | "ls" | "revoke") if has("--data-dir") => {
            "only `saggar key create` works without a server: leave out --data-dir, and set SAGGAR_URL and SAGGAR_API_KEY"
        }
        (ErrorKind::MissingRequiredArgument, "sandbox", "kill" | "rm") => "name a sandbox, or use --all",
        (ErrorKind::UnknownArgument, "sandbox", "exec" | "shell") if is_no_id(word(2)) => {
            return Some(format!("{:?} is not a sandbox's id, sbx_…; the id comes before the program", word(2)));
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// The same letters in another order.
fn is_nearly(text: &str, name: &str) -> bool {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    sorted(text) == sorted(name)
}

fn is_no_id(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('-') && !text.starts_with("sbx_")
}
