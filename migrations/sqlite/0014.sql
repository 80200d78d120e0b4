-- What calls came to in each hour, by whom and by what they were of; written with the records of the index. Of
-- records from before this, what they cost and how long they took is not known here, nor their team.
CREATE TABLE audit_usage (
    dimension TEXT NOT NULL,   -- agent, server, tool, team, workspace
    name TEXT NOT NULL,        -- the id of the agent, `server/tool`, or the name
    hour INTEGER NOT NULL,     -- since 1970, UTC
    bucket INTEGER NOT NULL,   -- of how long the calls took; -1: not known
    calls INTEGER NOT NULL,
    errors INTEGER NOT NULL,   -- failed and interrupted ones
    refused INTEGER NOT NULL,
    spent_micros INTEGER NOT NULL,
    took_us INTEGER NOT NULL,
    PRIMARY KEY (dimension, name, hour, bucket)
) STRICT, WITHOUT ROWID;

INSERT INTO audit_usage
    SELECT 'agent', agent_id, ts_us / 3600000000 AS hour, -1, count(*),
        sum(decision IN ('failed', 'interrupted')), sum(decision = 'refused'), 0, 0
    FROM audit_records GROUP BY agent_id, hour;
INSERT INTO audit_usage
    SELECT 'server', server, ts_us / 3600000000 AS hour, -1, count(*),
        sum(decision IN ('failed', 'interrupted')), sum(decision = 'refused'), 0, 0
    FROM audit_records WHERE server IS NOT NULL GROUP BY server, hour;
INSERT INTO audit_usage
    SELECT 'tool', server || '/' || tool AS name, ts_us / 3600000000 AS hour, -1, count(*),
        sum(decision IN ('failed', 'interrupted')), sum(decision = 'refused'), 0, 0
    FROM audit_records WHERE server IS NOT NULL AND tool IS NOT NULL GROUP BY name, hour;
