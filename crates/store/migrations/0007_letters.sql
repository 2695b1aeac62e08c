-- A run uses the blobs that letters to it name from the moment they wait. Until now they were looked for in all letters, one blob at a time.

INSERT OR IGNORE INTO blob_use (hash, run_id)
    SELECT blob.hash, inbox.run_id
    FROM inbox, json_tree(CASE WHEN json_valid(inbox.body_json) THEN inbox.body_json ELSE 'null' END) AS part
    JOIN blob ON blob.hash = unhex(part.value)
    WHERE part.type = 'text' AND length(part.value) = 64;
-- A blob that only a letter had named was never looked at again once that was seen.
INSERT OR IGNORE INTO loose_blob (hash, since) SELECT hash, 0 FROM blob WHERE hash NOT IN (SELECT hash FROM blob_use);
