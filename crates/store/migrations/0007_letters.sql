-- A run uses the blobs that letters to it name as soon as they are in its inbox. Earlier versions searched all letters for each loose blob.

INSERT OR IGNORE INTO blob_use (hash, run_id)
    SELECT blob.hash, inbox.run_id
    FROM inbox, json_tree(CASE WHEN json_valid(inbox.body_json) THEN inbox.body_json ELSE 'null' END) AS part
    JOIN blob ON blob.hash = unhex(part.value)
    WHERE part.type = 'text' AND length(part.value) = 64;
-- Earlier versions lost track of a loose blob that only a letter named.
INSERT OR IGNORE INTO loose_blob (hash, since) SELECT hash, 0 FROM blob WHERE hash NOT IN (SELECT hash FROM blob_use);
