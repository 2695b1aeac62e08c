-- A store of version 13, made by the migrations, a row of each kind. Never edited.
PRAGMA application_id = 1397178706;
PRAGMA user_version = 13;
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE api_key (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES project (id),
    name TEXT NOT NULL,
    -- The first characters of the secret, to know a key by. The secret itself is nowhere.
    prefix TEXT NOT NULL,
    hash BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    permissions TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    last_used_at INTEGER
) STRICT;
INSERT INTO api_key VALUES('key_cqaeabiacqaeabiacqaeabiaca','prj_biacqaeabiacqaeabiacqaeaba','laptop','sgr_7Cjta2R8',X'4a4d923fd080e49cb9e46de6faee3df416b4ccf8d74965a61c3e3c9250d4400c','full',1800000000000,1800000060000,NULL,NULL);
CREATE TABLE blob (
    hash BLOB NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    bytes BLOB NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO blob VALUES(X'0b3e6321c26b7b5d41be970147a20f3404b6907551d53867738e4f5ba75abb3f',X'6a75737420707574');
INSERT INTO blob VALUES(X'333b9f394177f803c5161126f07d492acff1596f993f5f5124bda5f99425d870',X'6e616d65642062792061206c6574746572');
INSERT INTO blob VALUES(X'5570a3cf02207f1d352d2cfea385be4bc0b2b9414f606baa6f55db60b232f221',X'6120626c6f62');
INSERT INTO blob VALUES(X'd97beb5cfddfcb534e1c6dbb3a1d444921b7c5b225025539920ca6699528a620',X'6e616d656420627920616e20656e747279');
CREATE TABLE blob_use (
    hash BLOB NOT NULL,
    run_id TEXT NOT NULL REFERENCES run (id),
    PRIMARY KEY (hash, run_id)
) STRICT, WITHOUT ROWID;
INSERT INTO blob_use VALUES(X'333b9f394177f803c5161126f07d492acff1596f993f5f5124bda5f99425d870','run_gqbmadyagqbmadyagqbmadyaga');
INSERT INTO blob_use VALUES(X'd97beb5cfddfcb534e1c6dbb3a1d444921b7c5b225025539920ca6699528a620','run_kqcuafibkqcuafibkqcuafibka');
CREATE TABLE decision (
    sandbox_id TEXT NOT NULL REFERENCES sandbox (id),
    -- Of the same sequence as event.seq.
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    body_json TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO decision VALUES('sbx_dyagqbmadyagqbmadyagqbmada',2,1800000000000,'allowed','{"type":"decision","host":"a.example","port":443,"protocol":"tls","verdict":"allowed","rule":"a.example","bytes_up":3,"bytes_down":5,"duration_ms":1}');
CREATE TABLE event (
    sandbox_id TEXT NOT NULL REFERENCES sandbox (id),
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    body_json TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO event VALUES('sbx_dyagqbmadyagqbmadyagqbmada',0,1800000000000,'{"n":0}');
INSERT INTO event VALUES('sbx_dyagqbmadyagqbmadyagqbmada',1,1800000000000,'{"n":1}');
CREATE TABLE exec (
    id TEXT NOT NULL PRIMARY KEY,
    sandbox_id TEXT NOT NULL REFERENCES sandbox (id),
    state TEXT NOT NULL CHECK (state IN ('running', 'ended', 'lost')),
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    status TEXT,
    exit_code INTEGER,
    signal INTEGER,
    user TEXT NOT NULL,
    cwd TEXT,
    argv_json TEXT NOT NULL,
    has_output INTEGER NOT NULL DEFAULT 0 CHECK (has_output IN (0, 1)),
    stdout_dropped INTEGER NOT NULL DEFAULT 0,
    stderr_dropped INTEGER NOT NULL DEFAULT 0,
    -- Last, so that they lie in overflow pages which nothing reads but who asks for output.
    stdout BLOB NOT NULL DEFAULT x'',
    stderr BLOB NOT NULL DEFAULT x'',
    CHECK ((state = 'running') = (ended_at IS NULL)),
    CHECK ((state = 'ended') = (status IS NOT NULL))
) STRICT;
INSERT INTO exec VALUES('exec_eabiacqaeabiacqaeabiacqaea','sbx_dyagqbmadyagqbmadyagqbmada','ended',1800000001000,1800000004000,'exited',3,NULL,'root',NULL,'["sh","-c","echo ''é''; exit 3"]',1,5,0,X'6f7574ff',X'657272');
CREATE TABLE idempotency (
    project_id TEXT NOT NULL REFERENCES project (id),
    key TEXT NOT NULL,
    request_hash BLOB NOT NULL CHECK (length(request_hash) = 32),
    sandbox_id TEXT NOT NULL REFERENCES sandbox (id),
    created_at INTEGER NOT NULL,
    PRIMARY KEY (project_id, key)
) STRICT, WITHOUT ROWID;
INSERT INTO idempotency VALUES('prj_biacqaeabiacqaeabiacqaeaba','once',X'679024f6ab0951cdd72b17f27cb1cba5d1bc44b4077354077a31c5dad2f3a81b','sbx_dyagqbmadyagqbmadyagqbmada',1800000000000);
CREATE TABLE inbox (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES run (id),
    id TEXT NOT NULL,
    at INTEGER NOT NULL,
    body_json TEXT NOT NULL,
    UNIQUE (run_id, id)
) STRICT;
INSERT INTO inbox VALUES(1,'run_gqbmadyagqbmadyagqbmadyaga','letter',1800000000000,'{"v":1,"tell":"pause"}');
INSERT INTO inbox VALUES(2,'run_gqbmadyagqbmadyagqbmadyaga','long',1800000000000,'{"v":1,"tell":{"signal":{"name":"note","body":{"blob":{"hash":"333b9f394177f803c5161126f07d492acff1596f993f5f5124bda5f99425d870","length":17}}}}}');
CREATE TABLE journal (
    run_id TEXT NOT NULL REFERENCES run (id),
    seq INTEGER NOT NULL,
    entry TEXT NOT NULL, sum INTEGER,
    PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO journal VALUES('run_gqbmadyagqbmadyagqbmadyaga',1,'first',NULL);
INSERT INTO journal VALUES('run_gqbmadyagqbmadyagqbmadyaga',2,'second',NULL);
INSERT INTO journal VALUES('run_gqbmadyagqbmadyagqbmadyaga',3,'third',NULL);
INSERT INTO journal VALUES('run_hyboqd4ahyboqd4ahyboqd4aha',1,'child''s first',NULL);
INSERT INTO journal VALUES('run_iacqaeabiacqaeabiacqaeabia',1,'damaged',-4930935646117991464);
INSERT INTO journal VALUES('run_jicsqeebjicsqeebjicsqeebja',1,'waits for room',-8900383567673325376);
INSERT INTO journal VALUES('run_kqcuafibkqcuafibkqcuafibka',1,'{"blob":{"hash":"d97beb5cfddfcb534e1c6dbb3a1d444921b7c5b225025539920ca6699528a620","length":17}}',2535813947236006470);
INSERT INTO journal VALUES('run_lycwqfmblycwqfmblycwqfmbla',1,'removed',413180782552811091);
CREATE TABLE loose_blob (
    hash BLOB NOT NULL PRIMARY KEY,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO loose_blob VALUES(X'5570a3cf02207f1d352d2cfea385be4bc0b2b9414f606baa6f55db60b232f221',0);
INSERT INTO loose_blob VALUES(X'0b3e6321c26b7b5d41be970147a20f3404b6907551d53867738e4f5ba75abb3f',1800000000000);
CREATE TABLE meta (
    key TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES('boot_id','0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6e');
INSERT INTO meta VALUES('opens','3');
INSERT INTO meta VALUES('runs_passed','1800000000000 run_gqbmadyagqbmadyagqbmadyaga');
INSERT INTO meta VALUES('sealing_key_id','ea4a6c63e29c520a');
CREATE TABLE project (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
) STRICT;
INSERT INTO project VALUES('prj_biacqaeabiacqaeabiacqaeaba','default',1800000000000);
CREATE TABLE run (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES project (id),
    agent TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'waiting', 'asking', 'parked', 'paused', 'finished')),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    -- The number of the last entry; entries up to parent_through are the parent's.
    head INTEGER NOT NULL,
    -- Raised by whoever takes the run; every append names it.
    epoch INTEGER NOT NULL DEFAULT 0,
    holder TEXT,
    lease_until INTEGER,
    -- When somebody should look at it; absent while only a signal can change anything.
    wake_at INTEGER,
    root_id TEXT NOT NULL,
    parent_id TEXT REFERENCES run (id),
    parent_through INTEGER,
    generation INTEGER NOT NULL,
    sandbox_id TEXT,
    outcome_json TEXT, child_of TEXT REFERENCES run (id), child_of_step INTEGER CHECK ((child_of IS NULL) = (child_of_step IS NULL)), blocked TEXT CHECK (blocked IN ('restored', 'damaged')), blocked_reason TEXT CHECK ((blocked IS NULL) = (blocked_reason IS NULL)), room_since INTEGER, labels_json TEXT NOT NULL DEFAULT '{}', removed_at INTEGER CHECK (removed_at IS NULL OR state = 'finished'), files_json TEXT, reuse_key BLOB, reuse_state TEXT CHECK (reuse_state IN ('using', 'leaving', 'left', 'over')), began_with TEXT, began_from TEXT CHECK ((began_from IS NULL) = (began_with IS NULL)), leaves TEXT, leaves_until INTEGER, left_tokens INTEGER, left_micros INTEGER,
    CHECK ((parent_id IS NULL) = (parent_through IS NULL)),
    CHECK ((holder IS NULL) = (lease_until IS NULL)),
    CHECK ((state = 'finished') = (outcome_json IS NOT NULL))
) STRICT;
INSERT INTO run VALUES('run_gqbmadyagqbmadyagqbmadyaga','prj_biacqaeabiacqaeabiacqaeaba','a','waiting',1800000000000,1800000000000,3,1,'w1',1005000,1800000000000,'run_gqbmadyagqbmadyagqbmadyaga',NULL,NULL,0,'sbx_dyagqbmadyagqbmadyagqbmada',NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,'{"kept":[{"step":3,"snapshot":"snap_aeaqcaibaeaqcaibaeaqcaibae"}],"restored":{"after":5,"from":{"step":3,"snapshot":"snap_aeaqcaibaeaqcaibaeaqcaibae"},"older_from":4}}',X'ce4cf5ab404d385b4157e04fb56f59191954ef228e88af04c21eb843e2e992ca','using','snap_aeaqcaibaeaqcaibaeaqcaibae','run_lycwqfmblycwqfmblycwqfmbla',NULL,NULL,5000,1000);
INSERT INTO run VALUES('run_hyboqd4ahyboqd4ahyboqd4aha','prj_biacqaeabiacqaeabiacqaeaba','b','queued',1800000000000,1800000000000,1,0,NULL,NULL,1800000000000,'run_hyboqd4ahyboqd4ahyboqd4aha',NULL,NULL,0,NULL,NULL,'run_gqbmadyagqbmadyagqbmadyaga',2,NULL,NULL,NULL,'{}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO run VALUES('run_iacqaeabiacqaeabiacqaeabia','prj_biacqaeabiacqaeabiacqaeaba','a','parked',1800000000000,1800000000000,1,1,NULL,NULL,1800000000000,'run_iacqaeabiacqaeabiacqaeabia',NULL,NULL,0,NULL,NULL,NULL,NULL,'damaged','entry 2 can''t be read',NULL,'{}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO run VALUES('run_jicsqeebjicsqeebjicsqeebja','prj_biacqaeabiacqaeabiacqaeaba','a','waiting',1800000000000,1800000000000,1,0,NULL,NULL,1800000030000,'run_jicsqeebjicsqeebjicsqeebja',NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1800000001000,'{}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO run VALUES('run_kqcuafibkqcuafibkqcuafibka','prj_biacqaeabiacqaeabiacqaeaba','a','finished',1800000000000,1800000000000,1,0,NULL,NULL,NULL,'run_kqcuafibkqcuafibkqcuafibka',NULL,NULL,0,NULL,'{"outcome":"cancelled"}',NULL,NULL,NULL,NULL,NULL,'{"team":"red"}',NULL,NULL,X'ce4cf5ab404d385b4157e04fb56f59191954ef228e88af04c21eb843e2e992ca','left',NULL,NULL,'snap_aeaqcaibaeaqcaibaeaqcaibae',1800000300000,NULL,NULL);
INSERT INTO run VALUES('run_lycwqfmblycwqfmblycwqfmbla','prj_biacqaeabiacqaeabiacqaeaba','a','finished',1800000000000,1800000000000,1,0,NULL,NULL,NULL,'run_lycwqfmblycwqfmblycwqfmbla',NULL,NULL,0,NULL,'{"outcome":"cancelled"}',NULL,NULL,NULL,NULL,NULL,'{}',1800000005000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE run_request (
    project_id TEXT NOT NULL REFERENCES project (id),
    key TEXT NOT NULL,
    request_hash BLOB NOT NULL CHECK (length(request_hash) = 32),
    run_id TEXT NOT NULL REFERENCES run (id),
    created_at INTEGER NOT NULL,
    PRIMARY KEY (project_id, key)
) STRICT, WITHOUT ROWID;
INSERT INTO run_request VALUES('prj_biacqaeabiacqaeabiacqaeaba','run',X'56a98cc421ff9471ce484a3d658dc54a1765a667bda8aa1c919b781e870acb59','run_gqbmadyagqbmadyagqbmadyaga',1800000000000);
CREATE TABLE sandbox (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES project (id),
    state TEXT NOT NULL CHECK (state IN ('creating', 'running', 'paused', 'ended')),
    -- Since when it is in this state.
    state_since INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    end_reason TEXT,
    deadline INTEGER,
    on_deadline TEXT NOT NULL CHECK (on_deadline IN ('kill', 'pause')),
    idle_timeout_ms INTEGER,
    auto_resume INTEGER NOT NULL CHECK (auto_resume IN (0, 1)),
    template TEXT NOT NULL,
    network TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    supervisor_pid INTEGER,
    policy_hash TEXT,
    access_token_hash BLOB CHECK (length(access_token_hash) = 32),
    public_ports_json TEXT NOT NULL,
    labels_json TEXT NOT NULL,
    spec_json TEXT NOT NULL,
    end_detail_json TEXT, summed_through INTEGER NOT NULL DEFAULT 0, env_names_json TEXT NOT NULL DEFAULT '[]', ingress_json TEXT NOT NULL DEFAULT '{}', rests_at_deadline INTEGER NOT NULL DEFAULT 0 CHECK (rests_at_deadline IN (0, 1)),
    CHECK ((state = 'ended') = (ended_at IS NOT NULL)),
    CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) STRICT;
INSERT INTO sandbox VALUES('sbx_dyagqbmadyagqbmadyagqbmada','prj_biacqaeabiacqaeabiacqaeaba','ended',1800000004000,1800000000000,1800000001000,1800000004000,'timed_out',1800000300000,'pause',60000,1,'base','none','0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6e',42,'sha256:abababababababababababababababababababababababababababababababab',X'8b4389aa4f7373a3c2ee2b0bf57deccfa9139abbfd23bd09fd8a7ab48ed628ff','[80,65535]','{"team":"Zoë''s \"own\""}','{"schema":"saggar.spec/v1"}','{"peak":1}',2,'[]','{"allow":[80],"host":"localhost:${PORT}"}',0);
INSERT INTO sandbox VALUES('sbx_eabiacqaeabiacqaeabiacqaea','prj_biacqaeabiacqaeabiacqaeaba','ended',1800000004000,1800000000000,1800000001000,1800000004000,'timed_out',1800000300000,'pause',60000,1,'base','none','0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6e',42,'sha256:abababababababababababababababababababababababababababababababab',X'8b4389aa4f7373a3c2ee2b0bf57deccfa9139abbfd23bd09fd8a7ab48ed628ff','[80,65535]','{"team":"Zoë''s \"own\""}','{"schema":"saggar.spec/v1"}','{"peak":1}',2,'[]','{"allow":[80],"host":"localhost:${PORT}"}',1);
CREATE TABLE secret (
    project_id TEXT NOT NULL REFERENCES project (id),
    name TEXT NOT NULL,
    -- Counts changes from 1. The seal covers it, with the project, the name and the binding.
    version INTEGER NOT NULL CHECK (version > 0),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    -- Names the key that the value is sealed with.
    key_id TEXT NOT NULL,
    binding_json TEXT NOT NULL,
    -- Last, so that lists don't read it.
    sealed BLOB NOT NULL,
    PRIMARY KEY (project_id, name)
) STRICT;
INSERT INTO secret VALUES('prj_biacqaeabiacqaeabiacqaeaba','openai',2,1800000000000,1800000001000,'ea4a6c63e29c520a','{"rules":["POST api.openai.com/v1/**"],"slot":"bearer","placeholder_prefix":"sk-"}',X'01020304');
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
INSERT INTO traffic VALUES('sbx_dyagqbmadyagqbmadyagqbmada','a.example',443,1,0,3,5);
CREATE TABLE sandbox_call (
    call TEXT NOT NULL PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES run (id),
    model TEXT NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    micros INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO sandbox_call VALUES('call-1','run_gqbmadyagqbmadyagqbmadyaga','cheap',100,20,7);
CREATE TABLE sandbox_call_sum (
    run_id TEXT NOT NULL REFERENCES run (id),
    model TEXT NOT NULL,
    sum_json TEXT NOT NULL,
    PRIMARY KEY (run_id, model)
) STRICT, WITHOUT ROWID;
INSERT INTO sandbox_call_sum VALUES('run_gqbmadyagqbmadyagqbmadyaga','cheap','{"calls":2,"estimated":1,"input":300,"cached":10,"written":5,"output":40,"reasoning":3,"micros":90}');
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('inbox',2);
CREATE INDEX api_key_by_project ON api_key (project_id, created_at);
CREATE INDEX sandbox_by_age ON sandbox (created_at, id);
CREATE INDEX sandbox_by_project_and_age ON sandbox (project_id, created_at, id);
CREATE INDEX sandbox_live ON sandbox (created_at, id) WHERE state <> 'ended';
CREATE INDEX sandbox_live_by_project ON sandbox (project_id, created_at, id) WHERE state <> 'ended';
CREATE INDEX sandbox_by_end ON sandbox (ended_at, id) WHERE state = 'ended';
CREATE INDEX sandbox_by_state ON sandbox (project_id, state);
CREATE INDEX idempotency_by_age ON idempotency (created_at);
CREATE INDEX idempotency_by_sandbox ON idempotency (sandbox_id);
CREATE INDEX exec_by_sandbox_and_age ON exec (sandbox_id, started_at, id);
CREATE INDEX exec_running ON exec (sandbox_id) WHERE state = 'running';
CREATE INDEX exec_with_output ON exec (sandbox_id, ended_at) WHERE has_output = 1;
CREATE INDEX run_by_project_and_age ON run (project_id, created_at, id);
CREATE INDEX run_held ON run (holder) WHERE holder IS NOT NULL;
CREATE INDEX run_by_root ON run (root_id, generation);
CREATE INDEX run_request_by_age ON run_request (created_at);
CREATE INDEX run_by_child_of ON run (child_of, created_at, id) WHERE child_of IS NOT NULL;
CREATE INDEX run_blocked ON run (id) WHERE blocked IS NOT NULL;
CREATE INDEX run_waiting_for_room ON run (room_since, id) WHERE room_since IS NOT NULL AND state = 'waiting';
CREATE INDEX run_due ON run (project_id, agent, wake_at, id) WHERE wake_at IS NOT NULL AND blocked IS NULL;
CREATE INDEX run_by_agent_and_age ON run (project_id, agent, created_at, id);
CREATE INDEX run_finished ON run (updated_at, id) WHERE state = 'finished' AND removed_at IS NULL AND child_of IS NULL;
CREATE INDEX run_removed ON run (removed_at, id) WHERE removed_at IS NOT NULL;
CREATE INDEX run_by_parent ON run (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX run_request_by_run ON run_request (run_id);
CREATE INDEX blob_use_by_run ON blob_use (run_id, hash);
CREATE INDEX loose_blob_by_age ON loose_blob (since);
CREATE INDEX secret_by_key ON secret (key_id);
CREATE INDEX decision_by_verdict ON decision (sandbox_id, verdict, seq);
CREATE INDEX run_by_reuse ON run (project_id, reuse_key) WHERE reuse_state IS NOT NULL AND reuse_state <> 'over';
CREATE INDEX sandbox_call_by_run ON sandbox_call (run_id);
COMMIT;
