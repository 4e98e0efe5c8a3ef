-- The question "am I the first?", for a batch of different digests, in one round trip.

-- The order of judgement over a record that was found; the same table as `dedup_core::judge`, and tested against it.
-- 1 first (past its window) · 2 first (released) · 3 first (take-over of a lapsed lease) · 4 mismatch · 5 the grant again ·
-- 6 the grant again, lease to renew · 7 duplicate · 8 in progress
CREATE FUNCTION dedup.judge_v1(meta int, expires bigint, ends bigint, rec_request bigint, rec_fingerprint int,
    now bigint, claim boolean, request bigint, fp int) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN now >= CASE WHEN meta & 7 IN (1, 2) THEN greatest(expires, ends) ELSE expires END THEN 1
    WHEN meta & 7 = 4 THEN 2
    WHEN rec_fingerprint <> 0 AND fp <> 0 AND rec_fingerprint <> fp THEN 4
    WHEN rec_request = request AND meta & 7 = 3 AND meta & 16 <> 0 AND NOT claim THEN 5
    WHEN meta & 7 = 3 THEN 7
    WHEN rec_request = request AND claim THEN CASE WHEN now < ends THEN 5 ELSE 6 END
    WHEN now < ends THEN 8
    ELSE 3 END $$;

-- One index probe per (segment, digest) pair, whatever the planner believes about the sizes of segments. The pairs: every digest in
-- each of `segments`, and the named ones in `maybe_segment` (archives, which have negative numbers there, match nothing here). Inlined
-- into the calling statement, so it shares that statement's snapshot; OFFSET 0 keeps the times from being computed anew wherever they are
-- mentioned. In a frozen segment only what is done counts: everything else was carried on before. Nothing is ever changed there (`frozen`
-- says so); what was forgotten of it has a tombstone. A pair that names a segment which is cold by now matches nothing: its archive has another filter.
CREATE FUNCTION dedup.look(p_digest uuid[], segments int[], maybe_item int[], maybe_segment int[])
  RETURNS TABLE (n bigint, segment_id int, digest uuid, fence bigint, request_hash bigint, fingerprint int, first_seen bigint, expires bigint, ends bigint, meta int, frozen boolean)
  LANGUAGE sql STABLE AS $$
  SELECT p.n, c.segment_id, c.digest, c.fence, c.request_hash, c.fingerprint, dedup.t_out(s.origin_ms, c.first_seen),
         dedup.t_out(s.origin_ms, c.expires), dedup.t_out(s.origin_ms, c.ends), c.meta, s.state = 'frozen'
  FROM (SELECT i.n, i.digest, g.segment_id FROM unnest(p_digest) WITH ORDINALITY i(digest, n) CROSS JOIN unnest(segments) g(segment_id)
        UNION ALL
        SELECT m.item, p_digest[m.item], m.segment FROM unnest(maybe_item, maybe_segment) m(item, segment)) p
  CROSS JOIN LATERAL (SELECT * FROM dedup.claims c WHERE c.segment_id = p.segment_id AND c.digest = p.digest LIMIT 1) c
  JOIN dedup.segments s ON s.segment_id = c.segment_id
  WHERE s.state IN ('open', 'sealed')
     OR s.state = 'frozen' AND c.meta & 7 = 3 AND NOT EXISTS (SELECT 1 FROM dedup.tombstones t WHERE t.digest = c.digest AND t.place = c.segment_id)
  OFFSET 0 $$;

-- The exact look into the cold tier: one indexed read per archive. hit: 0 nothing that still counts · 1 found · 2 not found, and an
-- archive cannot be read, so nothing can be said. A key found is found, whatever the state of other archives.
CREATE FUNCTION dedup.look_cold(p_digest uuid, p_archives int[], p_now bigint, OUT hit int, OUT archive int, OUT expires bigint, OUT flags int, OUT from_ms bigint, OUT to_ms bigint)
  LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  b       record;
  a       record;
  v_key   bytea := substring(uuid_send(p_digest) FOR 9);
  v_tail  bytea;
  v_skip  int;
  v_width int;
  v_len   int;
  v_n     int;
  v_low   int;
  v_high  int;
  v_mid   int;
  v_seen  bytea;
  v_at    int;
  v_class int;
  v_bad   boolean := false;
  i       int;
BEGIN
  hit := 0;
  FOREACH i IN ARRAY p_archives LOOP
    SELECT x.* INTO b FROM dedup.blocks x WHERE x.archive_id = i AND x.first <= p_digest ORDER BY x.first DESC LIMIT 1;
    -- The first block's `first` is zero, so there is always one; a digest beyond its end means that the next one is missing.
    IF NOT FOUND OR p_digest >= b.until
       OR b.sum <> substring(sha256(int4send(i) || uuid_send(b.first) || coalesce(uuid_send(b.until), ''::bytea) || b.data) FOR 8) THEN
      v_bad := true;
      CONTINUE;
    END IF;
    v_skip := get_byte(b.data, 1);
    v_width := get_byte(b.data, 2);
    v_len := 9 - v_skip;
    v_n := (octet_length(b.data) - 4 - v_skip) / (v_len + v_width);
    IF get_byte(b.data, 0) <> 1 THEN
      v_bad := true;
      CONTINUE;
    END IF;
    CONTINUE WHEN substring(b.data FROM 5 FOR v_skip) <> substring(v_key FOR v_skip);
    v_tail := substring(v_key FROM v_skip + 1);
    v_low := 0;
    v_high := v_n;
    WHILE v_low < v_high LOOP
      v_mid := (v_low + v_high) / 2;
      IF substring(b.data FROM 5 + v_skip + v_mid * v_len FOR v_len) < v_tail THEN v_low := v_mid + 1; ELSE v_high := v_mid; END IF;
    END LOOP;
    CONTINUE WHEN v_low = v_n OR substring(b.data FROM 5 + v_skip + v_low * v_len FOR v_len) <> v_tail;
    v_at := 4 + v_skip + v_n * v_len + v_low * v_width;
    v_class := CASE v_width WHEN 1 THEN get_byte(b.data, v_at) ELSE get_byte(b.data, v_at) * 256 + get_byte(b.data, v_at + 1) END;
    SELECT x.class_expires[v_class + 1] AS expires, x.class_flags[v_class + 1] AS flags, x.from_ms, x.to_ms INTO a FROM dedup.archives x WHERE x.archive_id = i;
    IF a.expires IS NULL THEN
      v_bad := true;
      CONTINUE;
    END IF;
    CONTINUE WHEN p_now >= a.expires OR EXISTS (SELECT 1 FROM dedup.tombstones t WHERE t.digest = p_digest AND t.place = -i);
    IF hit = 0 OR a.expires > expires THEN
      hit := 1; archive := i; expires := a.expires; flags := a.flags; from_ms := a.from_ms; to_ms := a.to_ms;
    END IF;
  END LOOP;
  IF hit = 0 AND v_bad THEN hit := 2; END IF;
END $$;

-- A record as functions pass it. kind: 0 found · 1 granted · 2 granted again with its lease renewed · 3 held by somebody's open
-- transaction (busy) · 4 changed under five looks (busy too) · 5 the archive cannot be read · 6 found in the archive: done, with a
-- window's end, when it was first seen (between first_seen and ends), and no more. at_ms: home time of the judgement.
CREATE TYPE dedup.fact AS (kind int, digest uuid, fence bigint, request_hash bigint, fingerprint int, first_seen bigint, expires bigint, ends bigint, meta int, at_ms bigint);

-- What a claim of one digest needs besides the digest.
CREATE TYPE dedup.ask AS (n int, digest uuid, topic int, claim boolean, request bigint, fp int, window_ms bigint, lease_ms bigint);

CREATE TABLE dedup.forget_log (
  pos     bigint PRIMARY KEY,
  digest  uuid   NOT NULL,
  at_ms   bigint NOT NULL
);
-- The row lock of this one row makes appends one after another, so that position order is commit order.
CREATE TABLE dedup.forget_position (one boolean PRIMARY KEY DEFAULT true CHECK (one), pos bigint NOT NULL);
INSERT INTO dedup.forget_position (pos) VALUES (0);

-- The end of a window or lease that begins now.
CREATE FUNCTION dedup.after(now bigint, span bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN span = 9223372036854775807 THEN span ELSE now + span END $$;

-- One digest, the long way: look, judge, write with the full condition, look again if that hit nothing. `previous` tells a new owner
-- what became of the one before. Where a row would not keep the key from being granted, the archives are asked too.
CREATE FUNCTION dedup.decide_one(a dedup.ask, segments int[], archives int[], maybe int[], p_current int, p_origin bigint, p_fence bigint, OUT f dedup.fact, OUT previous jsonb)
  LANGUAGE plpgsql AS $$
DECLARE
  r       record;
  k       record;
  t       dedup.claim_texts;
  v_judge int;
  v_tries int := 1;
BEGIN
  f.digest := a.digest;
  IF cardinality(maybe) > 0 THEN
    archives := archives || ARRAY(SELECT x.archive_id FROM unnest(maybe) m JOIN dedup.archives x ON x.archive_id = -m AND x.state = 'live');
  END IF;
  FOR round IN 1..5 LOOP
    f.at_ms := dedup.now_ms();
    SELECT l.* INTO r FROM dedup.look(ARRAY[a.digest], segments, array_fill(1, ARRAY[cardinality(maybe)]), maybe) l
      ORDER BY f.at_ms >= CASE WHEN l.meta & 7 IN (1, 2) THEN greatest(l.expires, l.ends) ELSE l.expires END,
               CASE l.meta & 7 WHEN 3 THEN 0 WHEN 4 THEN 2 ELSE 1 END, l.fence DESC LIMIT 1;
    v_judge := CASE WHEN FOUND THEN dedup.judge_v1(r.meta, r.expires, r.ends, r.request_hash, r.fingerprint, f.at_ms, a.claim, a.request, a.fp) ELSE 0 END;
    IF v_judge IN (4, 5, 7, 8) THEN
      f := (0, a.digest, r.fence, r.request_hash, r.fingerprint, r.first_seen, r.expires, r.ends, r.meta, f.at_ms);
      RETURN;
    END IF;
    IF cardinality(archives) > 0 AND v_judge <> 6 THEN
      SELECT z.* INTO k FROM dedup.look_cold(a.digest, archives, f.at_ms) z;
      IF k.hit = 1 THEN
        f := (6, a.digest, 0, 0, 0, k.from_ms, k.expires, k.to_ms, 3 | k.flags, f.at_ms);
        RETURN;
      ELSIF k.hit = 2 THEN
        f.kind := 5;
        RETURN;
      END IF;
    END IF;
    IF v_judge = 6 THEN
      UPDATE dedup.claims c SET ends = dedup.t_in((SELECT origin_ms FROM dedup.segments WHERE segment_id = r.segment_id), f.at_ms + least(a.lease_ms, a.window_ms))
        WHERE c.segment_id = r.segment_id AND c.digest = a.digest AND c.fence = r.fence AND c.meta = r.meta
          AND dedup.t_out((SELECT origin_ms FROM dedup.segments WHERE segment_id = r.segment_id), c.ends) = r.ends;
      CONTINUE WHEN NOT FOUND;
      f := (2, a.digest, r.fence, r.request_hash, r.fingerprint, r.first_seen, r.expires, f.at_ms + least(a.lease_ms, a.window_ms), r.meta, f.at_ms);
      RETURN;
    END IF;
    IF v_judge > 0 THEN
      -- Two statements: in one, the insert would meet the row that is being deleted, and the key would be lost. In a frozen segment nothing
      -- is deleted: a tombstone says that its row counts no more, nor in the archive that is made of it, where windows end later than here.
      DELETE FROM dedup.claims c WHERE c.segment_id = r.segment_id AND c.digest = a.digest AND c.fence = r.fence AND c.meta = r.meta
          AND dedup.t_out((SELECT origin_ms FROM dedup.segments WHERE segment_id = r.segment_id), c.ends) = r.ends AND NOT r.frozen;
      CONTINUE WHEN NOT FOUND AND NOT r.frozen;
      IF r.frozen THEN
        INSERT INTO dedup.tombstones (digest, place) VALUES (a.digest, r.segment_id) ON CONFLICT DO NOTHING;
      END IF;
      IF v_judge IN (2, 3) THEN
        v_tries := least((r.meta >> 8) + 1, 8388607);
        SELECT * INTO t FROM dedup.claim_texts x WHERE x.digest = a.digest AND x.fence = r.fence;
        previous := jsonb_build_object('attempt', r.meta >> 8, 'ended', CASE v_judge WHEN 2 THEN 'released' ELSE 'lapsed' END,
                                       'owner', t.owner, 'note', t.note, 'at', r.ends);
      END IF;
    END IF;
    f.meta := v_tries << 8 | CASE WHEN a.claim THEN 1 ELSE 19 END;
    f.expires := dedup.t_out(p_origin, dedup.t_in(p_origin, dedup.after(f.at_ms, a.window_ms)));
    f.ends := CASE WHEN a.claim THEN f.at_ms + least(a.lease_ms, a.window_ms) ELSE f.at_ms END;
    INSERT INTO dedup.claims AS c (digest, fence, request_hash, segment_id, fingerprint, first_seen, expires, ends, meta)
      VALUES (a.digest, p_fence | nextval('dedup.fence_counter'), a.request, p_current, a.fp, dedup.t_in(p_origin, f.at_ms),
              dedup.t_in(p_origin, f.expires), dedup.t_in(p_origin, f.ends), f.meta)
      ON CONFLICT DO NOTHING RETURNING c.fence INTO f.fence;
    CONTINUE WHEN NOT FOUND;   -- somebody else committed it meanwhile: the next look reads the winner
    f.kind := 1;
    f.request_hash := a.request; f.fingerprint := a.fp; f.first_seen := f.at_ms;
    RETURN;
  END LOOP;
  f.kind := 4;
END $$;

-- The batch, after the rotation lock. Its lock_timeout is the function's own, so it never leaks into a caller's transaction; plans are
-- pinned to index probes, since a plan made on an empty segment would decay. p_held: it is known already that somebody holds one of the keys.
CREATE FUNCTION dedup.decide_rows(p_asks dedup.ask[], p_segments int[], p_archives int[], p_maybe_item int[], p_maybe_segment int[], p_current int, p_origin bigint, p_fence bigint,
    p_held boolean, OUT facts dedup.fact[], OUT previous jsonb)
  LANGUAGE plpgsql SET lock_timeout = '25ms' SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_digest uuid[];
  v_now    bigint := dedup.now_ms();
  v_seen   int[];
  v_slow   int[];
  v_found  dedup.fact[];
  v_new    dedup.fact[];
  v_missed int[];
  v_one    dedup.fact;
  v_step   record;
  v_cold   dedup.fact[];
  v_hits   int[];
  i        int;
BEGIN
  v_digest := ARRAY(SELECT a.digest FROM unnest(p_asks) a);
  BEGIN
    IF p_held THEN RAISE lock_not_available; END IF;
    SELECT array_agg(b.n), array_agg(b.n) FILTER (WHERE b.judge IN (1, 2, 3, 6)),
           array_agg((0, b.digest, b.fence, b.request_hash, b.fingerprint, b.first_seen, b.expires, b.ends, b.meta, v_now)::dedup.fact) FILTER (WHERE b.judge IN (4, 5, 7, 8))
      INTO v_seen, v_slow, v_found
      FROM (SELECT DISTINCT ON (l.n) l.*, dedup.judge_v1(l.meta, l.expires, l.ends, l.request_hash, l.fingerprint, v_now, a.claim, a.request, a.fp) AS judge
              FROM dedup.look(v_digest, p_segments, p_maybe_item, p_maybe_segment) l CROSS JOIN LATERAL (SELECT (p_asks[l.n]).*) a
             ORDER BY l.n, v_now >= CASE WHEN l.meta & 7 IN (1, 2) THEN greatest(l.expires, l.ends) ELSE l.expires END,
                      CASE l.meta & 7 WHEN 3 THEN 0 WHEN 4 THEN 2 ELSE 1 END, l.fence DESC) b;
    facts := coalesce(v_found, '{}');
    -- Of what no row was found: the archives that no filter excluded for all, and those that one did not exclude for this key (if they still
    -- count: one that was merged since is in its successor, whose filter the caller does not know).
    IF cardinality(p_archives) > 0 OR cardinality(p_maybe_segment) > 0 THEN
      SELECT array_agg(a.n), array_agg(CASE k.hit WHEN 1 THEN (6, a.digest, 0, 0, 0, k.from_ms, k.expires, k.to_ms, 3 | k.flags, v_now)::dedup.fact
                                                  ELSE (5, a.digest, NULL, NULL, NULL, NULL, NULL, NULL, NULL, v_now)::dedup.fact END)
        INTO v_hits, v_cold
        FROM unnest(p_asks) a
        LEFT JOIN (SELECT m.item, array_agg(x.archive_id) AS archives FROM unnest(p_maybe_item, p_maybe_segment) m(item, place)
                     JOIN dedup.archives x ON x.archive_id = -m.place AND x.state = 'live' GROUP BY m.item) y ON y.item = a.n
        CROSS JOIN LATERAL (SELECT coalesce(p_archives, '{}') || coalesce(y.archives, '{}') AS archives) w
        CROSS JOIN LATERAL dedup.look_cold(a.digest, w.archives, v_now) k
        WHERE (v_seen IS NULL OR NOT a.n = ANY (v_seen)) AND cardinality(w.archives) > 0 AND k.hit > 0;
      facts := facts || coalesce(v_cold, '{}');
      v_seen := v_seen || v_hits;
    END IF;
    IF v_seen IS NULL OR cardinality(v_seen) < cardinality(p_asks) THEN
      WITH asked AS (
        SELECT a.*, CASE WHEN a.claim THEN 257 ELSE 275 END AS meta, dedup.t_in(p_origin, dedup.after(v_now, a.window_ms)) AS expires,
               dedup.t_in(p_origin, CASE WHEN a.claim THEN v_now + least(a.lease_ms, a.window_ms) ELSE v_now END) AS ends
          FROM unnest(p_asks) a WHERE v_seen IS NULL OR NOT a.n = ANY (v_seen)),
      granted AS (
        INSERT INTO dedup.claims AS c (digest, fence, request_hash, segment_id, fingerprint, first_seen, expires, ends, meta)
          SELECT digest, p_fence | nextval('dedup.fence_counter'), request, p_current, fp, dedup.t_in(p_origin, v_now), expires, ends, asked.meta FROM asked
          ON CONFLICT DO NOTHING
          RETURNING c.digest, c.fence, c.request_hash, c.fingerprint, c.expires, c.ends, c.meta)
      SELECT array_agg((1, digest, fence, request_hash, fingerprint, v_now, dedup.t_out(p_origin, expires), dedup.t_out(p_origin, ends), meta, v_now)::dedup.fact)
        INTO v_new FROM granted;
      facts := facts || coalesce(v_new, '{}');
      -- Those that lost to a commit of the last moment: this statement's snapshot could not see the winner, the next one can.
      IF coalesce(cardinality(v_new), 0) + coalesce(cardinality(v_seen), 0) < cardinality(p_asks) THEN
        SELECT array_agg(a.n) INTO v_missed FROM unnest(p_asks) a
          WHERE (v_seen IS NULL OR NOT a.n = ANY (v_seen)) AND NOT EXISTS (SELECT 1 FROM unnest(v_new) g WHERE g.digest = a.digest);
      END IF;
    END IF;
    FOREACH i IN ARRAY coalesce(v_slow, '{}') || coalesce(v_missed, '{}') LOOP
      SELECT o.f, o.previous INTO v_step FROM dedup.decide_one(p_asks[i], p_segments, p_archives,
        ARRAY(SELECT s FROM unnest(p_maybe_item, p_maybe_segment) m(item, s) WHERE m.item = i), p_current, p_origin, p_fence) o;
      facts := facts || v_step.f;
      IF v_step.previous IS NOT NULL THEN previous := coalesce(previous, '{}') || jsonb_build_object(v_digest[i]::text, v_step.previous); END IF;
    END LOOP;
  EXCEPTION WHEN lock_not_available THEN
    -- Somebody's open transaction holds at least one of these keys. Key by key, so that only the held ones pay.
    facts := '{}';
    previous := NULL;
    PERFORM set_config('lock_timeout', '3ms', true);
    FOR i IN 1 .. cardinality(p_asks) LOOP
      BEGIN
        SELECT o.f, o.previous INTO v_step FROM dedup.decide_one(p_asks[i], p_segments, p_archives,
          ARRAY(SELECT s FROM unnest(p_maybe_item, p_maybe_segment) m(item, s) WHERE m.item = i), p_current, p_origin, p_fence) o;
        v_one := v_step.f;
        IF v_step.previous IS NOT NULL THEN previous := coalesce(previous, '{}') || jsonb_build_object(v_one.digest::text, v_step.previous); END IF;
      EXCEPTION WHEN lock_not_available THEN
        v_one := (3, (p_asks[i]).digest, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::dedup.fact;
      END;
      facts := facts || v_one;
    END LOOP;
  END;
END $$;

-- Archives to look into: those whose filter the caller did not use; null: none.
CREATE FUNCTION dedup.live_archives(p_skip uuid[]) RETURNS int[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT array_agg(archive_id ORDER BY to_ms DESC) FROM dedup.archives WHERE state = 'live' AND NOT filter_id = ANY (p_skip));
END $$;

-- Where to look: every live segment whose filter the caller did not use. The open one always. (plpgsql, as keep_texts below: a function in
-- plain SQL that cannot be inlined is parsed and planned anew in each call.)
CREATE FUNCTION dedup.live_segments(p_skip uuid[]) RETURNS int[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT array_agg(segment_id ORDER BY segment_id DESC) FROM dedup.segments
    WHERE state = 'open' OR (state IN ('sealed', 'frozen') AND (filter_id IS NULL OR NOT filter_id = ANY (p_skip))));
END $$;

-- A caller at a higher isolation level looks at an old snapshot: it must not have missed a change of layout. FOR SHARE of the layout row
-- turns that into 40001, which a retry cures.
CREATE FUNCTION dedup.guard_snapshot() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
    PERFORM 1 FROM dedup.layout FOR SHARE;
  END IF;
END $$;

-- The stored result of one grant. The partition is the one current at completion, so it is looked for in all; few are warm. keep_until_ms:
-- null, where there is no such end or it is past; then it is told no more. Of an archived record (p_fence = 0) the one that was kept for it: no
-- result is kept for longer than its record's window, so one of an earlier window is past.
CREATE FUNCTION dedup.result_of(p_digest uuid, p_fence bigint, p_now bigint, OUT status int, OUT omitted boolean, OUT keep_until_ms bigint, OUT media_type text, OUT headers text,
    OUT body bytea, OUT result_hash uuid) RETURNS SETOF record LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN g.gone THEN NULL ELSE r.status::int END, r.omitted OR g.gone, CASE WHEN NOT g.gone THEN nullif(r.keep_until_ms, 0) END,
         CASE WHEN NOT g.gone THEN r.media_type END, CASE WHEN g.gone THEN '{}' ELSE r.headers END, CASE WHEN NOT g.gone THEN r.body END, r.result_hash
    FROM dedup.results r CROSS JOIN LATERAL (SELECT r.keep_until_ms > 0 AND p_now >= r.keep_until_ms AS gone) g
    WHERE r.digest = p_digest AND (r.fence = p_fence OR p_fence = 0 AND r.keep_until_ms > p_now) ORDER BY r.fence DESC LIMIT 1 $$;

-- Keeps what people want to read beside new grants. p_kind, p_granted, p_fence: what was decided; p_digest, p_terms: what was asked on which terms; p_topic,
-- p_claim: the terms; p_ids, p_keep: of the topics that p_topic points to; p_item: index of the asked digest.
CREATE FUNCTION dedup.keep_texts(p_kind int[], p_granted uuid[], p_fence bigint[], p_digest uuid[], p_terms int[], p_topic int[], p_claim boolean[], p_ids int[], p_keep text[],
    p_item int[], p_group text[], p_key text[], p_owner text[])
  RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO dedup.claim_texts AS t (digest, fence, topic_id, grp, key, owner)
    SELECT x.digest, x.fence, p_ids[t.topic], k.grp, CASE p_keep[t.topic] WHEN 'never' THEN NULL ELSE k.key END, k.owner
      FROM unnest(p_item, p_group, p_key, p_owner) k(n, grp, key, owner) JOIN unnest(p_kind, p_granted, p_fence) x(kind, digest, fence) ON x.digest = p_digest[k.n]
        CROSS JOIN LATERAL (SELECT p_topic[p_terms[k.n]] AS topic, p_claim[p_terms[k.n]] AS claim) t
      WHERE x.kind = 1 AND (t.claim OR p_keep[t.topic] = 'always')
      ORDER BY x.digest
    ON CONFLICT ON CONSTRAINT claim_texts_pkey DO UPDATE SET fence = excluded.fence, topic_id = excluded.topic_id, grp = excluded.grp, key = excluded.key,
      owner = excluded.owner, note = NULL;
END $$;

-- Which of the digests, by their index from 1, did not get the fence that they were to be granted with.
CREATE FUNCTION dedup.not_granted(p_segment int, p_digest uuid[], p_fence bigint[]) RETURNS int[] LANGUAGE plpgsql
  SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
  RETURN ARRAY(SELECT i.n::int FROM unnest(p_digest, p_fence) WITH ORDINALITY i(digest, fence, n)
    WHERE NOT EXISTS (SELECT 1 FROM dedup.claims c WHERE c.segment_id = p_segment AND c.digest = i.digest AND c.fence = i.fence) ORDER BY i.n);
END $$;

-- The call of a service instance. Arrays of one length over different digests, sorted by digest.
--   p_skip          ids of the filters used for all keys; p_maybe_*: (item, segment, or minus an archive) pairs whose filter said "maybe"
--   p_topics        names with the revisions the caller knows
--   p_topic, p_claim, p_window, p_lease  the different terms that are asked for, few as a rule: index into the topics, from 1; whether it is a
--                   claim; ms, 9223372036854775807 = forever, -1 = the topic's; ms, -1 = the topic's
--   p_terms         for each digest: index into the terms, from 1
--   p_text_*        what to keep beside records (item index from 1)
-- status: ok · wrong-home · stale-topics · too-late (home time is past p_not_after: nothing was done)
-- Rows of facts come as parallel arrays. r_*: results of the done ones. home_ms is read last.
CREATE FUNCTION dedup.decide_v1(p_home uuid, p_secret bytea, p_not_after bigint, p_skip uuid[], p_topics text[], p_revisions bigint[],
    p_topic int[], p_claim boolean[], p_window bigint[], p_lease bigint[], p_digest uuid[], p_terms int[], p_request bigint[], p_fp int[],
    p_maybe_item int[], p_maybe_segment int[], p_text_item int[], p_group text[], p_key text[], p_owner text[],
    OUT status text, OUT as_of bigint, OUT incarnation int,
    OUT kind int[], OUT digest uuid[], OUT fence bigint[], OUT request_hash bigint[], OUT fingerprint int[], OUT first_seen bigint[], OUT expires bigint[],
    OUT ends bigint[], OUT meta int[], OUT at_ms bigint[], OUT extras text,
    OUT r_digest uuid[], OUT r_status int[], OUT r_omitted boolean[], OUT r_keep bigint[], OUT r_media text[], OUT r_headers text[], OUT r_body bytea[], OUT home_ms bigint)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_layout   record;
  v_timeline int := 0;
  v_ids      int[];
  v_windows  bigint[];
  v_leases   bigint[];
  v_keep     text[];
  v_asks     dedup.ask[];
  v_facts    dedup.fact[];
  v_prev     jsonb;
  v_owners   jsonb;
  v_fence    bigint;
  v_held     boolean := false;
  v_rest     int[];
  v_maybe    int[];
  v_expires  int[];
  v_ends     int[];
  v_meta     int[];
  v_timeout  text;
  v_until    bigint;
  v_fresh    int := 0;
  v_granted  boolean;
  v_open     boolean := false;
  v_results  boolean := false;
  v_asked    int := cardinality(p_digest);
  v_age      bigint;
  v_near     bigint;
  v_window   bigint;
  v_grants   bigint[];
  v_until_of bigint[];
  v_ends_of  bigint[];
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);   -- ROTATION: the layout below stays true until this transaction ends
  -- Every statement has its price to start, and so has every expression, anew in each transaction: a call of few keys feels both. So what costs
  -- little to read at once is, and what is hardly ever needed (a time far away, several topics) has a branch of its own.
  SELECT l.current_segment, s.origin_ms, h.home_id, h.secret_id, h.epoch, (SELECT pos FROM dedup.forget_position) AS pos,
         ARRAY(SELECT segment_id FROM dedup.segments   -- as live_segments
           WHERE state = 'open' OR (state IN ('sealed', 'frozen') AND (filter_id IS NULL OR NOT filter_id = ANY (p_skip)))) AS segments,
         ARRAY(SELECT archive_id FROM dedup.archives WHERE state = 'live' AND NOT filter_id = ANY (p_skip)) AS archives   -- as live_archives
    INTO v_layout FROM dedup.layout l JOIN dedup.segments s ON s.segment_id = l.current_segment CROSS JOIN dedup.home h;
  IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM dedup.guard_snapshot(); END IF;
  home_ms := dedup.now_ms();
  IF NOT pg_is_in_recovery() THEN
    v_timeline := ('x' || substring(pg_walfile_name(pg_current_wal_lsn()) FOR 8))::bit(32)::int;
    incarnation := v_layout.epoch * 2048 + v_timeline;
  ELSE
    incarnation := 0;
  END IF;
  IF v_layout.home_id <> p_home OR v_layout.secret_id <> p_secret THEN status := 'wrong-home'; RETURN; END IF;
  IF home_ms > p_not_after THEN status := 'too-late'; RETURN; END IF;
  IF cardinality(p_topics) = 1 THEN
    SELECT ARRAY[t.topic_id], ARRAY[t.window_ms], ARRAY[t.lease_ms], ARRAY[t.keep_key] INTO v_ids, v_windows, v_leases, v_keep
      FROM dedup.topics t WHERE t.name = p_topics[1] AND t.revision = p_revisions[1] AND NOT t.deleted;
  ELSE
    SELECT array_agg(t.topic_id ORDER BY a.n), array_agg(t.window_ms ORDER BY a.n), array_agg(t.lease_ms ORDER BY a.n), array_agg(t.keep_key ORDER BY a.n)
      INTO v_ids, v_windows, v_leases, v_keep
      FROM unnest(p_topics, p_revisions) WITH ORDINALITY a(name, revision, n) JOIN dedup.topics t ON t.name = a.name AND t.revision = a.revision AND NOT t.deleted;
  END IF;
  IF v_ids IS NULL OR cardinality(v_ids) < cardinality(p_topics) THEN status := 'stale-topics'; RETURN; END IF;
  as_of := v_layout.pos;   -- read before every look below: a later forget has a higher position
  IF v_timeline BETWEEN 1 AND 2047 THEN
    v_fence := (v_layout.epoch::bigint << 55) | (v_timeline::bigint << 44);
  ELSE
    v_fence := dedup.fence_base();   -- refuses
  END IF;
  FOR i IN 1 .. cardinality(p_topic) LOOP
    p_window[i] := CASE p_window[i] WHEN -1 THEN v_windows[p_topic[i]] ELSE p_window[i] END;
    p_lease[i] := CASE p_lease[i] WHEN -1 THEN v_leases[p_topic[i]] ELSE p_lease[i] END;
  END LOOP;
  -- What nobody has asked for, which is most of what is `first`, goes straight into the open segment where nothing else is live for this
  -- caller: there the unique index is the look. What it refuses, for whatever reason, is judged below.
  v_age := home_ms - v_layout.origin_ms;
  IF v_layout.archives = '{}' AND v_layout.segments = ARRAY[v_layout.current_segment] AND v_age BETWEEN 0 AND 1000000000 THEN
    v_near := 1073741824 - v_age;   -- as t_in and t_out: what ends before is kept to the millisecond
    FOR i IN 1 .. cardinality(p_topic) LOOP
      v_window := CASE WHEN p_claim[i] THEN least(p_lease[i], p_window[i]) ELSE 0 END;
      IF p_window[i] < v_near THEN
        v_expires[i] := v_age + p_window[i];
        v_until_of[i] := home_ms + p_window[i];
      ELSE
        v_expires[i] := dedup.t_in(v_layout.origin_ms, dedup.after(home_ms, p_window[i]));
        v_until_of[i] := dedup.t_out(v_layout.origin_ms, v_expires[i]);
      END IF;
      IF v_window < v_near THEN
        v_ends[i] := v_age + v_window;
        v_ends_of[i] := home_ms + v_window;
      ELSE
        v_ends[i] := dedup.t_in(v_layout.origin_ms, home_ms + v_window);
        v_ends_of[i] := dedup.t_out(v_layout.origin_ms, v_ends[i]);
      END IF;
      v_meta[i] := CASE WHEN p_claim[i] THEN 257 ELSE 275 END;
    END LOOP;
    v_grants := ARRAY(SELECT v_fence | nextval('dedup.fence_counter') FROM generate_series(1, v_asked));
    v_timeout := current_setting('lock_timeout');
    BEGIN
      PERFORM set_config('lock_timeout', '25ms', true);
      -- (Told of by its count: RETURNING through the partitioned table costs a third of the insert.)
      INSERT INTO dedup.claims AS c (digest, fence, request_hash, segment_id, fingerprint, first_seen, expires, ends, meta)
        SELECT i.digest, i.fence, i.request, v_layout.current_segment, i.fp, v_age, v_expires[i.terms], v_ends[i.terms], v_meta[i.terms]
          FROM unnest(p_digest, v_grants, p_terms, p_request, p_fp) WITH ORDINALITY i(digest, fence, terms, request, fp, n)
          WHERE p_maybe_item = '{}' OR NOT i.n = ANY (p_maybe_item)
        ON CONFLICT DO NOTHING;
      GET DIAGNOSTICS v_fresh = ROW_COUNT;
      PERFORM set_config('lock_timeout', v_timeout, true);
    EXCEPTION WHEN lock_not_available THEN
      v_held := true;   -- somebody's open transaction holds one of the keys; nothing was granted
    END;
    IF v_fresh = v_asked AND cardinality(p_topic) = 1 THEN
      digest := p_digest; fence := v_grants; request_hash := p_request; fingerprint := p_fp;
      expires := array_fill(v_until_of[1], ARRAY[v_fresh]);
      ends := array_fill(v_ends_of[1], ARRAY[v_fresh]);
      meta := array_fill(v_meta[1], ARRAY[v_fresh]);
      v_until := v_until_of[1];
    ELSIF v_fresh > 0 THEN
      v_rest := CASE WHEN v_fresh = v_asked THEN '{}' ELSE dedup.not_granted(v_layout.current_segment, p_digest, v_grants) END;
      SELECT array_agg(i.digest), array_agg(i.fence), array_agg(i.request), array_agg(i.fp), array_agg(v_until_of[i.terms]), array_agg(v_ends_of[i.terms]),
             array_agg(v_meta[i.terms]), max(v_until_of[i.terms])
        INTO digest, fence, request_hash, fingerprint, expires, ends, meta, v_until
        FROM unnest(p_digest, v_grants, p_terms, p_request, p_fp) WITH ORDINALITY i(digest, fence, terms, request, fp, n) WHERE NOT i.n = ANY (v_rest);
    END IF;
    kind := array_fill(1, ARRAY[v_fresh]);
    first_seen := array_fill(home_ms, ARRAY[v_fresh]);
    at_ms := first_seen;
  END IF;
  v_granted := v_fresh > 0;
  IF v_fresh < v_asked THEN
    v_rest := coalesce(v_rest, ARRAY(SELECT generate_series(1, v_asked)));
    SELECT array_agg((r.n, p_digest[r.i], p_topic[p_terms[r.i]], p_claim[p_terms[r.i]], p_request[r.i], p_fp[r.i], p_window[p_terms[r.i]], p_lease[p_terms[r.i]])::dedup.ask ORDER BY r.n)
      INTO v_asks FROM unnest(v_rest) WITH ORDINALITY r(i, n);
    v_maybe := p_maybe_item;
    IF v_fresh > 0 AND v_maybe <> '{}' THEN
      v_maybe := ARRAY(SELECT array_position(v_rest, m.item) FROM unnest(p_maybe_item) WITH ORDINALITY m(item, n) ORDER BY m.n);
    END IF;
    SELECT d.facts, d.previous INTO v_facts, v_prev
      FROM dedup.decide_rows(v_asks, v_layout.segments, v_layout.archives, v_maybe, p_maybe_segment, v_layout.current_segment, v_layout.origin_ms, v_fence, v_held) d;
    SELECT decide_v1.kind || array_agg(x.kind), decide_v1.digest || array_agg(x.digest), decide_v1.fence || array_agg(x.fence),
           decide_v1.request_hash || array_agg(x.request_hash), decide_v1.fingerprint || array_agg(x.fingerprint), decide_v1.first_seen || array_agg(x.first_seen),
           decide_v1.expires || array_agg(x.expires), decide_v1.ends || array_agg(x.ends), decide_v1.meta || array_agg(x.meta), decide_v1.at_ms || array_agg(x.at_ms),
           v_granted OR bool_or(x.kind = 1), bool_or(x.kind = 0 AND x.meta & 7 = 1), bool_or(x.kind IN (0, 6) AND x.meta & 32 <> 0 AND x.meta & 7 = 3),
           greatest(v_until, max(x.expires) FILTER (WHERE x.kind = 1))
      INTO kind, digest, fence, request_hash, fingerprint, first_seen, expires, ends, meta, at_ms, v_granted, v_open, v_results, v_until FROM unnest(v_facts) x;
  END IF;
  IF v_granted AND cardinality(p_topic) = 1 THEN
    PERFORM dedup.topic_used(v_ids[p_topic[1]], v_until, home_ms);
  ELSIF v_granted THEN
    PERFORM dedup.topic_used(v_ids[g.topic], g.until, home_ms)
      FROM (SELECT p_topic[a.terms] AS topic, max(x.expires) AS until FROM unnest(kind, digest, expires) x(kind, digest, expires) JOIN unnest(p_digest, p_terms) a(digest, terms) ON a.digest = x.digest
             WHERE x.kind = 1 GROUP BY 1) g;
  END IF;
  IF v_granted AND p_text_item <> '{}' THEN
    PERFORM dedup.keep_texts(kind, digest, fence, p_digest, p_terms, p_topic, p_claim, v_ids, v_keep, p_text_item, p_group, p_key, p_owner);
  END IF;
  -- Facts found in progress name their owner.
  IF v_open THEN
    SELECT jsonb_object_agg(t.digest, jsonb_build_object('owner', t.owner)) INTO v_owners
      FROM unnest(kind, digest, fence, meta) x(kind, digest, fence, meta) JOIN dedup.claim_texts t ON t.digest = x.digest AND t.fence = x.fence
      WHERE x.kind = 0 AND x.meta & 7 = 1 AND t.owner IS NOT NULL;
  END IF;
  IF v_prev IS NOT NULL OR v_owners IS NOT NULL THEN
    extras := jsonb_build_object('previous', v_prev, 'owners', v_owners)::text;
  END IF;
  IF v_results THEN
    SELECT array_agg(x.digest), array_agg(r.status), array_agg(r.omitted), array_agg(r.keep_until_ms), array_agg(r.media_type), array_agg(r.headers), array_agg(r.body)
      INTO r_digest, r_status, r_omitted, r_keep, r_media, r_headers, r_body
      FROM unnest(kind, digest, fence, meta) x(kind, digest, fence, meta) CROSS JOIN LATERAL dedup.result_of(x.digest, x.fence, home_ms) r
      WHERE x.kind IN (0, 6) AND x.meta & 32 <> 0 AND x.meta & 7 = 3;
  END IF;
  status := 'ok';
  home_ms := dedup.now_ms();
END $$;

GRANT EXECUTE ON FUNCTION dedup.decide_v1(uuid, bytea, bigint, uuid[], text[], bigint[], int[], boolean[], bigint[], bigint[], uuid[], int[], bigint[], int[],
  int[], int[], int[], text[], text[], text[]) TO dedup_service;
GRANT EXECUTE ON FUNCTION dedup.judge_v1(int, bigint, bigint, bigint, int, bigint, boolean, bigint, int) TO dedup_service;
