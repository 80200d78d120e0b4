-- Records of the audit have a sequence number, in which they came into the index, so that whoever follows them
-- goes on where they ended; and an index for each thing that searches ask for. A number is never used again.
CREATE TABLE audit_records_new (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
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
    UNIQUE (segment, first_byte)
) STRICT;
INSERT INTO audit_records_new (segment, first_byte, ts_us, invocation, agent_id, agent_name, server, tool, exposed,
    decision)
    SELECT segment, first_byte, ts_us, invocation, agent_id, agent_name, server, tool, exposed, decision
    FROM audit_records ORDER BY ts_us;
DROP TABLE audit_records;
ALTER TABLE audit_records_new RENAME TO audit_records;

CREATE INDEX audit_records_ts ON audit_records (ts_us);
CREATE INDEX audit_records_invocation ON audit_records (invocation);
CREATE INDEX audit_records_agent_id ON audit_records (agent_id, ts_us);
CREATE INDEX audit_records_agent_name ON audit_records (agent_name, ts_us);
CREATE INDEX audit_records_server ON audit_records (server, ts_us);
CREATE INDEX audit_records_tool ON audit_records (tool, ts_us);
CREATE INDEX audit_records_exposed ON audit_records (exposed, ts_us);
CREATE INDEX audit_records_decision ON audit_records (decision, ts_us);
