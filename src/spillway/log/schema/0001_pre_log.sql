-- The two logs, the checkpoints, and the rows of fact beside them.
CREATE SCHEMA IF NOT EXISTS spillway;

-- Which files of this folder were applied.
CREATE TABLE spillway.migration (
    name text PRIMARY KEY,
    checksum text NOT NULL, -- sha256 of the file
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- A tenant. The row is locked while a queue is made, so two creates cannot both pass its cap.
CREATE TABLE spillway.org (
    name text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE spillway.queue (
    queue_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org text NOT NULL REFERENCES spillway.org (name),
    name text NOT NULL,
    options jsonb NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    options_at timestamptz, -- of the last change of options; null: as it was made
    deleted_at timestamptz -- live → deleted; a new queue of the same name is another row
);
CREATE UNIQUE INDEX queue_live_name ON spillway.queue (org, name) WHERE deleted_at IS NULL;

-- One ordered log. `pruned_to` keeps versions from being reused when every batch is gone.
CREATE TABLE spillway.lane (
    lane_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id bigint NOT NULL REFERENCES spillway.queue (queue_id),
    partition text NOT NULL,
    priority smallint NOT NULL,
    enqueue_shard smallint NOT NULL,
    shard_id integer NOT NULL,
    pruned_to bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (queue_id, partition, priority, enqueue_shard)
);
CREATE INDEX lane_shard ON spillway.lane (shard_id);

-- A consumer group of a queue.
CREATE TABLE spillway.consumer (
    queue_id bigint NOT NULL REFERENCES spillway.queue (queue_id),
    "group" text NOT NULL,
    kind text NOT NULL DEFAULT 'lease', -- lease | offset, for life
    start text NOT NULL DEFAULT 'earliest',
    paused boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (queue_id, "group")
);

-- The message log: a row is a record batch, the messages of one commit for one lane. Written once.
-- A batch is cut so that its compressed row stays inside a page: out-of-line storage would make
-- every batch a dozen tuples more to write, to read and to prune.
CREATE TABLE spillway.message_batch (
    lane_id bigint NOT NULL,
    base_version bigint NOT NULL,
    count integer NOT NULL,
    appended_at timestamptz NOT NULL,
    transaction_ids text[] NOT NULL,
    keys text[],
    headers jsonb, -- one object (or null) a message
    payloads bytea[] NOT NULL,
    content_types smallint[], -- 0 JSON text, 1 bytes; null: all JSON
    deliver_at timestamptz[],
    expires_at timestamptz[],
    trace_ids text[],
    PRIMARY KEY (lane_id, base_version)
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX message_batch_timed ON spillway.message_batch (lane_id, base_version)
    WHERE deliver_at IS NOT NULL OR expires_at IS NOT NULL;

-- The control log: the events of one (lane, group) in one commit. Trimmed behind checkpoints.
CREATE TABLE spillway.control_event (
    lane_id bigint NOT NULL,
    "group" text NOT NULL,
    seq bigint NOT NULL,
    events bytea NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (lane_id, "group", seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- The fold of the control log up to `seq`: a cache. A large one is split into parts.
CREATE TABLE spillway.checkpoint (
    lane_id bigint NOT NULL,
    "group" text NOT NULL,
    seq bigint NOT NULL,
    part smallint NOT NULL,
    parts smallint NOT NULL,
    trim bigint NOT NULL,
    state bytea NOT NULL,
    crc bigint NOT NULL, -- crc32 of the whole state
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (lane_id, "group", seq, part)
);

-- Given up on, until redriven or purged. Its body is a copy, so that pruning cannot take it.
CREATE TABLE spillway.dead_letter (
    dead_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id bigint NOT NULL,
    lane_id bigint NOT NULL,
    "group" text NOT NULL,
    version bigint NOT NULL,
    transaction_id text NOT NULL,
    key text,
    headers jsonb,
    payload bytea NOT NULL,
    content_type smallint NOT NULL,
    trace_id text,
    attempts integer NOT NULL,
    cause text NOT NULL, -- exhausted | expired | nack | operator
    error text,
    actor text,
    reason text,
    enqueued_at timestamptz NOT NULL,
    dead_at timestamptz NOT NULL,
    UNIQUE (lane_id, "group", version)
);
CREATE INDEX dead_letter_queue ON spillway.dead_letter (queue_id, "group", dead_id);

-- The unit of ownership. Every commit of its writer passes through this row: the fence.
CREATE TABLE spillway.shard (
    shard_id integer PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 0,
    commit_seq bigint NOT NULL DEFAULT 0,
    owner text,
    owner_pid integer, -- the backend that the owner commits on,
    owner_since timestamptz, -- and when that backend started: no such backend, no such owner
    lease_until timestamptz NOT NULL DEFAULT 'epoch'
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000);

CREATE TABLE spillway.broker (
    broker_id text PRIMARY KEY,
    address text NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL
);

CREATE TABLE spillway.api_key (
    digest bytea PRIMARY KEY, -- sha256 of the key; the key itself is shown once and not stored
    org text NOT NULL REFERENCES spillway.org (name),
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);

-- Who did what, by hand, and why.
CREATE TABLE spillway.operator_action (
    action_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    org text NOT NULL,
    queue text NOT NULL,
    "group" text,
    verb text NOT NULL,
    actor text NOT NULL,
    reason text,
    detail jsonb NOT NULL
);
CREATE INDEX operator_action_queue ON spillway.operator_action (org, queue, action_id);

-- What a commit sends, as arrays of these (their columns are the writer's contract).
CREATE TYPE spillway.new_batch AS (
    lane_id bigint, base_version bigint, count integer, appended_at timestamptz,
    transaction_ids text[], keys text[], headers jsonb, payloads bytea[],
    content_types smallint[], deliver_at timestamptz[], expires_at timestamptz[], trace_ids text[]
);
CREATE TYPE spillway.new_control AS (
    lane_id bigint, "group" text, seq bigint, events bytea, at timestamptz
);
CREATE TYPE spillway.new_dead AS (
    queue_id bigint, lane_id bigint, "group" text, version bigint, attempts integer,
    cause text, error text, actor text, reason text, dead_at timestamptz
);

-- One row a message, for people with psql.
CREATE VIEW spillway.message AS
SELECT
    q.org,
    q.name AS queue,
    l.partition,
    l.priority,
    b.base_version + i - 1 AS version,
    b.transaction_ids[i] AS transaction_id,
    b.keys[i] AS key,
    b.headers -> (i - 1)::integer AS headers,
    b.payloads[i] AS payload,
    coalesce(b.content_types[i], 0::smallint) AS content_type,
    b.appended_at,
    b.deliver_at[i] AS deliver_at,
    b.expires_at[i] AS expires_at,
    b.trace_ids[i] AS trace_id,
    b.lane_id
FROM spillway.message_batch AS b
JOIN spillway.lane AS l USING (lane_id)
JOIN spillway.queue AS q USING (queue_id)
CROSS JOIN LATERAL generate_series(1, b.count) AS i;
