//! The value of an annotated argument as it stands in its header.

use super::{HeaderParam, ParamKind};
use crate::mcp::json::{self, Raw};

impl HeaderParam {
    /// The text of this argument in the params of a call; `None` when it is absent, `null` or of
    /// another type than its schema says.
    pub fn header_text(&self, params: &Raw) -> Option<String> {
        let bytes = params.as_bytes();
        let mut span = json::find_member(bytes, 0, "arguments")?;
        for key in &self.path {
            span = json::find_member(bytes, span.start, key)?;
        }
        let value = &bytes[span];
        match (self.kind, value.first()?) {
            (ParamKind::String, b'"') => {
                json::decode_string(value).map(std::borrow::Cow::into_owned)
            }
            (ParamKind::Boolean, b't' | b'f') | (ParamKind::Integer, b'0'..=b'9' | b'-') => {
                String::from_utf8(value.to_vec()).ok()
            }
            _ => None,
        }
    }

    /// Whether a header says the same as the argument; integers are compared as numbers.
    pub fn matches_argument(&self, header: &str, argument: &str) -> bool {
        if header == argument {
            return true;
        }
        let number = |text: &str| text.parse::<f64>().ok();
        self.kind == ParamKind::Integer
            && number(header).is_some_and(|header| number(argument) == Some(header))
    }
}
