//! Turns what the home hands out into lines.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::mpsc::Receiver;

use dedup_core::Key72;
use dedup_store::{Exported, ExportedId, ExportedRecord};

use crate::commands::memory_file::{End, Header, Id, VERSION, hex, write_line};
use crate::commands::own_home::Scopes;

/// What the writer is told.
pub enum Told {
    /// Something to write.
    Some(Exported),
    /// That was all. Whoever is not told this does not end the file.
    Over,
}

/// What was left out.
#[derive(Debug, Default)]
pub struct Left {
    /// Open, released, issued.
    pub not_done: u64,
    /// Of topics that were deleted or begun anew since: nobody can ask for them.
    pub gone: u64,
}

/// The file under construction.
pub struct Writer<W> {
    out: W,
    home: String,
    secret_id: [u8; 8],
    scopes: Scopes,
    topics: HashMap<i32, String>,
    end: End,
    left: Left,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W, home: String, secret_id: [u8; 8], scopes: Scopes) -> Self {
        Self { out, home, secret_id, scopes, topics: HashMap::new(), end: End::default(), left: Left::default() }
    }

    /// Writes until nothing more comes.
    pub fn write_all(mut self, receiver: &Receiver<Told>) -> io::Result<(End, Left)> {
        for told in receiver {
            match told {
                Told::Some(Exported::Begins { at_ms, topics }) => {
                    let header = Header {
                        dedup_export: VERSION,
                        home: self.home.clone(),
                        secret_id: hex(&self.secret_id),
                        exported_at_ms: at_ms,
                        generations: topics.iter().map(|topic| (topic.name.clone(), topic.generation)).collect(),
                        groups: topics.iter().filter(|t| !t.groups.is_empty()).map(|t| (t.name.clone(), t.groups.clone())).collect(),
                    };
                    self.topics = topics.iter().map(|topic| (topic.id, topic.name.clone())).collect();
                    self.scopes.renew(topics).map_err(io::Error::other)?;
                    self.object(&header)?;
                }
                Told::Some(Exported::Records(records)) => {
                    for record in &records {
                        self.record(record)?;
                    }
                }
                Told::Some(Exported::NotDone(n)) => self.left.not_done += n,
                Told::Over => {
                    let end = self.end.clone();
                    self.object(&end)?;
                }
            }
        }
        self.out.flush()?;
        Ok((self.end, self.left))
    }

    fn object(&mut self, object: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, object)?;
        self.out.write_all(b"\n")
    }

    fn record(&mut self, record: &ExportedRecord) -> io::Result<()> {
        let (id, n) = match (&record.kept, &record.id) {
            (Some(kept), id) => {
                let Some(topic) = self.topics.get(&kept.topic) else {
                    self.left.gone += 1;
                    return Ok(());
                };
                match self.scopes.digest(topic, &kept.group, &kept.key) {
                    // The digest has the topic's generation in it: only so is the key still what was remembered.
                    Ok(Some((_, digest))) if !is(id, &digest) => {
                        self.left.gone += 1;
                        return Ok(());
                    }
                    Ok(Some(_)) => (Id::Key { topic, group: &kept.group, key: &kept.key }, &mut self.end.keys),
                    // Of a prefix that this configuration gives to nobody, or to another home: whoever imports it could not take the key.
                    Ok(None) | Err(_) => plain(id, &mut self.end),
                }
            }
            (None, id) => plain(id, &mut self.end),
        };
        *n += 1;
        write_line(&mut self.out, &id, record.first_seen_ms, record.expires_ms, record.failed)?;
        self.end.dedup_export_end += 1;
        Ok(())
    }
}

fn plain<'e>(id: &ExportedId, end: &'e mut End) -> (Id<'static>, &'e mut u64) {
    match id {
        ExportedId::Digest(digest) => (Id::Digest(*digest), &mut end.digests),
        ExportedId::Short(key) => (Id::Short(*key), &mut end.short_digests),
    }
}

fn is(id: &ExportedId, digest: &dedup_core::Digest) -> bool {
    match id {
        ExportedId::Digest(other) => other == digest,
        ExportedId::Short(key) => *key == Key72::of(digest),
    }
}
