-- Times are milliseconds since 1970, money is micro-dollars, ids of agents and calls are UUIDs as
-- 16 bytes.

CREATE TABLE agents (
    id BLOB PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    team TEXT,
    enabled INTEGER NOT NULL,
    admin INTEGER NOT NULL,
    profiles TEXT,             -- JSON array of names; NULL: all
    terms TEXT NOT NULL,       -- JSON of config::Terms
    created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Without a foreign key: agents of the config have keys here too.
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    agent BLOB NOT NULL,
    hash BLOB NOT NULL UNIQUE,
    prefix TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER,
    last_used_ms INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX keys_agent ON keys (agent);

-- What each process (chain) may spend and has spent of each account. The chain '' stands for
-- processes that ended long ago.
CREATE TABLE leases (
    account TEXT NOT NULL,
    chain TEXT NOT NULL,
    granted INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    open INTEGER NOT NULL,     -- 1: `granted` is used up by the account, 0: `spent` is
    ends_ms INTEGER,           -- when the window of the account ends; NULL: never
    PRIMARY KEY (account, chain)
) STRICT, WITHOUT ROWID;

CREATE INDEX leases_chain ON leases (chain);

-- Every reset of a budget; the latest row of a fund is its epoch.
CREATE TABLE epochs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    fund TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    UNIQUE (fund, epoch)
) STRICT;

CREATE TABLE audit_index (
    chain TEXT NOT NULL,
    segment INTEGER NOT NULL,
    position INTEGER NOT NULL,
    length INTEGER NOT NULL,
    invocation BLOB NOT NULL,
    ts_ms INTEGER NOT NULL,
    agent BLOB NOT NULL,
    server TEXT,
    tool TEXT,
    decision TEXT NOT NULL,
    PRIMARY KEY (chain, segment, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX audit_index_ts ON audit_index (ts_ms);
CREATE INDEX audit_index_agent ON audit_index (agent, ts_ms);
CREATE INDEX audit_index_invocation ON audit_index (invocation);

CREATE TABLE audit_segments (
    chain TEXT NOT NULL,
    segment INTEGER NOT NULL,
    indexed INTEGER NOT NULL,  -- bytes of the segment that the index covers
    PRIMARY KEY (chain, segment)
) STRICT, WITHOUT ROWID;
