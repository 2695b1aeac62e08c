-- Runs can be removed and found by label and agent. Which run names which blob is written down, so that a blob can go with its last user.

ALTER TABLE run ADD COLUMN labels_json TEXT NOT NULL DEFAULT '{}';
-- A removed run is invisible at once; its rows go in bounded steps.
ALTER TABLE run ADD COLUMN removed_at INTEGER CHECK (removed_at IS NULL OR state = 'finished');
CREATE INDEX run_by_agent_and_age ON run (project_id, agent, created_at, id);
CREATE INDEX run_finished ON run (updated_at, id) WHERE state = 'finished' AND removed_at IS NULL AND child_of IS NULL;
CREATE INDEX run_removed ON run (removed_at, id) WHERE removed_at IS NOT NULL;
CREATE INDEX run_by_parent ON run (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX run_request_by_run ON run_request (run_id);

CREATE TABLE blob_use (
    hash BLOB NOT NULL,
    run_id TEXT NOT NULL REFERENCES run (id),
    PRIMARY KEY (hash, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_use_by_run ON blob_use (run_id, hash);

-- Blobs that may have no user since that time: just written and not yet named, or named by a run that was removed.
CREATE TABLE loose_blob (
    hash BLOB NOT NULL PRIMARY KEY,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX loose_blob_by_age ON loose_blob (since);

-- A text of 64 digits that is the hash of a blob names it, wherever in an entry it is.
INSERT OR IGNORE INTO blob_use (hash, run_id)
    SELECT blob.hash, journal.run_id
    FROM journal, json_tree(CASE WHEN json_valid(journal.entry) THEN journal.entry ELSE 'null' END) AS part
    JOIN blob ON blob.hash = unhex(part.value)
    WHERE part.type = 'text' AND length(part.value) = 64;
INSERT INTO loose_blob (hash, since) SELECT hash, 0 FROM blob WHERE hash NOT IN (SELECT hash FROM blob_use);
