-- Views: what one conversation sees of the catalog, made over the API by the agent, with an end.
CREATE TABLE views (
    id BLOB PRIMARY KEY,       -- UUID
    agent BLOB NOT NULL,       -- UUID of whose it is
    document TEXT NOT NULL,    -- JSON that only `views` reads
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX views_agent ON views (agent);
CREATE INDEX views_expires ON views (expires_ms);
