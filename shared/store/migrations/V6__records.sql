-- Reading without claiming, forgetting, and the trace both leave.

CREATE TABLE dedup.audit (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at_ms  bigint NOT NULL,
  actor  text   NOT NULL,
  action text   NOT NULL,
  topic  text   NOT NULL,
  grp    text   NOT NULL,
  digest uuid   NOT NULL,              -- not the key: what was forgotten stays forgotten
  reason text   NOT NULL
);

-- What the home knows of one digest: at most one row (none: absent).
CREATE FUNCTION dedup.lookup_v1(p_home uuid, p_secret bytea, p_digest uuid,
    OUT status text, OUT as_of bigint, OUT incarnation int, OUT segment_id int, OUT segment_state text,
    OUT digest uuid, OUT fence bigint, OUT request_hash bigint, OUT fingerprint int, OUT first_seen bigint, OUT expires bigint, OUT ends bigint, OUT meta int,
    OUT owner text, OUT note text, OUT r_status int, OUT r_omitted boolean, OUT r_keep bigint, OUT r_media text, OUT r_headers text, OUT r_body bytea, OUT home_ms bigint)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_home record;
  r      record;
  k      record;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  SELECT h.home_id, h.secret_id, (SELECT pos FROM dedup.forget_position) AS pos INTO v_home FROM dedup.home h;
  home_ms := dedup.now_ms();
  incarnation := dedup.incarnation();
  as_of := v_home.pos;
  IF v_home.home_id <> p_home OR v_home.secret_id <> p_secret THEN status := 'wrong-home'; RETURN; END IF;
  IF incarnation = 0 THEN RAISE EXCEPTION 'a standby does not answer' USING ERRCODE = '25006'; END IF;
  status := 'ok';
  SELECT l.*, s.state INTO r FROM dedup.look(ARRAY[p_digest], dedup.live_segments('{}'), '{}', '{}') l JOIN dedup.segments s ON s.segment_id = l.segment_id
    ORDER BY home_ms >= CASE WHEN l.meta & 7 IN (1, 2) THEN greatest(l.expires, l.ends) ELSE l.expires END,
             CASE l.meta & 7 WHEN 3 THEN 0 WHEN 4 THEN 2 ELSE 1 END, l.fence DESC LIMIT 1;
  IF NOT FOUND OR (home_ms >= CASE WHEN r.meta & 7 IN (1, 2) THEN greatest(r.expires, r.ends) ELSE r.expires END) THEN
    SELECT z.* INTO k FROM dedup.look_cold(p_digest, coalesce(dedup.live_archives('{}'), '{}'), home_ms) z;
    IF k.hit = 2 THEN RAISE EXCEPTION 'an archive of this home cannot be read' USING ERRCODE = 'data_corrupted'; END IF;
    IF k.hit = 1 THEN
      segment_id := -k.archive; segment_state := 'cold'; digest := p_digest; fence := 0; request_hash := 0; fingerprint := 0;
      first_seen := k.from_ms; expires := k.expires; ends := k.to_ms; meta := 3 | k.flags;
      SELECT x.status, x.omitted, x.keep_until_ms, x.media_type, x.headers, x.body INTO r_status, r_omitted, r_keep, r_media, r_headers, r_body
        FROM dedup.result_of(p_digest, 0, home_ms) x WHERE k.flags & 32 <> 0;
      RETURN;
    END IF;
    IF r.digest IS NULL THEN RETURN; END IF;
  END IF;
  segment_id := r.segment_id; segment_state := r.state; digest := r.digest; fence := r.fence; request_hash := r.request_hash; fingerprint := r.fingerprint;
  first_seen := r.first_seen; expires := r.expires; ends := r.ends; meta := r.meta;
  SELECT t.owner, t.note INTO owner, note FROM dedup.claim_texts t WHERE t.digest = p_digest AND t.fence = r.fence;
  SELECT x.status, x.omitted, x.keep_until_ms, x.media_type, x.headers, x.body INTO r_status, r_omitted, r_keep, r_media, r_headers, r_body
    FROM dedup.result_of(p_digest, r.fence, home_ms) x;
END $$;

-- Removes the records of one digest from all segments and archives and logs it for every instance's caches. The caller holds ROTATION, and
-- notifies.
CREATE FUNCTION dedup.forget_one(p_digest uuid, p_now bigint, OUT removed boolean, OUT pos bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  r         record;
  v_archive int;
  v_hit     int;
BEGIN
  removed := false;
  FOR round IN 1..5 LOOP
    SELECT l.* INTO r FROM dedup.look(ARRAY[p_digest], dedup.live_segments('{}'), '{}', '{}') l LIMIT 1;
    EXIT WHEN NOT FOUND;
    IF r.frozen THEN
      INSERT INTO dedup.tombstones (digest, place) VALUES (p_digest, r.segment_id) ON CONFLICT DO NOTHING;
    ELSE
      DELETE FROM dedup.claims c WHERE c.segment_id = r.segment_id AND c.digest = p_digest AND c.fence = r.fence;
    END IF;
    IF FOUND OR r.frozen THEN
      removed := removed OR p_now < CASE WHEN r.meta & 7 IN (1, 2) THEN greatest(r.expires, r.ends) ELSE r.expires END;
      DELETE FROM dedup.claim_texts t WHERE t.digest = p_digest AND t.fence = r.fence;
    END IF;
  END LOOP;
  -- What is archived is not touched: a tombstone in each archive that holds the key. One that cannot be read gets it without a look.
  FOREACH v_archive IN ARRAY coalesce(dedup.live_archives('{}'), '{}') LOOP
    SELECT k.hit INTO v_hit FROM dedup.look_cold(p_digest, ARRAY[v_archive], p_now) k;
    CONTINUE WHEN v_hit = 0;
    removed := removed OR v_hit = 1;
    INSERT INTO dedup.tombstones (digest, place) VALUES (p_digest, -v_archive) ON CONFLICT DO NOTHING;
  END LOOP;
  DELETE FROM dedup.results x WHERE x.digest = p_digest;
  UPDATE dedup.forget_position p SET pos = p.pos + 1 RETURNING p.pos INTO pos;
  INSERT INTO dedup.forget_log VALUES (pos, p_digest, p_now);
END $$;

-- One key, with its trace. status: ok · wrong-home.
CREATE FUNCTION dedup.forget_v1(p_home uuid, p_secret bytea, p_digest uuid, p_actor text, p_topic text, p_group text, p_reason text,
    OUT status text, OUT removed boolean, OUT pos bigint, OUT home_ms bigint)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '1s' AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  home_ms := dedup.now_ms();
  IF NOT EXISTS (SELECT 1 FROM dedup.home h WHERE h.home_id = p_home AND h.secret_id = p_secret) THEN status := 'wrong-home'; RETURN; END IF;
  SELECT o.removed, o.pos INTO removed, pos FROM dedup.forget_one(p_digest, home_ms) o;
  INSERT INTO dedup.audit (at_ms, actor, action, topic, grp, digest, reason) VALUES (home_ms, p_actor, 'forget', p_topic, p_group, p_digest, p_reason);
  PERFORM pg_notify('dedup_forget', pos::text);
  status := 'ok';
  home_ms := dedup.now_ms();
END $$;

-- What an instance's feed asks each second, and whenever it is notified: home time, how far the log and the topics are.
CREATE FUNCTION dedup.pulse_v1(OUT home_ms bigint, OUT forget_pos bigint, OUT topics_change bigint, OUT segments_change bigint, OUT incarnation int, OUT durable boolean) LANGUAGE sql VOLATILE SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp AS $$
  SELECT dedup.now_ms(), (SELECT pos FROM dedup.forget_position), (SELECT n FROM dedup.changes WHERE what = 'topics'),
    (SELECT n FROM dedup.changes WHERE what = 'segments'), dedup.incarnation(),
    current_setting('fsync')::boolean AND current_setting('full_page_writes')::boolean
      AND current_setting('synchronous_commit') NOT IN ('off', 'local', 'remote_write') $$;

-- The forget log after a position; p_since_ms leaves out what is older than any cached value can be.
CREATE FUNCTION dedup.forgets_v1(p_after bigint, p_since_ms bigint) RETURNS TABLE (pos bigint, digest uuid, at_ms bigint) LANGUAGE sql STABLE SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp AS $$
  SELECT pos, digest, at_ms FROM dedup.forget_log WHERE pos > p_after AND at_ms >= p_since_ms ORDER BY pos $$;

GRANT EXECUTE ON FUNCTION dedup.lookup_v1(uuid, bytea, uuid), dedup.forget_v1(uuid, bytea, uuid, text, text, text, text), dedup.pulse_v1(), dedup.forgets_v1(bigint, bigint)
  TO dedup_service;
