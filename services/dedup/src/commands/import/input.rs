//! The file of an import: what it is, and whether it is whole and of use here, before anything is read into the home.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::commands::memory_file::{END, End, HEADER, Header, VERSION, hex};
use crate::commands::own_home::Scopes;
use crate::output::note;

/// Where the last line is looked for.
const TAIL: u64 = 4096;

/// The file.
pub struct Input {
    path: PathBuf,
    pub bytes: u64,
    modified: Option<std::time::SystemTime>,
    /// First and last line, if it was exported.
    pub export: Option<(Header, End)>,
}

impl Input {
    /// `export`: whether it should be one.
    pub fn open(path: &Path, export: bool) -> anyhow::Result<Self> {
        let named = || path.display().to_string();
        let file = File::open(path).with_context(named)?;
        let about = file.metadata().with_context(named)?;
        let mut file = BufReader::new(file);
        let is_export = file.fill_buf().with_context(named)?.starts_with(HEADER.as_bytes());
        ensure!(is_export || !export, "{}: its first line is not that of an export; of other files say the topic (--topic)", named());
        ensure!(!is_export || export, "{}: this is an export, whose lines say their own topics: leave --topic out", named());
        let export = if is_export { Some(ends(&mut file).with_context(named)?) } else { None };
        Ok(Self { path: path.to_owned(), bytes: about.len(), modified: about.modified().ok(), export })
    }

    /// Names this import of this very file.
    pub fn id(&self, topic: Option<(&str, &str)>, warm: bool) -> Uuid {
        let about = format!("{topic:?}\0{warm}\0{}\0{}\0{:?}", self.path.display(), self.bytes, self.modified);
        let sum = Sha256::digest(about);
        Uuid::from_u64_pair(u64::from_be_bytes(first_8(&sum[..8])), u64::from_be_bytes(first_8(&sum[8..16])))
    }

    /// The file from its beginning.
    pub fn reopen(&self) -> anyhow::Result<BufReader<File>> {
        Ok(BufReader::with_capacity(1 << 20, File::open(&self.path).with_context(|| self.path.display().to_string())?))
    }
}

fn first_8(bytes: &[u8]) -> [u8; 8] {
    std::array::from_fn(|i| bytes.get(i).copied().unwrap_or_default())
}

/// Its first and its last line.
fn ends(file: &mut BufReader<File>) -> anyhow::Result<(Header, End)> {
    let mut first = String::new();
    file.read_line(&mut first)?;
    let header: Header = serde_json::from_str(&first).context("line 1 is not the header of an export")?;
    ensure!(header.dedup_export == VERSION, "the export has version {}, this program reads {VERSION}", header.dedup_export);
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let tail = String::from_utf8_lossy(&tail);
    let last = tail.trim_end().lines().next_back().unwrap_or_default();
    let cut_off = "the file was cut off: its last line is not the end of an export. Nothing of it counts";
    ensure!(last.starts_with(END), cut_off);
    Ok((header, serde_json::from_str(last).context(cut_off)?))
}

/// Whether the digests in the file mean anything here.
pub fn check(header: &Header, end: &End, warm: bool, secret_id: [u8; 8], scopes: &Scopes) -> anyhow::Result<()> {
    if end.digests + end.short_digests == 0 {
        return Ok(());
    }
    let here = hex(&secret_id);
    ensure!(
        header.secret_id == here,
        "the file has digests made with another secret ({}, here {here}): nobody could ever ask for them. Nothing was imported. Lines with keys can be: leave the \
         others out, and correct the last line",
        header.secret_id
    );
    if warm && end.short_digests > 0 {
        // Where: `Lines::check` says it.
        note("the file has digests of archived records, of which only 18 digits were kept");
    }
    for (topic, generation) in &header.generations {
        match scopes.has_generation(topic, *generation, header.groups.get(topic)) {
            Some(true) => {}
            None => note(&format!("there is no topic {topic} here: its digests count once it is made, with generation {generation}")),
            Some(false) => bail!(
                "the topic {topic} or one of its groups has another generation here than there ({generation}): it was forgotten or made anew, and its digests would match nothing, or \
                 what was forgotten. Nothing was imported"
            ),
        }
    }
    Ok(())
}
