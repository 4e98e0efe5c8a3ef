-- Identity of keys: digest = first 128 bits of HMAC-SHA-256(secret, parts), every part length-prefixed (u16, big-endian), so that no
-- content of one part can imitate another. The same in Rust (`dedup_core::digest`); both are held to one table of vectors.

CREATE FUNCTION dedup.pad(secret bytea, fill int) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v bytea := decode(repeat(lpad(to_hex(fill), 2, '0'), 64), 'hex');
BEGIN
  FOR i IN 0 .. octet_length(secret) - 1 LOOP
    v := set_byte(v, i, get_byte(secret, i) # fill);
  END LOOP;
  RETURN v;
END $$;

CREATE FUNCTION dedup.part(b bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT decode(lpad(to_hex(octet_length(b)), 4, '0'), 'hex') || b $$;

-- `text` becomes bytes by convert_to (the database is UTF8), generations are 8 bytes big-endian.
CREATE FUNCTION dedup.digest_message(topic text, topic_generation bigint, grp text, group_generation bigint, key text) RETURNS bytea
  LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT dedup.part(convert_to(topic, 'UTF8')) || dedup.part(int8send(topic_generation))
      || dedup.part(convert_to(grp, 'UTF8')) || dedup.part(int8send(group_generation)) || dedup.part(convert_to(key, 'UTF8')) $$;

CREATE FUNCTION dedup.digest_v1(topic text, topic_generation bigint, grp text, group_generation bigint, key text) RETURNS uuid
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT encode(substring(sha256(h.outer_pad || sha256(h.inner_pad || dedup.digest_message(topic, topic_generation, grp, group_generation, key))) FOR 16), 'hex')::uuid
  FROM dedup.home h $$;

-- Run by `dedup migrate` after the migrations, on every run. The first run gives the home its identity and first segments; a later one
-- checks that nothing contradicts it (prefixes may only be added).
CREATE FUNCTION dedup.init_home(p_name text, p_region text, p_prefixes text[], p_secret bytea, p_schema int, p_min_client int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  h dedup.home;
BEGIN
  SELECT * INTO h FROM dedup.home;
  IF FOUND THEN
    IF h.name <> p_name OR h.region <> p_region THEN
      RAISE EXCEPTION 'this database is the home "%" of region "%", not "%" of "%"', h.name, h.region, p_name, p_region;
    END IF;
    IF p_secret IS NOT NULL AND h.secret <> p_secret THEN
      RAISE EXCEPTION 'this home was made with another secret';
    END IF;
    IF NOT h.prefixes <@ p_prefixes THEN
      RAISE EXCEPTION 'this home owns the prefixes %; the configuration leaves some out (%)', h.prefixes, p_prefixes;
    END IF;
    UPDATE dedup.home SET prefixes = p_prefixes, schema = p_schema, min_client = p_min_client;
  ELSE
    INSERT INTO dedup.home (name, region, prefixes, secret, secret_id, inner_pad, outer_pad, schema, min_client)
      VALUES (p_name, p_region, p_prefixes, p_secret, substring(sha256('dedup-secret-id'::bytea || p_secret) FOR 8),
              dedup.pad(p_secret, 54), dedup.pad(p_secret, 92), p_schema, p_min_client);
    PERFORM dedup.prepare_segment_v1();
    UPDATE dedup.segments SET state = 'open', opened_at_ms = origin_ms WHERE segment_id = 1;
    INSERT INTO dedup.layout (current_segment, generation) VALUES (1, 1);
    PERFORM dedup.prepare_segment_v1();
  END IF;
END $$;

-- The timeline rises with every promotion. On a standby it is 0, and nothing is granted there.
CREATE FUNCTION dedup.timeline() RETURNS int LANGUAGE sql VOLATILE AS $$
  SELECT CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || substring(pg_walfile_name(pg_current_wal_lsn()) FOR 8))::bit(32)::int END $$;

-- Epoch and timeline in one number that only rises: what is cached of a lower one counts no more, and a node that shows a lower one is an
-- old primary. 0 on a standby.
CREATE FUNCTION dedup.incarnation() RETURNS int LANGUAGE sql VOLATILE AS $$
  SELECT CASE WHEN t = 0 THEN 0 ELSE (SELECT epoch FROM dedup.home) * 2048 + t END FROM dedup.timeline() t $$;

-- The high bits of a fence granted now. Refuses to wrap: past the limits the epoch must be raised, not reused.
CREATE FUNCTION dedup.fence_base() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_timeline int := dedup.timeline();
BEGIN
  IF v_timeline < 1 OR v_timeline > 2047 THEN
    RAISE EXCEPTION 'no fence can be granted on timeline %', v_timeline USING ERRCODE = 'DD002';
  END IF;
  RETURN (SELECT epoch::bigint << 55 FROM dedup.home) | (v_timeline::bigint << 44);
END $$;

-- What a program checks when it connects. Only the service role may read the secret (its instances compute digests).
CREATE FUNCTION dedup.hello_v1() RETURNS TABLE (
    home_id uuid, name text, region text, prefixes text[], secret_id bytea, secret bytea, epoch int, schema int, min_client int,
    home_ms bigint, incarnation int, in_recovery boolean, fsync boolean, full_page_writes boolean, synchronous_commit text, encoding text)
  LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT h.home_id, h.name, h.region, h.prefixes, h.secret_id, h.secret, h.epoch, h.schema, h.min_client, dedup.now_ms(), dedup.incarnation(),
         pg_is_in_recovery(), current_setting('fsync')::boolean, current_setting('full_page_writes')::boolean,
         current_setting('synchronous_commit'), current_setting('server_encoding')
  FROM dedup.home h $$;

GRANT EXECUTE ON FUNCTION dedup.hello_v1() TO dedup_service;
