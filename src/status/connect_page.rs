//! The page for who opens the URL of the gateway in a browser, which is for MCP clients.

use super::page::STYLE;

/// What this is, and how a client connects; `needs_key` where callers have to show one.
pub fn render_connect_page(needs_key: bool) -> String {
    let (key, header, headers) = if needs_key {
        (
            "<p>Every request needs an API key, which the operator of this gateway gives out, in the header \
             <code>Authorization: Bearer KEY</code> or <code>X-API-Key: KEY</code>. There is no OAuth \
             sign-in.</p>",
            " --header \"Authorization: Bearer KEY\"",
            ",\n  \"headers\": { \"Authorization\": \"Bearer KEY\" }",
        )
    } else {
        ("<p>No key is needed.</p>", "", "")
    };
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content='width=device-width'><title>Tollbridge: MCP gateway</title>\
         <style>{STYLE}</style><h1>Tollbridge: MCP gateway</h1>\
         <p>This URL is for MCP clients, not for browsers: it speaks the Model Context Protocol over HTTP. To \
         connect, add the address of this page to your client as a server. In the examples, URL stands for \
         that address.</p>{key}\
         <h2>Claude Code</h2><pre>claude mcp add --transport http tollbridge URL{header}</pre>\
         <h2>Clients with mcpServers (Cursor and others)</h2>\
         <pre>{{ \"mcpServers\": {{ \"tollbridge\": {{\n  \"url\": \"URL\"{headers}\n}} }} }}</pre>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_for_a_key_where_one_is_needed() {
        let (locked, open) = (render_connect_page(true), render_connect_page(false));
        assert!(locked.contains("needs an API key"), "{locked}");
        assert_eq!(locked.matches("Bearer KEY").count(), 3);
        assert!(open.contains("No key is needed"), "{open}");
        assert!(!open.contains("Bearer"), "{open}");
    }
}
