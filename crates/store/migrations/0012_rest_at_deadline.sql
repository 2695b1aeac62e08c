-- Whether a sandbox that is paused at its deadline keeps its files alone. Earlier versions always kept its memory.

ALTER TABLE sandbox ADD COLUMN rests_at_deadline INTEGER NOT NULL DEFAULT 0 CHECK (rests_at_deadline IN (0, 1));
