//! Headers of a caller's request that the config lets through to servers.

use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue};

/// Such headers. They may be credentials: only their names are shown.
#[derive(Clone, Eq, Hash, PartialEq)]
pub struct ForwardedHeaders(Vec<(HeaderName, HeaderValue)>);

impl ForwardedHeaders {
    /// Those of `headers` that are among `names`, in the order of these; `None` where there are none. What
    /// is not text is left out.
    pub fn of(headers: &HeaderMap, names: &[HeaderName]) -> Option<Arc<Self>> {
        let found = names.iter().filter_map(|name| {
            let value = headers.get(name)?;
            let is_text = value.to_str().is_ok_and(|text| !text.trim().is_empty());
            is_text.then(|| (name.clone(), value.clone()))
        });
        Self::non_empty(found)
    }

    /// Those that are among `names`, which are written small.
    pub fn only(&self, names: &[String]) -> Option<Arc<Self>> {
        let is_named = |name: &HeaderName| names.iter().any(|it| it == name.as_str());
        Self::non_empty(self.0.iter().filter(|(name, _)| is_named(name)).cloned())
    }

    fn non_empty(found: impl Iterator<Item = (HeaderName, HeaderValue)>) -> Option<Arc<Self>> {
        let found: Vec<_> = found.collect();
        (!found.is_empty()).then(|| Arc::new(Self(found)))
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let headers = self.0.iter();
        headers.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
    }
}

impl fmt::Debug for ForwardedHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_forwarded_by_name() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-a", "1"),
            ("x-b", "hunter2"),
            ("x-c", "3"),
            ("x-blank", " "),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert("x-odd", HeaderValue::from_bytes(b"\xff").unwrap());
        let names = ["x-a", "x-b", "x-blank", "x-odd", "x-none"].map(HeaderName::from_static);
        let found = ForwardedHeaders::of(&headers, &names).unwrap();
        assert_eq!(
            found.iter().collect::<Vec<_>>(),
            [("x-a", "1"), ("x-b", "hunter2")]
        );
        assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
        let only = found.only(&["x-b".to_owned()]).unwrap();
        assert_eq!(only.iter().collect::<Vec<_>>(), [("x-b", "hunter2")]);
        assert_eq!(found.only(&["x-c".to_owned()]), None);
        assert_eq!(ForwardedHeaders::of(&headers, &names[2..]), None);
    }
}
