//! The Lua scripts, and their calls as bytes to send.

use std::sync::LazyLock;
use std::time::Duration;

use crate::holder::HolderId;
use crate::name::shown;
use crate::protocol::verb::Verb;
use crate::replicas::Replicas;

/// A script, which Redis runs as one atomic step.
#[derive(Debug)]
pub(crate) struct Script {
    /// Its name in errors and log records.
    pub(crate) name: &'static str,
    source: &'static str,
    /// The commands that the user must be permitted to run; PUBLISH is optional.
    commands: &'static [&'static str],
    sha: LazyLock<String>,
}

macro_rules! script {
    ($name:literal, $($command:literal),+) => {
        script!(include_str!(concat!("", $name, ".lua")), $name, $($command),+)
    };
    ($source:expr, $name:literal, $($command:literal),+) => {{
        const SOURCE: &str = $source;
        Script {
            name: $name,
            source: SOURCE,
            commands: &[$($command),+],
            sha: LazyLock::new(|| redis::Script::new(SOURCE).get_hash().to_owned()),
        }
    }};
}

/// A script of the fair lock: the shared functions, then its own text.
macro_rules! fair_script {
    ($name:literal, $($command:literal),*) => {
        script!(
            concat!(include_str!("fair_grant.lua"), include_str!(concat!("", $name, ".lua"))),
            $name,
            "time", "get", "pexpire", "lindex", "hget", "lpop", "hdel", "set", "del" $(, $command)*
        )
    };
}

pub(crate) static ACQUIRE: Script = script!("acquire", "get", "time", "set", "del", "pttl");
pub(crate) static PROPOSE: Script = script!("propose", "get", "set", "del", "pttl");
pub(crate) static RELEASE: Script = script!("release", "get", "del", "pttl", "pexpire", "set");
pub(crate) static RENEW: Script = script!("renew", "get", "pttl", "pexpire", "set", "del");
pub(crate) static ACQUIRE_ALL: Script = script!("acquire_all", "get", "pttl", "set", "del", "time");
pub(crate) static PROPOSE_ALL: Script = script!("propose_all", "get", "pttl", "set", "del");
pub(crate) static RELEASE_ALL: Script =
    script!("release_all", "get", "del", "pttl", "pexpire", "set");
pub(crate) static RENEW_ALL: Script = script!("renew_all", "get", "pttl", "pexpire", "set", "del");
pub(crate) static UNDO: Script = script!("undo", "get", "del", "pttl", "pexpire", "set");
pub(crate) static INSPECT: Script = script!("inspect", "get", "pttl");
pub(crate) static FENCE: Script = script!("fence", "get");
pub(crate) static FAIR_ENTER: Script = fair_script!("fair_enter", "rpush", "hset", "pttl");
pub(crate) static FAIR_REFRESH: Script = fair_script!("fair_refresh", "hset");
pub(crate) static FAIR_RELEASE: Script = fair_script!("fair_release", "lrem");
pub(crate) static FAIR_UNDO: Script = fair_script!("fair_undo", "lrem");
pub(crate) static TALLY: Script = script!("tally", "get", "hincrby", "set");

/// One call of a script, ready to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) verb: Verb,
    pub(crate) script: &'static Script,
    /// The lock keys, then further keys; the script of the call defines both.
    pub(crate) keys: [&'a [Vec<u8>]; 2],
    pub(crate) args: [Arg<'a>; 4],
    /// Further arguments: wake channels, holder ids or an inbox.
    pub(crate) rest: &'a [Vec<u8>],
    /// The replicas that must acknowledge it, by a WAIT command in the same write.
    pub(crate) replicas: Option<Replicas>,
    /// Sends ASKING first, which has its own reply: for a cluster node that is importing the slot.
    pub(crate) asking: bool,
}

/// An argument of a call; only the last ones can be absent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Arg<'a> {
    Bytes(&'a [u8]),
    Number(u64),
    #[default]
    Absent,
}

impl<'a> Arg<'a> {
    pub(crate) fn id(id: &'a HolderId) -> Self {
        Self::Bytes(id.as_str().as_bytes())
    }

    /// Returns whole milliseconds, rounded up: validity is counted from the ttl requested, so Redis
    /// may keep the key longer but never shorter.
    pub(crate) fn millis(ttl: Duration) -> Self {
        // A checked ttl always fits.
        Self::Number(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        verb: Verb,
        script: &'static Script,
        keys: [&'a [Vec<u8>]; 2],
        args: [Arg<'a>; 4],
    ) -> Self {
        Self {
            verb,
            script,
            keys,
            args,
            rest: &[],
            replicas: None,
            asking: false,
        }
    }

    /// Returns the same call, which counts only if `replicas` acknowledge it.
    pub(crate) fn acknowledged_by(self, replicas: Option<Replicas>) -> Self {
        Self { replicas, ..self }
    }

    pub(crate) fn asking(self, asking: bool) -> Self {
        Self { asking, ..self }
    }

    /// Appends the call by the script's digest, which is always tried first.
    pub(crate) fn pack_by_sha(&self, buffer: &mut Vec<u8>) {
        self.pack("EVALSHA", &self.script.sha, buffer);
    }

    /// Appends the call with the script's text, for a server that does not know the digest.
    pub(crate) fn pack_by_source(&self, buffer: &mut Vec<u8>) {
        self.pack("EVAL", self.script.source, buffer);
    }

    /// Returns the permissions that the call needs: the server's error may not name the missing
    /// one.
    pub(crate) fn rights(&self) -> String {
        let firsts = self.keys.iter().filter_map(|keys| keys.first());
        let firsts: Vec<String> = firsts.map(|key| shown(key)).collect();
        let more = match self.keys[0] {
            [] | [_] => "",
            _ => ", and on those of the other names",
        };
        format!(
            "the {} script needs {}+evalsha +eval +{} on the keys {}{more}",
            self.script.name,
            if self.asking { "+asking " } else { "" },
            self.script.commands.join(" +"),
            firsts.join(" and ")
        )
    }

    fn pack(&self, verb: &str, script: &str, buffer: &mut Vec<u8>) {
        if self.asking {
            redis::cmd("ASKING").write_packed_command(buffer);
        }
        let [first, second] = self.keys;
        let keys = first.len() + second.len();
        let is_there = |arg: &&Arg<'_>| !matches!(arg, Arg::Absent);
        let args = self.args.iter().take_while(is_there);
        // Written directly into the buffer: `redis::Cmd` first collects the arguments, which takes
        // a third of the client's time for a call.
        header(
            b'*',
            3 + keys + args.clone().count() + self.rest.len(),
            buffer,
        );
        bulk(verb.as_bytes(), buffer);
        bulk(script.as_bytes(), buffer);
        number(keys as u64, buffer);
        for key in first.iter().chain(second) {
            bulk(key, buffer);
        }
        for arg in args {
            match arg {
                Arg::Bytes(bytes) => bulk(bytes, buffer),
                Arg::Number(n) => number(*n, buffer),
                Arg::Absent => {}
            }
        }
        for arg in self.rest {
            bulk(arg, buffer);
        }
    }
}

/// Appends the header of an array (`*`) or a string (`$`) of a request:
/// <https://redis.io/docs/latest/develop/reference/protocol-spec/>.
fn header(mark: u8, len: usize, buffer: &mut Vec<u8>) {
    buffer.push(mark);
    buffer.extend_from_slice(itoa::Buffer::new().format(len).as_bytes());
    buffer.extend_from_slice(b"\r\n");
}

fn bulk(bytes: &[u8], buffer: &mut Vec<u8>) {
    header(b'$', bytes.len(), buffer);
    buffer.extend_from_slice(bytes);
    buffer.extend_from_slice(b"\r\n");
}

fn number(n: u64, buffer: &mut Vec<u8>) {
    bulk(itoa::Buffer::new().format(n).as_bytes(), buffer);
}

/// Appends the command that waits until `replicas` have received the earlier writes of this
/// connection.
pub(crate) fn pack_wait(replicas: &Replicas, buffer: &mut Vec<u8>) {
    let mut command = redis::cmd("WAIT");
    command
        .arg(replicas.wanted)
        // 0 would wait forever; a checked time is at least 1 ms, and fits.
        .arg(u64::try_from(replicas.within.as_millis()).unwrap_or(u64::MAX));
    command.write_packed_command(buffer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_packed_as_evalsha_or_eval_with_keys_then_arguments() {
        let args = [
            Arg::Bytes(b"\xff"),
            Arg::Number(7),
            Arg::Absent,
            Arg::Absent,
        ];
        let (k, n) = ([b"k".to_vec()], [b"n".to_vec()]);
        let call = Call::new(Verb::Renew, &RELEASE, [&k, &n], args);
        let mut sent = Vec::new();
        call.pack_by_sha(&mut sent);
        assert!(sent.starts_with(b"*7\r\n$7\r\nEVALSHA\r\n$40\r\n"));
        assert!(sent.ends_with(b"$1\r\n2\r\n$1\r\nk\r\n$1\r\nn\r\n$1\r\n\xff\r\n$1\r\n7\r\n"));
        let mut sent = Vec::new();
        call.pack_by_source(&mut sent);
        assert!(sent.starts_with(b"*7\r\n$4\r\nEVAL\r\n"));
        let call = Call {
            keys: [&k, &[]],
            ..call
        };
        let mut sent = Vec::new();
        Call { rest: &n, ..call }.pack_by_sha(&mut sent);
        assert!(sent.ends_with(b"$1\r\n1\r\n$1\r\nk\r\n$1\r\n\xff\r\n$1\r\n7\r\n$1\r\nn\r\n"));
        let mut sent = Vec::new();
        call.asking(true).pack_by_sha(&mut sent);
        assert!(sent.starts_with(b"*1\r\n$6\r\nASKING\r\n*6\r\n$7\r\nEVALSHA\r\n"));
    }

    #[test]
    fn a_ttl_is_never_rounded_down() {
        for (ttl, sent) in [
            (Duration::from_micros(10_001), 11),
            (Duration::from_millis(10), 10),
        ] {
            assert!(
                matches!(Arg::millis(ttl), Arg::Number(n) if n == sent),
                "{ttl:?}"
            );
        }
    }

    fn called(source: &str) -> Vec<String> {
        let calls = source.split("call('").skip(1);
        let mut called: Vec<_> = calls
            .filter_map(|rest| Some(rest.split_once('\'')?.0.to_ascii_lowercase()))
            .collect();
        called.sort();
        called.dedup();
        called
    }

    /// Checks the ACL user that README and the crate's documentation recommend.
    #[test]
    fn the_documented_user_may_do_what_the_scripts_call() {
        let line = include_str!("../../README.md")
            .lines()
            .find(|line| line.starts_with("ACL SETUSER leasehold "))
            .unwrap();
        assert!(include_str!("../lib.rs").contains(&format!("//! {line}\n")));
        let allowed: Vec<&str> = line
            .split(' ')
            .filter_map(|rule| rule.strip_prefix('+'))
            .collect();
        let plain = [&ACQUIRE, &PROPOSE, &RELEASE, &RENEW, &INSPECT, &FENCE];
        let several = [&ACQUIRE_ALL, &PROPOSE_ALL, &RELEASE_ALL, &RENEW_ALL, &UNDO];
        let fair = [&FAIR_ENTER, &FAIR_REFRESH, &FAIR_RELEASE, &FAIR_UNDO];
        for script in plain.into_iter().chain(several).chain(fair) {
            let mut called = called(script.source);
            assert!(
                called
                    .iter()
                    .all(|command| allowed.contains(&command.as_str())),
                "{}: {called:?}",
                script.name
            );
            // Optional: waiters also notice a release without its message.
            called.retain(|command| command != "publish");
            let mut needed = script.commands.to_vec();
            needed.sort();
            assert_eq!(called, needed, "{}", script.name);
        }
    }
}
