//! The configuration file of an instance, as text.

use std::fmt::Write;

/// A home as every instance's configuration names it.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    /// Name, region and only prefix at once.
    pub(crate) name: String,
    /// Host and port of its nodes.
    pub(crate) nodes: Vec<(String, u16)>,
    pub(crate) password: String,
}

impl Home {
    /// The environment variable that holds the service's password for this home.
    pub(crate) fn password_variable(&self) -> String {
        format!("DEDUP_HOME_{}_PASSWORD", self.name.to_uppercase().replace('-', "_"))
    }
}

/// What differs between the instances of a testbed.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) region: String,
    pub(crate) name: String,
    pub(crate) redis_port: Option<u16>,
}

/// The file's text: `keys` stands before the first table, `tables` at the end.
pub(crate) fn text(instance: &Instance, listen_port: u16, homes: &[Home], keys: &str, tables: &str) -> String {
    let Instance { region, name, redis_port } = instance;
    let mut text = format!("region = \"{region}\"\ninstance = \"{name}\"\nlisten = \"127.0.0.1:{listen_port}\"\ndrain_ms = 0\n{keys}\n");
    let mut line = |args: std::fmt::Arguments<'_>| text.write_fmt(args).expect("a string takes all that is written");
    for Home { name, nodes, .. } in homes {
        let hosts = nodes.iter().map(|(host, _)| host.as_str()).collect::<Vec<_>>().join(",");
        let ports = nodes.iter().map(|(_, port)| port.to_string()).collect::<Vec<_>>().join(",");
        line(format_args!(
            "\n[[homes]]\nname = \"{name}\"\nregion = \"{name}\"\nprefixes = [\"{name}\"]\n\
             postgres = \"host={hosts} port={ports} user=dedup_svc dbname=dedup\"\n"
        ));
    }
    if let Some(port) = redis_port {
        line(format_args!("\n[redis]\nurl = \"redis://127.0.0.1:{port}\"\n"));
    }
    line(format_args!("\n{tables}\n"));
    text
}
