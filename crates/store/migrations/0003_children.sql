-- Runs that runs start, and runs that are over but still hold something.

ALTER TABLE run ADD COLUMN child_of TEXT REFERENCES run (id);
-- The step of that run which waits for this one.
ALTER TABLE run ADD COLUMN child_of_step INTEGER CHECK ((child_of IS NULL) = (child_of_step IS NULL));
CREATE INDEX run_by_child_of ON run (child_of, created_at, id) WHERE child_of IS NOT NULL;

-- A finished run is due, too, until what it holds is let go of.
DROP INDEX run_due;
CREATE INDEX run_due ON run (wake_at, id) WHERE wake_at IS NOT NULL;
