-- Decisions about a sandbox's network have bounds of their own: a sandbox makes as many as it likes, and they must not displace other events.
CREATE TABLE decision (
    sandbox_id TEXT NOT NULL REFERENCES sandbox (id),
    -- Of the same sequence as event.seq.
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    body_json TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX decision_by_verdict ON decision (sandbox_id, verdict, seq);

-- Sums of all decisions, also of those that are no longer kept.
CREATE TABLE traffic (
    sandbox_id TEXT NOT NULL REFERENCES sandbox (id),
    host TEXT NOT NULL,
    port INTEGER NOT NULL,
    allowed INTEGER NOT NULL,
    denied INTEGER NOT NULL,
    bytes_up INTEGER NOT NULL,
    bytes_down INTEGER NOT NULL,
    PRIMARY KEY (sandbox_id, host, port)
) STRICT, WITHOUT ROWID;

-- The last decision that the sums include: one that is reported twice counts once.
ALTER TABLE sandbox ADD COLUMN summed_through INTEGER NOT NULL DEFAULT 0;
-- The names in its environment: the policy hash covers them, and is made again when rules are replaced.
ALTER TABLE sandbox ADD COLUMN env_names_json TEXT NOT NULL DEFAULT '[]';
ALTER TABLE sandbox ADD COLUMN ingress_json TEXT NOT NULL DEFAULT '{}';
