//! `leasehold unlock`: releases a lock on behalf of its holder.

use leasehold::Held;

use crate::args::{ConnectionArgs, Unlock, name};
use crate::exit::{Failure, NOT_HELD, USAGE};
use crate::message::note;
use crate::record::shown_holder;

pub(crate) fn unlock(connection: &ConnectionArgs, args: &Unlock) -> Result<u8, Failure> {
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
    let client = connection.client()?;
    let mutex = client.mutex(&name);
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
    // The name itself is valid: `inspect` has checked it. The query does not depend on the number
    // of permits. If Redis refuses it, the message is about the lock alone.
    let held = client.semaphore(&name, 1).inspect().ok().flatten();
    let permits = held.as_ref().map_or(0, Held::permits);
    note(&match permits {
        0 => format!("{name} is not held"),
        _ => format!(
            "the lock {name} is not held; {permits} permit{} of the semaphore {name} {} out: they \
             return on release, or after their ttl if the holder is dead; \
             Semaphore::force_release takes them away",
            if permits == 1 { "" } else { "s" },
            if permits == 1 { "is" } else { "are" },
        ),
    });
    Ok(NOT_HELD)
}
