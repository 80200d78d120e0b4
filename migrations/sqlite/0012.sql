-- Entries of the config that the API and the command line make: documents of JSON as a config file would have
-- them in a section of their own. Rows have MACs, as those of agents: a server may be a program to start.
CREATE TABLE config_entries (
    section TEXT NOT NULL,     -- servers, profiles, workspaces
    name TEXT NOT NULL,
    document TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL,
    mac BLOB NOT NULL,
    PRIMARY KEY (section, name)
) STRICT, WITHOUT ROWID;
