//! The lines that differ between two texts, in unified format.
//!
//! Myers' algorithm, up to a number of differences: what differs more is no longer told line by line.

/// Lines around a difference.
const CONTEXT: usize = 3;
/// Maximum number of removed and added lines that are looked for. The work and the memory grow with its square.
const EDITS_MAX: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    /// Their numbers in both texts.
    Same(usize, usize),
    Removed(usize),
    Added(usize),
}

/// `None`: they differ in more lines than are looked for.
pub(super) fn unified(old: &str, new: &str) -> Option<String> {
    let (a, b): (Vec<&str>, Vec<&str>) = (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let edits = edits(&a, &b)?;
    let mut text = String::new();
    let changed: Vec<usize> =
        edits.iter().enumerate().filter(|(_, edit)| !matches!(edit, Edit::Same(..))).map(|(at, _)| at).collect();
    let mut rest = changed.as_slice();
    while let Some(first) = rest.first() {
        let mut last = *first;
        let mut count = 0;
        for at in rest {
            if *at > last + 2 * CONTEXT + 1 {
                break;
            }
            (last, count) = (*at, count + 1);
        }
        rest = &rest[count..];
        let hunk = &edits[first.saturating_sub(CONTEXT)..(last + CONTEXT + 1).min(edits.len())];
        write(hunk, &a, &b, &mut text);
    }
    Some(text)
}

fn write(hunk: &[Edit], a: &[&str], b: &[&str], text: &mut String) {
    let old = |edit: &Edit| match edit {
        Edit::Same(at, _) | Edit::Removed(at) => Some(*at),
        Edit::Added(_) => None,
    };
    let new = |edit: &Edit| match edit {
        Edit::Same(_, at) | Edit::Added(at) => Some(*at),
        Edit::Removed(_) => None,
    };
    let span = |lines: Vec<usize>| match lines.first() {
        Some(first) => format!("{},{}", first + 1, lines.len()),
        None => "0,0".to_owned(),
    };
    let (old_span, new_span) =
        (span(hunk.iter().filter_map(old).collect()), span(hunk.iter().filter_map(new).collect()));
    text.push_str(&format!("@@ -{old_span} +{new_span} @@\n"));
    for edit in hunk {
        let (sign, line) = match edit {
            Edit::Same(at, _) => (' ', a[*at]),
            Edit::Removed(at) => ('-', a[*at]),
            Edit::Added(at) => ('+', b[*at]),
        };
        text.push(sign);
        text.push_str(line);
        if !line.ends_with('\n') {
            text.push_str("\n\\ No newline at end of file\n");
        }
    }
}

/// The shortest way from one to the other.
fn edits(a: &[&str], b: &[&str]) -> Option<Vec<Edit>> {
    let begin = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let end = a[begin..].iter().rev().zip(b[begin..].iter().rev()).take_while(|(x, y)| x == y).count();
    let (inner_a, inner_b) = (&a[begin..a.len() - end], &b[begin..b.len() - end]);
    let mut all: Vec<Edit> = (0..begin).map(|at| Edit::Same(at, at)).collect();
    all.extend(shortest(inner_a, inner_b)?.into_iter().map(|edit| match edit {
        Edit::Same(x, y) => Edit::Same(x + begin, y + begin),
        Edit::Removed(x) => Edit::Removed(x + begin),
        Edit::Added(y) => Edit::Added(y + begin),
    }));
    all.extend((0..end).map(|at| Edit::Same(a.len() - end + at, b.len() - end + at)));
    Some(all)
}

fn shortest(a: &[&str], b: &[&str]) -> Option<Vec<Edit>> {
    let most = (a.len() + b.len()).min(EDITS_MAX);
    // How far each diagonal reaches with this many edits; the middle one has the index `most + 1`.
    let mut reach = vec![0usize; 2 * most + 3];
    let middle = most + 1;
    let mut trace = Vec::new();
    for count in 0..=most {
        trace.push(reach[middle - count..=middle + count].to_vec());
        for step in 0..=count {
            let diagonal = middle + 2 * step - count;
            let is_down = step == 0 || (step != count && reach[diagonal - 1] < reach[diagonal + 1]);
            let mut x = if is_down { reach[diagonal + 1] } else { reach[diagonal - 1] + 1 };
            // Diagonals are x - y.
            let Some(mut y) = (x + middle).checked_sub(diagonal) else { continue };
            while x < a.len() && y < b.len() && a[x] == b[y] {
                (x, y) = (x + 1, y + 1);
            }
            reach[diagonal] = x;
            if x >= a.len() && y >= b.len() {
                return Some(back(&trace, a.len(), b.len()));
            }
        }
    }
    None
}

/// From the end to the beginning, by what was reachable before each edit.
fn back(trace: &[Vec<usize>], mut x: usize, mut y: usize) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (count, reach) in trace.iter().enumerate().rev() {
        // `reach` has the diagonals from -count to count.
        let at = |diagonal: isize| -> Option<usize> {
            usize::try_from(diagonal + count as isize).ok().and_then(|index| reach.get(index)).copied()
        };
        let diagonal = x as isize - y as isize;
        let (below, above) = (at(diagonal - 1), at(diagonal + 1));
        let is_down = diagonal == -(count as isize) || (diagonal != count as isize && below < above);
        let from = if is_down { diagonal + 1 } else { diagonal - 1 };
        let (from_x, from_y) = match count {
            0 => (0, 0),
            _ => {
                let from_x = at(from).unwrap_or(0);
                (from_x, (from_x as isize - from).max(0) as usize)
            }
        };
        let (to_x, to_y) = match (count, is_down) {
            (0, _) => (0, 0),
            (_, true) => (from_x, from_y + 1),
            (_, false) => (from_x + 1, from_y),
        };
        while x > to_x && y > to_y {
            (x, y) = (x - 1, y - 1);
            edits.push(Edit::Same(x, y));
        }
        if count > 0 {
            edits.push(if is_down { Edit::Added(from_y) } else { Edit::Removed(from_x) });
            (x, y) = (from_x, from_y);
        }
    }
    edits.reverse();
    edits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a patch would make of the old text.
    fn patched(old: &str, new: &str) -> (String, String) {
        let (a, b): (Vec<&str>, Vec<&str>) = (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
        let (mut before, mut after) = (String::new(), String::new());
        for edit in edits(&a, &b).unwrap() {
            match edit {
                Edit::Same(x, y) => {
                    assert_eq!(a[x], b[y]);
                    before.push_str(a[x]);
                    after.push_str(b[y]);
                }
                Edit::Removed(x) => before.push_str(a[x]),
                Edit::Added(y) => after.push_str(b[y]),
            }
        }
        (before, after)
    }

    #[test]
    fn the_edits_lead_from_one_text_to_the_other() {
        // Every pair of texts of up to five lines out of two.
        let texts: Vec<String> = (0..6u32)
            .flat_map(|length| (0..1u32 << length).map(move |bits| (length, bits)))
            .map(|(length, bits)| (0..length).map(|at| if bits >> at & 1 == 1 { "x\n" } else { "y\n" }).collect())
            .collect();
        for old in &texts {
            for new in &texts {
                assert_eq!(patched(old, new), (old.clone(), new.clone()));
            }
        }
    }

    #[test]
    fn changed_lines_come_with_what_is_around_them() {
        let old: String = (1..=20).map(|line| format!("{line}\n")).collect();
        let new = old.replace("10\n", "ten\n");
        let expected = "@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n";
        assert_eq!(unified(&old, &new).as_deref(), Some(expected));
        assert_eq!(unified("", "a").as_deref(), Some("@@ -0,0 +1,1 @@\n+a\n\\ No newline at end of file\n"));
        let (one, other): (String, String) =
            ((0..3000).map(|line| format!("{line}\n")).collect(), (0..3000).map(|line| format!("x{line}\n")).collect());
        assert_eq!(unified(&one, &other), None);
    }
}
