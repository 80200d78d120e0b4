//! The resources and the resource template of the fixtures.

use rmcp::model::{
    ErrorData, ReadResourceResponse, ReadResourceResult, Resource, ResourceContents,
    ResourceTemplate,
};
use serde_json::json;

use crate::tools::PIXEL_PNG;

const TEXT: &str = "test://static-text";
const BINARY: &str = "test://static-binary";
const WATCHED: &str = "test://watched-resource";

/// Every resource that is not made from the template.
pub(crate) fn list() -> Vec<Resource> {
    vec![
        Resource::new(TEXT, "static-text")
            .with_description("A text that never changes")
            .with_mime_type("text/plain"),
        Resource::new(BINARY, "static-binary")
            .with_description("An image that never changes")
            .with_mime_type("image/png"),
        Resource::new(WATCHED, "watched-resource")
            .with_description("A text that clients may subscribe to")
            .with_mime_type("text/plain"),
    ]
}

/// The one template.
pub(crate) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new("test://template/{id}/data", "template-data")
            .with_description("The data of any id")
            .with_mime_type("application/json"),
    ]
}

/// Reads a resource.
///
/// # Errors
///
/// There is none of that URI.
pub(crate) fn read(uri: &str) -> Result<ReadResourceResponse, ErrorData> {
    let contents = match uri {
        TEXT => ResourceContents::text("This is the content of the static text resource.", uri),
        BINARY => ResourceContents::blob(PIXEL_PNG, uri).with_mime_type("image/png"),
        WATCHED => ResourceContents::text("Watch this.", uri),
        _ => from_template(uri)?,
    };
    Ok(ReadResourceResult::new(vec![contents]).into())
}

fn from_template(uri: &str) -> Result<ResourceContents, ErrorData> {
    let id = uri
        .strip_prefix("test://template/")
        .and_then(|rest| rest.strip_suffix("/data"));
    let Some(id) = id else {
        let data = json!({ "uri": uri });
        return Err(ErrorData::resource_not_found(
            "Resource not found",
            Some(data),
        ));
    };
    let data = json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
    Ok(ResourceContents::text(data.to_string(), uri).with_mime_type("application/json"))
}
