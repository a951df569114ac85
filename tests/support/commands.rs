//! A server's own view of its clients and their commands.

use std::collections::HashMap;

use super::server::Server;

impl Server {
    /// Returns how often scripts were called so far: acquires, renewals, releases.
    pub fn script_calls(&self) -> u64 {
        self.calls(&["evalsha", "eval"])
    }

    /// Returns how often the commands were called so far, those in scripts included.
    ///
    /// A subcommand is written `client|list`.
    pub fn calls(&self, commands: &[&str]) -> u64 {
        let calls = self.all_calls();
        commands
            .iter()
            .filter_map(|command| calls.get(*command))
            .sum()
    }

    /// Returns the number of calls of every command.
    ///
    /// From the second call on, this includes the `info` that this method sends.
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

    /// Returns `CLIENT LIST` without the connection that sends it.
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

    /// Closes all client connections. A client with a command in flight gets an error.
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
