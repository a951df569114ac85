//! The Lua scripts, as calls that can be sent, and what comes back.

use std::borrow::Cow;
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
pub(crate) static RELEASE: Script = script!("release");
pub(crate) static RENEW: Script = script!("renew");
pub(crate) static INSPECT: Script = script!("inspect");

/// One call of a script, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) script: &'static Script,
    pub(crate) keys: [&'a [u8]; 2],
    pub(crate) args: Vec<Cow<'a, [u8]>>,
}

impl Call<'_> {
    /// The call by the script's digest: what is sent first.
    pub(crate) fn by_sha(&self) -> Vec<u8> {
        self.pack("EVALSHA", &self.script.sha)
    }

    /// The call with the script's text, for a server that does not know the digest.
    pub(crate) fn by_source(&self) -> Vec<u8> {
        self.pack("EVAL", self.script.source)
    }

    fn pack(&self, verb: &str, script: &str) -> Vec<u8> {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len()).arg(&self.keys[..]);
        for arg in &self.args {
            command.arg(&**arg);
        }
        command.get_packed_command()
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
        let call = Call {
            script: &RELEASE,
            keys: [b"k", b"n"],
            args: vec![Cow::from(&b"id"[..]), Cow::from(&b"\xff"[..])],
        };
        let sent = call.by_sha();
        assert!(sent.starts_with(b"*7\r\n$7\r\nEVALSHA\r\n$40\r\n"));
        assert!(sent.ends_with(b"$1\r\n2\r\n$1\r\nk\r\n$1\r\nn\r\n$2\r\nid\r\n$1\r\n\xff\r\n"));
        assert!(call.by_source().starts_with(b"*7\r\n$4\r\nEVAL\r\n"));
    }
}
