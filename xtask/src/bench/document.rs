//! The page in docs/: what people wrote stays, what was measured is replaced.

use std::path::Path;

use anyhow::{Context, Result, ensure};

const BEGIN: &str = "<!-- measured: begin; `cargo xtask bench --write` replaces everything up to the end mark -->";
const END: &str = "<!-- measured: end -->";

/// Replaces the measured block of the page.
pub fn write(path: &Path, measured: &str) -> Result<()> {
    let page = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let page = replaced(&page, measured).with_context(|| format!("editing {}", path.display()))?;
    std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))
}

fn replaced(page: &str, measured: &str) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("there is no mark \"{BEGIN}\""))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("there is no mark \"{END}\" after the first"))?;
    ensure!(!after.contains(BEGIN) && !after.contains(END), "the marks are there more than once");
    Ok(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", measured.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes_and_again_the_same() {
        let page = format!("# Page\n\n{BEGIN}\nold\n{END}\n\nMore.\n");
        let once = replaced(&page, "new\n").unwrap();
        assert_eq!(once, format!("# Page\n\n{BEGIN}\n\nnew\n\n{END}\n\nMore.\n"));
        assert_eq!(replaced(&once, "new\n").unwrap(), once);
    }

    #[test]
    fn a_page_without_both_marks_in_order_is_left_alone() {
        for page in ["", BEGIN, END, &format!("{END}{BEGIN}"), &format!("{BEGIN}{END}{BEGIN}{END}")] {
            assert!(replaced(page, "new").is_err(), "{page:?}");
        }
    }
}
