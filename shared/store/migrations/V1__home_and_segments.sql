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
  filter_id    uuid                         -- the published filter; null: always looked into
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

-- A result counts only if its fence is the record's; the partition is the segment current at completion.
CREATE TABLE dedup.results (
  digest      uuid     NOT NULL,
  fence       bigint   NOT NULL,
  segment_id  int      NOT NULL,
  status      smallint,
  omitted     boolean  NOT NULL,            -- the result was too large: known, not kept
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
  SELECT coalesce(max(segment_id), 0) + 1 INTO v_id FROM dedup.segments;
  FOREACH v_table IN ARRAY ARRAY['claims', 'results'] LOOP
    EXECUTE format('CREATE TABLE dedup.%I (LIKE dedup.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', v_table || '_s' || v_id, v_table);
    EXECUTE format('CREATE UNIQUE INDEX ON dedup.%I (digest%s)', v_table || '_s' || v_id, CASE v_table WHEN 'results' THEN ', fence' ELSE '' END);
    EXECUTE format('ALTER TABLE dedup.%I ATTACH PARTITION dedup.%I FOR VALUES IN (%s)', v_table, v_table || '_s' || v_id, v_id);
  END LOOP;
  INSERT INTO dedup.segments (segment_id, state, origin_ms) VALUES (v_id, 'prepared', dedup.now_ms());
  RETURN v_id;
END $$;

-- Closes the open segment and opens the next prepared one. Gives up at once rather than make claims wait: behind a caller's
-- transaction older than 100 ms, or after 50 ms of queueing. Answers what it did: rotated | held | busy | not-prepared.
CREATE FUNCTION dedup.rotate_v1() RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_next   int;
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
    PERFORM pg_advisory_xact_lock(1684366453, 1);   -- ROTATION: waits for every claimer in flight, so all their rows are visible below
  EXCEPTION WHEN lock_not_available THEN
    RETURN 'busy';
  END;
  SELECT min(segment_id) INTO v_next FROM dedup.segments WHERE state = 'prepared';
  IF v_next IS NULL OR NOT EXISTS (SELECT 1 FROM pg_inherits
      WHERE inhparent = 'dedup.claims'::regclass AND inhrelid = to_regclass('dedup.claims_s' || v_next) AND NOT inhdetachpending) THEN
    RETURN 'not-prepared';
  END IF;
  UPDATE dedup.segments SET state = 'sealed', sealed_at_ms = dedup.now_ms() WHERE state = 'open';
  UPDATE dedup.segments SET state = 'open', opened_at_ms = dedup.now_ms(), origin_ms = dedup.now_ms() WHERE segment_id = v_next;
  UPDATE dedup.layout SET current_segment = v_next, generation = generation + 1;
  RETURN 'rotated';
END $$;

GRANT EXECUTE ON FUNCTION dedup.prepare_segment_v1(), dedup.rotate_v1() TO dedup_janitor;
GRANT EXECUTE ON FUNCTION dedup.now(), dedup.now_ms(), dedup.t_in(bigint, bigint), dedup.t_out(bigint, int) TO dedup_service, dedup_janitor, dedup_app;
