-- Whose tasks of servers are.
CREATE TABLE tasks (
    server TEXT NOT NULL,
    id BLOB NOT NULL,          -- the SHA-256 of what the server calls it
    agent BLOB NOT NULL,
    given_ms INTEGER NOT NULL,
    PRIMARY KEY (server, id, agent)
) STRICT, WITHOUT ROWID;

CREATE INDEX tasks_of_agent ON tasks (agent, given_ms);
