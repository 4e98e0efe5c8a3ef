-- The home: its identity, its clock, its secret, and the layout of its segments.
-- Everything is owned by the migrating role; the service, the janitor and SQL callers reach it through functions and views only.

DO $$
DECLARE r text;
BEGIN
  FOREACH r IN ARRAY ARRAY['dedup_service', 'dedup_janitor', 'dedup_app'] LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', r);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;  -- roles belong to the cluster: another home may have made them
    END;
  END LOOP;
END $$;

REVOKE ALL ON SCHEMA dedup FROM PUBLIC;
GRANT USAGE ON SCHEMA dedup TO dedup_service, dedup_janitor, dedup_app;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- The one clock that decides windows and leases. It has no switch; a test cluster's owner replaces this function.
CREATE FUNCTION dedup.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS $$ SELECT clock_timestamp() $$;
-- Home time in whole milliseconds since 1970 (UTC): the unit of every time below.
CREATE FUNCTION dedup.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$ SELECT floor(date_part('epoch', dedup.now()) * 1000)::bigint $$;

CREATE TABLE dedup.home (
  one        boolean PRIMARY KEY DEFAULT true CHECK (one),
  home_id    uuid    NOT NULL DEFAULT gen_random_uuid(),
  name       text    NOT NULL,
  region     text    NOT NULL,
  prefixes   text[]  NOT NULL,
  secret     bytea   NOT NULL CHECK (octet_length(secret) = 32),
  secret_id  bytea   NOT NULL,              -- names the secret without telling it
  inner_pad  bytea   NOT NULL,              -- HMAC key blocks of 64 bytes, computed once
  outer_pad  bytea   NOT NULL,
  epoch      int     NOT NULL DEFAULT 1 CHECK (epoch BETWEEN 1 AND 255),
  schema     int     NOT NULL,              -- version of what this database offers
  min_client int     NOT NULL               -- oldest program that may use it
);

CREATE TABLE dedup.segments (
  segment_id   int    PRIMARY KEY CHECK (segment_id > 0),
  state        text   NOT NULL CHECK (state IN ('prepared', 'open', 'sealed', 'frozen', 'cold', 'dropped')),
  origin_ms    bigint NOT NULL,             -- zero of the segment's int4 times
  opened_at_ms bigint,
  sealed_at_ms bigint,
  filter_id    uuid,                        -- the published filter; null: always looked into
  archive_id   int,                         -- cold: where its records are
  parted       boolean NOT NULL DEFAULT true  -- its tables exist
);
-- The state of a segment alone decides where to look; this row changes with every change of layout, under the exclusive ROTATION lock.
CREATE TABLE dedup.layout (
  one             boolean PRIMARY KEY DEFAULT true CHECK (one),
  current_segment int     NOT NULL REFERENCES dedup.segments,
  generation      bigint  NOT NULL
);

-- int4 times: milliseconds from the segment's origin within ±2^30 (12.4 days), whole seconds beyond; rounded so that an end is
-- never early and a beginning never late. 2147483647 is "forever" (as is the greatest bigint outside).
CREATE FUNCTION dedup.t_in(origin bigint, t bigint) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT (CASE
    WHEN t = 9223372036854775807 THEN 2147483647
    WHEN t - origin >= 1073741824 THEN least(1073741824 + (t - origin - 1073741824 + 999) / 1000, 2147483646)
    WHEN t - origin < -1073741824 THEN greatest(-1073741824 - (origin - t - 1073741824 + 999) / 1000, -2147483648)
    ELSE t - origin END)::int $$;
CREATE FUNCTION dedup.t_out(origin bigint, v int) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN v = 2147483647 THEN 9223372036854775807
    WHEN v >= 1073741824 THEN origin + 1073741824 + (v::bigint - 1073741824) * 1000
    WHEN v < -1073741824 THEN origin - 1073741824 + (v::bigint + 1073741824) * 1000
    ELSE origin + v END $$;

-- The authoritative rows: 56 bytes, widest first, no secondary index (it would make every completion rewrite the index).
CREATE TABLE dedup.claims (
  digest       uuid   NOT NULL,
  fence        bigint NOT NULL,             -- epoch (8 bits) | timeline (11) | counter (44)
  request_hash bigint NOT NULL,             -- keyed hash of the request id that was granted
  segment_id   int    NOT NULL,
  fingerprint  int    NOT NULL,             -- keyed hash, 0 = none given
  first_seen   int    NOT NULL,
  expires      int    NOT NULL,
  ends         int    NOT NULL,             -- in progress: end of the lease; done: completed at; released: released at
  meta         int    NOT NULL              -- bits 0-2 state (1 in_progress, 2 in_doubt, 3 done, 4 released, 5 issued), 3 failed, 4 one-shot check, 5 has result; from 8: attempt
) PARTITION BY LIST (segment_id);

-- A result counts only if its fence is the record's; the partition is the segment current at completion, and where it is kept for longer
-- than that segment is warm, a later one.
CREATE TABLE dedup.results (
  digest      uuid     NOT NULL,
  fence       bigint   NOT NULL,
  segment_id  int      NOT NULL,
  status      smallint,
  keep_until_ms bigint NOT NULL,            -- told before this home time, and until the record's window ends; 0: while its partition is there
  omitted     boolean  NOT NULL,            -- known, not kept: it was too large, or its time is over
  result_hash uuid     NOT NULL,            -- tells a repeat of the same complete from another result
  media_type  text,
  headers     text     NOT NULL,            -- JSON object
  body        bytea
) PARTITION BY LIST (segment_id);

-- What people want to read about a claim: kept beside open and released records (keep_key = always: beside all).
CREATE TABLE dedup.claim_texts (
  digest   uuid   PRIMARY KEY,
  fence    bigint NOT NULL,
  topic_id int    NOT NULL,
  grp      text   NOT NULL,
  key      text,                            -- null where the topic says keep_key = never
  owner    text,
  note     text
);

-- The cold tier: archives of digests, exact to 72 bits, in sorted blocks of one page each. An archive counts while it is live; blocks
-- never change.
CREATE TABLE dedup.archives (
  archive_id    int      PRIMARY KEY CHECK (archive_id > 0),
  state         text     NOT NULL CHECK (state IN ('built', 'live', 'dead')),
  level         int      NOT NULL,          -- how often its digests were merged
  inputs        int[]    NOT NULL,          -- built of segment (level 0) or archives; empty: imported
  keys          bigint   NOT NULL,
  blocks        int      NOT NULL,
  from_ms       bigint   NOT NULL,          -- its keys were first seen between these
  to_ms         bigint   NOT NULL,
  expires_ms    bigint   NOT NULL,          -- of the last class: after that it may go
  filter_id     uuid     NOT NULL,
  class_expires bigint[] NOT NULL,          -- by class number (from 0): window's end, rounded up to a base segment
  class_flags   int[]    NOT NULL,          -- 8 failed · 32 a result was stored (as in claims.meta)
  class_keys    bigint[] NOT NULL
);
CREATE SEQUENCE dedup.archive_counter AS int NO CYCLE;

-- The bytes are those of `dedup_core::cold::block`. Stored plain, so that a look is one page of the index and one of the table.
CREATE TABLE dedup.blocks (
  first      uuid  NOT NULL,                -- lowest digest it stands for
  until      uuid,                          -- where the next block begins; null: the last one
  sum        bytea NOT NULL,                -- first 8 bytes of a SHA-256 over the archive's number, first, until and data
  archive_id int   NOT NULL,
  data       bytea NOT NULL,
  PRIMARY KEY (archive_id, first)
);
ALTER TABLE dedup.blocks ALTER COLUMN data SET STORAGE PLAIN, ALTER COLUMN sum SET STORAGE PLAIN;
-- A dead archive's pages are filled again soon; no page is ever rewritten in part.
ALTER TABLE dedup.blocks SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.2);

-- What was forgotten of frozen segments and archives, where nothing is ever changed. place: a segment, or minus an archive.
CREATE TABLE dedup.tombstones (
  digest  uuid NOT NULL,
  place   int  NOT NULL,
  seen_by int,                              -- archive under construction that has left the digest out
  PRIMARY KEY (digest, place)
);
CREATE INDEX ON dedup.tombstones (place);

-- Filters (format: `dedup_core::cold::filter_head`). place as above.
CREATE TABLE dedup.filters (
  filter_id uuid   PRIMARY KEY,
  place     int    NOT NULL,
  keys      bigint NOT NULL,
  bytes     bigint NOT NULL,
  chunks    int    NOT NULL,
  head      bytea  NOT NULL
);
CREATE TABLE dedup.filter_chunks (filter_id uuid NOT NULL, n int NOT NULL, data bytea NOT NULL, PRIMARY KEY (filter_id, n));
-- The bits of a filter do not compress.
ALTER TABLE dedup.filter_chunks ALTER COLUMN data SET STORAGE EXTERNAL;
-- Counters that instances watch: of changes of topics, and of segments, archives or filters. Rows and no sequences: a sequence is seen to rise
-- before the change is committed, and who looks in between would miss it. A change holds its counter's row until it is committed; where it locks a topic's row too, the counter comes first.
CREATE TABLE dedup.changes (what text PRIMARY KEY CHECK (what IN ('topics', 'segments')), n bigint NOT NULL);
INSERT INTO dedup.changes VALUES ('topics', 0), ('segments', 0);
CREATE FUNCTION dedup.changed(p_what text) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE dedup.changes SET n = n + 1 WHERE what = p_what RETURNING n $$;

-- Partitions are detached without a lock on the whole, which only the tables' owner may do, and never in a function: so the janitor's role
-- owns them. It reads rows and changes none but through functions. (Whoever becomes an owner must be able to create in the schema at that
-- moment.)
GRANT dedup_janitor TO CURRENT_USER;
GRANT CREATE ON SCHEMA dedup TO dedup_janitor;
ALTER TABLE dedup.claims OWNER TO dedup_janitor;
ALTER TABLE dedup.results OWNER TO dedup_janitor;
REVOKE CREATE ON SCHEMA dedup FROM dedup_janitor;
REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON dedup.claims, dedup.results FROM dedup_janitor;
GRANT ALL ON dedup.claims, dedup.results TO CURRENT_USER;
GRANT SELECT, INSERT, UPDATE, DELETE ON dedup.archives, dedup.blocks, dedup.tombstones, dedup.filters, dedup.filter_chunks, dedup.segments, dedup.claim_texts TO dedup_janitor;
GRANT SELECT ON dedup.layout TO dedup_janitor;
GRANT USAGE ON SEQUENCE dedup.archive_counter TO dedup_janitor;

CREATE SEQUENCE dedup.fence_counter AS bigint MAXVALUE 17592186044415 NO CYCLE;

CREATE VIEW dedup.segment_list AS SELECT segment_id, state, origin_ms, opened_at_ms, sealed_at_ms, filter_id FROM dedup.segments;
GRANT SELECT ON dedup.segment_list TO dedup_service, dedup_janitor;

-- Makes the next segment's tables ahead of time: stand-alone, then attached (PARTITION OF would lock the parent against every claim).
CREATE FUNCTION dedup.prepare_segment_v1() RETURNS int LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_id int;
  v_table text;
BEGIN
  PERFORM pg_advisory_xact_lock(1684366453, 3);   -- PREPARE: one at a time
  GRANT CREATE ON SCHEMA dedup TO dedup_janitor;
  SELECT coalesce(max(segment_id), 0) + 1 INTO v_id FROM dedup.segments;   -- never used twice: the newest ones are not removed
  FOREACH v_table IN ARRAY ARRAY['claims', 'results'] LOOP
    EXECUTE format('CREATE TABLE dedup.%I (LIKE dedup.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', v_table || '_s' || v_id, v_table);
    EXECUTE format('CREATE UNIQUE INDEX ON dedup.%I (digest%s)', v_table || '_s' || v_id, CASE v_table WHEN 'results' THEN ', fence' ELSE '' END);
    IF v_table = 'results' THEN EXECUTE format('CREATE INDEX ON dedup.%I (keep_until_ms) WHERE keep_until_ms > 0 AND NOT omitted', v_table || '_s' || v_id); END IF;
    EXECUTE format('ALTER TABLE dedup.%I OWNER TO dedup_janitor', v_table || '_s' || v_id);
    EXECUTE format('REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON dedup.%I FROM dedup_janitor', v_table || '_s' || v_id);
    EXECUTE format('ALTER TABLE dedup.%I ATTACH PARTITION dedup.%I FOR VALUES IN (%s)', v_table, v_table || '_s' || v_id, v_id);
  END LOOP;
  REVOKE CREATE ON SCHEMA dedup FROM dedup_janitor;
  INSERT INTO dedup.segments (segment_id, state, origin_ms) VALUES (v_id, 'prepared', dedup.now_ms());
  RETURN v_id;
END $$;

-- Takes the ROTATION lock for a change of layout: it waits for every claimer in flight, so all their rows are visible to the next
-- statement. Gives up at once rather than make claims wait: behind a caller's transaction older than 100 ms, or after 50 ms of queueing.
-- Answers taken | held | busy.
CREATE FUNCTION dedup.take_rotation() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_before text[];
BEGIN
  SELECT array_agg(virtualtransaction) INTO v_before FROM pg_locks
    WHERE locktype = 'advisory' AND classid = 1684366453 AND objid = 1 AND objsubid = 2 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
  IF v_before IS NOT NULL THEN
    PERFORM pg_sleep(0.1);
    PERFORM 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 1684366453 AND objid = 1 AND objsubid = 2 AND granted
      AND virtualtransaction = ANY (v_before);
    IF FOUND THEN RETURN 'held'; END IF;
  END IF;
  BEGIN
    PERFORM set_config('lock_timeout', '50ms', true);
    PERFORM pg_advisory_xact_lock(1684366453, 1);
  EXCEPTION WHEN lock_not_available THEN
    RETURN 'busy';
  END;
  RETURN 'taken';
END $$;

-- Closes the open segment and opens the next prepared one. Answers what it did: rotated | held | busy | not-prepared.
CREATE FUNCTION dedup.rotate_v1() RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_next  int;
  v_taken text := dedup.take_rotation();
BEGIN
  IF v_taken <> 'taken' THEN RETURN v_taken; END IF;
  SELECT min(segment_id) INTO v_next FROM dedup.segments WHERE state = 'prepared';
  IF v_next IS NULL OR NOT EXISTS (SELECT 1 FROM pg_inherits
      WHERE inhparent = 'dedup.claims'::regclass AND inhrelid = to_regclass('dedup.claims_s' || v_next) AND NOT inhdetachpending) THEN
    RETURN 'not-prepared';
  END IF;
  UPDATE dedup.segments SET state = 'sealed', sealed_at_ms = dedup.now_ms() WHERE state = 'open';
  UPDATE dedup.segments SET state = 'open', opened_at_ms = dedup.now_ms(), origin_ms = dedup.now_ms() WHERE segment_id = v_next;
  UPDATE dedup.layout SET current_segment = v_next, generation = generation + 1;
  PERFORM dedup.changed('segments');
  RETURN 'rotated';
END $$;

GRANT EXECUTE ON FUNCTION dedup.prepare_segment_v1(), dedup.rotate_v1(), dedup.changed(text) TO dedup_janitor;
GRANT EXECUTE ON FUNCTION dedup.now(), dedup.now_ms(), dedup.t_in(bigint, bigint), dedup.t_out(bigint, int) TO dedup_service, dedup_janitor, dedup_app;
