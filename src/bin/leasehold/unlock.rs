//! `leasehold unlock`: releases a lock on behalf of its holder.

use crate::args::{Connection, Unlock, name};
use crate::exit::{Failure, NOT_HELD, USAGE};
use crate::message::note;
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
    while let Some(holder) = mutex.inspect()? {
        // Fails if the lock has changed hands meanwhile: then there is another holder to remove.
        if mutex.force_unlock_from(&holder)? {
            note(&format!(
                "released {name}, which {} held",
                shown_holder(&holder)
            ));
            return Ok(0);
        }
    }
    note(&format!("{name} is not held"));
    Ok(NOT_HELD)
}
