-- The index of the audit has a row for a block of the log instead of one for each record. It is
-- made again from the log.
DROP TABLE audit_index;
DROP TABLE audit_segments;

CREATE TABLE audit_blocks (
    chain TEXT NOT NULL,
    segment INTEGER NOT NULL,
    first_byte INTEGER NOT NULL,
    end_byte INTEGER NOT NULL,  -- the first one after the block
    first_ms INTEGER,           -- of its earliest record; NULL where it has none
    last_ms INTEGER,            -- of its latest record
    agents TEXT NOT NULL,       -- JSON arrays of what its records have
    servers TEXT NOT NULL,
    tools TEXT NOT NULL,
    decisions TEXT NOT NULL,
    UNIQUE (chain, segment, first_byte)
) STRICT;

CREATE INDEX audit_blocks_first ON audit_blocks (first_ms);
CREATE INDEX audit_blocks_last ON audit_blocks (last_ms);
