//! `leasehold unlock`: releases a lock on behalf of its holder.

use crate::args::{Connection, Unlock, name};
use crate::exit::{Failure, NOT_HELD, USAGE, say};
use crate::record::Record;

pub(crate) fn unlock(connection: &Connection, args: &Unlock) -> Result<u8, Failure> {
    let name = name(&args.name);
    if !args.force {
        return Err(Failure::new(
            USAGE,
            format!(
                "{name} was not released: its holder may still be working under it, and would \
                 not notice before its next renewal. `leasehold status` shows the holder. If it is \
                 dead, the lock is free after its ttl; to release it now, add --force"
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
            "released {}, which {} held",
            record.name(),
            record.holder()
        ));
        return Ok(0);
    }
    say(&format!("{} is not held", record.name()));
    Ok(NOT_HELD)
}
