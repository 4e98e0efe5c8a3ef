-- A primary's word counts only while its standbys stand by it.
--
-- Where synchronous standbys are required (synchronous_standby_names is not empty), three things must not be told to anybody: what a
-- primary that was cut off still believes, what a restarted primary holds that no standby has (it was waiting for one when it crashed, and
-- a crash makes it visible), and what a promoted standby decides while the old primary's word may still count. So each primary proves
-- itself again and again by a commit that a standby confirmed, and its answers count for two seconds after one.

CREATE TABLE dedup.heartbeat (one boolean PRIMARY KEY DEFAULT true CHECK (one), at timestamptz NOT NULL, timeline int NOT NULL);
INSERT INTO dedup.heartbeat (at, timeline) VALUES (clock_timestamp(), dedup.timeline());

-- Unlogged: a crash and a promotion both empty it, which is the point. A row here is seen by others only once the commit that wrote it, and
-- so everything before it in the log, was confirmed.
CREATE UNLOGGED TABLE dedup.confirmed (
  one         boolean     PRIMARY KEY DEFAULT true CHECK (one),
  boot        timestamptz NOT NULL,   -- of the server that wrote it: a clean restart does not empty the table
  at          timestamptz NOT NULL,   -- before the commit that was confirmed
  counts_from timestamptz             -- null: not yet
);

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

-- Proves the primary once more, unless somebody else has just done so or is waiting for it. Each instance calls it once a second. The
-- commit waits for a standby; it is never cancelled, and one session at most waits, however many call.
CREATE FUNCTION dedup.heartbeat_v1() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  c          dedup.confirmed;
  v_timeline int := dedup.timeline();
  v_before   int;
BEGIN
  IF current_setting('synchronous_standby_names') = '' OR v_timeline = 0 THEN RETURN; END IF;
  IF NOT pg_try_advisory_xact_lock(1684366453, 10) THEN RETURN; END IF;
  SELECT * INTO c FROM dedup.confirmed;
  IF c.boot = pg_postmaster_start_time() AND c.counts_from IS NOT NULL AND c.at BETWEEN clock_timestamp() - interval '400 ms' AND clock_timestamp() THEN RETURN; END IF;
  PERFORM set_config('synchronous_commit', 'on', true);
  UPDATE dedup.heartbeat h SET at = clock_timestamp() RETURNING h.timeline INTO v_before;
  IF c.boot IS DISTINCT FROM pg_postmaster_start_time() THEN
    -- First of all a standby must have everything up to here.
    DELETE FROM dedup.confirmed;
    INSERT INTO dedup.confirmed (boot, at) VALUES (pg_postmaster_start_time(), clock_timestamp());
  ELSIF c.counts_from IS NULL THEN
    -- It has. After a promotion that standby has also stopped confirming for the old primary, whose last word may still count.
    UPDATE dedup.confirmed SET at = clock_timestamp(), counts_from = clock_timestamp() + CASE WHEN v_before = v_timeline THEN interval '0' ELSE dedup.hold_back() END;
  ELSE
    UPDATE dedup.confirmed SET at = clock_timestamp();
    IF v_before <> v_timeline AND c.counts_from <= clock_timestamp() THEN UPDATE dedup.heartbeat SET timeline = v_timeline; END IF;
  END IF;
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

GRANT EXECUTE ON FUNCTION dedup.confirmed_v1(), dedup.heartbeat_v1() TO dedup_service;
