//! Tables as text: what the header says of the cells below it.

use std::ops::Range;

use super::words::name_hints;
use crate::scan::lexicon::Hints;

/// Longest first line that is read as the header of a table, bytes.
const HEADER_BYTES_MAX: usize = 4096;
/// Columns of a table that are told apart.
const COLUMNS_MAX: usize = 64;

/// Longest cell of a header that says something of its column, bytes.
const CELL_BYTES_MAX: usize = 40;

/// Whether a first line, whose cells `separator` would part, is one of a program: a comment, or a
/// statement.
fn is_line_of_code(line: &str, separator: u8) -> bool {
    const STARTS: [&str; 12] = [
        "//", "/*", "<!--", "#!", "#include", "use ", "import ", "from ", "const ", "let ",
        "package ", "export ",
    ];
    let line = line.trim();
    STARTS.iter().any(|start| line.starts_with(start))
        || separator == b';' && line.find(';') == Some(line.len() - 1)
}

/// The header of a table whose cells are parted by one character.
#[derive(Debug)]
pub(in crate::scan) struct ColumnHints {
    separator: u8,
    pub(in crate::scan) hints: Vec<Hints>,
    /// Where the header ends.
    end: usize,
}

impl ColumnHints {
    /// Longest line that is read as a row, bytes.
    const ROW_BYTES_MAX: usize = 512;

    /// Reads the first line of `text`, when more follow and it looks like a header.
    pub(super) fn parse_header(text: &str) -> Option<Self> {
        let head = &text.as_bytes()[..text.len().min(HEADER_BYTES_MAX)];
        let end = memchr::memchr(b'\n', head)?;
        let line = text.get(..end)?;
        if line
            .bytes()
            .any(|b| b.is_ascii_digit() || matches!(b, b'{' | b'"' | b':'))
            && !line.contains("\",\"")
        {
            return None;
        }
        let count = |separator: &u8| line.bytes().filter(|b| b == separator).count();
        let separator = [b'\t', b'|', b';', b',']
            .into_iter()
            .find(|s| count(s) > 0)?;
        if is_line_of_code(line, separator) {
            return None;
        }
        let cells = line.split(char::from(separator)).take(COLUMNS_MAX);
        // A sentence heads no column.
        let hint_of = |cell: &str| {
            if cell.len() > CELL_BYTES_MAX {
                Hints::NONE
            } else {
                name_hints(cell)
            }
        };
        let hints: Vec<Hints> = cells.map(|cell| hint_of(cell.trim())).collect();
        Some(Self {
            separator,
            hints,
            end,
        })
    }

    /// The rows below the header of `text`, each as where its cells are, without spaces and quotes.
    pub(in crate::scan) fn rows<'t>(
        &'t self,
        text: &'t str,
    ) -> impl Iterator<Item = Vec<Range<usize>>> + 't {
        let mut start = self.end + 1;
        let lines = text[start.min(text.len())..].split('\n').map(move |line| {
            let at = start;
            start += line.len() + 1;
            (at, line)
        });
        lines
            .filter(|(_, line)| line.len() <= Self::ROW_BYTES_MAX)
            .map(|(at, line)| self.cells(at, line))
            .filter(|cells| cells.len() == self.hints.len())
    }

    fn cells(&self, at: usize, line: &str) -> Vec<Range<usize>> {
        let (mut cells, mut quoted, mut start) = (Vec::new(), false, 0);
        let cell = |range: Range<usize>| {
            let written = &line[range.clone()];
            let inner = written.trim().trim_matches('"');
            let offset = written.find(inner).unwrap_or(0);
            let start = at + range.start + offset;
            start..start + inner.len()
        };
        for (index, byte) in line.bytes().enumerate() {
            quoted ^= byte == b'"';
            if byte == self.separator && !quoted {
                cells.push(cell(start..index));
                start = index + 1;
            }
        }
        cells.push(cell(start..line.len()));
        cells
    }

    /// What the header says of the cell at `at`; nothing in lines too long to be rows.
    pub(super) fn hints_at(&self, text: &str, at: usize) -> Hints {
        if at <= self.end {
            return Hints::NONE;
        }
        let start = at.saturating_sub(Self::ROW_BYTES_MAX);
        let before = &text.as_bytes()[start..at];
        let Some(newline) = memchr::memrchr(b'\n', before) else {
            return Hints::NONE;
        };
        let row = &before[newline + 1..];
        let mut quoted = false;
        let column = row
            .iter()
            .filter(|byte| {
                quoted ^= **byte == b'"';
                **byte == self.separator && !quoted
            })
            .count();
        self.hints.get(column).copied().unwrap_or_default()
    }
}
