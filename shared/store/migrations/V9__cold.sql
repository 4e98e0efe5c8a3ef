-- The life of segments after they were sealed: what the janitor calls. Every change of layout is one short transaction under the exclusive
-- ROTATION lock, a compare-and-set on the row it changes, and gives up at once rather than make claims wait (`held`, `busy`).

-- Who this home is, without its secret.
CREATE FUNCTION dedup.home_v1(OUT home_id uuid, OUT name text, OUT region text, OUT secret_id bytea, OUT schema int, OUT min_client int, OUT in_recovery boolean, OUT home_ms bigint)
  LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT h.home_id, h.name, h.region, h.secret_id, h.schema, h.min_client, pg_is_in_recovery(), dedup.now_ms() FROM dedup.home h $$;

-- Takes one record that is not done out of a sealed segment: into the current one, unchanged, or away if it is past its time.
-- The caller holds ROTATION. true: there is nothing left of it in the segment that is not done.
CREATE FUNCTION dedup.carry_one(p_segment int, p_digest uuid, p_current int, p_origin bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  r        dedup.claims;
  o        dedup.claims;
  v_now    bigint;
  v_from   bigint;
  v_past   boolean;
  v_expires bigint;
  v_ends   bigint;
BEGIN
  SELECT c.* INTO r FROM dedup.claims c WHERE c.segment_id = p_segment AND c.digest = p_digest FOR UPDATE;
  IF NOT FOUND OR r.meta & 7 = 3 THEN RETURN true; END IF;
  SELECT s.origin_ms INTO v_from FROM dedup.segments s WHERE s.segment_id = p_segment;
  v_now := dedup.now_ms();
  v_expires := dedup.t_out(v_from, r.expires);
  v_ends := dedup.t_out(v_from, r.ends);
  v_past := v_now >= CASE WHEN r.meta & 7 IN (1, 2) THEN greatest(v_expires, v_ends) ELSE v_expires END;
  -- Delete and then insert: an UPDATE that moves a row is refused by whoever waits for it.
  DELETE FROM dedup.claims c WHERE c.segment_id = p_segment AND c.digest = p_digest AND c.fence = r.fence;
  IF v_past THEN
    DELETE FROM dedup.claim_texts t WHERE t.digest = p_digest AND t.fence = r.fence;
    RETURN true;
  END IF;
  FOR round IN 1..3 LOOP
    INSERT INTO dedup.claims (digest, fence, request_hash, segment_id, fingerprint, first_seen, expires, ends, meta)
      VALUES (r.digest, r.fence, r.request_hash, p_current, r.fingerprint, dedup.t_in(p_origin, dedup.t_out(v_from, r.first_seen)),
              dedup.t_in(p_origin, v_expires), dedup.t_in(p_origin, v_ends), r.meta)
      ON CONFLICT DO NOTHING;
    IF FOUND THEN RETURN true; END IF;
    -- The current segment has a row of the key already (which only memory loaded from elsewhere can cause): the one that every look would
    -- take stays.
    SELECT c.* INTO o FROM dedup.claims c WHERE c.segment_id = p_current AND c.digest = p_digest FOR UPDATE;
    CONTINUE WHEN NOT FOUND;
    v_past := v_now >= CASE WHEN o.meta & 7 IN (1, 2) THEN greatest(dedup.t_out(p_origin, o.expires), dedup.t_out(p_origin, o.ends)) ELSE dedup.t_out(p_origin, o.expires) END;
    IF NOT v_past AND (o.meta & 7 = 3 OR (r.meta & 7 = 4 AND o.meta & 7 <> 4) OR (o.meta & 7 = 4) = (r.meta & 7 = 4) AND o.fence > r.fence) THEN RETURN true; END IF;
    DELETE FROM dedup.claims c WHERE c.segment_id = p_current AND c.digest = p_digest AND c.fence = o.fence;
  END LOOP;
  RAISE EXCEPTION 'the record changed under three looks' USING ERRCODE = 'lock_not_available';
END $$;

-- Carries records of a sealed segment on, as any claimer would change them. held: left where they are, since somebody has them locked.
CREATE FUNCTION dedup.carry_v1(p_segment int, p_digests uuid[], OUT carried int, OUT held int) LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  v_layout record;
  v_digest uuid;
BEGIN
  carried := 0;
  held := 0;
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  SELECT l.current_segment, s.origin_ms INTO v_layout FROM dedup.layout l JOIN dedup.segments s ON s.segment_id = l.current_segment;
  IF NOT EXISTS (SELECT 1 FROM dedup.segments s WHERE s.segment_id = p_segment AND s.state = 'sealed') THEN RETURN; END IF;
  PERFORM set_config('lock_timeout', '5ms', true);
  FOREACH v_digest IN ARRAY p_digests LOOP
    BEGIN
      PERFORM dedup.carry_one(p_segment, v_digest, v_layout.current_segment, v_layout.origin_ms);
      carried := carried + 1;
    EXCEPTION WHEN lock_not_available THEN
      held := held + 1;
    END;
  END LOOP;
END $$;

-- Closes a segment for good. p_digests: every record in it that was not done when the caller looked, after it was sealed: since then there
-- can be fewer and never more. Answers frozen | held | busy | not-sealed.
CREATE FUNCTION dedup.freeze_v1(p_segment int, p_digests uuid[]) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  v_layout record;
  v_digest uuid;
  v_taken  text := dedup.take_rotation();
BEGIN
  IF v_taken <> 'taken' THEN RETURN v_taken; END IF;
  SELECT l.current_segment, s.origin_ms INTO v_layout FROM dedup.layout l JOIN dedup.segments s ON s.segment_id = l.current_segment;
  UPDATE dedup.segments s SET state = 'frozen' WHERE s.segment_id = p_segment AND s.state = 'sealed';
  IF NOT FOUND THEN RETURN 'not-sealed'; END IF;
  FOREACH v_digest IN ARRAY p_digests LOOP
    PERFORM dedup.carry_one(p_segment, v_digest, v_layout.current_segment, v_layout.origin_ms);
  END LOOP;
  UPDATE dedup.layout SET generation = generation + 1;
  PERFORM dedup.changed('segments');
  RETURN 'frozen';
END $$;

-- Results that are kept for longer than their partition go on to the current one before it is removed. Answers how many went, at most p_limit.
CREATE FUNCTION dedup.carry_results_v1(p_segment int, p_limit int) RETURNS int LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
  v_current int;
  v_moved   int;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  SELECT l.current_segment INTO v_current FROM dedup.layout l;
  IF v_current = p_segment THEN RETURN 0; END IF;
  WITH moved AS (
    DELETE FROM dedup.results r WHERE r.segment_id = p_segment AND (r.digest, r.fence) IN (
      SELECT x.digest, x.fence FROM dedup.results x WHERE x.segment_id = p_segment AND x.keep_until_ms > dedup.now_ms() LIMIT p_limit) RETURNING r.*)
  INSERT INTO dedup.results (digest, fence, segment_id, status, keep_until_ms, omitted, result_hash, media_type, headers, body)
    SELECT digest, fence, v_current, status, keep_until_ms, omitted, result_hash, media_type, headers, body FROM moved;
  GET DIAGNOSTICS v_moved = ROW_COUNT;
  RETURN v_moved;
END $$;

-- What is not told any more is not kept either: the hash stays, which tells a repetition of the same completion. Answers how many, at most p_limit.
CREATE FUNCTION dedup.purge_results_v1(p_limit int) RETURNS int LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
  v_purged int;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  UPDATE dedup.results r SET status = NULL, omitted = true, media_type = NULL, headers = '{}', body = NULL
    FROM (SELECT x.segment_id, x.digest, x.fence FROM dedup.results x WHERE x.keep_until_ms > 0 AND NOT x.omitted AND x.keep_until_ms <= dedup.now_ms() LIMIT p_limit) o
    WHERE r.segment_id = o.segment_id AND r.digest = o.digest AND r.fence = o.fence;
  GET DIAGNOSTICS v_purged = ROW_COUNT;
  RETURN v_purged;
END $$;
GRANT EXECUTE ON FUNCTION dedup.carry_results_v1(int, int), dedup.purge_results_v1(int) TO dedup_janitor;

-- A frozen segment in which nothing counts any more needs no archive. Answers retired | held | busy | not-frozen.
CREATE FUNCTION dedup.retire_v1(p_segment int) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_taken text := dedup.take_rotation();
BEGIN
  IF v_taken <> 'taken' THEN RETURN v_taken; END IF;
  UPDATE dedup.segments SET state = 'dropped' WHERE segment_id = p_segment AND state = 'frozen';
  IF NOT FOUND THEN RETURN 'not-frozen'; END IF;
  DELETE FROM dedup.tombstones WHERE place = p_segment;
  UPDATE dedup.layout SET generation = generation + 1;
  PERFORM dedup.changed('segments');
  RETURN 'retired';
END $$;

-- Makes a built archive count, and what it was built of count no more, at the same moment: never both. What was forgotten meanwhile stays
-- forgotten. Answers published | held | busy | not-built | stale | forgets (too many: to be built again).
CREATE FUNCTION dedup.publish_v1(p_archive int) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  a       dedup.archives;
  v_late  uuid[];
  v_stay  uuid[];
  v_taken text := dedup.take_rotation();
BEGIN
  IF v_taken <> 'taken' THEN RETURN v_taken; END IF;
  SELECT x.* INTO a FROM dedup.archives x WHERE x.archive_id = p_archive AND x.state = 'built' FOR UPDATE;
  IF NOT FOUND THEN RETURN 'not-built'; END IF;
  IF a.level = 0 AND cardinality(a.inputs) = 1 THEN
    UPDATE dedup.segments s SET state = 'cold', archive_id = p_archive WHERE s.segment_id = a.inputs[1] AND s.state = 'frozen';
    IF NOT FOUND THEN RETURN 'stale'; END IF;
    UPDATE dedup.tombstones t SET place = -p_archive WHERE t.place = a.inputs[1];
  ELSIF cardinality(a.inputs) > 0 THEN
    IF (SELECT count(*) FROM dedup.archives x WHERE x.archive_id = ANY (a.inputs) AND x.state = 'live') <> cardinality(a.inputs) THEN RETURN 'stale'; END IF;
    SELECT array_agg(DISTINCT t.digest) INTO v_late FROM unnest(a.inputs) i(archive)
      JOIN dedup.tombstones t ON t.place = -i.archive AND t.seen_by IS DISTINCT FROM p_archive;
    IF cardinality(v_late) > 200 THEN RETURN 'forgets'; END IF;
    -- A key that was forgotten in one of the old archives and lives on in another was claimed anew since: it must not be forgotten here.
    SELECT array_agg(l.digest) INTO v_stay FROM unnest(v_late) l(digest)
      CROSS JOIN LATERAL (SELECT ARRAY(SELECT i.archive FROM unnest(a.inputs) i(archive)
        WHERE NOT EXISTS (SELECT 1 FROM dedup.tombstones t WHERE t.digest = l.digest AND t.place = -i.archive)) AS others) w
      WHERE cardinality(w.others) > 0 AND (dedup.look_cold(l.digest, w.others, dedup.now_ms())).hit > 0;
    INSERT INTO dedup.tombstones (digest, place)
      SELECT l.digest, -p_archive FROM unnest(v_late) l(digest) WHERE v_stay IS NULL OR NOT l.digest = ANY (v_stay);
    UPDATE dedup.archives x SET state = 'dead' WHERE x.archive_id = ANY (a.inputs);
    UPDATE dedup.segments s SET archive_id = p_archive WHERE s.archive_id = ANY (a.inputs);
  END IF;
  UPDATE dedup.archives x SET state = 'live' WHERE x.archive_id = p_archive;
  UPDATE dedup.layout SET generation = generation + 1;
  PERFORM dedup.changed('segments');
  RETURN 'published';
END $$;

-- An archive whose last class passed p_margin ms ago counts no more. Answers dropped | held | busy | not-past.
CREATE FUNCTION dedup.drop_archive_v1(p_archive int, p_margin bigint) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_taken text := dedup.take_rotation();
BEGIN
  IF v_taken <> 'taken' THEN RETURN v_taken; END IF;
  UPDATE dedup.archives SET state = 'dead' WHERE archive_id = p_archive AND state = 'live' AND expires_ms <= dedup.now_ms() - p_margin;
  IF NOT FOUND THEN RETURN 'not-past'; END IF;
  UPDATE dedup.segments SET state = 'dropped' WHERE archive_id = p_archive;
  UPDATE dedup.layout SET generation = generation + 1;
  PERFORM dedup.changed('segments');
  RETURN 'dropped';
END $$;

-- The filters that count: of sealed and frozen segments and of live archives.
CREATE FUNCTION dedup.filters_v1() RETURNS TABLE (filter_id uuid, place int, bytes bigint, chunks int, head bytea) LANGUAGE sql STABLE SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp AS $$
  SELECT f.filter_id, f.place, f.bytes, f.chunks, f.head FROM dedup.filters f
  WHERE EXISTS (SELECT 1 FROM dedup.segments s WHERE s.segment_id = f.place AND s.filter_id = f.filter_id AND s.state IN ('sealed', 'frozen'))
     OR EXISTS (SELECT 1 FROM dedup.archives a WHERE a.archive_id = -f.place AND a.filter_id = f.filter_id AND a.state = 'live') $$;

CREATE FUNCTION dedup.filter_chunk_v1(p_filter uuid, p_n int) RETURNS bytea LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT data FROM dedup.filter_chunks WHERE filter_id = p_filter AND n = p_n $$;

-- Segments and archives for people. keys of a segment without a filter: estimated from its size. partition: its tables exist.
CREATE FUNCTION dedup.segments_v1(OUT place int, OUT state text, OUT from_ms bigint, OUT to_ms bigint, OUT keys bigint, OUT bytes bigint, OUT filter_id uuid,
    OUT filter_bytes bigint, OUT filter_keys bigint, OUT level int, OUT expires_ms bigint, OUT partition boolean)
  RETURNS SETOF record LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT s.segment_id, s.state, coalesce(s.opened_at_ms, s.origin_ms), s.sealed_at_ms, coalesce(f.keys, pg_relation_size(r.heap) / 8192 * 97),
         pg_total_relation_size(r.heap), f.filter_id, f.bytes, f.keys, NULL::int, NULL::bigint, s.parted
    FROM dedup.segments s LEFT JOIN dedup.filters f ON f.filter_id = s.filter_id CROSS JOIN LATERAL (SELECT to_regclass('dedup.claims_s' || s.segment_id) AS heap) r
    WHERE s.state IN ('prepared', 'open', 'sealed', 'frozen') OR s.parted
  UNION ALL
  SELECT -a.archive_id, CASE a.state WHEN 'live' THEN 'cold' ELSE a.state END, a.from_ms, a.to_ms, a.keys, a.blocks::bigint * 8192, f.filter_id, f.bytes, f.keys,
         a.level, a.expires_ms, false
    FROM dedup.archives a LEFT JOIN dedup.filters f ON f.filter_id = a.filter_id $$;

GRANT EXECUTE ON FUNCTION dedup.filters_v1(), dedup.filter_chunk_v1(uuid, int), dedup.segments_v1() TO dedup_service, dedup_janitor;
GRANT EXECUTE ON FUNCTION dedup.home_v1(), dedup.carry_v1(int, uuid[]), dedup.freeze_v1(int, uuid[]), dedup.retire_v1(int), dedup.publish_v1(int),
  dedup.drop_archive_v1(int, bigint), dedup.look_cold(uuid, int[], bigint) TO dedup_janitor;

-- Keys on their way into an archive, or into the open segment. bytes: of the input that is done. One that nobody touched for a week is given
-- up. Unlogged: after a crash both tables are empty, so the import simply begins anew.
CREATE UNLOGGED TABLE dedup.imports (import_id uuid PRIMARY KEY, number int GENERATED ALWAYS AS IDENTITY, bytes bigint NOT NULL, touched_ms bigint NOT NULL);
CREATE UNLOGGED TABLE dedup.import_rows (
  digest        uuid     NOT NULL,
  expires_ms    bigint   NOT NULL,
  first_seen_ms bigint   NOT NULL,
  import        int      NOT NULL,          -- imports.number
  topic_id      int      NOT NULL,          -- 0: not known
  flags         smallint NOT NULL           -- 8 failed (as in claims.meta)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON dedup.imports, dedup.import_rows TO dedup_janitor;
GRANT TRUNCATE ON dedup.import_rows TO dedup_janitor;   -- the last import leaves no pages behind

-- What import and export need to know of topics.
CREATE FUNCTION dedup.import_topics_v1() RETURNS TABLE (topic_id int, name text, generation bigint, groups text, window_ms bigint, default_region text) LANGUAGE sql STABLE SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp AS $$
  SELECT t.topic_id, t.name, t.generation, t.groups::text, t.window_ms, t.default_region FROM dedup.topics t WHERE NOT t.deleted $$;

-- The topic is in use until then.
CREATE FUNCTION dedup.import_used_v1(p_topic int, p_until bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM dedup.topic_used(p_topic, p_until, dedup.now_ms());
END $$;

-- One digest into the open segment, as done; false: there is a record of it that counts, which stays what it is. A shorter memory in an
-- archive is no reason to forget early.
CREATE FUNCTION dedup.load_one(p_digest uuid, p_first_seen bigint, p_expires bigint, p_failed boolean, p_segments int[], p_archives int[], p_current int, p_origin bigint, p_fence bigint)
  RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_now bigint;
BEGIN
  FOR round IN 1..5 LOOP
    v_now := dedup.now_ms();
    IF EXISTS (SELECT 1 FROM dedup.look(ARRAY[p_digest], p_segments, '{}', '{}') l
                WHERE v_now < CASE WHEN l.meta & 7 IN (1, 2) THEN greatest(l.expires, l.ends) ELSE l.expires END) THEN RETURN false; END IF;
    IF EXISTS (SELECT 1 FROM dedup.look_cold(p_digest, p_archives, v_now) k WHERE k.hit = 1 AND k.expires >= p_expires) THEN RETURN false; END IF;
    -- Two statements, as ever: what is past its time in the open segment is in the way.
    DELETE FROM dedup.claims c WHERE c.segment_id = p_current AND c.digest = p_digest
      AND v_now >= CASE WHEN c.meta & 7 IN (1, 2) THEN greatest(dedup.t_out(p_origin, c.expires), dedup.t_out(p_origin, c.ends)) ELSE dedup.t_out(p_origin, c.expires) END;
    INSERT INTO dedup.claims (digest, fence, request_hash, segment_id, fingerprint, first_seen, expires, ends, meta)
      VALUES (p_digest, p_fence | nextval('dedup.fence_counter'), dedup.request_none(), p_current, 0, dedup.t_in(p_origin, p_first_seen), dedup.t_in(p_origin, p_expires),
              dedup.t_in(p_origin, p_first_seen), CASE WHEN p_failed THEN 283 ELSE 275 END)
      ON CONFLICT DO NOTHING;
    IF FOUND THEN RETURN true; END IF;
  END LOOP;
  RAISE EXCEPTION 'the record changed under five looks' USING ERRCODE = 'lock_not_available';
END $$;

-- Some keys of an import into the open segment, sorted by digest; they are done records, as if a check of nobody's request had been granted, so no
-- token completes them. Whatever counts already is left alone. p_bytes: how much of the input is done with them (null: to be
-- continued); p_topic, p_until: topics in use, until when. held: indexes (from 1) of keys that somebody's open transaction holds.
CREATE FUNCTION dedup.import_warm_v1(p_import int, p_bytes bigint, p_digest uuid[], p_first_seen bigint[], p_expires bigint[], p_failed boolean[], p_topic int[], p_until bigint[],
    OUT loaded int, OUT held int[])
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET lock_timeout = '200ms' AS $$
DECLARE
  v_layout   record;
  v_segments int[];
  v_archives int[];
  v_fence    bigint;
  v_now      bigint;
  v_rest     int[];
  v_put      uuid[];
  v_digest   uuid;
  i          int;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);   -- ROTATION, in a statement of its own
  SELECT l.current_segment AS segment, s.origin_ms AS origin INTO v_layout FROM dedup.layout l JOIN dedup.segments s ON s.segment_id = l.current_segment;
  PERFORM dedup.guard_snapshot();
  v_segments := dedup.live_segments('{}');
  v_archives := coalesce(dedup.live_archives('{}'), '{}');
  v_fence := dedup.fence_base();
  v_now := dedup.now_ms();
  PERFORM dedup.topic_used(t.topic, t.until, v_now) FROM unnest(p_topic, p_until) t(topic, until);
  PERFORM set_config('lock_timeout', '25ms', true);
  loaded := 0;
  held := '{}';
  BEGIN
    v_rest := ARRAY(SELECT n FROM generate_series(1, cardinality(p_digest)) n EXCEPT
      SELECT l.n::int FROM dedup.look(p_digest, v_segments, '{}', '{}') l WHERE v_now < CASE WHEN l.meta & 7 IN (1, 2) THEN greatest(l.expires, l.ends) ELSE l.expires END);
    IF cardinality(v_archives) > 0 THEN
      v_rest := ARRAY(SELECT r FROM unnest(v_rest) r CROSS JOIN LATERAL dedup.look_cold(p_digest[r], v_archives, v_now) k WHERE NOT (k.hit = 1 AND k.expires >= p_expires[r]));
    END IF;
    WITH put AS (
      INSERT INTO dedup.claims AS c (digest, fence, request_hash, segment_id, fingerprint, first_seen, expires, ends, meta)
        SELECT p_digest[r], v_fence | nextval('dedup.fence_counter'), dedup.request_none(), v_layout.segment, 0, dedup.t_in(v_layout.origin, p_first_seen[r]),
               dedup.t_in(v_layout.origin, p_expires[r]), dedup.t_in(v_layout.origin, p_first_seen[r]), CASE WHEN p_failed[r] THEN 283 ELSE 275 END
          FROM (SELECT r FROM unnest(v_rest) r ORDER BY r) x
        ON CONFLICT DO NOTHING RETURNING c.digest)
      SELECT array_agg(p.digest) INTO v_put FROM put p;
    loaded := coalesce(cardinality(v_put), 0);
    -- Those that lost to a commit of the last moment, and those whose old row is past its time and still there.
    IF loaded < cardinality(v_rest) THEN
      FOR v_digest IN SELECT p_digest[r] FROM unnest(v_rest) r EXCEPT SELECT unnest(v_put) LOOP
        i := array_position(p_digest, v_digest);
        loaded := loaded + dedup.load_one(v_digest, p_first_seen[i], p_expires[i], p_failed[i], v_segments, v_archives, v_layout.segment, v_layout.origin, v_fence)::int;
      END LOOP;
    END IF;
  EXCEPTION WHEN lock_not_available THEN
    -- Key by key, so that only those that are held wait.
    loaded := 0;
    PERFORM set_config('lock_timeout', '3ms', true);
    FOR i IN 1 .. cardinality(p_digest) LOOP
      BEGIN
        loaded := loaded + dedup.load_one(p_digest[i], p_first_seen[i], p_expires[i], p_failed[i], v_segments, v_archives, v_layout.segment, v_layout.origin, v_fence)::int;
      EXCEPTION WHEN lock_not_available THEN
        held := held || i;
      END;
    END LOOP;
  END;
  UPDATE dedup.imports m SET bytes = coalesce(p_bytes, m.bytes), touched_ms = dedup.now_ms() WHERE m.number = p_import;
END $$;

GRANT EXECUTE ON FUNCTION dedup.import_topics_v1(), dedup.import_used_v1(int, bigint),
  dedup.import_warm_v1(int, bigint, uuid[], bigint[], bigint[], boolean[], int[], bigint[]) TO dedup_janitor;
