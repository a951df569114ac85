//! A server's own view of its clients and their commands.

use std::collections::HashMap;

use super::server::Server;

/// How often each command was called, and the microseconds that its calls took.
pub struct CommandStats(HashMap<String, (u64, u64)>);

impl CommandStats {
    pub fn calls(&self, command: &str) -> u64 {
        self.0.get(command).map_or(0, |(calls, _)| *calls)
    }

    pub fn micros(&self, command: &str) -> u64 {
        self.0.get(command).map_or(0, |(_, micros)| *micros)
    }

    /// Returns what was added since `before`.
    pub fn since(self, before: &Self) -> Self {
        let added = self.0.into_iter().map(|(command, (calls, micros))| {
            let (calls_before, micros_before) = (before.calls(&command), before.micros(&command));
            (command, (calls - calls_before, micros - micros_before))
        });
        Self(added.collect())
    }

    /// Returns the number of calls of each command.
    pub fn all_calls(self) -> HashMap<String, u64> {
        let calls = self.0.into_iter();
        calls
            .map(|(command, (calls, _))| (command, calls))
            .collect()
    }

    /// Returns how many commands were called, without those that these helpers and new connections
    /// send. If only scripts were called, this is the number of commands in them.
    pub fn in_scripts(&self) -> u64 {
        let is_outside = |command: &str| {
            ["eval", "evalsha", "info", "hello"].contains(&command) || command.contains('|')
        };
        let inside = self.0.iter().filter(|(command, _)| !is_outside(command));
        inside.map(|(_, (calls, _))| calls).sum()
    }
}

impl Server {
    /// Returns how often scripts were called so far: acquires, renewals, releases.
    pub fn script_calls(&self) -> u64 {
        self.calls(&["evalsha", "eval"])
    }

    /// Returns how often the commands were called so far, those in scripts included.
    ///
    /// A subcommand is written `client|list`.
    pub fn calls(&self, commands: &[&str]) -> u64 {
        let stats = self.command_stats();
        commands.iter().map(|command| stats.calls(command)).sum()
    }

    /// Returns the statistics of all commands.
    ///
    /// From the second call on, they include the `info` that this method sends.
    pub fn command_stats(&self) -> CommandStats {
        let mut connection = self.connection();
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut connection)
            .expect("INFO answers");
        let read = |line: &str| {
            let (command, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let field = |name: &str| -> Option<u64> {
                let mut fields = fields.split(',');
                let value = fields.find_map(|field| field.strip_prefix(name))?;
                value.parse().ok()
            };
            // The test kit measures no times.
            let micros = field("usec=").unwrap_or(0);
            Some((command.to_owned(), (field("calls=")?, micros)))
        };
        CommandStats(info.lines().filter_map(read).collect())
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
