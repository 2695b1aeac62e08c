-- The snapshots that a run needs, and where its files come from. Interpreted by the engine; earlier runs have none.

ALTER TABLE run ADD COLUMN files_json TEXT;
