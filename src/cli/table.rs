//! Tables under headings: aligned on a terminal, separated by tabs elsewhere.

use std::{io, process::ExitCode};

use super::output::{is_stdout_terminal, print, to_single_line};
use crate::escape::escape_controls;

/// Narrowest last column, characters; on narrower terminals lines wrap.
const LAST_CHARS_MIN: usize = 20;

/// Rows of cells; cells are made safe for a terminal as they are added.
#[derive(Debug)]
pub(super) struct TextTable<const N: usize> {
    headings: [&'static str; N],
    rows: Vec<[String; N]>,
    /// Whether lines are cut where the terminal ends.
    fits: bool,
    has_headings: bool,
}

impl<const N: usize> TextTable<N> {
    pub(super) fn new(headings: [&'static str; N]) -> Self {
        Self {
            headings,
            rows: Vec::new(),
            fits: false,
            has_headings: true,
        }
    }

    /// Rows alone, for what follows another table.
    pub(super) fn without_headings(self) -> Self {
        Self {
            has_headings: false,
            ..self
        }
    }

    /// Cuts lines where the terminal ends, for a last column of which the beginning will do.
    pub(super) fn fit_to_terminal(self) -> Self {
        Self { fits: true, ..self }
    }

    pub(super) fn add(&mut self, row: [String; N]) {
        self.rows.push(row.map(|cell| to_single_line(&cell)));
    }

    /// Adds cells of which every character counts: what a client made up must not pass for something
    /// else, so that line ends and tabs are escaped too, and spaces that could part columns.
    pub(super) fn add_verbatim(&mut self, row: [String; N]) {
        self.rows
            .push(row.map(|cell| escape_spaces(&escape_controls(&cell, &[]))));
    }

    /// Writes it to stdout.
    pub(super) fn print(&self) -> ExitCode {
        if is_stdout_terminal() {
            print(&self.to_aligned(terminal_columns().filter(|_| self.fits)))
        } else {
            print(&self.to_tsv())
        }
    }

    /// One line a row and one for the headings, cells separated by tabs.
    fn to_tsv(&self) -> String {
        let rows = self.rows.iter().map(|row| row.join("\t"));
        let headings = self.has_headings.then(|| self.headings.join("\t"));
        headings
            .into_iter()
            .chain(rows)
            .map(|line| line + "\n")
            .collect()
    }

    /// Columns under headings, without those that have nothing; the last is cut at `columns`.
    fn to_aligned(&self, columns: Option<usize>) -> String {
        let is_used =
            |at: &usize| self.rows.is_empty() || self.rows.iter().any(|row| !row[*at].is_empty());
        let used: Vec<usize> = (0..N).filter(is_used).collect();
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            let heading = if self.has_headings {
                self.headings[at].len()
            } else {
                0
            };
            cells.max().unwrap_or(0).max(heading)
        };
        let widths: Vec<usize> = used.iter().map(|at| width(*at)).collect();
        let before_last: usize = widths.iter().rev().skip(1).map(|width| width + 2).sum();
        let last_max =
            columns.map(|columns| columns.saturating_sub(before_last).max(LAST_CHARS_MIN));
        let headings = self.headings.map(str::to_owned);
        let mut out = String::new();
        let headings = self.has_headings.then_some(&headings);
        for row in headings.into_iter().chain(&self.rows) {
            let cells = used.iter().zip(&widths);
            let line: Vec<_> = cells
                .map(|(at, width)| format!("{:width$}", row[*at]))
                .collect();
            let line = line.join("  ");
            out.push_str(&truncate(
                line.trim_end(),
                last_max.map(|max| before_last + max),
            ));
            out.push('\n');
        }
        out
    }
}

/// A table whose rows are printed as they come: columns are as wide as is said before.
#[derive(Debug)]
pub(super) struct RowPrinter<const N: usize> {
    widths: [usize; N],
    /// What came of printing the last line.
    pub(super) code: ExitCode,
}

impl<const N: usize> RowPrinter<N> {
    /// Prints the headings. A column is as wide as its heading, at least.
    pub(super) fn start(headings: [&'static str; N], widths: [usize; N]) -> Self {
        let mut printer = Self {
            widths: std::array::from_fn(|at| widths[at].max(headings[at].len())),
            code: ExitCode::SUCCESS,
        };
        printer.print(headings.map(str::to_owned));
        printer
    }

    pub(super) fn print(&mut self, row: [String; N]) {
        let row = row.map(|cell| to_single_line(&cell));
        let line = if is_stdout_terminal() {
            let cells = row.iter().zip(self.widths);
            let cells: Vec<_> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            cells.join("  ").trim_end().to_owned()
        } else {
            row.join("\t")
        };
        // Where a line cannot be written, no later one can.
        self.code = print(&(line + "\n"));
    }
}

/// At most `max` characters of `line`.
fn truncate(line: &str, max: Option<usize>) -> String {
    match max {
        Some(max) if line.chars().count() > max => {
            line.chars().take(max - 1).chain(['…']).collect()
        }
        Some(_) | None => line.to_owned(),
    }
}

/// How wide the terminal on stdout is, when it says.
fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// `cell` with every space escaped that follows another, or an end.
fn escape_spaces(cell: &str) -> String {
    let mut out = String::with_capacity(cell.len());
    let mut rest = cell.chars().peekable();
    let mut before = ' ';
    while let Some(c) = rest.next() {
        if c == ' ' && (before == ' ' || rest.peek().is_none()) {
            out.push_str("\\u0020");
        } else {
            out.push(c);
        }
        before = c;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_the_last_is_cut() {
        let mut table = TextTable::new(["NAME", "EMPTY", "DESCRIPTION"]);
        table.add(["a".into(), String::new(), "x".repeat(40)]);
        table.add(["longer".into(), String::new(), "é\tb\nc".into()]);
        insta::assert_snapshot!(table.to_aligned(Some(30)), @r"
        NAME    DESCRIPTION
        a       xxxxxxxxxxxxxxxxxxxxx…
        longer  é b
        ");
        assert_eq!(
            table.to_tsv(),
            format!(
                "NAME\tEMPTY\tDESCRIPTION\na\t\t{}\nlonger\t\té b\n",
                "x".repeat(40)
            )
        );
        assert!(table.to_aligned(None).contains(&"x".repeat(40)));
        let empty = TextTable::new(["NAME", "DESCRIPTION"]);
        assert_eq!(empty.to_aligned(Some(30)), "NAME  DESCRIPTION\n");
        assert_eq!(empty.to_tsv(), "NAME\tDESCRIPTION\n");
        let mut bare = empty.without_headings();
        bare.add(["a".into(), "b".into()]);
        assert_eq!(bare.to_aligned(None), "a  b\n");
        assert_eq!(bare.to_tsv(), "a\tb\n");
        bare.add_verbatim([" \n a   b ".into(), "c\r\td\u{202e}".into()]);
        let cells = r"\u0020\n a \u0020\u0020b\u0020	c\r\td\u202e";
        assert_eq!(bare.to_tsv(), format!("a\tb\n{cells}\n"));
    }
}
