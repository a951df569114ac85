//! `leasehold unlock`: a lock is taken away from its holder.

use crate::args::{Connection, Unlock, name};
use crate::exit::{Failure, NOT_HELD, USAGE, say};
use crate::record::Record;

pub(crate) fn unlock(connection: &Connection, args: &Unlock) -> Result<u8, Failure> {
    let name = name(&args.name);
    if !args.force {
        return Err(Failure::new(
            USAGE,
            format!(
                "{name} was not touched: whoever holds it may be in the middle of its work, and does not stop before its \
                 next renewal. `leasehold status` says who it is. If it is dead, the lock is free after its ttl; if that \
                 is too long: --force"
            ),
        ));
    }
    let mutex = connection.client()?.mutex(&name);
    let holder = mutex.inspect()?;
    let record = Record {
        name,
        holder,
        token: None,
    };
    if mutex.force_unlock()? {
        say(&format!(
            "{} was taken away from {}",
            record.name(),
            record.holder()
        ));
        return Ok(0);
    }
    say(&format!("nobody holds {}", record.name()));
    Ok(NOT_HELD)
}
