//! What a server's clients do, as the server sees it.

use std::collections::HashMap;

use super::server::Server;

impl Server {
    /// How often the commands were called so far, from within scripts too: `&["evalsha", "eval"]`.
    /// A subcommand is `client|list`.
    pub fn calls(&self, commands: &[&str]) -> u64 {
        let calls = self.all_calls();
        commands
            .iter()
            .filter_map(|command| calls.get(*command))
            .sum()
    }

    /// The calls of every command. The `info` of the asking itself is among them from the second time on.
    pub fn all_calls(&self) -> HashMap<String, u64> {
        let mut connection = self.connection();
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut connection)
            .expect("INFO answers");
        info.lines()
            .filter_map(|line| {
                let (command, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
                let calls = fields
                    .split(',')
                    .find_map(|field| field.strip_prefix("calls="))?;
                Some((command.to_owned(), calls.parse().ok()?))
            })
            .collect()
    }

    /// `CLIENT LIST`, the asking connection left out.
    pub fn client_list(&self) -> Vec<HashMap<String, String>> {
        let mut connection = self.connection();
        let own: u64 = redis::cmd("CLIENT")
            .arg("ID")
            .query(&mut connection)
            .expect("CLIENT ID answers");
        let list: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut connection)
            .expect("CLIENT LIST answers");
        list.lines()
            .map(|line| {
                line.split(' ')
                    .filter_map(|field| field.split_once('='))
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .collect::<HashMap<_, _>>()
            })
            .filter(|client| client.get("id") != Some(&own.to_string()))
            .collect()
    }

    /// Closes every connection but the asking one, with an error on the other side where something is under way.
    pub fn kill_clients(&self) {
        let mut connection = self.connection();
        for kind in ["normal", "pubsub"] {
            redis::cmd("CLIENT")
                .arg(&["KILL", "TYPE", kind, "SKIPME", "yes"])
                .exec(&mut connection)
                .expect("CLIENT KILL answers");
        }
    }
}
