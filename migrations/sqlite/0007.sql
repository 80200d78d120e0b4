-- The index of the audit has a row for each record, and how far each segment is indexed. It is made
-- again from the log.
DROP TABLE audit_blocks;

CREATE TABLE audit_segments (
    id INTEGER PRIMARY KEY,
    chain TEXT NOT NULL,
    segment INTEGER NOT NULL,
    end_byte INTEGER NOT NULL,
    UNIQUE (chain, segment)
) STRICT;

CREATE TABLE audit_records (
    segment INTEGER NOT NULL,  -- audit_segments.id
    first_byte INTEGER NOT NULL,
    ts_us INTEGER NOT NULL,
    invocation BLOB NOT NULL,
    agent_id TEXT NOT NULL,
    agent_name TEXT NOT NULL,
    server TEXT,
    tool TEXT,
    exposed TEXT,
    decision TEXT NOT NULL,
    PRIMARY KEY (segment, first_byte)
) STRICT, WITHOUT ROWID;

CREATE INDEX audit_records_ts ON audit_records (ts_us);
CREATE INDEX audit_records_invocation ON audit_records (invocation);
