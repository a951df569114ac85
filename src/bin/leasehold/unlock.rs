//! `leasehold unlock`: releases a lock on behalf of its holder.

use crate::args::{Connection, Unlock, name};
use crate::exit::{Failure, NOT_HELD, USAGE, say};
use crate::record::shown_holder;

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
    if mutex.force_unlock()? {
        let holder = holder.as_ref().map_or_else(|| "-".into(), shown_holder);
        say(&format!("released {name}, which {holder} held"));
        return Ok(0);
    }
    say(&format!("{name} is not held"));
    Ok(NOT_HELD)
}
