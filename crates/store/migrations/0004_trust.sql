-- What tells a store that it was restored or damaged, and leases by a clock that nobody sets.

-- Why no worker takes this run until a person has decided: it was restored from a backup, or its journal can't be read.
ALTER TABLE run ADD COLUMN blocked TEXT CHECK (blocked IN ('restored', 'damaged'));
ALTER TABLE run ADD COLUMN blocked_reason TEXT CHECK ((blocked IS NULL) = (blocked_reason IS NULL));
CREATE INDEX run_blocked ON run (id) WHERE blocked IS NOT NULL;
DROP INDEX run_due;
CREATE INDEX run_due ON run (wake_at, id) WHERE wake_at IS NOT NULL AND blocked IS NULL;

-- From here on lease_until is in milliseconds of the host's monotonic clock. Earlier leases were by the wall clock.
UPDATE run SET holder = NULL, lease_until = NULL, wake_at = coalesce(wake_at, updated_at) WHERE holder IS NOT NULL;

-- The first 64 bits of the SHA-256 of the run's id, the entry's number and the entry. Absent in entries of earlier versions.
ALTER TABLE journal ADD COLUMN sum INTEGER;
