-- Topics: each home holds its own copy and decides by it. The higher (version, stamp) wins everywhere, so copies converge
-- whatever the order of arrival; DELETE is a tombstone with a version of its own. Generations only rise, whichever copy is newer.

CREATE TABLE dedup.topics (
  topic_id       int     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name           text    NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9._-]{1,249}$'),
  version        bigint  NOT NULL CHECK (version > 0),
  stamp          uuid    NOT NULL,           -- settles two writers of one version alike in all homes
  generation     bigint  NOT NULL,           -- part of every digest; raised to forget the topic at once
  groups         jsonb   NOT NULL,           -- group -> its generation, part of its digests; those that were never raised are left out
  revision       bigint  NOT NULL,           -- of this copy: another one whenever anything of it changes; what callers' copies are told by
  deleted        boolean NOT NULL,
  window_ms      bigint  NOT NULL,           -- 9223372036854775807 = forever
  lease_ms       bigint  NOT NULL,
  lease_max_ms   bigint  NOT NULL,
  keep_key       text    NOT NULL CHECK (keep_key IN ('open', 'always', 'never')),
  default_region text,
  keep_results_ms bigint NOT NULL,           -- from completion on; -1: as long as the record is warm
  changed_ms     bigint  NOT NULL
);

-- Until when records of a topic may live: an upper bound, written rarely (once per slack). Never unique, so that no claim waits
-- for another's transaction here.
CREATE TABLE dedup.topic_use (topic_id int NOT NULL, live_until_ms bigint NOT NULL);
CREATE INDEX ON dedup.topic_use (topic_id, live_until_ms);

CREATE FUNCTION dedup.topic_used(p_topic int, p_until bigint, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM dedup.topic_use WHERE topic_id = p_topic AND live_until_ms >= p_until) THEN
    INSERT INTO dedup.topic_use VALUES (p_topic,
      CASE WHEN p_until = 9223372036854775807 THEN p_until ELSE p_until + least(3600000, greatest(1000, (p_until - p_now) / 8)) END);
  END IF;
END $$;

-- Claims below a fence that were forgotten with their topic ('') or group: their records cannot be told by their digests, but no token of
-- theirs is current any more.
CREATE TABLE dedup.floors (topic_id int NOT NULL, grp text NOT NULL, fence bigint NOT NULL, PRIMARY KEY (topic_id, grp));

CREATE FUNCTION dedup.topics_v1() RETURNS TABLE (name text, version bigint, stamp uuid, generation bigint, groups text, revision bigint, deleted boolean, window_ms bigint,
    lease_ms bigint, lease_max_ms bigint, keep_key text, default_region text, keep_results_ms bigint, changed_ms bigint)
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT name, version, stamp, generation, groups::text, revision, deleted, window_ms, lease_ms, lease_max_ms, keep_key, default_region, keep_results_ms, changed_ms FROM dedup.topics $$;

-- Of two maps of generations: the higher one of each group.
CREATE FUNCTION dedup.higher_generations(a jsonb, b jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(jsonb_object_agg(g.name, g.generation), '{}')
    FROM (SELECT e.key AS name, max(e.value::bigint) AS generation FROM (SELECT * FROM jsonb_each_text(a) UNION ALL SELECT * FROM jsonb_each_text(b)) e GROUP BY e.key) g $$;

-- Takes a copy of a topic if it is newer than the one here; answers the (version, stamp) kept. p_next: only if its version is higher, so that of
-- two that were made of the same older one the later is refused.
CREATE FUNCTION dedup.put_topic_v1(p_name text, p_version bigint, p_stamp uuid, p_generation bigint, p_groups text, p_deleted boolean, p_window_ms bigint,
    p_lease_ms bigint, p_lease_max_ms bigint, p_keep_key text, p_default_region text, p_keep_results_ms bigint,
    p_next boolean)
  RETURNS TABLE (version bigint, stamp uuid) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO dedup.topics AS t (name, version, stamp, generation, groups, revision, deleted, window_ms, lease_ms, lease_max_ms, keep_key, default_region, keep_results_ms, changed_ms)
    VALUES (p_name, p_version, p_stamp, p_generation, p_groups::jsonb, dedup.changed('topics'), p_deleted, p_window_ms, p_lease_ms, p_lease_max_ms, p_keep_key,
            p_default_region, p_keep_results_ms, dedup.now_ms())
  ON CONFLICT (name) DO UPDATE SET version = p_version, stamp = p_stamp, generation = greatest(t.generation, p_generation),
    groups = dedup.higher_generations(t.groups, excluded.groups), revision = excluded.revision, deleted = p_deleted,
    window_ms = p_window_ms, lease_ms = p_lease_ms, lease_max_ms = p_lease_max_ms, keep_key = p_keep_key, default_region = p_default_region,
    keep_results_ms = p_keep_results_ms, changed_ms = excluded.changed_ms
  WHERE (t.version, t.stamp) < (p_version, p_stamp) AND (NOT p_next OR t.version < p_version);
  RETURN QUERY SELECT t.version, t.stamp FROM dedup.topics t WHERE t.name = p_name;
END $$;

-- Whether records of the topic may still live. Waits for the claims in flight, so that none is overlooked.
CREATE FUNCTION dedup.topic_in_use_v1(p_name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(1684366453, 1);
  DELETE FROM dedup.topic_use WHERE live_until_ms < dedup.now_ms();
  RETURN EXISTS (SELECT 1 FROM dedup.topics t JOIN dedup.topic_use u USING (topic_id) WHERE t.name = p_name);
END $$;

GRANT EXECUTE ON FUNCTION dedup.topics_v1(), dedup.topic_in_use_v1(text),
  dedup.put_topic_v1(text, bigint, uuid, bigint, text, boolean, bigint, bigint, bigint, text, text, bigint, boolean) TO dedup_service;
