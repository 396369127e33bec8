-- Every statement that Spillway runs, by name. `log.queries` loads them.

-- name: commit
-- One commit of a shard: the fence, the messages, the control events, the dead letters; all or none.
-- $1 shard, $2 epoch, $3 commit_seq, $4 batches, $5 control rows, $6 dead letters, $7 dead_ids to
-- delete, $8 how far the spool is replayed
WITH fence AS (
    UPDATE spillway.shard SET commit_seq = $3
    WHERE shard_id = $1 AND epoch = $2
    RETURNING shard_id
), batches AS (
    INSERT INTO spillway.message_batch
    SELECT n.* FROM unnest($4::spillway.new_batch[]) AS n WHERE EXISTS (SELECT FROM fence)
), controls AS (
    INSERT INTO spillway.control_event
    SELECT n.* FROM unnest($5::spillway.new_control[]) AS n WHERE EXISTS (SELECT FROM fence)
), dead AS (
    INSERT INTO spillway.dead_letter (
        queue_id, lane_id, "group", version, transaction_id, key, headers, payload, content_type,
        trace_id, attempts, cause, error, actor, reason, enqueued_at, dead_at
    )
    SELECT
        n.queue_id, n.lane_id, n."group", n.version, b.transaction_ids[b.i], b.keys[b.i],
        b.headers -> (b.i - 1), b.payloads[b.i], coalesce(b.content_types[b.i], 0::smallint),
        b.trace_ids[b.i], n.attempts, n.cause, n.error, n.actor, n.reason, b.appended_at, n.dead_at
    FROM unnest($6::spillway.new_dead[]) AS n
    CROSS JOIN LATERAL (
        SELECT m.*, (n.version - m.base_version + 1)::integer AS i
        FROM spillway.message_batch AS m
        WHERE m.lane_id = n.lane_id AND m.base_version <= n.version
        ORDER BY m.base_version DESC
        LIMIT 1
    ) AS b
    WHERE EXISTS (SELECT FROM fence)
    ON CONFLICT (lane_id, "group", version) DO UPDATE SET
        attempts = excluded.attempts, cause = excluded.cause, error = excluded.error,
        actor = excluded.actor, reason = excluded.reason, dead_at = excluded.dead_at
), undead AS (
    DELETE FROM spillway.dead_letter
    WHERE dead_id = ANY ($7::bigint[]) AND EXISTS (SELECT FROM fence)
), replayed AS (
    INSERT INTO spillway.replayed
    SELECT n.* FROM unnest($8::spillway.new_replayed[]) AS n WHERE EXISTS (SELECT FROM fence)
    ON CONFLICT (lane_id, source) DO UPDATE SET seq = greatest(replayed.seq, excluded.seq)
)
SELECT count(*) FROM fence

-- name: shards_make
-- The shards of a new cluster; a cluster that has some keeps its number.
INSERT INTO spillway.shard (shard_id)
SELECT generate_series(0, %(num_shards)s - 1)
WHERE NOT EXISTS (SELECT FROM spillway.shard)
ON CONFLICT DO NOTHING

-- name: shards
-- Who writes what. PostgreSQL's clock judges the leases.
SELECT shard_id, epoch, commit_seq, owner, lease_until, lease_until > now() AS leased
FROM spillway.shard ORDER BY shard_id

-- name: shard_acquire
-- Take a shard whose owner let it go, is this broker, or is provably gone; raise its epoch.
UPDATE spillway.shard AS s
SET epoch = epoch + 1, owner = %(owner)s, owner_pid = pg_backend_pid(),
    owner_since = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()),
    lease_until = now() + %(lease_s)s * interval '1 second'
WHERE shard_id = %(shard_id)s AND (
    lease_until <= now() OR owner IS NULL OR owner = %(owner)s
    OR NOT EXISTS (
        SELECT FROM pg_stat_activity AS a
        WHERE a.pid = s.owner_pid
            -- Hidden (null) from other roles: then it may well be the owner's.
            AND (a.backend_start IS NULL OR a.backend_start = s.owner_since)
    )
)
RETURNING epoch, commit_seq, extract(epoch FROM clock_timestamp())::float8

-- name: shard_renew
-- Keep a shard; no row means that it was lost.
UPDATE spillway.shard SET lease_until = now() + %(lease_s)s * interval '1 second'
WHERE shard_id = %(shard_id)s AND epoch = %(epoch)s
RETURNING extract(epoch FROM clock_timestamp())::float8

-- name: facts_fence
-- The shards of some that are still ours; held until the end of the transaction.
SELECT s.shard_id FROM spillway.shard AS s
JOIN unnest(%(shard_ids)s::integer[], %(epochs)s::bigint[]) AS k (shard_id, epoch)
    ON s.shard_id = k.shard_id AND s.epoch = k.epoch
ORDER BY s.shard_id FOR SHARE OF s

-- name: shard_release
-- Let a shard go, so that another broker need not wait for the lease to end.
UPDATE spillway.shard SET owner = NULL, owner_pid = NULL, lease_until = now()
WHERE shard_id = %(shard_id)s AND epoch = %(epoch)s

-- name: broker_seen
-- This broker lives.
INSERT INTO spillway.broker (broker_id, address, secret, started_at, seen_at)
VALUES (%(broker_id)s, %(address)s, %(secret)s, now(), now())
ON CONFLICT (broker_id) DO UPDATE SET seen_at = now(), address = excluded.address

-- name: owner
-- Who owns the first shard, and so all of them; where it listens, and what it wants to hear.
SELECT s.owner, coalesce(b.address, ''), coalesce(b.secret, '')
FROM spillway.shard AS s LEFT JOIN spillway.broker AS b ON b.broker_id = s.owner
WHERE s.shard_id = 0

-- name: brokers
-- Brokers seen lately.
SELECT broker_id, address, started_at, seen_at, seen_at > now() - interval '15 seconds' AS alive
FROM spillway.broker WHERE seen_at > now() - interval '1 day' ORDER BY broker_id

-- name: brokers_forget
-- Brokers not seen for a day.
DELETE FROM spillway.broker WHERE seen_at < now() - interval '1 day'

-- name: commit_session
-- One plan for all commits: PostgreSQL thinks that making one each time pays, and it takes longer
-- to make than to follow.
SELECT set_config('plan_cache_mode', 'force_generic_plan', false)

-- name: commit_types
-- The type numbers of a commit's parameters in this database.
SELECT t.typname || CASE WHEN t.typtype = 'b' THEN '[]' ELSE '' END AS name, t.oid
FROM (
    SELECT typname, 'c' AS typtype, oid FROM pg_type
    WHERE typnamespace = 'spillway'::regnamespace AND starts_with(typname, 'new_')
    UNION ALL
    SELECT typname, 'b', typarray FROM pg_type
    WHERE typnamespace = 'spillway'::regnamespace AND starts_with(typname, 'new_')
) AS t

-- name: batches_from
-- The batches from the one that holds a version on, up to a version and a size.
WITH head AS (
    SELECT coalesce(max(base_version), 0) AS base_version FROM spillway.message_batch
    WHERE lane_id = %(lane_id)s AND base_version <= %(start)s
), sized AS (
    SELECT b.base_version, sum(pg_column_size(b.payloads)) OVER (ORDER BY b.base_version) AS bytes
    FROM spillway.message_batch AS b, head
    WHERE b.lane_id = %(lane_id)s AND b.base_version >= head.base_version
        AND b.base_version < %(end)s
), span AS (
    SELECT head.base_version AS first, coalesce(max(sized.base_version), head.base_version) AS last
    FROM head LEFT JOIN sized ON sized.bytes <= %(bytes)s OR sized.base_version = head.base_version
    GROUP BY head.base_version
)
SELECT b.base_version, b.appended_at, b.transaction_ids, b.keys, b.headers, b.payloads,
    b.content_types, b.deliver_at, b.expires_at, b.trace_ids
FROM spillway.message_batch AS b, span
WHERE b.lane_id = %(lane_id)s AND b.base_version BETWEEN span.first AND span.last
ORDER BY b.base_version

-- name: times_behind
-- A page of the batches in which some message has a deliver_at or an expires_at: the times alone.
SELECT base_version, deliver_at, expires_at
FROM spillway.message_batch
WHERE lane_id = %(lane_id)s AND base_version > %(after)s
    AND (deliver_at IS NOT NULL OR expires_at IS NOT NULL)
ORDER BY base_version LIMIT %(limit)s

-- name: ids_before
-- The batches before a version back to a moment, newest first, up to a size: ids and payloads.
SELECT base_version, appended_at, transaction_ids, payloads
FROM (
    SELECT *, sum(pg_column_size(payloads)) OVER (ORDER BY base_version DESC)
        - pg_column_size(payloads) AS newer_bytes
    FROM (
        SELECT base_version, appended_at, transaction_ids, payloads FROM spillway.message_batch
        WHERE lane_id = %(lane_id)s AND base_version < %(before)s
        ORDER BY base_version DESC LIMIT %(limit)s
    ) AS newest
) AS recent
WHERE newer_bytes < %(bytes)s AND appended_at > to_timestamp(%(since_ms)s / 1000.0)
ORDER BY base_version DESC

-- name: org_ensure
-- An org is made by its first use.
INSERT INTO spillway.org (name) VALUES (%(org)s) ON CONFLICT DO NOTHING

-- name: org_lock
-- Queues of an org are made one at a time: its cap cannot be passed by a race.
SELECT name FROM spillway.org WHERE name = %(org)s FOR UPDATE

-- name: queue_count
-- How many queues an org has.
SELECT count(*) FROM spillway.queue WHERE org = %(org)s AND deleted_at IS NULL

-- name: queue_find
-- A queue by name.
SELECT queue_id, org, name, options::text, paused, created_at
FROM spillway.queue WHERE org = %(org)s AND name = %(name)s AND deleted_at IS NULL

-- name: queue_by_id
-- A queue by number, if it lives.
SELECT queue_id, org, name, options::text, paused, created_at
FROM spillway.queue WHERE queue_id = %(queue_id)s AND deleted_at IS NULL

-- name: queues_of_org
-- A page of queues in the order of their names.
SELECT queue_id, org, name, options::text, paused, created_at
FROM spillway.queue
WHERE org = %(org)s AND deleted_at IS NULL AND name > %(after)s
ORDER BY name LIMIT %(limit)s

-- name: queues_all
-- Every living queue.
SELECT queue_id, org, name, options::text, paused, created_at
FROM spillway.queue WHERE deleted_at IS NULL ORDER BY queue_id

-- name: queue_insert
-- A new queue.
INSERT INTO spillway.queue (org, name, options) VALUES (%(org)s, %(name)s, %(options)s::jsonb)
RETURNING queue_id, org, name, options::text, paused, created_at

-- name: queue_update
-- New options for a queue.
UPDATE spillway.queue SET options = %(options)s::jsonb, options_at = now()
WHERE queue_id = %(queue_id)s AND deleted_at IS NULL
RETURNING queue_id, org, name, options::text, paused, created_at

-- name: queue_pause
-- Stop or start leasing from a queue.
UPDATE spillway.queue SET paused = %(paused)s
WHERE queue_id = %(queue_id)s AND deleted_at IS NULL
RETURNING queue_id

-- name: queue_delete
-- A tombstone: the name is free at once, the pruner removes the rest.
UPDATE spillway.queue SET deleted_at = now()
WHERE queue_id = %(queue_id)s AND deleted_at IS NULL
RETURNING queue_id

-- name: lanes_of_queue
-- The lanes of a queue.
SELECT lane_id, queue_id, partition, priority, enqueue_shard, shard_id
FROM spillway.lane WHERE queue_id = %(queue_id)s ORDER BY lane_id

-- name: lanes_find
-- The lanes of some partitions.
SELECT lane_id, queue_id, partition, priority, enqueue_shard, shard_id
FROM spillway.lane
WHERE queue_id = %(queue_id)s AND partition = ANY (%(partitions)s::text[])
    AND priority = %(priority)s AND enqueue_shard = %(enqueue_shard)s

-- name: lanes_insert
-- A lane is made by its first message; a race makes it once. In the order of their names, so that
-- two who make the same ones wait for each other and do not lock each other out.
INSERT INTO spillway.lane (queue_id, partition, priority, enqueue_shard, shard_id)
SELECT %(queue_id)s, p.partition, %(priority)s, %(enqueue_shard)s, p.shard_id
FROM unnest(%(partitions)s::text[], %(shard_ids)s::integer[]) AS p (partition, shard_id)
ON CONFLICT DO NOTHING
RETURNING lane_id, queue_id, partition, priority, enqueue_shard, shard_id

-- name: lane_by_id
-- A lane by number.
SELECT lane_id, queue_id, partition, priority, enqueue_shard, shard_id
FROM spillway.lane WHERE lane_id = %(lane_id)s

-- name: lane_tails
-- Where lanes end, and what is pruned of them. A deleted queue's lanes do not come back.
SELECT l.lane_id, l.pruned_to, greatest(l.pruned_to, coalesce((
    SELECT b.base_version + b.count - 1 FROM spillway.message_batch AS b
    WHERE b.lane_id = l.lane_id ORDER BY b.base_version DESC LIMIT 1
), 0)) AS tail
FROM spillway.lane AS l JOIN spillway.queue AS q USING (queue_id)
WHERE l.lane_id = ANY (%(lane_ids)s) AND q.deleted_at IS NULL

-- name: groups_of_queues
-- The consumer groups of some queues.
SELECT queue_id, "group", kind, start, paused, created_at
FROM spillway.consumer WHERE queue_id = ANY (%(queue_ids)s::bigint[]) ORDER BY queue_id, "group"

-- name: lanes_of_shard
-- A page of the lanes of a shard: whether the control log of any group went on behind its newest
-- checkpoint, or a message that is not settled has a time to wait for or to end at.
SELECT l.lane_id, EXISTS (
    SELECT FROM spillway.consumer AS g
    WHERE g.queue_id = l.queue_id AND (
        SELECT max(e.seq) FROM spillway.control_event AS e
        WHERE e.lane_id = l.lane_id AND e."group" = g."group"
    ) > coalesce((
        SELECT max(c.seq) FROM spillway.checkpoint AS c
        WHERE c.lane_id = l.lane_id AND c."group" = g."group"
    ), 0)
) OR EXISTS (
    SELECT FROM spillway.message_batch AS b
    WHERE b.lane_id = l.lane_id AND (b.deliver_at IS NOT NULL OR b.expires_at IS NOT NULL)
        AND b.base_version + b.count - 1 > coalesce((
            SELECT min(c.trim) FROM spillway.checkpoint AS c WHERE c.lane_id = l.lane_id
        ), 0)
) AS moved
FROM spillway.lane AS l JOIN spillway.queue AS q USING (queue_id)
WHERE l.shard_id = %(shard_id)s AND q.deleted_at IS NULL AND l.lane_id > %(after)s
ORDER BY l.lane_id LIMIT %(limit)s

-- name: group_insert
-- A group is made by its first use; a race makes it once.
INSERT INTO spillway.consumer (queue_id, "group", kind, start)
VALUES (%(queue_id)s, %(group)s, %(kind)s, %(start)s)
ON CONFLICT DO NOTHING
RETURNING "group", kind, start, paused, created_at

-- name: group_pause
-- Stop or start leasing for a group.
UPDATE spillway.consumer SET paused = %(paused)s
WHERE queue_id = %(queue_id)s AND "group" = %(group)s
RETURNING "group"

-- name: group_delete
-- Forget a group.
DELETE FROM spillway.consumer WHERE queue_id = %(queue_id)s AND "group" = %(group)s
RETURNING "group"

-- name: api_key_find
-- Whose key this is.
SELECT org, name FROM spillway.api_key WHERE digest = %(digest)s AND revoked_at IS NULL

-- name: api_key_insert
-- A new key, unless the org has a live one of that name (the org is locked).
INSERT INTO spillway.api_key (digest, org, name)
SELECT %(digest)s, %(org)s, %(name)s
WHERE NOT EXISTS (
    SELECT FROM spillway.api_key
    WHERE org = %(org)s AND name = %(name)s AND revoked_at IS NULL
)

-- name: api_keys
-- The keys of an org, or of all.
SELECT org, name, encode(digest, 'hex') AS digest, created_at, revoked_at
FROM spillway.api_key
WHERE (%(org)s::text IS NULL OR org = %(org)s) AND (%(revoked)s OR revoked_at IS NULL)
ORDER BY org, created_at, name

-- name: api_key_revoke
-- End the live key of a name.
UPDATE spillway.api_key SET revoked_at = now()
WHERE org = %(org)s AND name = %(name)s AND revoked_at IS NULL

-- name: operator_action_insert
-- Who did what by hand.
INSERT INTO spillway.operator_action (org, queue, "group", verb, actor, reason, detail)
VALUES (%(org)s, %(queue)s, %(group)s, %(verb)s, %(actor)s, %(reason)s, %(detail)s::jsonb)

-- name: session
-- What a connection must be like whatever the role's defaults are: times in UTC, commits that last.
SELECT
    set_config('TimeZone', 'UTC', false),
    set_config('DateStyle', 'ISO', false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)

-- name: server_facts
-- Whether this server can hold the log.
SELECT
    current_setting('server_version_num')::integer, current_setting('server_version'),
    current_setting('server_encoding')

-- name: migration_lock
-- Two brokers that start together migrate once. Let go at the end of the transaction.
SELECT pg_advisory_xact_lock(%(key)s)

-- name: migrations_exist
-- Whether any migration was ever applied. Asks the catalog's rows: to_regclass would answer from
-- a cache that does not see what was committed while we waited for the lock.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_tables WHERE schemaname = 'spillway' AND tablename = 'migration'
)

-- name: migrations
-- What was applied.
SELECT name, checksum FROM spillway.migration

-- name: migration_insert
-- A migration was applied.
INSERT INTO spillway.migration (name, checksum) VALUES (%(name)s, %(checksum)s)

-- name: checkpoint_fence
-- Whether the shard is still ours; held until the end of the transaction.
SELECT epoch FROM spillway.shard
WHERE shard_id = %(shard_id)s AND epoch = %(epoch)s FOR SHARE

-- name: checkpoint_clear
-- A checkpoint of the same seq is written anew: the one that is there was damaged.
DELETE FROM spillway.checkpoint AS c
USING unnest(%(lane_ids)s::bigint[], %(groups)s::text[], %(seqs)s::bigint[])
    AS k (lane_id, "group", seq)
WHERE c.lane_id = k.lane_id AND c."group" = k."group" AND c.seq = k.seq

-- name: checkpoint_insert
-- One part of a checkpoint.
INSERT INTO spillway.checkpoint (lane_id, "group", seq, part, parts, trim, state, crc)
VALUES (
    %(lane_id)s, %(group)s, %(seq)s, %(part)s, %(parts)s, %(trim)s, %(state)s, %(crc)s
)

-- name: checkpoints_of_groups
-- The checkpoints of some groups up to a seq, newest first.
SELECT c.lane_id, c."group", c.seq, c.part, c.parts, c.crc, c.state
FROM spillway.checkpoint AS c
JOIN unnest(%(lane_ids)s::bigint[], %(groups)s::text[], %(seqs)s::bigint[])
    AS k (lane_id, "group", seq)
    ON c.lane_id = k.lane_id AND c."group" = k."group" AND c.seq <= k.seq
ORDER BY c.lane_id, c."group", c.seq DESC, c.part

-- name: checkpoints_of_lanes
-- The checkpoints of every group on some lanes, newest first.
SELECT lane_id, "group", seq, part, parts, crc, state
FROM spillway.checkpoint WHERE lane_id = ANY (%(lane_ids)s::bigint[])
ORDER BY lane_id, "group", seq DESC, part

-- name: checkpoints_forget
-- Two checkpoints are kept: this one and the newest sound one before it.
DELETE FROM spillway.checkpoint AS c
USING unnest(%(lane_ids)s::bigint[], %(groups)s::text[], %(seqs)s::bigint[], %(previous)s::bigint[])
    AS k (lane_id, "group", seq, previous)
WHERE c.lane_id = k.lane_id AND c."group" = k."group" AND c.seq < k.seq AND c.seq <> k.previous

-- name: control_trim
-- The control log behind the previous checkpoint is not needed any more.
DELETE FROM spillway.control_event AS e
USING unnest(%(lane_ids)s::bigint[], %(groups)s::text[], %(previous)s::bigint[])
    AS k (lane_id, "group", previous)
WHERE e.lane_id = k.lane_id AND e."group" = k."group" AND e.seq <= k.previous

-- name: control_since
-- The control log of some lanes, each group from behind its checkpoint.
SELECT e.lane_id, e."group", e.seq, e.events
FROM spillway.control_event AS e
LEFT JOIN unnest(
    %(from_lane_ids)s::bigint[], %(from_groups)s::text[], %(from_seqs)s::bigint[]
) AS k (lane_id, "group", seq) USING (lane_id, "group")
WHERE e.lane_id = ANY (%(lane_ids)s::bigint[]) AND e.seq > coalesce(k.seq, 0)
ORDER BY e.lane_id, e."group", e.seq

-- name: lanes_oldest
-- A page of the lanes of some shards: where the oldest batch of each ends, and when it was appended.
SELECT l.lane_id, l.queue_id, l.shard_id, coalesce(b.last, 0), coalesce(b.appended_ms, 0)
FROM (
    SELECT lane_id, queue_id, shard_id, pruned_to FROM spillway.lane
    WHERE shard_id = ANY (%(shard_ids)s::integer[]) AND lane_id > %(after)s
    ORDER BY lane_id LIMIT %(limit)s
) AS l
LEFT JOIN LATERAL (
    SELECT m.base_version + m.count - 1 AS last,
        (extract(epoch FROM m.appended_at) * 1000)::bigint AS appended_ms
    FROM spillway.message_batch AS m
    WHERE m.lane_id = l.lane_id AND m.base_version > l.pruned_to
    ORDER BY m.base_version LIMIT 1
) AS b ON true
ORDER BY l.lane_id

-- name: trims_saved
-- How far some lanes are settled for every group, by their newest checkpoints.
SELECT l.lane_id, coalesce(min(coalesce((
    SELECT c.trim FROM spillway.checkpoint AS c
    WHERE c.lane_id = l.lane_id AND c."group" = g."group" ORDER BY c.seq DESC LIMIT 1
), 0)), 0)
FROM spillway.lane AS l JOIN spillway.consumer AS g USING (queue_id)
WHERE l.lane_id = ANY (%(lane_ids)s::bigint[])
GROUP BY l.lane_id

-- name: prune_end
-- How far a chunk of the settled batches of a lane goes that are past retention; null: there is none.
SELECT max(last) FROM (
    SELECT base_version + count - 1 AS last FROM spillway.message_batch
    WHERE lane_id = %(lane_id)s AND base_version <= %(through)s
        AND base_version + count - 1 <= %(through)s
        AND appended_at < to_timestamp(%(before_ms)s / 1000.0)
    ORDER BY base_version LIMIT %(batches)s
) AS chunk

-- name: prune
-- Remove the batches of a lane up to the end of a chunk, and note how far. A group that whoever asks
-- did not know of has not seen them: then nothing is removed.
WITH fence AS (
    SELECT FROM spillway.shard WHERE shard_id = %(shard_id)s AND epoch = %(epoch)s FOR SHARE
), unknown AS (
    SELECT FROM spillway.consumer JOIN spillway.lane USING (queue_id)
    WHERE lane_id = %(lane_id)s AND "group" <> ALL (%(groups)s::text[])
), gone AS (
    DELETE FROM spillway.message_batch
    WHERE EXISTS (SELECT FROM fence) AND NOT EXISTS (SELECT FROM unknown)
        AND lane_id = %(lane_id)s AND base_version <= %(end)s
    RETURNING count
), noted AS (
    UPDATE spillway.lane SET pruned_to = greatest(pruned_to, %(end)s), pruned_at = now()
    WHERE lane_id = %(lane_id)s AND EXISTS (SELECT FROM gone)
)
SELECT coalesce(sum(count), 0)::bigint FROM gone

-- name: lanes_deleted
-- Lanes of a shard whose queue is deleted.
SELECT l.lane_id FROM spillway.lane AS l JOIN spillway.queue AS q USING (queue_id)
WHERE l.shard_id = %(shard_id)s AND q.deleted_at IS NOT NULL LIMIT %(limit)s

-- name: lane_empty
-- Remove a chunk of the batches of a deleted lane.
WITH fence AS (
    SELECT FROM spillway.shard WHERE shard_id = %(shard_id)s AND epoch = %(epoch)s FOR SHARE
), gone AS (
    DELETE FROM spillway.message_batch
    WHERE EXISTS (SELECT FROM fence) AND lane_id = %(lane_id)s AND base_version IN (
        SELECT base_version FROM spillway.message_batch WHERE lane_id = %(lane_id)s
        ORDER BY base_version LIMIT %(batches)s
    )
    RETURNING 1
)
SELECT count(*) FROM gone

-- name: lane_bury
-- Remove everything else of a deleted lane.
WITH fence AS (
    SELECT FROM spillway.shard WHERE shard_id = %(shard_id)s AND epoch = %(epoch)s FOR SHARE
), controls AS (
    DELETE FROM spillway.control_event
    WHERE EXISTS (SELECT FROM fence) AND lane_id = %(lane_id)s
), saved AS (
    DELETE FROM spillway.checkpoint WHERE EXISTS (SELECT FROM fence) AND lane_id = %(lane_id)s
), dead AS (
    DELETE FROM spillway.dead_letter WHERE EXISTS (SELECT FROM fence) AND lane_id = %(lane_id)s
), replayed AS (
    DELETE FROM spillway.replayed WHERE EXISTS (SELECT FROM fence) AND lane_id = %(lane_id)s
)
DELETE FROM spillway.lane WHERE EXISTS (SELECT FROM fence) AND lane_id = %(lane_id)s

-- name: consumers_bury
-- Remove the groups of deleted queues.
DELETE FROM spillway.consumer USING spillway.queue AS q
WHERE q.queue_id = consumer.queue_id AND q.deleted_at IS NOT NULL

-- name: statement_limit
-- How long a statement of this session may take, in ms; 0: as long as it likes.
SELECT set_config('statement_timeout', %(ms)s::integer::text, false)

-- name: audit_now
-- The moment of the snapshot, in ms.
SELECT (extract(epoch FROM now()) * 1000)::bigint

-- name: audit_lanes
-- A page of the lanes of live queues, of all orgs or of one, with the fence of their shard.
SELECT
    l.lane_id, q.org, q.name AS queue, l.partition, l.pruned_to,
    (extract(epoch FROM l.pruned_at) * 1000)::bigint AS pruned_ms, s.epoch, s.commit_seq,
    coalesce((
        SELECT jsonb_object_agg(c."group", (extract(epoch FROM c.created_at) * 1000)::bigint)
        FROM spillway.consumer AS c WHERE c.queue_id = l.queue_id
    ), '{}') AS groups,
    coalesce((
        SELECT sum(octet_length(p.state)) FROM spillway.checkpoint AS p WHERE p.lane_id = l.lane_id
    ), 0)::bigint AS checkpoint_bytes
FROM spillway.lane AS l
JOIN spillway.queue AS q USING (queue_id)
LEFT JOIN spillway.shard AS s USING (shard_id)
WHERE l.lane_id > %(after)s AND q.deleted_at IS NULL
    AND (%(org)s::text IS NULL OR q.org = %(org)s)
ORDER BY l.lane_id LIMIT %(limit)s

-- name: audit_batches
-- The shape of every batch of some lanes: its versions, and how long each column is.
SELECT
    lane_id, base_version, count,
    cardinality(transaction_ids), cardinality(payloads), cardinality(keys),
    CASE WHEN jsonb_typeof(headers) <> 'array' THEN -1 ELSE jsonb_array_length(headers) END,
    cardinality(content_types), cardinality(deliver_at), cardinality(expires_at),
    cardinality(trace_ids)
FROM spillway.message_batch WHERE lane_id = ANY (%(lane_ids)s::bigint[])
ORDER BY lane_id, base_version

-- name: audit_deliveries
-- The messages of some lanes whose time is still to come.
SELECT b.lane_id, b.base_version + i - 1, (extract(epoch FROM b.deliver_at[i]) * 1000)::bigint
FROM spillway.message_batch AS b CROSS JOIN LATERAL generate_subscripts(b.deliver_at, 1) AS i
WHERE b.lane_id = ANY (%(lane_ids)s::bigint[]) AND (b.deliver_at IS NOT NULL OR b.expires_at IS NOT NULL)
    AND b.deliver_at[i] > now()
ORDER BY b.lane_id, b.base_version, i

-- name: audit_duplicates
-- Transaction ids that came again though the dedupe window must have known them. The window drops
-- whole batches at its count, so only half of the count is certain. Both pushes must be younger than
-- the options: others were judged by other ones.
SELECT d.lane_id, count(*), min(d.version)
FROM (
    SELECT
        b.lane_id, b.base_version + t.i - 1 AS version, b.appended_at,
        lag(b.appended_at) OVER earlier AS appended_before,
        lag(b.base_version + t.i - 1) OVER earlier AS version_before
    FROM spillway.message_batch AS b
    CROSS JOIN LATERAL unnest(b.transaction_ids) WITH ORDINALITY AS t (id, i)
    WHERE b.lane_id = ANY (%(lane_ids)s::bigint[])
    WINDOW earlier AS (PARTITION BY b.lane_id, t.id ORDER BY b.base_version + t.i)
) AS d
JOIN spillway.lane AS l USING (lane_id)
JOIN spillway.queue AS q USING (queue_id)
WHERE d.appended_at - d.appended_before < interval '1 ms'
        * (coalesce((q.options ->> 'dedupe_window_ms')::bigint, 600000) - %(slack_ms)s::bigint)
    AND d.version - d.version_before
        <= coalesce((q.options ->> 'dedupe_count')::bigint, 100000) / 2
    AND (q.options_at IS NULL
        OR d.appended_before > q.options_at + %(slack_ms)s::bigint * interval '1 ms')
GROUP BY d.lane_id ORDER BY d.lane_id

-- name: audit_dead_letters
-- The dead letters of some lanes.
SELECT lane_id, "group", version FROM spillway.dead_letter
WHERE lane_id = ANY (%(lane_ids)s::bigint[]) ORDER BY lane_id, "group", version

-- name: audit_orphans
-- Batches that no lane owns.
SELECT count(*) FROM spillway.message_batch AS b
WHERE NOT EXISTS (SELECT FROM spillway.lane AS l WHERE l.lane_id = b.lane_id)

-- name: dead_count
-- How many dead letters a filter means; a null does not filter.
SELECT count(*)
FROM spillway.dead_letter AS d JOIN spillway.lane AS l USING (lane_id)
WHERE d.queue_id = %(queue_id)s
    AND (%(group)s::text IS NULL OR d."group" = %(group)s)
    AND (%(partition)s::text IS NULL OR l.partition = %(partition)s)
    AND (%(key)s::text IS NULL OR d.key = %(key)s)
    AND (%(error)s::text IS NULL OR strpos(d.error, %(error)s) > 0)
    AND (%(before)s::timestamptz IS NULL OR d.dead_at < %(before)s)
    AND (%(ids)s::bigint[] IS NULL OR d.dead_id = ANY (%(ids)s))
    AND (%(partitions)s::text[] IS NULL OR (l.partition, d.version) IN (
        SELECT * FROM unnest(%(partitions)s::text[], %(versions)s::bigint[])
    ))

-- name: dead_select
-- The dead letters that a filter means, oldest first, without their bodies.
SELECT d.dead_id, d.lane_id, d."group", d.version, octet_length(d.payload)
FROM spillway.dead_letter AS d JOIN spillway.lane AS l USING (lane_id)
WHERE d.queue_id = %(queue_id)s
    AND (%(group)s::text IS NULL OR d."group" = %(group)s)
    AND (%(partition)s::text IS NULL OR l.partition = %(partition)s)
    AND (%(key)s::text IS NULL OR d.key = %(key)s)
    AND (%(error)s::text IS NULL OR strpos(d.error, %(error)s) > 0)
    AND (%(before)s::timestamptz IS NULL OR d.dead_at < %(before)s)
    AND (%(ids)s::bigint[] IS NULL OR d.dead_id = ANY (%(ids)s))
    AND (%(partitions)s::text[] IS NULL OR (l.partition, d.version) IN (
        SELECT * FROM unnest(%(partitions)s::text[], %(versions)s::bigint[])
    ))
    AND d.dead_id > %(after)s
ORDER BY d.dead_id LIMIT %(limit)s

-- name: dead_bodies
-- Some dead letters with their bodies.
SELECT dead_id, lane_id, "group", version, octet_length(payload), transaction_id, key, headers,
    payload, content_type, trace_id, cause
FROM spillway.dead_letter WHERE dead_id = ANY (%(ids)s::bigint[]) ORDER BY dead_id

-- name: dead_page
-- A page of dead letters, oldest first, up to a size.
SELECT p.dead_id, p."group", p.partition, p.version, p.key, p.payload, p.content_type, p.headers,
    p.transaction_id, p.attempts, p.error, p.cause,
    (extract(epoch FROM p.enqueued_at) * 1000)::bigint, (extract(epoch FROM p.dead_at) * 1000)::bigint
FROM (
    SELECT d.*, l.partition,
        sum(octet_length(d.payload)) OVER (ORDER BY d.dead_id) - octet_length(d.payload) AS before
    FROM spillway.dead_letter AS d JOIN spillway.lane AS l USING (lane_id)
    WHERE d.dead_id = ANY (%(ids)s::bigint[])
) AS p
WHERE p.before < %(bytes)s ORDER BY p.dead_id

-- name: versions_at
-- For some lanes, the last version that was appended before a moment.
SELECT l.lane_id, greatest(l.pruned_to, coalesce((
    SELECT b.base_version + b.count - 1 FROM spillway.message_batch AS b
    WHERE b.lane_id = l.lane_id AND b.appended_at < %(at)s
    ORDER BY b.base_version DESC LIMIT 1
), 0)) FROM spillway.lane AS l WHERE l.lane_id = ANY (%(lane_ids)s::bigint[])

-- name: appended_at
-- When some versions were appended, in ms.
SELECT k.lane_id, k.version, (
    SELECT (extract(epoch FROM b.appended_at) * 1000)::bigint FROM spillway.message_batch AS b
    WHERE b.lane_id = k.lane_id AND b.base_version <= k.version
    ORDER BY b.base_version DESC LIMIT 1
)
FROM unnest(%(lane_ids)s::bigint[], %(versions)s::bigint[]) AS k (lane_id, version)

-- name: replayed_of_source
-- How far a source has come in each lane.
SELECT lane_id, seq FROM spillway.replayed WHERE source = %(source)s

-- name: replayed_forget
-- The files of these sources are gone.
DELETE FROM spillway.replayed WHERE source = ANY (%(sources)s::text[])

-- name: ids_since
-- Which of some transaction ids a lane has got since a moment, with their payloads.
SELECT t.id, b.payloads[t.i], coalesce(b.content_types[t.i], 0::smallint)
FROM spillway.message_batch AS b
CROSS JOIN LATERAL unnest(b.transaction_ids) WITH ORDINALITY AS t (id, i)
WHERE b.lane_id = %(lane_id)s AND t.id = ANY (%(ids)s::text[])
    AND b.base_version >= coalesce((
        SELECT m.base_version FROM spillway.message_batch AS m
        WHERE m.lane_id = %(lane_id)s AND m.appended_at < to_timestamp(%(since_ms)s / 1000.0)
        ORDER BY m.base_version DESC LIMIT 1
    ), 0)

-- name: story_rows
-- A page of the control log of a lane since a moment, group by group.
SELECT "group", seq, events FROM spillway.control_event
WHERE lane_id = %(lane_id)s AND ("group", seq) > (%(after_group)s, %(after_seq)s)
    AND at >= to_timestamp(%(since_ms)s / 1000.0)
ORDER BY "group", seq LIMIT %(limit)s

-- name: topology_shards
-- Who writes what; without an owner there is no lease.
SELECT shard_id, epoch, commit_seq, owner,
    CASE WHEN owner IS NOT NULL THEN (extract(epoch FROM lease_until) * 1000)::bigint END
FROM spillway.shard ORDER BY shard_id
