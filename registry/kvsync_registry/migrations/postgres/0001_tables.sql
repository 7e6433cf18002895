CREATE TABLE providers (
  id bigserial PRIMARY KEY, key bytea NOT NULL UNIQUE, epoch bigint NOT NULL DEFAULT 0, sequence bigint NOT NULL DEFAULT 0,
  generation bigint NOT NULL DEFAULT 0, addresses text NOT NULL DEFAULT '[]', contact_expires bigint NOT NULL DEFAULT 0);
CREATE TABLE claims (
  id bigserial PRIMARY KEY, digest bytea NOT NULL UNIQUE, artifact bytea NOT NULL, compatibility bytea NOT NULL,
  numerics bytea NOT NULL, blocks bigint NOT NULL, bytes bigint NOT NULL, places bytea NOT NULL);
CREATE TABLE entries (place bytea NOT NULL, claim bigint NOT NULL, PRIMARY KEY (place, claim));
CREATE TABLE offers (
  provider bigint NOT NULL REFERENCES providers (id), artifact bytea NOT NULL, claim bigint NOT NULL REFERENCES claims (id),
  generation bigint NOT NULL, expires bigint NOT NULL, entries bigint NOT NULL,
  PRIMARY KEY (provider, artifact)) WITH (fillfactor = 85);
CREATE INDEX offers_by_claim ON offers (claim, provider);
CREATE TABLE refs (
  id bigserial PRIMARY KEY, name text COLLATE "C" NOT NULL, signer bytea NOT NULL, sequence bigint NOT NULL,
  artifact bytea NOT NULL, expires bigint, envelope bytea NOT NULL, member bytea NOT NULL, UNIQUE (name, signer));
CREATE INDEX refs_by_member ON refs (member);
CREATE TABLE ref_readers (
  place bytea NOT NULL, name text COLLATE "C" NOT NULL, ref bigint NOT NULL REFERENCES refs (id),
  PRIMARY KEY (place, name, ref));
CREATE INDEX ref_readers_by_ref ON ref_readers (ref);
CREATE TABLE attestations (
  artifact bytea NOT NULL, signer bytea NOT NULL, digest bytea NOT NULL, envelope bytea NOT NULL, expires bigint NOT NULL,
  member bytea NOT NULL, PRIMARY KEY (artifact, signer, digest));
