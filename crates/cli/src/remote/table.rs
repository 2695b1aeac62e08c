//! Tables: columns as wide as their content; on a terminal, no line is longer than its width.

use rustix::termios::tcgetwinsize;

/// Spaces between two columns.
const GAP: usize = 2;
/// The last column is not cut below this width.
const LAST_MIN: usize = 12;

/// Lines of aligned columns. Text must already be harmless. If a width is given, the last column is cut to fit.
pub(crate) fn aligned(titles: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    let titles: Vec<String> = titles.iter().map(|title| (*title).to_owned()).collect();
    let all = || std::iter::once(&titles).chain(rows);
    let widths: Vec<usize> = (0..titles.len())
        .map(|column| all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let before_last: usize = widths.iter().rev().skip(1).map(|width| width + GAP).sum();
    let last_most = width.map(|width| width.saturating_sub(before_last).max(LAST_MIN));
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column + 1 == titles.len() {
                line.push_str(&cut(cell, last_most));
            } else {
                line.push_str(cell);
                let filled = cell.chars().count();
                line.extend(std::iter::repeat_n(' ', widths[column].saturating_sub(filled) + GAP));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Width of our terminal; `None` if stdout isn't one.
pub(crate) fn terminal_width() -> Option<usize> {
    let size = tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

fn cut(text: &str, most: Option<usize>) -> String {
    match most {
        Some(most) if text.chars().count() > most => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Vec<String>> {
        vec![vec!["a".into(), "ü".into(), "x".repeat(30)], vec!["long".into(), String::new(), String::new()]]
    }

    #[test]
    fn columns_line_up() {
        let text = aligned(&["ID", "B", "C"], &rows(), None);
        assert_eq!(text, format!("ID    B  C\na     ü  {}\nlong\n", "x".repeat(30)));
    }

    #[test]
    fn on_a_terminal_no_line_is_longer_than_it() {
        for width in [24, 30, 80] {
            let text = aligned(&["ID", "B", "C"], &rows(), Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
    }
}
