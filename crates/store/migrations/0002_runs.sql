-- Runs, their journals, what waits for them, and what is too long for a journal.

CREATE TABLE run (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES project (id),
    agent TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'waiting', 'asking', 'parked', 'paused', 'finished')),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    -- The number of the last entry; entries up to parent_through are the parent's.
    head INTEGER NOT NULL,
    -- Raised by whoever takes the run; every append names it.
    epoch INTEGER NOT NULL DEFAULT 0,
    holder TEXT,
    lease_until INTEGER,
    -- When somebody should look at it; absent while only a signal can change anything.
    wake_at INTEGER,
    root_id TEXT NOT NULL,
    parent_id TEXT REFERENCES run (id),
    parent_through INTEGER,
    generation INTEGER NOT NULL,
    sandbox_id TEXT,
    outcome_json TEXT,
    CHECK ((parent_id IS NULL) = (parent_through IS NULL)),
    CHECK ((holder IS NULL) = (lease_until IS NULL)),
    CHECK ((state = 'finished') = (outcome_json IS NOT NULL))
) STRICT;
CREATE INDEX run_by_project_and_age ON run (project_id, created_at, id);
CREATE INDEX run_due ON run (wake_at, id) WHERE state <> 'finished' AND wake_at IS NOT NULL;
CREATE INDEX run_held ON run (holder) WHERE holder IS NOT NULL;
CREATE INDEX run_by_root ON run (root_id, generation);

CREATE TABLE run_request (
    project_id TEXT NOT NULL REFERENCES project (id),
    key TEXT NOT NULL,
    request_hash BLOB NOT NULL CHECK (length(request_hash) = 32),
    run_id TEXT NOT NULL REFERENCES run (id),
    created_at INTEGER NOT NULL,
    PRIMARY KEY (project_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_request_by_age ON run_request (created_at);

CREATE TABLE journal (
    run_id TEXT NOT NULL REFERENCES run (id),
    seq INTEGER NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE inbox (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES run (id),
    id TEXT NOT NULL,
    at INTEGER NOT NULL,
    body_json TEXT NOT NULL,
    UNIQUE (run_id, id)
) STRICT;

CREATE TABLE blob (
    hash BLOB NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    bytes BLOB NOT NULL
) STRICT, WITHOUT ROWID;
