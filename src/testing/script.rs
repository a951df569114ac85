//! The scripts, run by Lua 5.1 as Redis runs them.

use std::collections::HashMap;
use std::sync::Arc;

use mlua::{Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};
use parking_lot::Mutex;
use sha1_smol::Sha1;

use super::database::Database;
use super::reply::Reply;

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
            lua.create_function(move |lua, arguments: MultiValue| {
                let reply = match words(&format, arguments)? {
                    Ok(words) => database.lock().run_in_script(&words),
                    Err(refusal) => Reply::Error(refusal.into()),
                };
                to_lua(lua, reply)
            })?
        };
        let sha1hex = lua.create_function(|_, text: LuaString| Ok(sha1(&text.as_bytes())))?;
        let line = lua.create_function(|lua, ()| Ok(line_of_script(lua)))?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name("=prelude");
        let run = prelude.call((execute, sha1hex, line))?;
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

    pub(super) fn knows(&self, name: &str) -> bool {
        self.compiled.contains_key(name)
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
        let globals = self.lua.globals();
        for (name, words) in [("KEYS", keys), ("ARGV", args)] {
            let table = self.lua.create_table_with_capacity(words.len(), 0)?;
            for word in words {
                table.raw_push(self.lua.create_string(word)?)?;
            }
            globals.raw_set(name, table)?;
        }
        self.run.call(script)
    }
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

/// Converts what a script returned: <https://redis.io/docs/latest/develop/programmability/lua-api/>.
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

/// Words an error that the script did not catch.
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
    // The innermost function of the script: those of the prelude lie above it on the stack.
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
