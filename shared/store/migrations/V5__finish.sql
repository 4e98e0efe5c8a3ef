-- The end of a claim: complete, release, extend. Only the current fence may; zero rows changed never decides.

-- Whether a claim was forgotten with its topic or group.
CREATE FUNCTION dedup.is_floored(p_digest uuid, p_fence bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (SELECT 1 FROM dedup.claim_texts t JOIN dedup.floors o ON o.topic_id = t.topic_id AND o.grp IN ('', t.grp)
                  WHERE t.digest = p_digest AND t.fence = p_fence AND p_fence < o.fence);
END $$;

-- One claim. p_op: complete | release | extend. Outcomes: done · released · extended · replayed (the very same complete or release
-- again) · already-completed · lease-lost (f tells the record seen; f.kind is null where there is none, 1 where its result
-- is kept until some time, 2 where it is not kept).
CREATE FUNCTION dedup.finish_one(p_op text, p_digest uuid, p_fence bigint, p_failed boolean, p_lease bigint, p_note text,
    p_hash uuid, p_status int, p_omitted boolean, p_media text, p_headers text, p_body bytea, p_current int, p_origin bigint, p_segments int[],
    OUT outcome text, OUT f dedup.fact)
  LANGUAGE plpgsql AS $$
DECLARE
  r      record;
  k      record;
  v_meta int;
  v_ends bigint;
BEGIN
  FOR round IN 1..5 LOOP
    f := NULL;
    f.at_ms := dedup.now_ms();
    SELECT l.*, EXISTS (SELECT 1 FROM dedup.floors) AS floors INTO r FROM dedup.look(ARRAY[p_digest], p_segments, '{}', '{}') l
      ORDER BY (l.fence = p_fence) DESC, CASE l.meta & 7 WHEN 3 THEN 0 WHEN 4 THEN 2 ELSE 1 END, l.fence DESC LIMIT 1;
    IF NOT FOUND THEN
      outcome := 'lease-lost';
      RETURN;
    END IF;
    f := (0, p_digest, r.fence, r.request_hash, r.fingerprint, r.first_seen, r.expires, r.ends, r.meta, f.at_ms);
    IF r.fence <> p_fence OR r.meta & 16 <> 0 THEN   -- a one-shot check has no claim to end
      outcome := 'lease-lost';
      RETURN;
    END IF;
    IF r.floors AND dedup.is_floored(p_digest, p_fence) THEN
      outcome := 'lease-lost';
      f := NULL;
      RETURN;
    END IF;
    IF r.meta & 7 = 3 THEN
      outcome := 'lease-lost';
      IF p_op = 'complete' THEN
        SELECT x.result_hash, x.keep_until_ms, x.omitted INTO k FROM dedup.result_of(p_digest, p_fence, f.at_ms) x;
        outcome := CASE WHEN (r.meta & 8 <> 0) = p_failed AND p_hash IS NOT DISTINCT FROM k.result_hash THEN 'replayed' ELSE 'already-completed' END;
        f.kind := CASE WHEN k.omitted THEN 2 WHEN k.keep_until_ms IS NOT NULL THEN 1 ELSE 0 END;
      END IF;
      RETURN;
    END IF;
    IF r.meta & 7 = 4 THEN
      outcome := CASE p_op WHEN 'release' THEN 'replayed' ELSE 'lease-lost' END;
      RETURN;
    END IF;
    v_meta := CASE p_op
      WHEN 'complete' THEN (r.meta & -48) | 3 | CASE WHEN p_failed THEN 8 ELSE 0 END | CASE WHEN p_hash IS NULL THEN 0 ELSE 32 END
      WHEN 'release' THEN (r.meta & -8) | 4
      ELSE r.meta END;
    -- A lease longer than the record's window is cut to it.
    v_ends := CASE p_op WHEN 'extend' THEN f.at_ms + CASE WHEN r.expires = 9223372036854775807 THEN p_lease ELSE least(p_lease, r.expires - r.first_seen) END ELSE f.at_ms END;
    UPDATE dedup.claims c SET meta = v_meta, ends = dedup.t_in((SELECT origin_ms FROM dedup.segments WHERE segment_id = r.segment_id), v_ends)
      WHERE c.segment_id = r.segment_id AND c.digest = p_digest AND c.fence = p_fence AND c.meta = r.meta;
    CONTINUE WHEN NOT FOUND;
    f.meta := v_meta;
    f.ends := v_ends;
    IF p_op = 'complete' AND p_hash IS NOT NULL THEN
      SELECT o.keep_results_ms AS ms INTO k FROM dedup.claim_texts t JOIN dedup.topics o ON o.topic_id = t.topic_id WHERE t.digest = p_digest AND t.fence = p_fence;
      f.kind := CASE WHEN k.ms = 0 OR p_omitted THEN 2 WHEN k.ms > 0 THEN 1 ELSE 0 END;
      INSERT INTO dedup.results (digest, fence, segment_id, status, keep_until_ms, omitted, result_hash, media_type, headers, body)
        VALUES (p_digest, p_fence, p_current, CASE k.ms WHEN 0 THEN NULL ELSE p_status END, CASE WHEN k.ms >= 0 THEN least(f.at_ms + k.ms, r.expires) ELSE 0 END, p_omitted OR k.ms IS NOT DISTINCT FROM 0, p_hash,
                CASE k.ms WHEN 0 THEN NULL ELSE p_media END, CASE k.ms WHEN 0 THEN '{}' ELSE p_headers END, CASE k.ms WHEN 0 THEN NULL ELSE p_body END);
    END IF;
    IF p_op = 'complete' THEN
      DELETE FROM dedup.claim_texts t USING dedup.topics o WHERE t.digest = p_digest AND t.fence = p_fence AND o.topic_id = t.topic_id AND o.keep_key <> 'always';
    ELSIF p_note IS NOT NULL THEN
      UPDATE dedup.claim_texts t SET note = p_note WHERE t.digest = p_digest AND t.fence = p_fence;
    END IF;
    outcome := CASE p_op WHEN 'complete' THEN 'done' WHEN 'release' THEN 'released' ELSE 'extended' END;
    RETURN;
  END LOOP;
  outcome := 'busy';
END $$;

-- All (false) or one at a time (true: held keys come back as `busy`).
CREATE FUNCTION dedup.finish_rows(p_op text, p_digest uuid[], p_fence bigint[], p_failed boolean[], p_lease bigint[], p_note text[],
    p_hash uuid[], p_status int[], p_omitted boolean[], p_media text[], p_headers text[], p_body bytea[], p_current int, p_origin bigint, p_segments int[],
    OUT outcomes text[], OUT facts dedup.fact[])
  LANGUAGE plpgsql SET lock_timeout = '25ms' SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off AS $$
DECLARE
  v_outcome text;
  v_fact    dedup.fact;
  v_step    record;
BEGIN
  BEGIN
    outcomes := '{}';
    facts := '{}';
    FOR i IN 1 .. cardinality(p_digest) LOOP
      SELECT o.outcome, o.f INTO v_step FROM dedup.finish_one(p_op, p_digest[i], p_fence[i], p_failed[i], p_lease[i], p_note[i], p_hash[i], p_status[i],
        p_omitted[i], p_media[i], p_headers[i], p_body[i], p_current, p_origin, p_segments) o;
      outcomes := outcomes || v_step.outcome;
      facts := facts || v_step.f;
    END LOOP;
  EXCEPTION WHEN lock_not_available THEN
    outcomes := '{}';
    facts := '{}';
    PERFORM set_config('lock_timeout', '3ms', true);
    FOR i IN 1 .. cardinality(p_digest) LOOP
      BEGIN
        SELECT o.outcome, o.f INTO v_step FROM dedup.finish_one(p_op, p_digest[i], p_fence[i], p_failed[i], p_lease[i], p_note[i], p_hash[i], p_status[i],
          p_omitted[i], p_media[i], p_headers[i], p_body[i], p_current, p_origin, p_segments) o;
        v_outcome := v_step.outcome;
        v_fact := v_step.f;
      EXCEPTION WHEN lock_not_available THEN
        v_outcome := 'busy';
        v_fact := NULL;
      END;
      outcomes := outcomes || v_outcome;
      facts := facts || v_fact;
    END LOOP;
  END;
END $$;

-- The call of a service instance: arrays of one length over different digests, sorted by digest. Facts come in the same order
-- (digest null where no record was seen; `forgotten` says whether somebody had it forgotten; 
-- keeping: of the result, 0 as long as the record is warm, 1 until some time, 2 not at all). p_hash null: no result given.
CREATE FUNCTION dedup.finish_v1(p_home uuid, p_secret bytea, p_not_after bigint, p_op text, p_digest uuid[], p_fence bigint[], p_failed boolean[], p_lease bigint[],
    p_note text[], p_hash uuid[], p_status int[], p_omitted boolean[], p_media text[], p_headers text[], p_body bytea[],
    OUT status text, OUT as_of bigint, OUT incarnation int, OUT outcome text[], OUT forgotten boolean[], OUT keeping int[],
    OUT digest uuid[], OUT fence bigint[], OUT request_hash bigint[], OUT fingerprint int[], OUT first_seen bigint[], OUT expires bigint[],
    OUT ends bigint[], OUT meta int[], OUT at_ms bigint[], OUT home_ms bigint)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_layout record;
  v_facts  dedup.fact[];
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  SELECT l.current_segment, s.origin_ms, h.home_id, h.secret_id, dedup.live_segments('{}') AS segments, (SELECT pos FROM dedup.forget_position) AS pos
    INTO v_layout FROM dedup.layout l JOIN dedup.segments s ON s.segment_id = l.current_segment CROSS JOIN dedup.home h;
  PERFORM dedup.guard_snapshot();
  home_ms := dedup.now_ms();
  incarnation := dedup.incarnation();
  IF v_layout.home_id <> p_home OR v_layout.secret_id <> p_secret THEN status := 'wrong-home'; RETURN; END IF;
  IF home_ms > p_not_after THEN status := 'too-late'; RETURN; END IF;
  IF incarnation = 0 THEN RAISE EXCEPTION 'a standby does not answer' USING ERRCODE = '25006'; END IF;
  as_of := v_layout.pos;
  SELECT r.outcomes, r.facts INTO outcome, v_facts
    FROM dedup.finish_rows(p_op, p_digest, p_fence, p_failed, p_lease, p_note, p_hash, p_status, p_omitted, p_media, p_headers, p_body,
                           v_layout.current_segment, v_layout.origin_ms, v_layout.segments) r;
  SELECT array_agg(x.digest ORDER BY x.n), array_agg(x.fence ORDER BY x.n), array_agg(x.request_hash ORDER BY x.n), array_agg(x.fingerprint ORDER BY x.n),
         array_agg(x.first_seen ORDER BY x.n), array_agg(x.expires ORDER BY x.n), array_agg(x.ends ORDER BY x.n), array_agg(x.meta ORDER BY x.n),
         array_agg(x.at_ms ORDER BY x.n),
         array_agg(x.digest IS NULL AND (EXISTS (SELECT 1 FROM dedup.forget_log g WHERE g.digest = p_digest[x.n]) OR dedup.is_floored(p_digest[x.n], p_fence[x.n])) ORDER BY x.n),
         array_agg(coalesce(x.kind, 0) ORDER BY x.n)
    INTO digest, fence, request_hash, fingerprint, first_seen, expires, ends, meta, at_ms, forgotten, keeping
    FROM unnest(v_facts) WITH ORDINALITY x(kind, digest, fence, request_hash, fingerprint, first_seen, expires, ends, meta, at_ms, n);
  -- An extension may outlive the record's window; the topic stays in use that long.
  IF p_op = 'extend' THEN
    PERFORM dedup.topic_used(t.topic_id, max(x.ends), home_ms)
      FROM unnest(v_facts) x JOIN dedup.claim_texts t ON t.digest = x.digest AND t.fence = x.fence WHERE x.ends > x.expires GROUP BY t.topic_id;
  END IF;
  status := 'ok';
  home_ms := dedup.now_ms();
END $$;

CREATE INDEX ON dedup.forget_log (digest);
GRANT EXECUTE ON FUNCTION dedup.finish_v1(uuid, bytea, bigint, text, uuid[], bigint[], boolean[], bigint[], text[], uuid[], int[], boolean[], text[], text[], bytea[])
  TO dedup_service;
