-- What operators ask: open claims, the trace of deeds, ending somebody's claim; and how far each instance has read the forget log.

-- Pages of open claims of one topic. (A claim pays one more index entry for it; open claims are few beside done records.)
CREATE INDEX ON dedup.claim_texts (topic_id, digest);
CREATE INDEX ON dedup.audit (topic, id);

-- A page of claims that are not done, by (topic_id, digest), after a position. p_states: in_progress (lease alive) · lapsed (nobody has
-- taken over yet) · released. Looks at no more than p_scan texts, so that a topic with many others costs many short calls, not a long
-- one. at_topic, at_digest: where it stopped; null: there is nothing more. status: ok · wrong-home.
CREATE FUNCTION dedup.open_claims_v1(p_home uuid, p_secret bytea, p_topics text[], p_states text[], p_after_topic int, p_after_digest uuid, p_limit int, p_scan int,
    OUT status text, OUT incarnation int, OUT at_topic int, OUT at_digest uuid, OUT topic text[], OUT grp text[], OUT key text[], OUT owner text[], OUT note text[],
    OUT state text[], OUT fence bigint[], OUT first_seen bigint[], OUT expires bigint[], OUT ends bigint[], OUT meta int[], OUT home_ms bigint)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
  SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  v_segments int[];
  v_topic    record;
  v_page     record;
  v_after    uuid;
  v_left     int := p_limit;
  v_scan     int := p_scan;
  v_step     int;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  home_ms := dedup.now_ms();
  incarnation := dedup.incarnation();
  IF NOT EXISTS (SELECT 1 FROM dedup.home h WHERE h.home_id = p_home AND h.secret_id = p_secret) THEN status := 'wrong-home'; RETURN; END IF;
  IF incarnation = 0 THEN RAISE EXCEPTION 'a standby does not answer' USING ERRCODE = '25006'; END IF;
  status := 'ok';
  v_segments := dedup.live_segments('{}');
  FOR v_topic IN SELECT t.topic_id, t.name FROM dedup.topics t WHERE t.name = ANY (p_topics) AND t.topic_id >= p_after_topic ORDER BY t.topic_id LOOP
    v_after := CASE WHEN v_topic.topic_id = p_after_topic THEN p_after_digest END;
    LOOP
      v_step := least(v_scan, 200);
      -- One probe per text and segment; a text whose record has gone or changed hands shows nothing.
      WITH page AS MATERIALIZED (
        SELECT x.* FROM dedup.claim_texts x WHERE x.topic_id = v_topic.topic_id AND x.digest > coalesce(v_after, '00000000-0000-0000-0000-000000000000')
          ORDER BY x.digest LIMIT v_step),
      seen AS (
        SELECT p.*, c.meta, dedup.t_out(s.origin_ms, c.first_seen) AS first_seen, dedup.t_out(s.origin_ms, c.expires) AS expires, dedup.t_out(s.origin_ms, c.ends) AS ends
          FROM page p CROSS JOIN unnest(v_segments) g(segment_id)
          CROSS JOIN LATERAL (SELECT * FROM dedup.claims c WHERE c.segment_id = g.segment_id AND c.digest = p.digest LIMIT 1) c
          JOIN dedup.segments s ON s.segment_id = c.segment_id
          WHERE c.fence = p.fence AND NOT EXISTS (SELECT 1 FROM dedup.floors o WHERE o.topic_id = p.topic_id AND o.grp IN ('', p.grp) AND p.fence < o.fence)),
      named AS (
        SELECT n.*, CASE WHEN n.meta & 7 = 1 AND home_ms < n.ends THEN 'in_progress'
                         WHEN n.meta & 7 = 1 AND home_ms < n.expires THEN 'lapsed'
                         WHEN n.meta & 7 = 4 AND home_ms < n.expires THEN 'released' END AS state FROM seen n),
      wanted AS (SELECT * FROM named w WHERE w.state = ANY (p_states) ORDER BY w.digest LIMIT v_left)
      SELECT (SELECT count(*) FROM page) AS looked, (SELECT p.digest FROM page p ORDER BY p.digest DESC LIMIT 1) AS page_end,
             count(*) AS found, (array_agg(w.digest ORDER BY w.digest DESC))[1] AS found_end,
             array_agg(w.grp ORDER BY w.digest) AS grp, array_agg(w.key ORDER BY w.digest) AS key, array_agg(w.owner ORDER BY w.digest) AS owner,
             array_agg(w.note ORDER BY w.digest) AS note, array_agg(w.state ORDER BY w.digest) AS state, array_agg(w.fence ORDER BY w.digest) AS fence,
             array_agg(w.first_seen ORDER BY w.digest) AS first_seen, array_agg(w.expires ORDER BY w.digest) AS expires,
             array_agg(w.ends ORDER BY w.digest) AS ends, array_agg(w.meta ORDER BY w.digest) AS meta
        INTO v_page FROM wanted w;
      IF v_page.found > 0 THEN
        topic := topic || array_fill(v_topic.name, ARRAY[v_page.found::int]);
        grp := grp || v_page.grp; key := key || v_page.key; owner := owner || v_page.owner; note := note || v_page.note; state := state || v_page.state;
        fence := fence || v_page.fence; first_seen := first_seen || v_page.first_seen; expires := expires || v_page.expires;
        ends := ends || v_page.ends; meta := meta || v_page.meta;
        v_left := v_left - v_page.found;
      END IF;
      v_scan := v_scan - v_page.looked;
      IF v_left = 0 OR v_scan <= 0 THEN
        at_topic := v_topic.topic_id;
        at_digest := CASE WHEN v_left = 0 THEN v_page.found_end ELSE v_page.page_end END;
        RETURN;
      END IF;
      EXIT WHEN v_page.looked < v_step;
      v_after := v_page.page_end;
    END LOOP;
  END LOOP;
END $$;

-- Ends an open claim (its lease alive or lapsed) of whoever holds it. The row gets a fence of its own, so that nothing the former owner
-- still sends is current, a late release no less than a late completion. outcome: released · not-open (state tells what there is).
CREATE FUNCTION dedup.force_release_v1(p_home uuid, p_secret bytea, p_digest uuid, p_actor text, p_topic text, p_group text, p_reason text,
    OUT status text, OUT outcome text, OUT state text, OUT attempt int, OUT fence bigint, OUT owner text, OUT home_ms bigint)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
  r       record;
  v_past  boolean;
  v_fence bigint;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  IF NOT EXISTS (SELECT 1 FROM dedup.home h WHERE h.home_id = p_home AND h.secret_id = p_secret) THEN status := 'wrong-home'; RETURN; END IF;
  status := 'ok';
  FOR round IN 1..5 LOOP
    home_ms := dedup.now_ms();
    SELECT l.* INTO r FROM dedup.look(ARRAY[p_digest], dedup.live_segments('{}'), '{}', '{}') l
      ORDER BY home_ms >= CASE WHEN l.meta & 7 IN (1, 2) THEN greatest(l.expires, l.ends) ELSE l.expires END,
               CASE l.meta & 7 WHEN 3 THEN 0 WHEN 4 THEN 2 ELSE 1 END, l.fence DESC LIMIT 1;
    IF NOT FOUND THEN
      outcome := 'not-open';
      state := CASE (dedup.look_cold(p_digest, coalesce(dedup.live_archives('{}'), '{}'), home_ms)).hit WHEN 1 THEN 'done' ELSE 'absent' END;
      RETURN;
    END IF;
    attempt := r.meta >> 8;
    fence := r.fence;
    v_past := home_ms >= CASE WHEN r.meta & 7 IN (1, 2) THEN greatest(r.expires, r.ends) ELSE r.expires END;
    IF v_past OR NOT r.meta & 7 IN (1, 2) THEN
      outcome := 'not-open';
      state := CASE WHEN v_past THEN 'expired' WHEN r.meta & 7 = 3 THEN 'done' WHEN r.meta & 7 = 4 THEN 'released' ELSE 'issued' END;
      RETURN;
    END IF;
    v_fence := dedup.fence_base() | nextval('dedup.fence_counter');
    UPDATE dedup.claims c SET meta = (r.meta & -8) | 4, fence = v_fence,
        ends = dedup.t_in((SELECT origin_ms FROM dedup.segments WHERE segment_id = r.segment_id), home_ms)
      WHERE c.segment_id = r.segment_id AND c.digest = p_digest AND c.fence = r.fence AND c.meta = r.meta;
    CONTINUE WHEN NOT FOUND;
    UPDATE dedup.claim_texts t SET fence = v_fence WHERE t.digest = p_digest AND t.fence = r.fence RETURNING t.owner INTO owner;
    INSERT INTO dedup.audit (at_ms, actor, action, topic, grp, digest, reason) VALUES (home_ms, p_actor, 'force-release', p_topic, p_group, p_digest, p_reason);
    outcome := 'released'; state := 'released';
    RETURN;
  END LOOP;
  RAISE EXCEPTION 'the record changed under five looks' USING ERRCODE = '55P03';
END $$;

-- Forgets a whole topic, or one of its groups, at once: the generation, part of every digest of its keys, is raised to at least the given
-- one, so that what was remembered is never found again; it goes when its time comes. Under the exclusive ROTATION lock: no claim of the
-- old generation is under way any more when this returns. p_generation, p_groups: the topic's and its groups' as they are to be at least.
-- status: ok · wrong-home · no-topic · held, busy (claims are under way: try again). pos: in the forget log, for how far it has spread.
CREATE FUNCTION dedup.raise_generation_v1(p_home uuid, p_secret bytea, p_topic text, p_generation bigint, p_groups text, p_actor text, p_group text, p_reason text,
    OUT status text, OUT pos bigint)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
  t        dedup.topics;
  v_groups jsonb;
  v_floor  bigint;
  v_now    bigint;
  v_revision bigint;
BEGIN
  status := dedup.take_rotation();
  IF status <> 'taken' THEN RETURN; END IF;
  IF NOT EXISTS (SELECT 1 FROM dedup.home h WHERE h.home_id = p_home AND h.secret_id = p_secret) THEN status := 'wrong-home'; RETURN; END IF;
  v_revision := dedup.changed('topics');   -- before the topic's row, as put_topic_v1 does
  SELECT o.* INTO t FROM dedup.topics o WHERE o.name = p_topic AND NOT o.deleted FOR UPDATE;
  IF NOT FOUND THEN status := 'no-topic'; RETURN; END IF;
  status := 'ok';
  SELECT p.pos INTO pos FROM dedup.forget_position p;
  v_groups := dedup.higher_generations(t.groups, p_groups::jsonb);
  IF t.generation >= p_generation AND v_groups = t.groups THEN RETURN; END IF;
  v_now := dedup.now_ms();
  v_floor := dedup.fence_base() | nextval('dedup.fence_counter');
  INSERT INTO dedup.floors AS f (topic_id, grp, fence)
    SELECT t.topic_id, x.grp, v_floor FROM (
      SELECT '' WHERE t.generation < p_generation
      UNION ALL SELECT g.key FROM jsonb_each_text(v_groups) g WHERE g.value::bigint > coalesce((t.groups ->> g.key)::bigint, 0)) x(grp)
    ON CONFLICT ON CONSTRAINT floors_pkey DO UPDATE SET fence = excluded.fence;
  UPDATE dedup.topics o SET generation = greatest(o.generation, p_generation), groups = v_groups, revision = v_revision, changed_ms = v_now
    WHERE o.topic_id = t.topic_id;
  UPDATE dedup.layout SET generation = generation + 1;   -- a caller with an older snapshot must not go on with the old generation
  UPDATE dedup.forget_position p SET pos = p.pos + 1 RETURNING p.pos INTO pos;
  INSERT INTO dedup.forget_log VALUES (pos, '00000000-0000-0000-0000-000000000000', v_now);
  INSERT INTO dedup.audit (at_ms, actor, action, topic, grp, digest, reason)
    VALUES (v_now, p_actor, CASE p_group WHEN '' THEN 'forget-topic' ELSE 'forget-group' END, p_topic, p_group, '00000000-0000-0000-0000-000000000000', p_reason);
  PERFORM pg_notify('dedup_forget', pos::text);
END $$;
GRANT EXECUTE ON FUNCTION dedup.raise_generation_v1(uuid, bytea, text, bigint, text, text, text, text) TO dedup_service;

-- Forgetting what was first seen within a range of time: a job of the janitor's. Rows hold digests and no topic, so only those count whose
-- texts are kept: all records of topics with keep_key = always.
CREATE TABLE dedup.jobs (
  job_id     uuid    PRIMARY KEY,
  topic_id   int     NOT NULL,
  topic      text    NOT NULL,
  grp        text,                             -- null: all groups
  from_ms    bigint  NOT NULL,                 -- first seen from here on, and before to_ms
  to_ms      bigint  NOT NULL,
  dry_run    boolean NOT NULL,
  actor      text    NOT NULL,
  reason     text    NOT NULL,
  state      text    NOT NULL CHECK (state IN ('queued', 'running', 'done')),
  at_digest  uuid    NOT NULL,                 -- looked at up to here
  looked     bigint  NOT NULL,
  matched    bigint  NOT NULL,
  created_ms bigint  NOT NULL,
  changed_ms bigint  NOT NULL
);

-- status: ok (also if the job is there already) · wrong-home · no-topic · keys-not-kept
CREATE FUNCTION dedup.start_job_v1(p_home uuid, p_secret bytea, p_job uuid, p_topic text, p_group text, p_from bigint, p_to bigint, p_dry_run boolean, p_actor text, p_reason text)
  RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t     dedup.topics;
  v_now bigint := dedup.now_ms();
BEGIN
  IF NOT EXISTS (SELECT 1 FROM dedup.home h WHERE h.home_id = p_home AND h.secret_id = p_secret) THEN RETURN 'wrong-home'; END IF;
  SELECT o.* INTO t FROM dedup.topics o WHERE o.name = p_topic AND NOT o.deleted;
  IF NOT FOUND THEN RETURN 'no-topic'; END IF;
  IF t.keep_key <> 'always' THEN RETURN 'keys-not-kept'; END IF;
  INSERT INTO dedup.jobs VALUES (p_job, t.topic_id, p_topic, p_group, p_from, least(p_to, v_now + 1), p_dry_run, p_actor, p_reason, 'queued', '00000000-0000-0000-0000-000000000000', 0, 0, v_now, v_now)
    ON CONFLICT DO NOTHING;
  IF FOUND AND NOT p_dry_run THEN
    INSERT INTO dedup.audit (at_ms, actor, action, topic, grp, digest, reason)
      VALUES (v_now, p_actor, 'forget-job', p_topic, coalesce(p_group, ''), '00000000-0000-0000-0000-000000000000', p_reason);
  END IF;
  RETURN 'ok';
END $$;

-- One job. topic null: there is none of this id.
CREATE FUNCTION dedup.job_v1(p_home uuid, p_secret bytea, p_job uuid, OUT status text, OUT topic text, OUT grp text, OUT from_ms bigint, OUT to_ms bigint, OUT dry_run boolean,
    OUT state text, OUT looked bigint, OUT matched bigint, OUT created_ms bigint, OUT changed_ms bigint)
  LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM dedup.home h WHERE h.home_id = p_home AND h.secret_id = p_secret) THEN status := 'wrong-home'; RETURN; END IF;
  status := 'ok';
  SELECT j.topic, j.grp, j.from_ms, j.to_ms, j.dry_run, j.state, j.looked, j.matched, j.created_ms, j.changed_ms
    INTO topic, grp, from_ms, to_ms, dry_run, state, looked, matched, created_ms, changed_ms FROM dedup.jobs j WHERE j.job_id = p_job;
END $$;

-- Some texts of the oldest job that is not done. Its progress is written with what it forgot, so that it goes on where it was, whoever dies.
-- job: which one; null: there is none. ended: it is done now.
CREATE FUNCTION dedup.job_step_v1(p_texts int, OUT job uuid, OUT matched bigint, OUT ended boolean) LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET lock_timeout = '1s' AS $$
DECLARE
  j        dedup.jobs;
  t        record;
  v_now    bigint;
  v_looked bigint := 0;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  SELECT o.* INTO j FROM dedup.jobs o WHERE o.state <> 'done' ORDER BY o.created_ms, o.job_id LIMIT 1 FOR UPDATE;
  IF NOT FOUND THEN RETURN; END IF;
  job := j.job_id;
  matched := 0;
  v_now := dedup.now_ms();
  FOR t IN
    SELECT x.digest, (x.grp = j.grp OR j.grp IS NULL) AND NOT dedup.is_floored(x.digest, x.fence) AND EXISTS (
             SELECT 1 FROM dedup.look(ARRAY[x.digest], dedup.live_segments('{}'), '{}', '{}') l
              WHERE l.fence = x.fence AND l.first_seen >= j.from_ms AND l.first_seen < j.to_ms
                AND v_now < CASE WHEN l.meta & 7 IN (1, 2) THEN greatest(l.expires, l.ends) ELSE l.expires END) AS meant
      FROM dedup.claim_texts x WHERE x.topic_id = j.topic_id AND x.digest > j.at_digest ORDER BY x.digest LIMIT p_texts
  LOOP
    v_looked := v_looked + 1;
    j.at_digest := t.digest;
    CONTINUE WHEN NOT t.meant;
    matched := matched + 1;
    IF NOT j.dry_run THEN PERFORM dedup.forget_one(t.digest, v_now); END IF;
  END LOOP;
  ended := v_looked < p_texts;
  UPDATE dedup.jobs o SET state = CASE WHEN ended THEN 'done' ELSE 'running' END, at_digest = j.at_digest, looked = o.looked + v_looked, matched = o.matched + job_step_v1.matched,
      changed_ms = v_now WHERE o.job_id = j.job_id;
  IF matched > 0 AND NOT j.dry_run THEN PERFORM pg_notify('dedup_forget', (SELECT p.pos::text FROM dedup.forget_position p)); END IF;
END $$;
GRANT EXECUTE ON FUNCTION dedup.start_job_v1(uuid, bytea, uuid, text, text, bigint, bigint, boolean, text, text), dedup.job_v1(uuid, bytea, uuid) TO dedup_service;
GRANT EXECUTE ON FUNCTION dedup.job_step_v1(int) TO dedup_janitor;

-- Deeds before an id, newest first.
CREATE FUNCTION dedup.audit_v1(p_home uuid, p_secret bytea, p_topic text, p_before bigint, p_limit int)
  RETURNS TABLE (id bigint, at_ms bigint, actor text, action text, topic text, grp text, digest uuid, reason text)
  LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM dedup.home h WHERE h.home_id = p_home AND h.secret_id = p_secret) THEN
    RAISE EXCEPTION 'another home' USING ERRCODE = 'DD001';
  END IF;
  IF p_topic IS NULL THEN
    RETURN QUERY SELECT a.id, a.at_ms, a.actor, a.action, a.topic, a.grp, a.digest, a.reason FROM dedup.audit a
      WHERE a.id < p_before ORDER BY a.id DESC LIMIT p_limit;
  ELSE
    RETURN QUERY SELECT a.id, a.at_ms, a.actor, a.action, a.topic, a.grp, a.digest, a.reason FROM dedup.audit a
      WHERE a.topic = p_topic AND a.id < p_before ORDER BY a.id DESC LIMIT p_limit;
  END IF;
END $$;

-- How far each process has read the forget log. A row stays after its process was killed (it may as well only be cut off, and go on
-- answering from its caches) and goes when the process ends in good order: then there are no caches of it.
CREATE TABLE dedup.feeds (
  process     uuid   PRIMARY KEY,      -- made anew at each start: two processes that share a name are still two
  instance    text   NOT NULL,
  region      text   NOT NULL,
  incarnation int    NOT NULL,         -- of the home whose log it read: another one gives the same positions to other forgets
  pos         bigint NOT NULL,
  heard_ms    bigint NOT NULL
);

CREATE FUNCTION dedup.feed_seen_v1(p_process uuid, p_instance text, p_region text, p_incarnation int, p_pos bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- Said again in seconds: it must not wait for a standby, whose absence is no reason to call the home down.
  PERFORM set_config('synchronous_commit', 'off', true);
  UPDATE dedup.feeds SET incarnation = p_incarnation, pos = p_pos, heard_ms = dedup.now_ms() WHERE process = p_process;
  IF NOT FOUND THEN
    INSERT INTO dedup.feeds VALUES (p_process, p_instance, p_region, p_incarnation, p_pos, dedup.now_ms()) ON CONFLICT (process) DO NOTHING;
    -- Processes of this region that died long ago. Only when one of its region comes: the last ones of a region are never lost.
    DELETE FROM dedup.feeds WHERE region = p_region AND heard_ms < dedup.now_ms() - 86400000;
  END IF;
END $$;

CREATE FUNCTION dedup.feed_gone_v1(p_process uuid) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM dedup.feeds WHERE process = p_process $$;

-- Who has read as far as p_pos. live: heard of within 10 s.
CREATE FUNCTION dedup.feeds_v1(p_pos bigint) RETURNS TABLE (region text, instance text, live boolean, passed boolean) LANGUAGE sql VOLATILE SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp AS $$
  SELECT f.region, f.instance, f.heard_ms > dedup.now_ms() - 10000, f.incarnation = i AND f.pos >= p_pos FROM dedup.feeds f CROSS JOIN dedup.incarnation() i $$;

GRANT EXECUTE ON FUNCTION dedup.open_claims_v1(uuid, bytea, text[], text[], int, uuid, int, int),
  dedup.force_release_v1(uuid, bytea, uuid, text, text, text, text), dedup.audit_v1(uuid, bytea, text, bigint, int),
  dedup.feed_seen_v1(uuid, text, text, int, bigint), dedup.feed_gone_v1(uuid), dedup.feeds_v1(bigint) TO dedup_service;

-- What gauges show of this home. Looks at no more than p_scan claim texts, so that a home with many is not read through every few
-- seconds; beyond that the open claims are counted too low.
CREATE FUNCTION dedup.gauges_v1(p_home uuid, p_secret bytea, p_scan int,
    OUT status text, OUT database_bytes bigint, OUT state text[], OUT segments bigint[], OUT seg_rows bigint[], OUT seg_bytes bigint[], OUT open_segment_ms bigint,
    OUT in_progress bigint, OUT lapsed bigint, OUT oldest_ms bigint)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
  SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  v_now      bigint := dedup.now_ms();
  v_segments int[];
BEGIN
  IF NOT EXISTS (SELECT 1 FROM dedup.home h WHERE h.home_id = p_home AND h.secret_id = p_secret) THEN status := 'wrong-home'; RETURN; END IF;
  status := 'ok';
  database_bytes := pg_database_size(current_database());
  WITH tables AS (
    SELECT s.state, to_regclass('dedup.claims_s' || s.segment_id) AS claims, to_regclass('dedup.results_s' || s.segment_id) AS results
      FROM dedup.segments s WHERE s.state <> 'dropped'),
  sized AS (
    SELECT t.state, coalesce((SELECT greatest(c.reltuples, 0)::bigint FROM pg_class c WHERE c.oid = t.claims), 0) AS n,
           coalesce(pg_total_relation_size(t.claims), 0) + coalesce(pg_total_relation_size(t.results), 0) AS b FROM tables t),
  summed AS (
    SELECT w.word, count(z.state) AS k, coalesce(sum(z.n), 0)::bigint AS n, coalesce(sum(z.b), 0)::bigint AS b
      FROM unnest(ARRAY['prepared', 'open', 'sealed', 'frozen', 'cold']) w(word) LEFT JOIN sized z ON z.state = w.word GROUP BY w.word)
  SELECT array_agg(m.word ORDER BY m.word), array_agg(m.k ORDER BY m.word), array_agg(m.n ORDER BY m.word), array_agg(m.b ORDER BY m.word)
    INTO state, segments, seg_rows, seg_bytes FROM summed m;
  SELECT greatest(v_now - s.opened_at_ms, 0) INTO open_segment_ms FROM dedup.segments s WHERE s.state = 'open';
  v_segments := dedup.live_segments('{}');
  SELECT count(*) FILTER (WHERE v_now < f.ends), count(*) FILTER (WHERE v_now >= f.ends), coalesce(v_now - min(f.first_seen), 0)
    INTO in_progress, lapsed, oldest_ms
    FROM (SELECT dedup.t_out(s.origin_ms, c.first_seen) AS first_seen, dedup.t_out(s.origin_ms, c.expires) AS expires, dedup.t_out(s.origin_ms, c.ends) AS ends
            FROM (SELECT t.digest, t.fence, t.topic_id, t.grp FROM dedup.claim_texts t ORDER BY t.digest LIMIT p_scan) x CROSS JOIN unnest(v_segments) g(segment_id)
            CROSS JOIN LATERAL (SELECT * FROM dedup.claims c WHERE c.segment_id = g.segment_id AND c.digest = x.digest LIMIT 1) c
            JOIN dedup.segments s ON s.segment_id = c.segment_id
            WHERE c.fence = x.fence AND c.meta & 7 = 1 AND NOT EXISTS (SELECT 1 FROM dedup.floors o WHERE o.topic_id = x.topic_id AND o.grp IN ('', x.grp) AND x.fence < o.fence)) f
    WHERE v_now < greatest(f.ends, f.expires);
END $$;

GRANT EXECUTE ON FUNCTION dedup.gauges_v1(uuid, bytea, int) TO dedup_service;
