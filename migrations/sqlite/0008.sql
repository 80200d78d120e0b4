-- The hash of the last line of a segment that is indexed; none where an earlier version indexed it.
ALTER TABLE audit_segments ADD COLUMN end_hash TEXT;
