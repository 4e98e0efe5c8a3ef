-- A primary's word counts only while its standbys stand by it.
--
-- Where synchronous standbys are required (synchronous_standby_names is not empty), three things must not be told to anybody: what a
-- primary that was cut off still believes, what a restarted primary holds that no standby has (it was waiting for one when it crashed, and
-- a crash makes it visible), and what a promoted standby decides while the old primary's word may still count. So each primary proves
-- itself again and again by a commit that a standby confirmed, and its answers count for two seconds after one.

CREATE TABLE dedup.heartbeat (one boolean PRIMARY KEY DEFAULT true CHECK (one), at timestamptz NOT NULL, timeline int NOT NULL);
INSERT INTO dedup.heartbeat (at, timeline) VALUES (clock_timestamp(), dedup.timeline());

-- Unlogged: a crash and a promotion both empty it, which is the point.
CREATE UNLOGGED TABLE dedup.confirmed (
  one         boolean     PRIMARY KEY DEFAULT true CHECK (one),
  boot        timestamptz NOT NULL,   -- of the server it holds for: a clean restart does not empty the table
  at          timestamptz NOT NULL,   -- before the commit that was confirmed
  counts_from timestamptz NOT NULL
);
-- Somebody cancelled a wait for the standbys: rows up to here are seen by all, and perhaps no standby has them.
CREATE UNLOGGED TABLE dedup.doubt (one boolean PRIMARY KEY DEFAULT true CHECK (one), lsn pg_lsn NOT NULL);

-- How long a confirmation counts, and how long a promoted standby holds back: longer, so that the old primary's word has ended.
CREATE FUNCTION dedup.confirmed_for() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT interval '2 seconds' $$;
CREATE FUNCTION dedup.hold_back() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT interval '2.5 seconds' $$;

-- Whether this server's answers count. Asked after the answer was made, within the same statement. By the server's own clock, which no test moves.
CREATE FUNCTION dedup.confirmed_v1() RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('synchronous_standby_names') = '' THEN RETURN true; END IF;
  RETURN EXISTS (SELECT 1 FROM dedup.confirmed c WHERE c.boot = pg_postmaster_start_time() AND c.counts_from <= clock_timestamp()
    AND c.at BETWEEN clock_timestamp() - dedup.confirmed_for() AND clock_timestamp());
END $$;

-- First half of a proof: a commit that waits for a standby. It is never cancelled, and one session at most waits, however many call. Answers
-- what the second half needs; null where there is nothing to prove: no standbys required, just proved, or somebody else is at it.
CREATE FUNCTION dedup.heartbeat_v1() RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  c          dedup.confirmed;
  v_at       timestamptz := clock_timestamp();
  v_lsn      pg_lsn;
  v_timeline int := dedup.timeline();
BEGIN
  IF current_setting('synchronous_standby_names') = '' OR v_timeline = 0 THEN RETURN NULL; END IF;
  IF NOT pg_try_advisory_xact_lock(1684366453, 10) THEN RETURN NULL; END IF;
  SELECT * INTO c FROM dedup.confirmed WHERE boot = pg_postmaster_start_time();
  IF c.at BETWEEN v_at - interval '400 ms' AND v_at THEN RETURN NULL; END IF;
  PERFORM set_config('synchronous_commit', 'on', true);
  v_lsn := pg_current_wal_insert_lsn();
  -- The new timeline is written down only once the promoted server answers: until then each proof is one of a promoted server.
  UPDATE dedup.heartbeat SET at = v_at, timeline = CASE WHEN c.counts_from <= v_at THEN v_timeline ELSE timeline END;
  RETURN concat_ws('|', pg_postmaster_start_time(), v_at, v_lsn);
END $$;

-- Second half, by the client that got the first one's success without a warning: from now on that commit counts. After a promotion the
-- standby that confirmed it has also stopped confirming for the old primary, whose last word may still count for a while.
CREATE FUNCTION dedup.confirm_v1(p_proof text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_boot timestamptz := split_part(p_proof, '|', 1);
  v_at   timestamptz := split_part(p_proof, '|', 2);
BEGIN
  IF v_boot <> pg_postmaster_start_time() OR EXISTS (SELECT 1 FROM dedup.doubt d WHERE d.lsn > split_part(p_proof, '|', 3)::pg_lsn) THEN RETURN; END IF;
  DELETE FROM dedup.confirmed WHERE boot <> v_boot;
  INSERT INTO dedup.confirmed AS c (boot, at, counts_from)
    SELECT v_boot, v_at, clock_timestamp() + CASE WHEN h.timeline = dedup.timeline() THEN interval '0' ELSE dedup.hold_back() END FROM dedup.heartbeat h
    ON CONFLICT (one) DO UPDATE SET at = greatest(c.at, excluded.at);
END $$;

-- A commit came back with a warning: its wait was cancelled. Nothing counts until a standby has all that is in the log by now. (Only unlogged
-- rows are written, so this commit waits for nobody.)
CREATE FUNCTION dedup.doubt_v1() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('synchronous_standby_names') = '' THEN RETURN; END IF;
  INSERT INTO dedup.doubt AS d (lsn) VALUES (pg_current_wal_insert_lsn()) ON CONFLICT (one) DO UPDATE SET lsn = greatest(d.lsn, excluded.lsn);
  DELETE FROM dedup.confirmed;
END $$;

-- After a restore that makes no new timeline (a dump, a copied folder) fences could be handed out again: the owner raises the epoch, which
-- every fence begins with, and with it everything that caches hold of this home counts no more.
CREATE FUNCTION dedup.raise_epoch_v1(p_reason text) RETURNS int LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_epoch int;
BEGIN
  IF coalesce(p_reason, '') = '' THEN RAISE EXCEPTION 'a reason is needed'; END IF;
  PERFORM pg_advisory_xact_lock(1684366453, 1);   -- ROTATION: no claim is under way with the old epoch
  UPDATE dedup.home SET epoch = epoch + 1 RETURNING epoch INTO v_epoch;
  INSERT INTO dedup.audit (at_ms, actor, action, topic, grp, digest, reason)
    VALUES (dedup.now_ms(), session_user, 'raise-epoch', '', '', '00000000-0000-0000-0000-000000000000', p_reason);
  RETURN v_epoch;
END $$;

GRANT EXECUTE ON FUNCTION dedup.confirmed_v1(), dedup.heartbeat_v1(), dedup.confirm_v1(text), dedup.doubt_v1() TO dedup_service;
