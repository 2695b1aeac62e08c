//! A page in docs/: written text stays, the measured block is replaced.

use std::path::Path;

use anyhow::{Context, Result, ensure};

const END: &str = "<!-- measured: end -->";
/// How the begin mark of every chore starts.
const BEGINS: &str = "<!-- measured: begin;";

/// Replaces this chore's measured block of the page.
pub fn write(path: &Path, chore: &str, measured: &str) -> Result<()> {
    let page = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let page = replaced(&page, &begin(chore), measured).with_context(|| format!("editing {}", path.display()))?;
    std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))
}

fn begin(chore: &str) -> String {
    format!("{BEGINS} `cargo measure {chore} --write` replaces everything up to the end mark -->")
}

fn replaced(page: &str, begin: &str, measured: &str) -> Result<String> {
    let (before, rest) = page.split_once(begin).with_context(|| format!("there is no mark \"{begin}\""))?;
    let (old, after) = rest.split_once(END).with_context(|| format!("there is no mark \"{END}\" after the first"))?;
    // A page may have blocks of other chores, each with its own end mark.
    ensure!(!old.contains(BEGINS) && !after.contains(begin), "the marks occur more than once or are nested");
    Ok(format!("{before}{begin}\n\n{}\n\n{END}{after}", measured.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes_and_again_the_same() {
        let begin = begin("bench");
        let page = format!("# Page\n\n{begin}\nold\n{END}\n\nMore.\n");
        let once = replaced(&page, &begin, "new\n").unwrap();
        assert_eq!(once, format!("# Page\n\n{begin}\n\nnew\n\n{END}\n\nMore.\n"));
        assert_eq!(replaced(&once, &begin, "new\n").unwrap(), once);
    }

    #[test]
    fn the_blocks_of_other_chores_stay() {
        let (ours, theirs) = (begin("bench"), begin("soak"));
        let page = format!("{theirs}\ntheirs\n{END}\n{ours}\nold\n{END}\n{theirs}2\n{END}\n");
        let expected = format!("{theirs}\ntheirs\n{END}\n{ours}\n\nnew\n\n{END}\n{theirs}2\n{END}\n");
        assert_eq!(replaced(&page, &ours, "new").unwrap(), expected);
        assert!(replaced(&format!("{ours}{theirs}{END}{END}"), &ours, "new").is_err());
    }

    #[test]
    fn a_page_without_both_marks_in_order_is_left_alone() {
        let begin = begin("bench");
        for page in ["", &begin, END, &format!("{END}{begin}"), &format!("{begin}{END}{begin}{END}")] {
            assert!(replaced(page, &begin, "new").is_err(), "{page:?}");
        }
    }
}
