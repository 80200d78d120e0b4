-- Grants towards servers, each of one owner: the gateway or an agent.
CREATE TABLE grants (
    resource TEXT NOT NULL,   -- the URL of the server
    issuer TEXT NOT NULL,
    owner BLOB NOT NULL,      -- the id of the agent; empty for the gateway
    state TEXT NOT NULL,      -- active, rejected
    scopes TEXT NOT NULL,
    granted_ms INTEGER NOT NULL,
    refreshed_ms INTEGER NOT NULL,
    expires_ms INTEGER,       -- of the access token
    sealed BLOB NOT NULL,
    PRIMARY KEY (resource, issuer, owner)
) STRICT, WITHOUT ROWID;

-- What else is known of issuers: clients that were registered, sign-ins that have begun, quirks.
CREATE TABLE grant_notes (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    expires_ms INTEGER,
    sealed BLOB NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
