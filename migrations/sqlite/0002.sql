-- What servers listed last, so that nobody waits for them after a start.
CREATE TABLE listings (
    server TEXT NOT NULL,
    connection BLOB NOT NULL,  -- SHA-256 of how the server is reached
    listed_ms INTEGER NOT NULL,
    body TEXT NOT NULL,        -- JSON of discovery::board::stored
    PRIMARY KEY (server, connection)
) STRICT;

-- Sessions of clients over streamable HTTP, which outlive the process.
CREATE TABLE sessions (
    id BLOB PRIMARY KEY,       -- SHA-256 of the id that the client holds
    agent BLOB NOT NULL,
    used_ms INTEGER NOT NULL,
    body TEXT NOT NULL         -- JSON of session::saved
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_agent ON sessions (agent, used_ms);
CREATE INDEX sessions_used ON sessions (used_ms);
