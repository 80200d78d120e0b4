-- Rows of agents and keys carry an HMAC-SHA256 of all that matters in them, under a key that is in no
-- database. Rows that are there get theirs when this version of the schema is made.
ALTER TABLE agents ADD COLUMN changed_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN mac BLOB;
ALTER TABLE keys ADD COLUMN changed_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN mac BLOB;

-- They are derived from that key.
DROP TABLE secrets;
