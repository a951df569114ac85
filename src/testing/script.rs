//! The scripts, run by Lua 5.1 as Redis runs them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mlua::{Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};
use sha1_smol::Sha1;

use super::database::Database;
use super::reply::Reply;

use crate::sync::Mutex;

/// The name of a script in Redis' error messages.
const CHUNK: &str = "@user_script";

/// The interpreter of a server, and the scripts that it has compiled.
pub(super) struct Scripts {
    lua: Lua,
    /// Runs a compiled script; made by the prelude.
    run: Function,
    compiled: HashMap<String, Function>,
}

impl Scripts {
    /// Starts an interpreter whose `redis.call` reaches `database`.
    pub(super) fn new(database: &Arc<Mutex<Database>>) -> mlua::Result<Self> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        let format: Function = lua.globals().get::<Table>("string")?.get("format")?;
        let execute = {
            let database = Arc::clone(database);
            move |arguments: MultiValue| -> mlua::Result<Reply> {
                Ok(match words(&format, arguments)? {
                    Ok(words) => database.lock().run_in_script(&words),
                    Err(refusal) => Reply::Error(refusal.into()),
                })
            }
        };
        let execute = Arc::new(execute);
        let protected = Arc::clone(&execute);
        let protected =
            lua.create_function(move |lua, arguments| to_lua(lua, protected(arguments)?))?;
        let call =
            lua.create_function(
                move |lua, arguments: MultiValue| match execute(arguments)? {
                    Reply::Error(text) => Err(mlua::Error::external(Raised(text))),
                    reply => to_lua(lua, reply),
                },
            )?;
        let reply_of = lua.create_function(|lua, raised| to_lua(lua, raised_reply(&raised)))?;
        let sha1hex = lua.create_function(|_, text: LuaString| Ok(sha1(&text.as_bytes())))?;
        let line = lua.create_function(|lua, ()| Ok(line_of_script(lua)))?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name("=prelude");
        let run = prelude.call((call, protected, reply_of, sha1hex, line))?;
        Ok(Self {
            lua,
            run,
            compiled: HashMap::new(),
        })
    }

    /// Compiles a script, and returns the digest that is its name.
    ///
    /// # Errors
    ///
    /// The error reply, for a script that is no Lua.
    pub(super) fn load(&mut self, source: &[u8]) -> Result<String, Reply> {
        let name = sha1(source);
        if !self.compiled.contains_key(&name) {
            let chunk = self.lua.load(source).set_name(CHUNK);
            let function = chunk.into_function().map_err(|error| {
                let error = error.to_string();
                let text = error.trim_start_matches("syntax error: ");
                Reply::Error(format!("ERR Error compiling script (new function): {text}"))
            })?;
            self.compiled.insert(name.clone(), function);
        }
        Ok(name)
    }

    pub(super) fn flush(&mut self) {
        self.compiled.clear();
    }

    /// Runs a compiled script; `None` if no script has this name.
    pub(super) fn run(&self, name: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Option<Reply> {
        let script = self.compiled.get(name)?;
        let ran = self.evaluate(script, keys, args);
        Some(match ran {
            Ok((true, value)) => to_reply(value),
            Ok((false, error)) => uncaught(&error, name),
            // Out of memory, or a fault of the kit: scripts' own errors were caught.
            Err(error) => Reply::Error(format!("ERR Error running script {name}: {error}")),
        })
    }

    fn evaluate(
        &self,
        script: &Function,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> mlua::Result<(bool, Value)> {
        let list = |words: &[Vec<u8>]| {
            let words = words.iter().map(|word| self.lua.create_string(word));
            let words = words.collect::<mlua::Result<Vec<_>>>()?;
            self.lua.create_sequence_from(words)
        };
        self.run.call((script, list(keys)?, list(args)?))
    }
}

/// An error reply that `redis.call` raises. `redis.call` is a function of the host: if it were a
/// function of Lua, `return redis.call(…)` would be a tail call, which removes the script from the
/// stack, and so its line from the error.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Returns the error reply that a function of the host has raised.
fn raised_reply(raised: &Value) -> Reply {
    let error = raised.as_error();
    let reply = error.and_then(|error| error.downcast_ref::<Raised>());
    Reply::Error(match (reply, error) {
        (Some(Raised(text)), _) => text.clone(),
        (None, Some(error)) => format!("ERR {error}"),
        (None, None) => "ERR unknown error".into(),
    })
}

pub(super) fn sha1(bytes: &[u8]) -> String {
    Sha1::from(bytes).digest().to_string()
}

/// Returns the words of a command; the inner error is for the script.
fn words(
    format: &Function,
    arguments: MultiValue,
) -> mlua::Result<Result<Vec<Vec<u8>>, &'static str>> {
    if arguments.is_empty() {
        return Ok(Err(
            "ERR Please specify at least one argument for this redis lib call",
        ));
    }
    let mut words = Vec::with_capacity(arguments.len());
    for argument in arguments {
        words.push(match argument {
            Value::String(text) => text.as_bytes().to_vec(),
            Value::Integer(number) => number.to_string().into_bytes(),
            // Lua's own conversion would round to 14 digits.
            number @ Value::Number(_) => format
                .call::<LuaString>(("%.17g", number))?
                .as_bytes()
                .to_vec(),
            _ => {
                return Ok(Err(
                    "ERR Lua redis lib command arguments must be strings or integers",
                ));
            }
        });
    }
    Ok(Ok(words))
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let single = |field: &str, text: &str| -> mlua::Result<Value> {
        let table = lua.create_table()?;
        table.raw_set(field, text)?;
        Ok(Value::Table(table))
    };
    Ok(match reply {
        Reply::Status(text) => single("ok", text)?,
        Reply::Error(text) => single("err", &text)?,
        // As a number of Lua 5.1: beyond 2^53 it is rounded.
        Reply::Int(number) => Value::Number(number as f64),
        Reply::Bulk(Some(bytes)) => Value::String(lua.create_string(bytes)?),
        Reply::Bulk(None) | Reply::Array(None) => Value::Boolean(false),
        Reply::Array(Some(items)) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                table.raw_push(to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
    })
}

/// Converts what a script returned:
/// <https://redis.io/docs/latest/develop/programmability/lua-api/>.
fn to_reply(value: Value) -> Reply {
    match value {
        Value::String(text) => Reply::Bulk(Some(text.as_bytes().to_vec())),
        Value::Integer(number) => Reply::Int(number),
        Value::Number(number) => Reply::Int(number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => table_to_reply(&table),
        _ => Reply::Bulk(None),
    }
}

fn table_to_reply(table: &Table) -> Reply {
    let text = |field: &str| match table.raw_get(field) {
        Ok(Value::String(text)) => Some(String::from_utf8_lossy(&text.as_bytes()).into_owned()),
        _ => None,
    };
    if let Some(error) = text("err") {
        return Reply::Error(error);
    }
    match text("ok").as_deref() {
        Some("OK") => return Reply::Status("OK"),
        Some(other) => return Reply::Bulk(Some(other.into())),
        None => {}
    }
    // The array ends at the first nil.
    let items = (1..).map_while(|n| match table.raw_get(n) {
        Ok(Value::Nil) | Err(_) => None,
        Ok(value) => Some(to_reply(value)),
    });
    Reply::Array(Some(items.collect()))
}

/// Returns the reply for an error that the script did not catch.
fn uncaught(error: &Value, name: &str) -> Reply {
    let field = |field: &str| error.as_table()?.get::<String>(field).ok();
    let text = field("err").unwrap_or_else(|| "ERR unknown error".into());
    Reply::Error(match field("line") {
        Some(line) => format!("{text} script: {name}, on {CHUNK}:{line}."),
        None => text,
    })
}

/// Returns the line that the script has reached.
fn line_of_script(lua: &Lua) -> Option<usize> {
    let mut level = 0;
    // Finds the innermost function of the script: those of the prelude are above it on the stack.
    loop {
        let line = lua.inspect_stack(level, |frame| {
            let is_script = frame.source().source.as_deref() == Some(CHUNK);
            frame.current_line().filter(|_| is_script)
        })?;
        if line.is_some() {
            return line;
        }
        level += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(source: &str) -> Reply {
        let mut scripts = Scripts::new(&Arc::default()).unwrap();
        match scripts.load(source.as_bytes()) {
            Ok(name) => scripts.run(&name, &[b"k".to_vec()], &[]).unwrap(),
            Err(error) => error,
        }
    }

    /// Scripts and their errors in Redis 7.0, without the line at the end of each error.
    const ERRORS: [(&str, &str); 14] = [
        (
            "redis.call('RPUSH', 'k', 'x') return redis.call('GET', 'k')",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
        (
            "return foo",
            "ERR user_script:1: Script attempted to access nonexistent global variable 'foo'",
        ),
        (
            "foo = 1",
            "ERR user_script:1: Attempt to modify a readonly table",
        ),
        (
            "string.format = nil",
            "ERR user_script:1: Attempt to modify a readonly table",
        ),
        (
            "redis.call = nil",
            "ERR user_script:1: Attempt to modify a readonly table",
        ),
        (
            "tostring = nil",
            "ERR user_script:1: Attempt to modify a readonly table",
        ),
        (
            "getmetatable('').__index.format = nil",
            "ERR user_script:1: Attempt to modify a readonly table",
        ),
        (
            "rawset(math, 'pi', 3)",
            "ERR Attempt to modify a readonly table",
        ),
        (
            "setmetatable(_G, nil)",
            "ERR Attempt to modify a readonly table",
        ),
        (
            "local x = nil; return x.y",
            "ERR user_script:1: attempt to index local 'x' (a nil value)",
        ),
        (
            "return redis.call({})",
            "ERR Lua redis lib command arguments must be strings or integers",
        ),
        (
            "return redis.call()",
            "ERR Please specify at least one argument for this redis lib call",
        ),
        ("error('boo')", "ERR user_script:1: boo"),
        ("error({err='FOO bar'})", "FOO bar"),
    ];

    #[test]
    fn errors_are_worded_as_redis_words_them() {
        let here =
            |source: &str| format!(" script: {}, on @user_script:1.", sha1(source.as_bytes()));
        for (source, text) in ERRORS {
            assert_eq!(run(source), Reply::Error(format!("{text}{}", here(source))));
        }
        let text =
            "ERR Error compiling script (new function): user_script:1: '<eof>' expected near 'x'";
        assert_eq!(run("return x x"), Reply::Error(text.into()));
    }

    #[test]
    fn returned_errors_contain_no_line() {
        for (source, text) in [
            ("return redis.error_reply('X')", "ERR X"),
            ("return redis.error_reply('-X')", "ERR X"),
            ("return redis.error_reply('BADFENCE a b')", "BADFENCE a b"),
            ("return {err = 'FOO bar'}", "FOO bar"),
        ] {
            assert_eq!(run(source), Reply::Error(text.into()), "{source}");
        }
    }

    #[test]
    fn values_are_converted_as_redis_converts_them() {
        let int = Reply::Int;
        for (source, reply) in [
            ("return {1, 2.9, nil, 3}", Reply::array([int(1), int(2)])),
            (
                "return {true, false, 'a'}",
                Reply::array([int(1), Reply::NIL, Reply::bulk("a")]),
            ),
            ("return -2.9", int(-2)),
            ("return redis.call('SET', 'k', 'v')", Reply::OK),
            ("return redis.call('GET', 'none') == false", int(1)),
            (
                "redis.call('SET', 'k', 1.1) return redis.call('GET', 'k')",
                Reply::bulk("1.1000000000000001"),
            ),
            (
                "redis.call('SET', 'k', 2^53 - 1) return redis.call('GET', 'k')",
                Reply::bulk("9007199254740991"),
            ),
            ("return KEYS[1] .. #ARGV", Reply::bulk("k0")),
            ("return redis.pcall('GET').err and 1", int(1)),
            ("return redis.sha1hex('')", Reply::bulk(sha1(b""))),
        ] {
            assert_eq!(run(source), reply, "{source}");
        }
    }
}
