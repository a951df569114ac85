//! The Lua scripts, as calls that can be sent, and what comes back.

use std::sync::LazyLock;

use redis::Value;

/// A script that Redis runs as one step.
#[derive(Debug)]
pub(crate) struct Script {
    /// What errors and logs call it.
    pub(crate) name: &'static str,
    source: &'static str,
    sha: LazyLock<String>,
}

macro_rules! script {
    ($name:literal) => {{
        const SOURCE: &str = include_str!(concat!("scripts/", $name, ".lua"));
        Script {
            name: $name,
            source: SOURCE,
            sha: LazyLock::new(|| redis::Script::new(SOURCE).get_hash().to_owned()),
        }
    }};
}

pub(crate) static ACQUIRE: Script = script!("acquire");
pub(crate) static PROPOSE: Script = script!("propose");
pub(crate) static RELEASE: Script = script!("release");
pub(crate) static RENEW: Script = script!("renew");
pub(crate) static INSPECT: Script = script!("inspect");

/// One call of a script, ready to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) script: &'static Script,
    pub(crate) keys: [&'a [u8]; 2],
    pub(crate) args: [Arg<'a>; 3],
}

/// An argument of a call; the absent ones are the last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Arg<'a> {
    Bytes(&'a [u8]),
    Number(u64),
    #[default]
    Absent,
}

impl Call<'_> {
    /// Appends the call by the script's digest: what is sent first.
    pub(crate) fn pack_by_sha(&self, buffer: &mut Vec<u8>) {
        self.pack("EVALSHA", &self.script.sha, buffer);
    }

    /// Appends the call with the script's text, for a server that does not know the digest.
    pub(crate) fn pack_by_source(&self, buffer: &mut Vec<u8>) {
        self.pack("EVAL", self.script.source, buffer);
    }

    fn pack(&self, verb: &str, script: &str, buffer: &mut Vec<u8>) {
        // Roomy enough for usual names, so that building the command allocates twice.
        let mut command = redis::Cmd::with_capacity(8, 256);
        command
            .arg(verb)
            .arg(script)
            .arg(self.keys.len())
            .arg(&self.keys[..]);
        for arg in &self.args {
            match arg {
                Arg::Bytes(bytes) => command.arg(bytes),
                Arg::Number(number) => command.arg(number),
                Arg::Absent => break,
            };
        }
        command.write_packed_command(buffer);
    }
}

/// An answer, without the client library's types.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Self>),
    Other,
}

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        match value {
            Value::Nil => Self::Nil,
            Value::Int(n) => Self::Int(n),
            Value::BulkString(text) => Self::Text(text),
            Value::SimpleString(text) => Self::Text(text.into_bytes()),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        let args = [Arg::Bytes(b"\xff"), Arg::Number(7), Arg::Absent];
        let call = Call {
            script: &RELEASE,
            keys: [b"k", b"n"],
            args,
        };
        let mut sent = Vec::new();
        call.pack_by_sha(&mut sent);
        assert!(sent.starts_with(b"*7\r\n$7\r\nEVALSHA\r\n$40\r\n"));
        assert!(sent.ends_with(b"$1\r\n2\r\n$1\r\nk\r\n$1\r\nn\r\n$1\r\n\xff\r\n$1\r\n7\r\n"));
        let mut sent = Vec::new();
        call.pack_by_source(&mut sent);
        assert!(sent.starts_with(b"*7\r\n$4\r\nEVAL\r\n"));
    }
}
