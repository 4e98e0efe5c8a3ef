-- The same rules inside a caller's own transaction: effect and record are committed together, or neither leaves a trace.
-- Role dedup_app may call check, is_first, check_many, claim, complete, release, extend and forever, and nothing else. These names and the
-- columns of their answers are stable: columns may be added at the end, none is removed or changes its meaning.
--
-- SQLSTATEs. The caller's transaction is aborted by each, so nothing is ever half done:
--   DD002  no fence can be granted on this timeline: the epoch must be raised
--   DD003  no synchronous standby has confirmed this primary of late (it was cut off, or has just become the primary): try again
--   DD010  there is no such topic in this home
--   DD011  an argument is missing or not valid (COLUMN names it)
--   DD012  the key or claim token belongs to another home: only its own prefixes are served here
--   DD013  is_first alone: mismatch, the key was used with another fingerprint
--   DD014  is_first alone: in_progress, a claim holds the key; try again later
--   DD020  lease-lost: the token's fence is not the current one
--   DD021  already-completed, with another outcome or result
--   55P03  key-busy: another open transaction holds this key (or the home is overloaded): roll back and try again
--   40001  the transaction's snapshot is too old (only at REPEATABLE READ or SERIALIZABLE): roll back and try again
--   25006  this is a standby
--   XX001  an archive of this home cannot be read: no verdict for this key

-- HMAC keys for uses other than the digest, each derived from the secret by a label; as `dedup_core::Secret` derives them.
CREATE FUNCTION dedup.derived(secret bytea, label text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT sha256(dedup.pad(secret, 92) || sha256(dedup.pad(secret, 54) || convert_to(label, 'UTF8'))) $$;

ALTER TABLE dedup.home
  ADD COLUMN token_inner       bytea NOT NULL GENERATED ALWAYS AS (dedup.pad(dedup.derived(secret, 'dedup claim token v1'), 54)) STORED,
  ADD COLUMN token_outer       bytea NOT NULL GENERATED ALWAYS AS (dedup.pad(dedup.derived(secret, 'dedup claim token v1'), 92)) STORED,
  ADD COLUMN request_inner     bytea NOT NULL GENERATED ALWAYS AS (dedup.pad(dedup.derived(secret, 'dedup request id v1'), 54)) STORED,
  ADD COLUMN request_outer     bytea NOT NULL GENERATED ALWAYS AS (dedup.pad(dedup.derived(secret, 'dedup request id v1'), 92)) STORED,
  ADD COLUMN fingerprint_inner bytea NOT NULL GENERATED ALWAYS AS (dedup.pad(dedup.derived(secret, 'dedup fingerprint v1'), 54)) STORED,
  ADD COLUMN fingerprint_outer bytea NOT NULL GENERATED ALWAYS AS (dedup.pad(dedup.derived(secret, 'dedup fingerprint v1'), 92)) STORED;

-- What every question answers. Columns that do not apply are null.
CREATE TYPE dedup.answer AS (
  verdict             text,          -- first · duplicate · in_progress · mismatch
  replayed            boolean,       -- first: the same request id was granted it before, so its effect may be there already
  key                 text,          -- in full
  fence               text,          -- rises with every change of owner, sorts as text (null: archived)
  attempt             int,
  first_seen_at       timestamptz,   -- null: archived
  expires_at          timestamptz,   -- null: never (of a mismatch: not told)
  completed_at        timestamptz,
  outcome             text,          -- succeeded · failed
  fingerprint_checked boolean,
  result_status       int,
  result_media_type   text,
  result_headers      jsonb,
  result_body         bytea,
  result_omitted      boolean,       -- a result is known of and is not here: too large to keep, or kept no longer
  claim_token         text,          -- of a granted claim: what completes, releases or extends it, here or by REST
  lease_expires_at    timestamptz,
  owner               text,
  previous            jsonb,         -- first after a release or lapse: {attempt, ended, owner, note, at}
  of_index            int,           -- check_many: the lower item (from 1) with the same key, whose duplicate this one is
  result_expires_at   timestamptz    -- until when the result is kept (null: as long as the record is warm)
);

-- What the end of a claim answers.
CREATE TYPE dedup.settled AS (
  state            text,             -- done · released · in_progress
  replayed         boolean,          -- the very same call had succeeded before, so its effect is there already
  result_stored    boolean,
  lease_expires_at timestamptz,
  expires_at       timestamptz       -- null: never
);

-- The window that never ends, as an argument.
CREATE FUNCTION dedup.forever() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 9223372036854775807 $$;

-- Home time in ms as a timestamp; forever is null.
CREATE FUNCTION dedup.at(ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN ms = 9223372036854775807 THEN NULL ELSE to_timestamp(ms / 1000::float8) END $$;

CREATE FUNCTION dedup.fence_text(fence bigint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT lpad((fence >> 55)::text, 5, '0') || '-' || lpad((fence >> 44 & 2047)::text, 5, '0') || '-' || lpad((fence & 17592186044415)::text, 14, '0') $$;

-- Refuses an argument; nothing was written before.
CREATE FUNCTION dedup.refuse(argument text, why text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'DD011', MESSAGE = argument || ' ' || why, COLUMN = argument;
END $$;

-- Length and characters of a short text: what `dedup_core::check_text` refuses. `lines`: line breaks and tabs are allowed.
CREATE FUNCTION dedup.need_text(argument text, t text, most int, lines boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_at int;
BEGIN
  IF octet_length(t) > most THEN
    PERFORM dedup.refuse(argument, format('must be at most %s bytes, has %s', most, octet_length(t)));
  END IF;
  -- ASCII without control characters is the common case.
  IF t COLLATE "C" ~ '^[ -~]*$' THEN RETURN; END IF;
  v_at := length(substring(t COLLATE "C" FROM CASE WHEN lines THEN '^[^\u0001-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]*' ELSE '^[^\u0001-\u001f\u007f-\u009f]*' END));
  IF v_at < length(t) THEN
    PERFORM dedup.refuse(argument, format('must not contain control characters; there is one at byte %s', octet_length(left(t, v_at))));
  END IF;
END $$;

-- The full key of a caller's key, as `dedup_core::Key` parses it, but for one rule: a home does not know the prefixes of the others. So
-- where a topic has a default region, a key that may begin with another home's prefix is refused here rather than misunderstood.
CREATE FUNCTION dedup.full_key(k text, default_region text, own text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_blank  CONSTANT text := '^[ \t-\r\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*$';
  v_colon  int := strpos(k, ':');
  v_prefix text := split_part(k, ':', 1);
  v_full   text := k;
BEGIN
  IF k IS NULL THEN PERFORM dedup.refuse('key', 'is missing'); END IF;
  IF k COLLATE "C" ~ v_blank THEN PERFORM dedup.refuse('key', 'must not be empty or blank'); END IF;
  PERFORM dedup.need_text('key', k, 512, false);
  IF v_colon > 0 AND v_prefix = ANY (own) THEN
    IF substr(k, v_colon + 1) COLLATE "C" ~ v_blank THEN PERFORM dedup.refuse('key', 'must have something behind the region prefix'); END IF;
    RETURN k;
  END IF;
  IF v_colon > 0 AND v_prefix COLLATE "C" ~ '^[A-Za-z0-9._-]{1,32}$' THEN
    RAISE EXCEPTION USING ERRCODE = 'DD012', COLUMN = 'key',
      MESSAGE = format('key begins with "%s:", which is not a prefix of this home (%s)', v_prefix, array_to_string(own, ', ')),
      HINT = CASE WHEN default_region IS NULL THEN 'Ask the home that owns the prefix, or the service by REST, which asks for you.'
             ELSE format('If it is meant as a key without a prefix, write it in full: %s:%s', default_region, left(k, 80)) END;
  END IF;
  IF default_region IS NULL THEN PERFORM dedup.refuse('key', 'must be <region>:<rest>; the topic has no default region'); END IF;
  IF NOT default_region = ANY (own) THEN
    RAISE EXCEPTION USING ERRCODE = 'DD012', COLUMN = 'key',
      MESSAGE = format('the topic''s default region "%s" is not a prefix of this home (%s)', default_region, array_to_string(own, ', ')),
      HINT = 'Ask the home that owns the prefix, or the service by REST, which asks for you.';
  END IF;
  v_full := default_region || ':' || k;
  IF octet_length(v_full) > 512 THEN PERFORM dedup.refuse('key', format('must be at most 512 bytes, has %s', octet_length(v_full))); END IF;
  RETURN v_full;
END $$;

-- What a question needs of the home. Read in the statement after the rotation lock was taken.
CREATE VIEW dedup.desk AS
  SELECT h.name AS home, h.prefixes, h.inner_pad, h.outer_pad, h.request_inner, h.request_outer, h.fingerprint_inner, h.fingerprint_outer,
         dedup.timeline() AS timeline, (h.epoch::bigint << 55) | (dedup.timeline()::bigint << 44) AS fence, l.current_segment AS segment, s.origin_ms AS origin,
         ARRAY(SELECT o.segment_id FROM dedup.segments o WHERE o.state IN ('sealed', 'frozen')) AS others,   -- with the open one: dedup.live_segments
         (SELECT array_agg(a.archive_id) FROM dedup.archives a WHERE a.state = 'live') AS archives            -- as dedup.live_archives
    FROM dedup.layout l JOIN dedup.segments s ON s.segment_id = l.current_segment CROSS JOIN dedup.home h;

-- Run right after that. The snapshot must not have missed a change of layout, a standby grants nothing, and what this transaction is told
-- must not be lost by a crash: synchronous_commit is raised for it, and for it alone. (What is asked here, ask_one asks first.)
CREATE FUNCTION dedup.steady(timeline int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM dedup.guard_snapshot();
  IF timeline = 0 THEN RAISE EXCEPTION 'a standby does not answer' USING ERRCODE = '25006'; END IF;
  IF timeline > 2047 THEN PERFORM dedup.fence_base(); END IF;   -- which says why not
  IF NOT dedup.confirmed_v1() THEN
    RAISE EXCEPTION USING ERRCODE = 'DD003', MESSAGE = 'no standby has confirmed this primary of late, so its answers do not count',
      HINT = 'Nothing was changed. Try again in a moment; if it lasts, another server may be the primary now.';
  END IF;
  IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;

-- What all keys of a call share must be valid. topic_id: null where there is no such topic.
CREATE FUNCTION dedup.need_common(topic_id int, topic text, grp text, window_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF topic_id IS NULL THEN
    IF topic IS NULL THEN PERFORM dedup.refuse('topic', 'is missing'); END IF;
    RAISE EXCEPTION USING ERRCODE = 'DD010', COLUMN = 'topic', MESSAGE = format('there is no topic "%s" in this home', left(topic, 249)),
      HINT = 'Topics are made by REST (PUT /v1/topics/{topic}) or `dedup topics apply`.';
  END IF;
  IF grp IS NULL OR grp = '' THEN PERFORM dedup.refuse('grp', 'must not be empty'); END IF;
  PERFORM dedup.need_text('grp', grp, 255, false);
  IF window_ms NOT BETWEEN 1000 AND 31536000000 AND window_ms <> 9223372036854775807 THEN
    PERFORM dedup.refuse('window_ms', 'must be between 1000 and 31536000000 ms, or dedup.forever()');
  END IF;
END $$;

-- As dedup.digest_v1, with the pads at hand. (Not IMMUTABLE, as convert_to is not: so it is inlined.)
CREATE FUNCTION dedup.digest_of(outer_pad bytea, inner_pad bytea, topic text, generation bigint, grp text, group_generation bigint, full_key text) RETURNS uuid LANGUAGE sql STABLE AS $$
  SELECT encode(substring(sha256(outer_pad || sha256(inner_pad
    || int2send(octet_length(topic)::int2) || convert_to(topic, 'UTF8') || '\x0008'::bytea || int8send(generation)
    || int2send(octet_length(grp)::int2) || convert_to(grp, 'UTF8') || '\x0008'::bytea || int8send(group_generation)
    || int2send(octet_length(full_key)::int2) || convert_to(full_key, 'UTF8'))) FOR 16), 'hex')::uuid $$;

-- What a record keeps of a fingerprint: 0 stands for none.
CREATE FUNCTION dedup.fingerprint_of(outer_pad bytea, inner_pad bytea, fingerprint text) RETURNS int LANGUAGE plpgsql STABLE AS $$
DECLARE
  v int;
BEGIN
  IF fingerprint IS NULL THEN RETURN 0; END IF;
  IF octet_length(fingerprint) NOT BETWEEN 1 AND 128 OR NOT fingerprint COLLATE "C" ~ '^[ -~]*$' THEN
    PERFORM dedup.refuse('fingerprint', 'must be 1 to 128 printable ASCII characters');
  END IF;
  v := ('x' || encode(substring(sha256(outer_pad || sha256(inner_pad || convert_to(fingerprint, 'UTF8'))) FOR 4), 'hex'))::bit(32)::int;
  RETURN CASE v WHEN 0 THEN 1 ELSE v END;
END $$;

-- What a record keeps of a request id.
CREATE FUNCTION dedup.request_of(outer_pad bytea, inner_pad bytea, request_id text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
  v bigint;
BEGIN
  IF request_id = '' THEN PERFORM dedup.refuse('request_id', 'must not be empty'); END IF;
  PERFORM dedup.need_text('request_id', request_id, 128, false);
  v := ('x' || encode(substring(sha256(outer_pad || sha256(inner_pad || convert_to(request_id, 'UTF8'))) FOR 8), 'hex'))::bit(64)::bigint;
  RETURN CASE v WHEN 0 THEN (-9223372036854775808)::bigint ELSE v END;
END $$;
-- An absent request id equals nothing: it is random (60 bits, never 0).
CREATE FUNCTION dedup.request_none() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT ('x' || encode(substring(uuid_send(gen_random_uuid()) FOR 8), 'hex'))::bit(64)::bigint $$;

-- Claim tokens, as `dedup_core::ClaimToken` makes them: dc1. and base64url of digest, fence, home, topic, and 12 bytes of MAC.
CREATE FUNCTION dedup.claim_token(p_topic text, p_digest uuid, p_fence bigint) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT 'dc1.' || translate(encode(r.raw || substring(sha256(h.token_outer || sha256(h.token_inner || r.raw)) FOR 12), 'base64'), E'+/=\n', '-_')
    FROM dedup.home h CROSS JOIN LATERAL (SELECT uuid_send(p_digest) || int8send(p_fence) || substring(int2send(octet_length(h.name)::int2) FROM 2)
      || convert_to(h.name, 'UTF8') || convert_to(p_topic, 'UTF8') AS raw) r $$;

CREATE FUNCTION dedup.read_token(p_token text, OUT topic text, OUT digest uuid, OUT fence bigint) LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_raw  bytea;
  v_body bytea;
  v_home text;
  h      record;
BEGIN
  IF p_token IS NULL THEN PERFORM dedup.refuse('claim_token', 'is missing'); END IF;
  SELECT o.name, o.token_inner, o.token_outer INTO h FROM dedup.home o;
  IF octet_length(p_token) < 1024 AND p_token COLLATE "C" ~ '^dc1\.[A-Za-z0-9_-]*$' AND octet_length(p_token) % 4 <> 1 THEN
    v_raw := decode(rpad(translate(substr(p_token, 5), '-_', '+/'), (octet_length(p_token) - 1) / 4 * 4, '='), 'base64');
    -- One token has one text: bits that decoding ignores must be zero.
    IF octet_length(v_raw) > 37 AND 'dc1.' || translate(encode(v_raw, 'base64'), E'+/=\n', '-_') = p_token THEN
      v_body := substring(v_raw FOR octet_length(v_raw) - 12);
      IF substring(v_raw FROM octet_length(v_raw) - 11) = substring(sha256(h.token_outer || sha256(h.token_inner || v_body)) FOR 12) THEN
        v_home := convert_from(substring(v_body FROM 26 FOR get_byte(v_body, 24)), 'UTF8');
        IF v_home <> h.name THEN
          RAISE EXCEPTION USING ERRCODE = 'DD012', COLUMN = 'claim_token', MESSAGE = format('the claim token is of the home "%s"; this is "%s"', v_home, h.name),
            HINT = 'Ask that home, or the service by REST, which asks for you.';
        END IF;
        topic := convert_from(substring(v_body FROM 26 + get_byte(v_body, 24)), 'UTF8');
        digest := encode(substring(v_body FOR 16), 'hex')::uuid;
        fence := ('x' || encode(substring(v_body FROM 17 FOR 8), 'hex'))::bit(64)::bigint;
        RETURN;
      END IF;
    END IF;
  END IF;
  PERFORM dedup.refuse('claim_token', 'is not a claim token of this deployment');
END $$;

-- Another transaction holds the key, or changes it as fast as we look.
CREATE FUNCTION dedup.key_busy() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'lock_not_available', MESSAGE = 'key-busy: another open transaction holds this key (or the home is overloaded), so there is no verdict yet',
    HINT = 'Nothing was changed. Roll back and try again in a moment.';
END $$;

-- What the archive holds cannot be read, so nobody can say whether the key was there.
CREATE FUNCTION dedup.archive_unreadable() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'data_corrupted', MESSAGE = 'an archive of this home cannot be read, so there is no verdict for this key',
    HINT = 'Nothing was changed. Roll back; the home needs its operator.';
END $$;

-- The usual case in one statement, where nothing is archived: no row of the key in any segment, so it is granted; null: there is one, or somebody was faster. (The
-- others are named, so that no other partition is opened: each costs.) It and
-- decide_alone wait at most 100 ms for another's open transaction (with 25 ms, 64 sessions on two cores were told busy because of each
-- other's file extensions). The timeout is the function's own, so it never leaks into the caller's
-- transaction; plans are pinned to index probes as in dedup.decide_rows.
CREATE FUNCTION dedup.grant_new(p_digest uuid, p_others int[], p_segment int, p_fence bigint, p_request bigint, p_fp int, p_first int, p_expires int, p_ends int, p_meta int)
  RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '100ms' SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  v_fence bigint;
BEGIN
  INSERT INTO dedup.claims AS c (digest, fence, request_hash, segment_id, fingerprint, first_seen, expires, ends, meta)
    SELECT p_digest, p_fence | nextval('dedup.fence_counter'), p_request, p_segment, p_fp, p_first, p_expires, p_ends, p_meta
     WHERE NOT EXISTS (SELECT 1 FROM dedup.claims o WHERE o.segment_id = ANY (p_others) AND o.digest = p_digest)
    ON CONFLICT DO NOTHING RETURNING c.fence INTO v_fence;
  RETURN v_fence;
EXCEPTION WHEN lock_not_available THEN
  PERFORM dedup.key_busy();
END $$;

CREATE FUNCTION dedup.decide_alone(a dedup.ask, p_segments int[], p_archives int[], p_segment int, p_origin bigint, p_fence bigint, OUT f dedup.fact, OUT previous jsonb)
  LANGUAGE plpgsql SET lock_timeout = '100ms' SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  r record;
BEGIN
  SELECT o.f, o.previous INTO r FROM dedup.decide_one(a, p_segments, p_archives, '{}', p_segment, p_origin, p_fence) o;
  f := r.f;
  previous := r.previous;
  IF f.kind = 4 THEN PERFORM dedup.key_busy(); END IF;
  IF f.kind = 5 THEN PERFORM dedup.archive_unreadable(); END IF;
EXCEPTION WHEN lock_not_available THEN
  PERFORM dedup.key_busy();
END $$;

CREATE FUNCTION dedup.with_result(w dedup.answer, p_digest uuid, p_fence bigint, p_now bigint) RETURNS dedup.answer LANGUAGE plpgsql STABLE AS $$
BEGIN
  SELECT r.status, r.media_type, r.headers::jsonb, r.body, r.omitted, dedup.at(r.keep_until_ms)
    INTO w.result_status, w.result_media_type, w.result_headers, w.result_body, w.result_omitted, w.result_expires_at FROM dedup.result_of(p_digest, p_fence, p_now) r;
  w.result_omitted := NOT FOUND OR w.result_omitted;
  RETURN w;
END $$;

-- Shapes what was decided as REST does (`services/region/src/wire/answer.rs`).
CREATE FUNCTION dedup.shape(f dedup.fact, a dedup.ask, p_topic text, p_key text, p_previous jsonb) RETURNS dedup.answer LANGUAGE plpgsql AS $$
DECLARE
  w       dedup.answer;
  v_judge int := CASE f.kind WHEN 0 THEN dedup.judge_v1(f.meta, f.expires, f.ends, f.request_hash, f.fingerprint, f.at_ms, a.claim, a.request, a.fp) ELSE 0 END;
BEGIN
  w.key := p_key;
  IF f.kind = 6 THEN
    w.verdict := 'duplicate';
    w.fingerprint_checked := false;
    w.expires_at := dedup.at(f.expires);
    w.outcome := CASE WHEN f.meta & 8 = 0 THEN 'succeeded' ELSE 'failed' END;
    IF f.meta & 32 <> 0 THEN w := dedup.with_result(w, f.digest, 0, f.at_ms); END IF;
    RETURN w;
  END IF;
  w.first_seen_at := dedup.at(f.first_seen);
  IF v_judge = 4 THEN
    w.verdict := 'mismatch';
    RETURN w;
  END IF;
  w.fence := dedup.fence_text(f.fence);
  w.attempt := f.meta >> 8;
  w.expires_at := dedup.at(f.expires);
  IF v_judge IN (0, 5) THEN
    w.verdict := 'first';
    w.replayed := f.kind <> 1;
    IF a.claim THEN
      w.claim_token := dedup.claim_token(p_topic, f.digest, f.fence);
      w.lease_expires_at := dedup.at(f.ends);
    END IF;
    IF p_previous IS NOT NULL THEN w.previous := p_previous || jsonb_build_object('at', dedup.at((p_previous ->> 'at')::bigint)); END IF;
    RETURN w;
  END IF;
  w.fingerprint_checked := f.fingerprint <> 0 AND a.fp <> 0;
  IF f.meta & 7 = 3 THEN
    w.verdict := 'duplicate';
    w.outcome := CASE WHEN f.meta & 8 = 0 THEN 'succeeded' ELSE 'failed' END;
    w.completed_at := dedup.at(f.ends);
    IF f.meta & 32 <> 0 THEN
      w := dedup.with_result(w, f.digest, f.fence, f.at_ms);
    END IF;
  ELSE
    w.verdict := 'in_progress';
    w.lease_expires_at := dedup.at(f.ends);
    SELECT t.owner INTO w.owner FROM dedup.claim_texts t WHERE t.digest = f.digest AND t.fence = f.fence;
  END IF;
  RETURN w;
END $$;

-- A check or claim of one key. Everything is validated before anything is written. Each expression costs: a transaction begins with none
-- of them set up, so the usual call is kept to few.
CREATE FUNCTION dedup.ask_one(p_claim boolean, p_topic text, p_key text, p_group text, p_fingerprint text, p_request_id text, p_owner text, p_lease bigint, p_window bigint)
  RETURNS dedup.answer LANGUAGE plpgsql AS $$
DECLARE
  d         record;
  r         record;
  a         dedup.ask;
  f         dedup.fact;
  v_digest  uuid;
  v_request bigint;
  v_fp      int := 0;
  v_first   int;
  v_expires int;
  v_end     int;
  v_until   bigint;
  v_ends    bigint;
  v_now     bigint;
  v_age     bigint;
  v_fence   bigint;
  v_prev    jsonb;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);   -- ROTATION: the layout below stays true until this transaction ends
  SELECT k.*, t.name AS topic, t.topic_id, t.generation, coalesce((t.groups ->> p_group)::bigint, 0) AS group_generation, t.lease_max_ms, t.keep_key, t.default_region,
         coalesce(p_window, t.window_ms) AS window_ms, coalesce(p_lease, t.lease_ms) AS lease_ms,
         (SELECT max(u.live_until_ms) FROM dedup.topic_use u WHERE u.topic_id = t.topic_id) AS used_until
    INTO d FROM dedup.desk k LEFT JOIN dedup.topics t ON t.name = p_topic AND NOT t.deleted;
  -- Whatever makes `steady` do something, so that the usual call need not make it.
  IF d.timeline NOT BETWEEN 1 AND 2047 OR current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
    OR current_setting('synchronous_standby_names') <> '' THEN
    PERFORM dedup.steady(d.timeline);
  END IF;
  IF d.topic_id IS NULL OR p_group IS DISTINCT FROM 'default' OR p_window IS NOT NULL THEN
    PERFORM dedup.need_common(d.topic_id, p_topic, p_group, p_window);
  END IF;
  -- Printable ASCII with one of the home's prefixes needs no closer look.
  IF p_key COLLATE "C" ~ '^[!-9;-~]+: *[!-~][ -~]*$' AND split_part(p_key, ':', 1) = ANY (d.prefixes) AND octet_length(p_key) <= 512 THEN NULL;
  ELSE p_key := dedup.full_key(p_key, d.default_region, d.prefixes);
  END IF;
  IF p_claim THEN
    PERFORM dedup.need_text('owner', p_owner, 128, false);
    IF p_lease NOT BETWEEN 1000 AND greatest(d.lease_max_ms, 1000) THEN
      PERFORM dedup.refuse('lease_ms', format('must be between 1000 and %s', greatest(d.lease_max_ms, 1000)));
    END IF;
  END IF;
  IF p_fingerprint IS NOT NULL THEN v_fp := dedup.fingerprint_of(d.fingerprint_outer, d.fingerprint_inner, p_fingerprint); END IF;
  IF p_request_id IS NULL THEN v_request := dedup.request_none();
  ELSE v_request := dedup.request_of(d.request_outer, d.request_inner, p_request_id);
  END IF;

  v_digest := dedup.digest_of(d.outer_pad, d.inner_pad, d.topic, d.generation, p_group, d.group_generation, p_key);
  v_now := dedup.now_ms();
  v_ends := CASE WHEN p_claim THEN v_now + least(d.lease_ms, d.window_ms) ELSE v_now END;
  v_age := v_now - d.origin;
  IF v_age BETWEEN 0 AND 1000000000 AND d.window_ms < 1073741824 - v_age THEN   -- as t_in and t_out: what ends before is kept to the millisecond
    v_first := v_age;
    v_expires := v_age + d.window_ms;
    v_until := v_now + d.window_ms;
    v_end := v_ends - d.origin;
  ELSE
    v_first := dedup.t_in(d.origin, v_now);
    v_expires := dedup.t_in(d.origin, dedup.after(v_now, d.window_ms));
    v_until := dedup.t_out(d.origin, v_expires);
    v_end := dedup.t_in(d.origin, v_ends);
  END IF;
  IF d.archives IS NULL THEN
    v_fence := dedup.grant_new(v_digest, d.others, d.segment, d.fence, v_request, v_fp, v_first, v_expires, v_end, CASE WHEN p_claim THEN 257 ELSE 275 END);
  END IF;
  IF v_fence IS NOT NULL THEN
    IF d.used_until >= v_until THEN NULL; ELSE PERFORM dedup.topic_used(d.topic_id, v_until, v_now); END IF;
    IF NOT p_claim AND d.keep_key <> 'always' THEN
      RETURN ('first', false, p_key, dedup.fence_text(v_fence), 1, dedup.at(v_now), dedup.at(v_until), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::dedup.answer;
    END IF;
    f := (1, v_digest, v_fence, v_request, v_fp, v_now, v_until, v_ends, CASE WHEN p_claim THEN 257 ELSE 275 END, v_now);
    a := (1, v_digest, 1, p_claim, v_request, v_fp, d.window_ms, d.lease_ms);
  ELSE
    a := (1, v_digest, 1, p_claim, v_request, v_fp, d.window_ms, d.lease_ms);
    SELECT o.f, o.previous INTO r FROM dedup.decide_alone(a, dedup.live_segments('{}'), d.archives, d.segment, d.origin, d.fence) o;
    f := r.f;
    v_prev := r.previous;
    IF f.kind = 1 THEN PERFORM dedup.topic_used(d.topic_id, f.expires, f.at_ms); END IF;
  END IF;
  IF f.kind = 1 AND (p_claim OR d.keep_key = 'always') THEN
    PERFORM dedup.keep_texts(ARRAY[1], ARRAY[v_digest], ARRAY[f.fence], ARRAY[v_digest], ARRAY[1], ARRAY[1], ARRAY[p_claim], ARRAY[d.topic_id], ARRAY[d.keep_key], ARRAY[1], ARRAY[p_group], ARRAY[p_key], ARRAY[nullif(p_owner, '')]);
  END IF;
  RETURN dedup.shape(f, a, d.topic, p_key, v_prev);
END $$;

-- "Am I the first?", at most once: the key is done with this transaction's commit. A request id is for callers whose effect lies elsewhere:
-- where the effect is in this transaction, leave it out; a repetition is then a duplicate, as it should be.
CREATE FUNCTION dedup.check(topic text, key text, grp text DEFAULT 'default', fingerprint text DEFAULT NULL, request_id text DEFAULT NULL, window_ms bigint DEFAULT NULL)
  RETURNS dedup.answer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN dedup.ask_one(false, topic, key, grp, fingerprint, request_id, NULL, NULL, window_ms);
END $$;

-- The same as one boolean: true for the one who has to do the work, false where it is done. Any other verdict is an error, since a caller
-- who acknowledges on false would lose the message.
CREATE FUNCTION dedup.is_first(topic text, key text, grp text DEFAULT 'default', fingerprint text DEFAULT NULL, window_ms bigint DEFAULT NULL)
  RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  w dedup.answer := dedup.ask_one(false, topic, key, grp, fingerprint, NULL, NULL, NULL, window_ms);
BEGIN
  IF w.verdict = 'mismatch' THEN
    RAISE EXCEPTION USING ERRCODE = 'DD013', MESSAGE = 'mismatch: the key was used with another fingerprint';
  ELSIF w.verdict = 'in_progress' THEN
    RAISE EXCEPTION USING ERRCODE = 'DD014', MESSAGE = 'in_progress: a claim holds this key, and its outcome is not known yet', HINT = 'Roll back and try again later.';
  END IF;
  RETURN w.verdict = 'first';
END $$;

CREATE FUNCTION dedup.claim(topic text, key text, grp text DEFAULT 'default', fingerprint text DEFAULT NULL, request_id text DEFAULT NULL, owner text DEFAULT NULL,
    lease_ms bigint DEFAULT NULL, window_ms bigint DEFAULT NULL)
  RETURNS dedup.answer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN dedup.ask_one(true, topic, key, grp, fingerprint, request_id, owner, lease_ms, window_ms);
END $$;

-- Checks of many keys in one call, answered in their order. Taken in the order of their digests, so that callers with the same keys in
-- another order wait for each other instead of blocking each other for good. Of equal keys the first asks, the others are its duplicates.
CREATE FUNCTION dedup.check_many(topic text, keys text[], grp text DEFAULT 'default', fingerprints text[] DEFAULT NULL, window_ms bigint DEFAULT NULL)
  RETURNS SETOF dedup.answer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE
  d          record;
  n          int := coalesce(array_length(keys, 1), 0);
  v_full     text[] := '{}';
  v_digest   uuid[] := '{}';
  v_fp       int[] := '{}';
  v_leader   int[];
  v_asks     dedup.ask[];
  v_facts    dedup.fact[];
  v_previous jsonb;
  v_by       jsonb;                      -- digest -> position in v_facts
  f          dedup.fact;
  a          dedup.ask;
  w          dedup.answer;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  SELECT k.*, t.name AS topic, t.topic_id, t.generation, coalesce((t.groups ->> grp)::bigint, 0) AS group_generation, t.window_ms, t.keep_key, t.default_region
    INTO d FROM dedup.desk k LEFT JOIN dedup.topics t ON t.name = topic AND NOT t.deleted;
  PERFORM dedup.steady(d.timeline);
  PERFORM dedup.need_common(d.topic_id, topic, grp, window_ms);
  IF keys IS NULL THEN PERFORM dedup.refuse('keys', 'is missing'); END IF;
  IF n > 1000 OR array_ndims(keys) > 1 THEN PERFORM dedup.refuse('keys', 'must be at most 1000 in one dimension'); END IF;
  IF fingerprints IS NOT NULL AND coalesce(array_length(fingerprints, 1), 0) <> n THEN PERFORM dedup.refuse('fingerprints', 'must be as many as keys'); END IF;
  IF n = 0 THEN RETURN; END IF;
  FOR i IN 1..n LOOP
    v_full := v_full || dedup.full_key(keys[array_lower(keys, 1) + i - 1], d.default_region, d.prefixes);
    v_digest := v_digest || dedup.digest_of(d.outer_pad, d.inner_pad, d.topic, d.generation, grp, d.group_generation, v_full[i]);
    v_fp := v_fp || CASE WHEN fingerprints IS NULL THEN 0 ELSE dedup.fingerprint_of(d.fingerprint_outer, d.fingerprint_inner, fingerprints[array_lower(fingerprints, 1) + i - 1]) END;
  END LOOP;
  SELECT array_agg(l.leader ORDER BY l.i) INTO v_leader
    FROM (SELECT u.i, min(u.i) OVER (PARTITION BY u.digest)::int AS leader FROM unnest(v_digest) WITH ORDINALITY u(digest, i)) l;
  SELECT array_agg((s.n, s.digest, 1, false, dedup.request_none(), v_fp[s.i], coalesce(window_ms, d.window_ms), 0)::dedup.ask ORDER BY s.n) INTO v_asks
    FROM (SELECT u.i, u.digest, row_number() OVER (ORDER BY u.digest) AS n FROM unnest(v_digest) WITH ORDINALITY u(digest, i) WHERE v_leader[u.i] = u.i) s;
  SELECT o.facts, o.previous INTO v_facts, v_previous FROM dedup.decide_rows(v_asks, dedup.live_segments('{}'), d.archives, '{}', '{}', d.segment, d.origin, d.fence, false) o;
  IF EXISTS (SELECT 1 FROM unnest(v_facts) x WHERE x.kind IN (3, 4)) THEN PERFORM dedup.key_busy(); END IF;
  IF EXISTS (SELECT 1 FROM unnest(v_facts) x WHERE x.kind = 5) THEN PERFORM dedup.archive_unreadable(); END IF;
  PERFORM dedup.topic_used(d.topic_id, g.until, g.at_ms)
    FROM (SELECT max(x.expires) AS until, max(x.at_ms) AS at_ms FROM unnest(v_facts) x WHERE x.kind = 1) g WHERE g.until IS NOT NULL;
  IF d.keep_key = 'always' THEN
    PERFORM dedup.keep_texts(g.kinds, g.digests, g.fences, array_agg(x.digest ORDER BY x.n), array_agg(1), ARRAY[1], ARRAY[false], ARRAY[d.topic_id], ARRAY[d.keep_key],
                             array_agg(x.n ORDER BY x.n), array_agg(grp), array_agg(v_full[array_position(v_digest, x.digest)] ORDER BY x.n), array_agg(NULL::text))
      FROM unnest(v_asks) x, (SELECT array_agg(y.kind) AS kinds, array_agg(y.digest) AS digests, array_agg(y.fence) AS fences FROM unnest(v_facts) y) g GROUP BY g.kinds, g.digests, g.fences;
  END IF;
  SELECT jsonb_object_agg(x.digest, x.i) INTO v_by FROM unnest(v_facts) WITH ORDINALITY x(kind, digest, fence, request_hash, fingerprint, first_seen, expires, ends, meta, at_ms, i);
  FOR i IN 1..n LOOP
    f := v_facts[(v_by ->> v_digest[i]::text)::int];
    a := (i, v_digest[i], 1, false, NULL, v_fp[i], NULL, NULL);
    IF v_leader[i] <> i THEN
      -- As somebody else's question over the record that the leader left.
      IF f.kind <> 6 THEN f.kind := 0; END IF;
      IF f.expires <= f.at_ms THEN f.expires := f.at_ms + 1; END IF;
    END IF;
    w := dedup.shape(f, a, d.topic, v_full[i], CASE WHEN f.kind = 1 THEN v_previous -> v_digest[i]::text END);
    IF v_leader[i] <> i THEN w.of_index := v_leader[i]; END IF;
    RETURN NEXT w;
  END LOOP;
END $$;

-- Tells a repeat of the same completion from another result; as `dedup_core::StoredResult::hash`.
CREATE FUNCTION dedup.result_hash(status int, media text, headers text, body bytea) RETURNS uuid LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_status  bytea := convert_to(coalesce(status::text, ''), 'UTF8');
  v_media   bytea := convert_to(coalesce(media, ''), 'UTF8');
  v_headers bytea := convert_to(headers, 'UTF8');
BEGIN
  RETURN encode(substring(sha256('\x01'::bytea || int8send(octet_length(v_status)) || v_status || '\x02'::bytea || int8send(octet_length(v_media)) || v_media
    || '\x03'::bytea || int8send(octet_length(v_headers)) || v_headers
    || CASE WHEN body IS NULL THEN '\x05'::bytea || int8send(0) ELSE '\x04'::bytea || int8send(octet_length(body)) || body END) FOR 16), 'hex')::uuid;
END $$;

-- Headers as they are stored: names sorted bytewise, no blanks.
CREATE FUNCTION dedup.headers_text(headers jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF headers IS NULL THEN RETURN '{}'; END IF;
  IF jsonb_typeof(headers) <> 'object' OR EXISTS (SELECT 1 FROM jsonb_each(headers) e WHERE jsonb_typeof(e.value) <> 'string') THEN
    PERFORM dedup.refuse('result_headers', 'must be an object of strings');
  END IF;
  IF EXISTS (SELECT 1 FROM jsonb_object_keys(headers) k WHERE k !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$') THEN
    PERFORM dedup.refuse('result_headers', 'has a name that is no header field''s');
  END IF;
  IF EXISTS (SELECT 1 FROM jsonb_object_keys(headers) k GROUP BY lower(k) HAVING count(*) > 1) THEN
    PERFORM dedup.refuse('result_headers', 'has one name twice; upper and lower case are the same');
  END IF;
  PERFORM dedup.need_text('result_headers', e.value, 1048576, false) FROM jsonb_each_text(headers) e;
  RETURN (SELECT '{' || coalesce(string_agg(to_json(e.key)::text || ':' || to_json(e.value)::text, ',' ORDER BY e.key COLLATE "C"), '') || '}' FROM jsonb_each_text(headers) e);
END $$;

CREATE FUNCTION dedup.finish_alone(p_op text, p_digest uuid, p_fence bigint, p_failed boolean, p_lease bigint, p_note text,
    p_hash uuid, p_status int, p_omitted boolean, p_media text, p_headers text, p_body bytea, p_segment int, p_origin bigint, p_segments int[], OUT outcome text, OUT f dedup.fact)
  LANGUAGE plpgsql SET lock_timeout = '100ms' SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off AS $$
DECLARE
  r record;
BEGIN
  SELECT o.outcome, o.f INTO r FROM dedup.finish_one(p_op, p_digest, p_fence, p_failed, p_lease, p_note, p_hash, p_status, p_omitted, p_media, p_headers, p_body,
    p_segment, p_origin, p_segments) o;
  outcome := r.outcome;
  f := r.f;
  IF outcome = 'busy' THEN PERFORM dedup.key_busy(); END IF;
EXCEPTION WHEN lock_not_available THEN
  PERFORM dedup.key_busy();
END $$;

-- One end of one claim. What is not this owner's to end is an error: the effect in the same transaction must not be committed.
CREATE FUNCTION dedup.end_one(p_op text, p_token text, p_failed boolean, p_lease bigint, p_note text, p_status int, p_media text, p_headers jsonb, p_body bytea)
  RETURNS dedup.settled LANGUAGE plpgsql AS $$
DECLARE
  t         record;
  d         record;
  f         dedup.fact;
  w         dedup.settled;
  r         record;
  v_headers text;
  v_hash    uuid;
  v_omitted boolean;
  v_most    bigint;
BEGIN
  SELECT x.* INTO t FROM dedup.read_token(p_token) x;
  PERFORM pg_advisory_xact_lock_shared(1684366453, 1);
  SELECT k.*, o.topic_id, o.lease_ms, o.lease_max_ms, o.keep_results_ms INTO d FROM dedup.desk k LEFT JOIN dedup.topics o ON o.name = t.topic AND NOT o.deleted;
  PERFORM dedup.steady(d.timeline);
  PERFORM dedup.need_text('note', p_note, 4096, true);
  IF p_op = 'extend' THEN
    v_most := greatest(least(coalesce(d.lease_max_ms, 86400000), 86400000), 1000);
    IF p_lease NOT BETWEEN 1000 AND v_most THEN PERFORM dedup.refuse('lease_ms', format('must be between 1000 and %s', v_most)); END IF;
    IF p_lease IS NULL AND d.topic_id IS NULL THEN PERFORM dedup.refuse('lease_ms', 'is missing, and its topic is deleted'); END IF;
  ELSIF p_op = 'complete' AND NOT (p_status IS NULL AND p_media IS NULL AND p_headers IS NULL AND p_body IS NULL) THEN
    IF p_status NOT BETWEEN 100 AND 599 THEN PERFORM dedup.refuse('result_status', 'must be between 100 and 599'); END IF;
    PERFORM dedup.need_text('result_media_type', p_media, 1048576, false);
    v_headers := dedup.headers_text(p_headers);
    v_hash := dedup.result_hash(p_status, p_media, v_headers, p_body);
    -- Too large to keep: the record is done all the same.
    v_omitted := coalesce(octet_length(p_body), 0) + octet_length(v_headers) + coalesce(octet_length(p_media), 0) > 65536;
    IF v_omitted THEN p_media := NULL; v_headers := '{}'; p_body := NULL; END IF;
  END IF;
  SELECT o.outcome, o.f INTO r FROM dedup.finish_alone(p_op, t.digest, t.fence, p_failed, coalesce(p_lease, d.lease_ms), p_note,
    v_hash, p_status, v_omitted, p_media, v_headers, p_body, d.segment, d.origin, dedup.live_segments('{}')) o;
  f := r.f;
  IF r.outcome = 'already-completed' THEN
    RAISE EXCEPTION USING ERRCODE = 'DD021', MESSAGE = 'already-completed: the claim was completed before with another outcome or result, which stands',
      DETAIL = format('outcome %s, fence %s', CASE WHEN f.meta & 8 = 0 THEN 'succeeded' ELSE 'failed' END, dedup.fence_text(f.fence));
  ELSIF r.outcome = 'lease-lost' THEN
    RAISE EXCEPTION USING ERRCODE = 'DD020', MESSAGE = 'lease-lost: ' || CASE WHEN f.digest IS NULL THEN 'the key has no record any more; nothing was changed'
        WHEN f.fence <> t.fence THEN 'the fence of this claim token is not the current one; nothing was changed'
        WHEN f.meta & 7 = 3 THEN 'the claim is completed, so it can neither be released nor extended; nothing was changed'
        ELSE 'the claim was given back, so it can neither be completed nor extended; nothing was changed' END,
      DETAIL = CASE WHEN f.digest IS NULL AND (dedup.is_floored(t.digest, t.fence) OR EXISTS (SELECT 1 FROM dedup.forget_log g WHERE g.digest = t.digest)) THEN 'state forgotten'
                    WHEN f.digest IS NULL THEN 'state expired'
                    ELSE format('state %s, attempt %s, fence %s', (ARRAY['in_progress', 'in_doubt', 'done', 'released', 'issued'])[f.meta & 7], f.meta >> 8, dedup.fence_text(f.fence)) END,
      HINT = CASE WHEN f.fence = t.fence AND f.meta & 7 = 3 THEN 'Roll back, and leave the completed claim alone.'
                  ELSE 'Roll back: whoever claims next, or did, owns the work. Claim again and follow that verdict.' END;
  END IF;
  IF p_op = 'extend' AND f.ends > f.expires AND d.topic_id IS NOT NULL THEN PERFORM dedup.topic_used(d.topic_id, f.ends, f.at_ms); END IF;
  w.state := (ARRAY['in_progress', 'in_doubt', 'done', 'released', 'issued'])[f.meta & 7];
  w.replayed := r.outcome = 'replayed';
  IF p_op = 'complete' THEN w.result_stored := v_hash IS NOT NULL AND NOT v_omitted AND coalesce(d.keep_results_ms, -1) <> 0; END IF;
  IF p_op = 'extend' THEN w.lease_expires_at := dedup.at(f.ends); END IF;
  w.expires_at := dedup.at(f.expires);
  RETURN w;
END $$;

-- Ends a claim. In the transaction of the effect: call it first, and leave the effect out if it answers `replayed`.
CREATE FUNCTION dedup.complete(claim_token text, outcome text DEFAULT 'succeeded', result_text text DEFAULT NULL, result_media_type text DEFAULT NULL,
    result_status int DEFAULT NULL, result_headers jsonb DEFAULT NULL, result_body bytea DEFAULT NULL)
  RETURNS dedup.settled LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF outcome IS NULL OR outcome NOT IN ('succeeded', 'failed') THEN PERFORM dedup.refuse('outcome', 'must be succeeded or failed'); END IF;
  IF result_text IS NOT NULL AND result_body IS NOT NULL THEN PERFORM dedup.refuse('result_body', 'must not be given together with result_text'); END IF;
  RETURN dedup.end_one('complete', claim_token, outcome = 'failed', NULL, NULL, result_status, result_media_type, result_headers, coalesce(result_body, convert_to(result_text, 'UTF8')));
END $$;

-- Gives a claim back: with this transaction's commit the key can be claimed again.
CREATE FUNCTION dedup.release(claim_token text, note text DEFAULT NULL)
  RETURNS dedup.settled LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN dedup.end_one('release', claim_token, false, NULL, note, NULL, NULL, NULL, NULL);
END $$;

-- Prolongs a lease, counted from now.
CREATE FUNCTION dedup.extend(claim_token text, lease_ms bigint DEFAULT NULL, note text DEFAULT NULL)
  RETURNS dedup.settled LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN dedup.end_one('extend', claim_token, false, lease_ms, note, NULL, NULL, NULL, NULL);
END $$;

GRANT EXECUTE ON FUNCTION dedup.check(text, text, text, text, text, bigint), dedup.is_first(text, text, text, text, bigint),
  dedup.check_many(text, text[], text, text[], bigint), dedup.claim(text, text, text, text, text, text, bigint, bigint),
  dedup.complete(text, text, text, text, int, jsonb, bytea), dedup.release(text, text), dedup.extend(text, bigint, text), dedup.forever() TO dedup_app;
