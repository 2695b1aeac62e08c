-- Secrets of projects. The value is sealed by the runtime under a key that is outside of the data directory.

CREATE TABLE secret (
    project_id TEXT NOT NULL REFERENCES project (id),
    name TEXT NOT NULL,
    -- Counts changes from 1. The seal covers it, with the project, the name and the binding.
    version INTEGER NOT NULL CHECK (version > 0),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    -- Names the key that the value is sealed with.
    key_id TEXT NOT NULL,
    binding_json TEXT NOT NULL,
    -- Last, so that lists don't read it.
    sealed BLOB NOT NULL,
    PRIMARY KEY (project_id, name)
) STRICT;
CREATE INDEX secret_by_key ON secret (key_id);
