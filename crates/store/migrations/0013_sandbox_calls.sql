-- Calls of models by programs in the sandboxes of runs: what is set aside for those under way, and sums of those that have ended.

CREATE TABLE sandbox_call (
    call TEXT NOT NULL PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES run (id),
    model TEXT NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    micros INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sandbox_call_by_run ON sandbox_call (run_id);

CREATE TABLE sandbox_call_sum (
    run_id TEXT NOT NULL REFERENCES run (id),
    model TEXT NOT NULL,
    sum_json TEXT NOT NULL,
    PRIMARY KEY (run_id, model)
) STRICT, WITHOUT ROWID;

-- What the run's budget leaves for all of its sandboxes' calls, the rows above included. NULL: it has no such limit.
ALTER TABLE run ADD COLUMN left_tokens INTEGER;
ALTER TABLE run ADD COLUMN left_micros INTEGER;
-- Earlier versions didn't say. Nothing is left until the run's next worker does, which is at once.
UPDATE run SET left_tokens = 0, left_micros = 0, wake_at = min(coalesce(wake_at, updated_at), updated_at)
    WHERE state <> 'finished' AND sandbox_id IS NOT NULL;
