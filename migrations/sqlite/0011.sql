-- What the built-in authorization server keeps. Bodies are JSON, sealed for their row, so that whoever writes to
-- this file alone makes no client, grant or token; the columns beside them only find rows.
CREATE TABLE oauth_clients (
    id TEXT PRIMARY KEY,
    body BLOB NOT NULL,
    used_ms INTEGER NOT NULL   -- when it registered, or last got a grant or a token
) STRICT, WITHOUT ROWID;

CREATE INDEX oauth_clients_used ON oauth_clients (used_ms);

CREATE TABLE oauth_grants (
    id TEXT PRIMARY KEY,
    client TEXT NOT NULL,
    agent BLOB,                -- NULL: its subject is a user of an issuer
    body BLOB NOT NULL,
    created_ms INTEGER NOT NULL,
    used_ms INTEGER NOT NULL,  -- when it last gave tokens
    expires_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX oauth_grants_agent ON oauth_grants (agent);
CREATE INDEX oauth_grants_expires ON oauth_grants (expires_ms);

CREATE TABLE oauth_tokens (
    hash BLOB PRIMARY KEY,     -- SHA-256 of the token
    grant_id TEXT NOT NULL,
    kind INTEGER NOT NULL,     -- 0: authorization code, 1: access token, 2: refresh token
    body BLOB NOT NULL,
    expires_ms INTEGER NOT NULL,
    spent_ms INTEGER           -- when a code or a refresh token was exchanged
) STRICT, WITHOUT ROWID;

CREATE INDEX oauth_tokens_grant ON oauth_tokens (grant_id);
CREATE INDEX oauth_tokens_expires ON oauth_tokens (expires_ms);

CREATE TABLE oauth_login_codes (
    hash BLOB PRIMARY KEY,     -- SHA-256 of the code
    agent BLOB NOT NULL,
    body BLOB NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
