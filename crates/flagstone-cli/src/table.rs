//! Plain aligned text: columns for people, read from the top.
//!
//! Owns alignment only; the command decides the text of the cells.

use std::fmt;

/// How the cells of a column are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text: flush left.
    Left,
    /// Numbers: flush right, so that their digits line up.
    Right,
}

/// Rows of cells under a head, printed with two blanks between columns.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads and no row. A table whose heads are all empty has no head.
    #[must_use]
    pub(crate) fn new<const N: usize>(columns: [(&str, Align); N]) -> Self {
        let columns = columns.map(|(head, align)| (head.to_owned(), align)).into();
        Self { columns, rows: Vec::new() }
    }

    /// A table of names and numbers: the first column flush left, all others flush right.
    #[must_use]
    pub(crate) fn with_rows<'a>(
        heads: impl Iterator<Item = &'a str>,
        rows: Vec<Vec<String>>,
    ) -> Self {
        let align = |index| if index == 0 { Align::Left } else { Align::Right };
        let columns = heads.enumerate().map(|(index, head)| (head.to_owned(), align(index)));
        Self { columns: columns.collect(), rows }
    }

    /// Adds one row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len(), "a row has one cell a column");
        self.rows.push(cells.into());
    }

    /// Width of each column: the width of its widest cell.
    fn widths(&self) -> Vec<usize> {
        let width = |column: usize, head: &str| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).fold(head.chars().count(), usize::max)
        };
        self.columns.iter().enumerate().map(|(index, (head, _))| width(index, head)).collect()
    }

    fn line<'a>(&self, cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, (_, align)), width) in cells.zip(&self.columns).zip(widths) {
            if !line.is_empty() {
                line.push_str("  ");
            }
            line.push_str(&match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
        }
        line.trim_end().to_owned()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        if self.columns.iter().any(|(head, _)| !head.is_empty()) {
            let heads = self.columns.iter().map(|(head, _)| head.as_str());
            writeln!(f, "{}", self.line(heads, &widths))?;
        }
        for row in &self.rows {
            writeln!(f, "{}", self.line(row.iter().map(String::as_str), &widths))?;
        }
        Ok(())
    }
}

/// A whole number with its digits in groups of three.
#[must_use]
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new([("name", Align::Left), ("n", Align::Right)]);
        table.row(["erases".into(), "7".into()]);
        table.row(["programs".into(), "1234".into()]);
        assert_eq!(table.to_string(), "name         n\nerases       7\nprograms  1234\n");
    }

    #[test]
    fn digits_come_in_groups_of_three() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1234), "1 234");
        assert_eq!(grouped(1_234_567), "1 234 567");
    }
}
