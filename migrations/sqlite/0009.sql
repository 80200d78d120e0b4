-- Secrets of the operator: names and times are plain, values are sealed for `secrets/NAME`.
CREATE TABLE secrets (
    name TEXT PRIMARY KEY NOT NULL,
    sealed BLOB NOT NULL,
    created_ms INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- With which key what is sealed for a purpose is sealed, so that no other one is used by mistake.
CREATE TABLE sealing_keys (
    purpose TEXT PRIMARY KEY NOT NULL,
    fingerprint BLOB NOT NULL,
    place TEXT NOT NULL,
    since_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
