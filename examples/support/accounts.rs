//! A table of accounts, which stands for your database. It rejects a holder that was overtaken.

use leasehold::FencingToken;
use redis::{Commands, FromRedisValue, RedisResult};

use super::data::key;

/// Both scripts begin with this. It answers nil, and changes nothing, if one of the rows was
/// claimed with a higher token: a later holder was here.
const COMPARE: &str = "
    for i, row in ipairs(KEYS) do
      if tonumber(redis.call('hget', row, 'fence')) > tonumber(ARGV[i]) then return false end
    end
";

const CLAIM: &str = "
    local balances = {}
    for i, row in ipairs(KEYS) do
      redis.call('hset', row, 'fence', ARGV[i])
      balances[i] = redis.call('hget', row, 'balance')
    end
    return balances
";

const WRITE: &str = "
    for i, row in ipairs(KEYS) do
      redis.call('hset', row, 'fence', ARGV[i], 'balance', ARGV[#KEYS + i])
    end
    return 1
";

/// Rows with a balance and the highest token that has claimed the row.
pub(crate) struct Accounts(pub(crate) redis::Connection);

impl Accounts {
    pub(crate) fn open(&mut self, account: &str, balance: i64) -> RedisResult<()> {
        let () = self.0.hset(key(account), "fence", 0)?;
        self.0.hset(key(account), "balance", balance)
    }

    pub(crate) fn balance(&mut self, account: &str) -> RedisResult<i64> {
        self.0.hget(key(account), "balance")
    }

    /// Claims the rows, each with the token of its own name, and reads their balances.
    ///
    /// Returns `None` if a later holder has claimed one of them. After a claim, writes of earlier
    /// holders are rejected.
    pub(crate) fn claim<const N: usize>(
        &mut self,
        rows: [(&str, FencingToken); N],
    ) -> RedisResult<Option<[i64; N]>> {
        self.run(CLAIM, rows, &[])
    }

    /// Writes the balances, all or none.
    ///
    /// Returns false, and changes nothing, if a later holder has claimed one of the rows.
    pub(crate) fn write<const N: usize>(
        &mut self,
        rows: [(&str, FencingToken); N],
        balances: [i64; N],
    ) -> RedisResult<bool> {
        let written: Option<i64> = self.run(WRITE, rows, &balances)?;
        Ok(written.is_some())
    }

    /// Runs `COMPARE` and then `script`, in one step.
    fn run<T: FromRedisValue, const N: usize>(
        &mut self,
        script: &str,
        rows: [(&str, FencingToken); N],
        balances: &[i64],
    ) -> RedisResult<T> {
        redis::cmd("EVAL")
            .arg([COMPARE, script].concat())
            .arg(N)
            .arg(rows.map(|(account, _)| key(account)).as_slice())
            .arg(rows.map(|(_, token)| token.value()).as_slice())
            .arg(balances)
            .query(&mut self.0)
    }
}
