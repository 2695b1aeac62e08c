-- The files that runs of an agent leave for later ones. They are in snapshots, and each is taken by one run.

ALTER TABLE run ADD COLUMN reuse_key BLOB;
-- using: the run may leave its files. leaving: they are being kept. left: the next run may take them. over: none are left.
ALTER TABLE run ADD COLUMN reuse_state TEXT CHECK (reuse_state IN ('using', 'leaving', 'left', 'over'));
-- The snapshot that its sandbox was started from, and the run that left it.
ALTER TABLE run ADD COLUMN began_with TEXT;
ALTER TABLE run ADD COLUMN began_from TEXT CHECK ((began_from IS NULL) = (began_with IS NULL));
-- The snapshot that it leaves, and until when.
ALTER TABLE run ADD COLUMN leaves TEXT;
ALTER TABLE run ADD COLUMN leaves_until INTEGER;
CREATE INDEX run_by_reuse ON run (project_id, reuse_key) WHERE reuse_state IS NOT NULL AND reuse_state <> 'over';
