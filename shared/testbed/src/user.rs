//! Whom the stores run as: Postgres refuses root.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::Error;

/// The system user the Postgres package makes.
const NAME: &str = "postgres";

/// An unprivileged system user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// The user the stores must run as; `None` when this process is unprivileged itself.
    pub(crate) fn for_stores() -> Result<Option<Self>, Error> {
        let me = std::fs::metadata("/proc/self").map_err(Error::io("read /proc/self"))?.uid();
        if me != 0 {
            return Ok(None);
        }
        let passwd = std::fs::read_to_string("/etc/passwd").map_err(Error::io("read /etc/passwd"))?;
        passwd.lines().find_map(parse_line).map(Some).ok_or_else(|| Error::Missing {
            program: format!("system user {NAME}"),
            hint: "Postgres refuses to run as root: install the postgresql package, or run this as another user",
        })
    }
}

/// Makes a folder that only its owner (the store's user) may enter, as Postgres demands of its data.
pub(crate) fn private_dir(path: &Path, user: Option<User>) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(path).map_err(Error::io(format!("make the folder {}", path.display())))?;
    give(path, user)
}

/// Writes a file that only its owner may read.
pub(crate) fn private_file(path: &Path, text: &str, user: Option<User>) -> Result<(), Error> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut open = std::fs::OpenOptions::new();
    open.write(true).create(true).truncate(true).mode(0o600);
    open.open(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::io(format!("write {}", path.display())))?;
    give(path, user)
}

fn give(path: &Path, user: Option<User>) -> Result<(), Error> {
    let Some(user) = user else { return Ok(()) };
    std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid)).map_err(Error::io(format!("change the owner of {}", path.display())))
}

/// `name:password:uid:gid:…`
fn parse_line(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    (fields.next()? == NAME).then_some(())?;
    Some(User { uid: fields.nth(1)?.parse().ok()?, gid: fields.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passwd_line_gives_the_ids_of_the_named_user_only() {
        let user = parse_line("postgres:x:101:104:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash");
        assert_eq!(user.map(|u| (u.uid, u.gid)), Some((101, 104)));
        assert!(parse_line("postgresql:x:1:1::/:/bin/sh").is_none());
        assert!(parse_line("").is_none());
    }
}
