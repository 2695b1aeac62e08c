//! Markdown tables, padded so that they are readable without rendering too.

use std::fmt;

/// The first column is left-aligned, the others right-aligned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: impl IntoIterator<Item: Into<String>>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row, which must have a cell for each column.
    pub fn add(&mut self, row: impl IntoIterator<Item: Into<String>>) {
        let row: Vec<String> = row.into_iter().map(Into::into).collect();
        assert_eq!(row.len(), self.head.len(), "a row has a cell for each column");
        self.rows.push(row);
    }

    fn widths(&self) -> Vec<usize> {
        // A rule of Markdown is at least three characters wide.
        let width = |column: usize| self.lines().map(|line| line[column].chars().count()).max().unwrap_or(0).max(3);
        (0..self.head.len()).map(width).collect()
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.head).chain(&self.rows)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for (number, line) in self.lines().enumerate() {
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "| {cell:<width$} |")?,
                    _ => write!(f, " {cell:>width$} |")?,
                }
            }
            writeln!(f)?;
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    match column {
                        0 => write!(f, "| {} |", "-".repeat(*width))?,
                        _ => write!(f, " {}: |", "-".repeat(width - 1))?,
                    }
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_in_plain_text() {
        let mut table = Table::new(["round", "saggar", "×"]);
        table.add(["1", "3.10 ms", "0.9"]);
        table.add(["warm-up", "4 ms", "µ"]);
        let expected = "\
| round   |  saggar |   × |
| ------- | ------: | --: |
| 1       | 3.10 ms | 0.9 |
| warm-up |    4 ms |   µ |
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    #[should_panic(expected = "a cell for each column")]
    fn a_row_of_another_length_is_a_mistake() {
        Table::new(["a", "b"]).add(["1"]);
    }
}
