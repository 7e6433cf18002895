CREATE TABLE providers (
  id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, epoch INTEGER NOT NULL DEFAULT 0, sequence INTEGER NOT NULL DEFAULT 0,
  generation INTEGER NOT NULL DEFAULT 0, addresses TEXT NOT NULL DEFAULT '[]', contact_expires INTEGER NOT NULL DEFAULT 0);
CREATE TABLE claims (
  id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, artifact BLOB NOT NULL, compatibility BLOB NOT NULL,
  numerics BLOB NOT NULL, blocks INTEGER NOT NULL, bytes INTEGER NOT NULL, places BLOB NOT NULL);
CREATE TABLE entries (place BLOB NOT NULL, claim INTEGER NOT NULL, PRIMARY KEY (place, claim)) WITHOUT ROWID;
CREATE TABLE offers (
  provider INTEGER NOT NULL REFERENCES providers (id), artifact BLOB NOT NULL, claim INTEGER NOT NULL REFERENCES claims (id),
  generation INTEGER NOT NULL, expires INTEGER NOT NULL, entries INTEGER NOT NULL,
  PRIMARY KEY (provider, artifact)) WITHOUT ROWID;
CREATE INDEX offers_by_claim ON offers (claim, provider, generation, expires);
CREATE TABLE refs (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, signer BLOB NOT NULL, sequence INTEGER NOT NULL, artifact BLOB NOT NULL,
  expires INTEGER, envelope BLOB NOT NULL, member BLOB NOT NULL, UNIQUE (name, signer));
CREATE INDEX refs_by_member ON refs (member);
CREATE TABLE ref_readers (
  place BLOB NOT NULL, name TEXT NOT NULL, ref INTEGER NOT NULL REFERENCES refs (id),
  PRIMARY KEY (place, name, ref)) WITHOUT ROWID;
CREATE INDEX ref_readers_by_ref ON ref_readers (ref);
CREATE TABLE attestations (
  artifact BLOB NOT NULL, signer BLOB NOT NULL, digest BLOB NOT NULL, envelope BLOB NOT NULL, expires INTEGER NOT NULL,
  member BLOB NOT NULL, PRIMARY KEY (artifact, signer, digest));
