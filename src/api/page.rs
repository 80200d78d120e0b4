//! Pages of lists: a cursor stands for the last item of the page before.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::problem::{Problem, ProblemType};

/// Items of a page where nobody says how many.
const ITEMS_DEFAULT: usize = 50;
/// The most items of a page.
const ITEMS_MAX: usize = 500;

/// Which page of a list.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct PageQuery {
    /// `next_cursor` of the page before. Default: the first page.
    pub(super) cursor: Option<String>,
    /// How many items, at most. Default: 50.
    #[schemars(range(min = 1, max = 500))]
    pub(super) limit: Option<usize>,
}

/// A page of a list.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Page<T> {
    /// The items.
    pub(super) items: Vec<T>,
    /// What brings the next page as `cursor`; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_cursor: Option<String>,
}

impl PageQuery {
    /// The page of `keys`, which are sorted and distinct: what `show` makes of each.
    pub(super) fn page<K: AsRef<str>, T>(
        &self,
        keys: &[K],
        show: impl Fn(&K) -> T,
    ) -> Result<Page<T>, Problem> {
        let limit = self.limit()?;
        let start = match self.after()? {
            Some(after) => keys.partition_point(|key| key.as_ref() <= after.as_str()),
            None => 0,
        };
        let end = keys.len().min(start.saturating_add(limit));
        let shown = &keys[start..end];
        let last = shown.last().filter(|_| end < keys.len());
        Ok(Page {
            items: shown.iter().map(show).collect(),
            next_cursor: last.map(|key| cursor_of(key.as_ref())),
        })
    }

    /// How many items, at most.
    pub(super) fn limit(&self) -> Result<usize, Problem> {
        let limit = self.limit.unwrap_or(ITEMS_DEFAULT);
        if (1..=ITEMS_MAX).contains(&limit) {
            return Ok(limit);
        }
        let detail = format!("`limit` must be between 1 and {ITEMS_MAX}");
        Err(Problem::new(ProblemType::InvalidRequest, detail))
    }

    /// The key of the last item of the page before.
    pub(super) fn after(&self) -> Result<Option<String>, Problem> {
        let Some(cursor) = &self.cursor else {
            return Ok(None);
        };
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
        let key = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        key.map(Some).ok_or_else(|| {
            let detail = "`cursor` is not a `next_cursor` of this list";
            Problem::new(ProblemType::InvalidRequest, detail)
        })
    }
}

/// What stands for the item with this key.
pub(super) fn cursor_of(key: &str) -> String {
    URL_SAFE_NO_PAD.encode(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_join_to_the_whole_list() {
        let keys: Vec<String> = (10..35).map(|number| number.to_string()).collect();
        let mut query = PageQuery {
            limit: Some(10),
            ..PageQuery::default()
        };
        let mut seen = Vec::new();
        loop {
            let page = query.page(&keys, String::clone).unwrap();
            assert!(page.items.len() <= 10);
            seen.extend(page.items);
            query.cursor = page.next_cursor;
            if query.cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, keys);
    }

    #[test]
    fn wrong_pages_are_refused() {
        let page = |limit, cursor: Option<&str>| {
            let cursor = cursor.map(str::to_owned);
            PageQuery { cursor, limit }.page(&["a"], |key| *key)
        };
        assert!(page(Some(ITEMS_MAX), None).is_ok());
        assert!(page(Some(ITEMS_MAX + 1), None).is_err());
        assert!(page(Some(0), None).is_err());
        assert!(page(None, Some("?")).is_err());
    }
}
