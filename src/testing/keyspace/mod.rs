//! The data of the test kit's server, and the commands on it, which behave as in Redis 7.
//!
//! Nothing here does I/O or reads a clock. The caller passes the server's time to each command, and
//! that time never goes back.

pub(super) mod args;
mod data;
mod expiry;
pub(super) mod glob;
mod hashes;
mod lists;
mod scan;
mod sets;
mod sorted_sets;
mod strings;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use self::data::Keyspace;
use self::data::Outcome;
use super::reply::Reply;

/// A command: its name, its arity and its implementation.
///
/// As in Redis, the arity counts the name, and a negative arity `-n` means `n` words or more.
type Command = (
    &'static str,
    isize,
    fn(&mut Keyspace, &[Vec<u8>]) -> Outcome,
);

/// The commands that the crate's scripts, client and tests use.
const COMMANDS: &[Command] = &[
    ("GET", 2, strings::get),
    ("SET", -3, strings::set),
    ("INCR", 2, strings::incr),
    ("MGET", -2, strings::mget),
    ("DEL", -2, Keyspace::del),
    ("EXISTS", -2, Keyspace::exists),
    ("TYPE", 2, Keyspace::kind_of),
    ("TIME", 1, Keyspace::time),
    ("DBSIZE", 1, Keyspace::size),
    ("FLUSHALL", -1, Keyspace::flush),
    ("PTTL", 2, expiry::pttl),
    ("PEXPIRE", -3, expiry::pexpire),
    ("PEXPIREAT", -3, expiry::pexpireat),
    ("PERSIST", 2, expiry::persist),
    ("HGET", 3, hashes::hget),
    ("HSET", -4, hashes::hset),
    ("HDEL", -3, hashes::hdel),
    ("HINCRBY", 4, hashes::hincrby),
    ("HGETALL", 2, hashes::hgetall),
    ("HVALS", 2, hashes::hvals),
    ("HLEN", 2, hashes::hlen),
    ("LINDEX", 3, lists::lindex),
    ("LPOP", -2, lists::lpop),
    ("RPUSH", -3, lists::rpush),
    ("LPUSH", -3, lists::lpush),
    ("LREM", 4, lists::lrem),
    ("LLEN", 2, lists::llen),
    ("LRANGE", 4, lists::lrange),
    ("SADD", -3, sets::sadd),
    ("SREM", -3, sets::srem),
    ("SCARD", 2, sets::scard),
    ("SMEMBERS", 2, sets::smembers),
    ("ZADD", -4, sorted_sets::zadd),
    ("ZINCRBY", 4, sorted_sets::zincrby),
    ("ZRANGE", -4, sorted_sets::zrange),
    ("ZRANGEBYSCORE", -4, sorted_sets::zrangebyscore),
    ("ZREM", -3, sorted_sets::zrem),
    ("ZSCORE", 3, sorted_sets::zscore),
    ("ZREMRANGEBYSCORE", 4, sorted_sets::zremrangebyscore),
    ("KEYS", 2, scan::keys),
    ("SCAN", -2, scan::scan),
];

impl Keyspace {
    /// Runs a command. `args` begins with the command's name.
    pub(crate) fn execute(&mut self, now_micros: u64, args: &[Vec<u8>]) -> Reply {
        self.now_micros = now_micros;
        let Some(name) = args.first() else {
            return Reply::Error("ERR empty command".to_owned());
        };
        let known = COMMANDS
            .iter()
            .find(|(known, ..)| name.eq_ignore_ascii_case(known.as_bytes()));
        let Some((name, arity, run)) = known else {
            let name = name.escape_ascii();
            return Reply::Error(format!(
                "ERR unknown command '{name}': leasehold::testing has no such command"
            ));
        };
        let is_complete = match *arity {
            least if least < 0 => args.len() >= least.unsigned_abs(),
            exact => args.len() == exact.unsigned_abs(),
        };
        let outcome = if is_complete {
            run(self, args)
        } else {
            Err(args::wrong_number(name))
        };
        outcome.unwrap_or_else(Reply::Error)
    }
}
