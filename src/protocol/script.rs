//! The Lua scripts, and their calls as bytes to send.

use std::sync::OnceLock;
use std::time::Duration;

use redis::ServerError;

use crate::error_reply::{Meaning, meaning};
use crate::holder_id::HolderId;
use crate::name::shown;
use crate::protocol::verb::Verb;
use crate::replicas::Replicas;

/// A script, which Redis runs as one atomic step.
#[derive(Debug)]
pub(crate) struct Script {
    /// Its name in errors and log records.
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    pub(super) sha: OnceLock<String>,
}

/// Makes a script from the file `<name>.lua`, or another one, preceded by the Lua functions in
/// further files.
macro_rules! script {
    ($name:literal $(, $functions:literal)*) => {
        script!($name in $name $(, $functions)*)
    };
    ($name:literal in $file:literal $(, $functions:literal)*) => {
        Script {
            name: $name,
            source: concat!(
                $(include_str!(concat!($functions, ".lua")),)*
                include_str!(concat!($file, ".lua"))
            ),
            sha: ::std::sync::OnceLock::new(),
        }
    };
}
pub(super) use script;

/// The commands of locks without a queue.
const PLAIN_COMMANDS: [&str; 6] = ["GET", "SET", "DEL", "TIME", "PTTL", "PEXPIRE"];

/// Adds to the shared statistics.
pub(crate) static ADD_STATS: Script = script!("add_stats");

impl Script {
    pub(crate) fn sha(&self) -> &str {
        let hash = || redis::Script::new(self.source).get_hash().to_owned();
        self.sha.get_or_init(hash)
    }

    /// Returns the commands that an error in a script may be about: those in the line that it
    /// names, as `@user_script:10`, or else those whose errors the script handles itself.
    fn commands_at(&self, error: &str) -> String {
        let line = || {
            let (_, after) = error.split_once("user_script:")?;
            let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
            let line = digits.parse::<usize>().ok()?.checked_sub(1)?;
            self.source.lines().nth(line)
        };
        let (source, call) = match line().filter(|line| line.contains("call('")) {
            Some(line) => (line, "call('"),
            None => (self.source, "redis.pcall('"),
        };
        match called(source, call).as_slice() {
            [] => self.commands().join(" or "),
            commands => commands.join(" or "),
        }
    }

    /// Returns the commands that the user must be permitted to run. PUBLISH and PUBSUB are
    /// optional.
    fn commands(&self) -> Vec<&'static str> {
        let mut commands = called(self.source, "call('");
        commands.retain(|command| !["PUBLISH", "PUBSUB"].contains(command));
        commands
    }
}

/// Returns the commands behind `call` in the text of a script.
fn called<'a>(source: &'a str, call: &str) -> Vec<&'a str> {
    let calls = source.split(call).skip(1);
    let mut commands: Vec<_> = calls.filter_map(|call| call.split('\'').next()).collect();
    commands.sort_unstable();
    commands.dedup();
    commands
}

/// One call of a script, ready to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) verb: Verb,
    pub(crate) script: &'static Script,
    /// Two slices of keys, in the order of the script: usually the lock keys, then the others.
    pub(crate) keys: [&'a [Vec<u8>]; 2],
    pub(crate) args: [Arg<'a>; 4],
    /// Further arguments: wake channels, holder ids or an inbox.
    pub(crate) rest: &'a [Vec<u8>],
    /// The last key, and the value that it must have, which is the last argument.
    pub(crate) after: Option<(&'a [u8], &'a [u8])>,
    /// The replicas that must acknowledge it, by a WAIT command in the same write.
    pub(crate) replicas: Option<Replicas>,
    /// Sends ASKING first, which has its own reply: for a cluster node that is importing the slot.
    pub(crate) asking: bool,
    /// The last key is that of the readers, which the script needs only while readers hold.
    pub(crate) ends_with_readers: bool,
    /// The script that does the same with the lock keys alone. It takes the first slice of keys,
    /// the first two of `args`, and `rest`.
    pub(crate) without_queue: Option<&'static Script>,
}

/// How a call names its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptForm {
    /// By its digest. This is usually tried first: it is much shorter.
    Digest,
    /// By its text, for a server that does not know the digest.
    Source,
}

impl ScriptForm {
    /// Returns the form in which to send a call again after `reply`; `None` if the reply counts.
    ///
    /// The reply NOSCRIPT shows that the script has not run. EVAL runs it, and the server keeps it.
    pub(crate) fn after<T>(self, reply: &Result<T, ServerError>) -> Option<Self> {
        let is_unknown = matches!(reply, Err(error) if meaning(error) == Meaning::NoScript);
        (is_unknown && self == Self::Digest).then_some(Self::Source)
    }
}

/// An argument of a call; only the last ones can be absent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Arg<'a> {
    Bytes(&'a [u8]),
    Number(u64),
    /// A number of fencing tokens for the threads of a client, with a plus sign.
    Block(u64),
    /// The mark of a place and an inbox, with a space between them.
    Place(&'static [u8], &'a [u8]),
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
    pub(crate) fn new<const N: usize>(
        verb: Verb,
        script: &'static Script,
        keys: [&'a [Vec<u8>]; 2],
        args: [Arg<'a>; N],
    ) -> Self {
        const { assert!(N <= 4) };
        let mut four = [Arg::Absent; 4];
        four[..N].copy_from_slice(&args);
        Self {
            verb,
            script,
            keys,
            args: four,
            rest: &[],
            after: None,
            replicas: None,
            asking: false,
            ends_with_readers: false,
            without_queue: None,
        }
    }

    /// Returns the same call without the key of the readers, for clusters that are migrating the
    /// slot: they refuse calls with a key that does not exist.
    pub(crate) fn without_readers(self) -> Option<Self> {
        let [locks, others] = self.keys;
        let (_, others) = others.split_last().filter(|_| self.ends_with_readers)?;
        Some(Self {
            keys: [locks, others],
            ends_with_readers: false,
            ..self
        })
    }

    /// Returns the same call with a fallback: `script`, which does the same with the lock keys
    /// alone.
    pub(super) fn or_without_queue(self, script: &'static Script) -> Self {
        Self {
            without_queue: Some(script),
            ..self
        }
    }

    /// Returns the call that does the same with the lock keys alone, if there is one.
    pub(crate) fn without_queue(self) -> Option<Self> {
        let script = self.without_queue?;
        let [id, channel, ..] = self.args;
        Some(Self {
            script,
            keys: [self.keys[0], &[]],
            args: [id, channel, Arg::Absent, Arg::Absent],
            ends_with_readers: false,
            without_queue: None,
            ..self
        })
    }

    /// Returns the same call with further arguments.
    pub(super) fn followed_by(self, rest: &'a [Vec<u8>]) -> Self {
        Self { rest, ..self }
    }

    /// Returns the same call, which counts only if `replicas` acknowledge it.
    pub(crate) fn acknowledged_by(self, replicas: Option<Replicas>) -> Self {
        Self { replicas, ..self }
    }

    pub(crate) fn asking(self, asking: bool) -> Self {
        Self { asking, ..self }
    }

    /// Returns the permissions that the call needs: the server's error may not name the missing
    /// one.
    pub(crate) fn rights(&self) -> String {
        let [locks, others] = self.keys;
        // The further keys of the first name: those of one kind are in the order of the names.
        let others = others.iter().step_by(locks.len().max(1));
        let firsts = locks.first().into_iter().chain(others);
        let firsts: Vec<String> = firsts.map(|key| shown(key)).collect();
        let more = match self.keys[0] {
            [] | [_] => "",
            _ => ", and on those of the other names",
        };
        format!(
            "the {} script needs {}+evalsha +eval +{} on the keys {}{more}",
            self.script.name,
            if self.asking { "+asking " } else { "" },
            self.script.commands().join(" +").to_ascii_lowercase(),
            firsts.join(" and ")
        )
    }

    /// Returns that the user lacks a permission, after the error `text`.
    ///
    /// Servers differ in what they say of a key: Redis 8 does not name it. So a script that uses a
    /// queue needs it, unless the text is about a command that others need, too, or a channel.
    pub(crate) fn missing_right(&self, text: &str) -> String {
        let rights = self.rights();
        let is_of_queue = |command: &str| {
            let is_of_script = self.script.commands().contains(&command);
            is_of_script && !PLAIN_COMMANDS.contains(&command)
        };
        let named = text.split_once("to run the '");
        let named = named.and_then(|(_, rest)| rest.split('\'').next());
        let (rights, is_about_queue) = match named {
            _ if text.contains("can't run this command") => {
                let commands = self.script.commands_at(text);
                (
                    format!("the user may not run {commands}; {rights}"),
                    commands.split(" or ").any(is_of_queue),
                )
            }
            Some(command) => (rights, is_of_queue(&command.to_ascii_uppercase())),
            None => (rights, !text.contains("channel")),
        };
        let uses_queue = self.script.commands().contains(&"LINDEX");
        let is_of_permits = |key: &Vec<u8>| key.starts_with(b"leasehold:permits");
        let can_be_plain = !self.keys[0].iter().any(is_of_permits);
        if is_about_queue && uses_queue && can_be_plain {
            format!(
                "{rights}; plain locks and sets of names need no queue in a client that is built \
                 with ClientBuilder::queues(false)"
            )
        } else {
            rights
        }
    }

    /// Returns which command of the script the server does not have, after the error `text`.
    pub(crate) fn missing_command(&self, text: &str) -> String {
        format!(
            "the server does not have the command {}, or forbids it in scripts; the {} script \
             needs it, so this server cannot be used",
            self.script.commands_at(text),
            self.script.name
        )
    }

    /// Returns the keys and the arguments.
    #[cfg(test)]
    pub(crate) fn words(&self) -> [Vec<Vec<u8>>; 2] {
        let word = |arg: &Arg<'_>| match arg {
            Arg::Bytes(bytes) => Some(bytes.to_vec()),
            Arg::Number(n) => Some(n.to_string().into_bytes()),
            Arg::Block(n) => Some(format!("+{n}").into_bytes()),
            Arg::Place(mark, inbox) => Some([*mark, *inbox].join(&b' ')),
            Arg::Absent => None,
        };
        let args = self.args.iter().filter_map(word);
        let (key, value) = self.after.unzip();
        let (key, value) = (key.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec));
        [
            self.keys.concat().into_iter().chain(key).collect(),
            args.chain(self.rest.iter().cloned()).chain(value).collect(),
        ]
    }

    /// Appends the call, which names its script in this form.
    pub(crate) fn pack(&self, form: ScriptForm, buffer: &mut Vec<u8>) {
        let (command, script) = match form {
            ScriptForm::Digest => ("EVALSHA", self.script.sha()),
            ScriptForm::Source => ("EVAL", self.script.source),
        };
        if self.asking {
            header(b'*', 1, buffer);
            bulk(b"ASKING", buffer);
        }
        let [first, second] = self.keys;
        let after = usize::from(self.after.is_some());
        let keys = first.len() + second.len() + after;
        let is_there = |arg: &&Arg<'_>| !matches!(arg, Arg::Absent);
        let args = self.args.iter().take_while(is_there);
        // Written directly into the buffer: `redis::Cmd` first collects the arguments, which takes
        // a third of the client's time for a call.
        header(
            b'*',
            3 + keys + args.clone().count() + self.rest.len() + after,
            buffer,
        );
        bulk(command.as_bytes(), buffer);
        bulk(script.as_bytes(), buffer);
        number(keys as u64, buffer);
        for key in first.iter().chain(second) {
            bulk(key, buffer);
        }
        if let Some((key, _)) = self.after {
            bulk(key, buffer);
        }
        for arg in args {
            match arg {
                Arg::Bytes(bytes) => bulk(bytes, buffer),
                Arg::Number(n) => number(*n, buffer),
                Arg::Block(n) => {
                    let mut digits = itoa::Buffer::new();
                    bulk(&[b"+", digits.format(*n).as_bytes()].concat(), buffer);
                }
                Arg::Place(mark, inbox) => bulk(&[*mark, *inbox].join(&b' '), buffer),
                Arg::Absent => {}
            }
        }
        for arg in self.rest {
            bulk(arg, buffer);
        }
        if let Some((_, value)) = self.after {
            bulk(value, buffer);
        }
    }
}

/// Appends the header of an array (`*`) or a bulk string (`$`) of a request:
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

/// Appends the command `WAIT`: it waits until `replicas` have acknowledged the earlier writes of
/// this connection.
pub(crate) fn pack_wait(replicas: &Replicas, buffer: &mut Vec<u8>) {
    header(b'*', 3, buffer);
    bulk(b"WAIT", buffer);
    number(replicas.wanted as u64, buffer);
    // 0 would wait forever; a checked time is at least 1 ms, and fits.
    let millis = u64::try_from(replicas.within.as_millis()).unwrap_or(u64::MAX);
    number(millis, buffer);
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::protocol::cohort::CohortKeys;
    use crate::protocol::keys::Keys;

    #[test]
    fn a_call_is_packed_as_evalsha_or_eval_with_keys_then_arguments() {
        let args = [Arg::Bytes(b"\xff"), Arg::Number(7)];
        let (k, n) = ([b"k".to_vec()], [b"n".to_vec()]);
        let call = Call::new(Verb::Renew, &ADD_STATS, [&k, &n], args);
        let mut sent = Vec::new();
        call.pack(ScriptForm::Digest, &mut sent);
        assert!(sent.starts_with(b"*7\r\n$7\r\nEVALSHA\r\n$40\r\n"));
        assert!(sent.ends_with(b"$1\r\n2\r\n$1\r\nk\r\n$1\r\nn\r\n$1\r\n\xff\r\n$1\r\n7\r\n"));
        let mut sent = Vec::new();
        call.pack(ScriptForm::Source, &mut sent);
        assert!(sent.starts_with(b"*7\r\n$4\r\nEVAL\r\n"));
        let call = Call {
            keys: [&k, &[]],
            ..call
        };
        let mut sent = Vec::new();
        Call { rest: &n, ..call }.pack(ScriptForm::Digest, &mut sent);
        assert!(sent.ends_with(b"$1\r\n1\r\n$1\r\nk\r\n$1\r\n\xff\r\n$1\r\n7\r\n$1\r\nn\r\n"));
        let mut sent = Vec::new();
        call.asking(true).pack(ScriptForm::Digest, &mut sent);
        assert!(sent.starts_with(b"*1\r\n$6\r\nASKING\r\n*6\r\n$7\r\nEVALSHA\r\n"));
    }

    #[test]
    fn a_call_is_sent_again_once_if_the_server_does_not_know_its_script() {
        let error = |line: &str| match redis::parse_redis_value(line.as_bytes()) {
            Ok(redis::Value::ServerError(error)) => Err::<(), _>(error),
            other => panic!("{other:?}"),
        };
        let unknown = error("-NOSCRIPT No matching script.\r\n");
        let source = Some(ScriptForm::Source);
        assert_eq!(ScriptForm::Digest.after(&unknown), source);
        assert_eq!(ScriptForm::Source.after(&unknown), None);
        let other = error("-LOADING Redis is loading the dataset in memory\r\n");
        for reply in [Ok(()), other] {
            assert_eq!(ScriptForm::Digest.after(&reply), None);
        }
    }

    /// The second text is that of Redis 8, which does not name the key.
    #[test]
    fn the_script_decides_whether_a_missing_right_is_about_its_queue() {
        let lock = CohortKeys::of(Keys::new("a".into(), "lock:", "r:"));
        let hint = |call: &Call<'_>, text| call.missing_right(text).contains("queues(false)");
        let arguments = ["x", "y"].map(|id| id.as_bytes().to_vec());
        let (undo, inspect) = (lock.undo(&arguments), lock.keys().inspect());
        for text in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
            "ERR ACL failure in script: User x has no permissions to run the 'lindex' command",
        ] {
            assert!(hint(&undo, text), "{text}");
            assert!(!hint(&inspect, text), "{text}");
        }
        for text in [
            "NOPERM User x has no permissions to run the 'evalsha' command",
            "ERR ACL failure in script: User x has no permissions to run the 'get' command",
            "NOPERM No permissions to access a channel",
        ] {
            assert!(!hint(&undo, text), "{text}");
        }
    }

    #[test]
    fn the_rights_name_all_keys_of_the_first_name() {
        let keys = |keys: &[&str]| keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        let (lock, others): (Vec<_>, Vec<_>) = (keys(&["l1"]), keys(&["f1", "q1", "p1"]));
        let rights = Call::new(Verb::Renew, &ADD_STATS, [&lock, &others], []).rights();
        assert!(
            rights.ends_with("on the keys l1 and f1 and q1 and p1"),
            "{rights}"
        );
        let (locks, others) = (keys(&["l1", "l2"]), keys(&["f1", "f2", "q1", "q2"]));
        let rights = Call::new(Verb::Renew, &ADD_STATS, [&locks, &others], []).rights();
        let end = "on the keys l1 and f1 and q1, and on those of the other names";
        assert!(rights.ends_with(end), "{rights}");
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
}
