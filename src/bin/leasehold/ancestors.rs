//! The runs under which this run was started, and the locks of theirs that it waits for in vain.

use std::env;
use std::thread;
use std::time::Duration;

use leasehold::crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use leasehold::{Client, Error, Held, Holder, HolderId, Name};

use crate::args::{Run, name};
use crate::exit::{Failure, USAGE};

/// The variable that tells a command the holder ids of the runs above it, one a line.
///
/// The ids are shortened: anyone who knows the whole id can release the lock.
pub(crate) const VARIABLE: &str = "LEASEHOLD_ANCESTORS";

/// The pause before each look at the holders while this run waits. One look before the wait
/// suffices unless Redis does not reply to it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The shortened holder ids of the runs above this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ancestors(Vec<String>);

impl Ancestors {
    pub(crate) fn of_environment() -> Self {
        let ids = env::var_os(VARIABLE).unwrap_or_default();
        Self(ids.to_string_lossy().lines().map(str::to_owned).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of the variable for the command of a run with these ids.
    pub(crate) fn and(&self, ids: impl Iterator<Item = String>) -> String {
        let ids = self.0.iter().cloned().chain(ids);
        ids.collect::<Vec<_>>().join("\n")
    }

    fn find(&self, id: &HolderId) -> Option<&str> {
        let id = id.short().to_string();
        let found = self.0.iter().find(|ancestor| **ancestor == id);
        found.map(String::as_str)
    }

    /// Returns the failure of a run that an ancestor's lock refuses; `None` if none does.
    ///
    /// The run must not hold its lock. The ids are compared with those at this run's own server, so
    /// an ancestor's lock on another server does not count.
    pub(crate) fn refusal(&self, client: &Client, args: &Run) -> Result<Option<Failure>, Error> {
        if self.is_empty() {
            return Ok(None);
        }
        let names = args.names();
        let mut names = names.into_iter().map(name);
        let text = match args.permits {
            Some(permits) => match names.next() {
                Some(name) => self.all_permits(client, &name, permits)?,
                None => None,
            },
            None => {
                let mut found = names.map(|name| self.lock(client, &name, args.read));
                found.find_map(Result::transpose).transpose()?
            }
        };
        Ok(text.map(|text| Failure::new(USAGE, text)))
    }

    /// Describes an ancestor that holds this name; `None` if none does.
    fn lock(&self, client: &Client, name: &Name, reads: bool) -> Result<Option<String>, Error> {
        let Some(holder) = client.mutex(name).inspect()? else {
            return Ok(None);
        };
        if let Some(id) = holder.holder_id() {
            let held = |id| format!("{name} is held by {id}, {WAITS}");
            return Ok(self.find(id).map(held));
        }
        if !holder.is_shared() {
            return Ok(None);
        }
        let catalogue = client.rw_lock(name);
        let Some(held) = catalogue.inspect()?.filter(Held::is_shared) else {
            return Ok(None);
        };
        let ids = held.holders().iter().filter_map(Holder::holder_id);
        let Some(id) = ids.filter_map(|id| self.find(id)).next() else {
            return Ok(None);
        };
        if !reads {
            return Ok(Some(format!("{name} is held for reading by {id}, {WAITS}")));
        }
        // Readers share the lock until a writer waits. Only a refused call has a place in the
        // queue, so this call is granted if there is none.
        let queue = catalogue.waiting()?;
        let behind = || format!("a writer waits for {id} to end reading {name}, {WAITS}");
        Ok((queue > 0).then(behind))
    }

    /// Describes the ancestors that hold all permits; `None` if others hold some or some are free.
    fn all_permits(
        &self,
        client: &Client,
        name: &Name,
        permits: u32,
    ) -> Result<Option<String>, Error> {
        let Some(held) = client.semaphore(name, permits).inspect()? else {
            return Ok(None);
        };
        let theirs = || {
            let found = held.holders().iter();
            found.filter_map(|holder| Some((self.find(holder.holder_id()?)?, holder.permits())))
        };
        let number: u64 = theirs().map(|(_, permits)| u64::from(permits)).sum();
        let id = theirs().map(|(id, _)| id).next();
        Ok(id
            .filter(|_| number >= u64::from(permits))
            .map(|id| format!("all {permits} permits of {name} are held by {id}, {WAITS}")))
    }
}

/// The end of each message.
const WAITS: &str = "which this run was started under: each would wait for the other. \
                     Run the command without this lock, or under another name";

/// A thread that looks for ancestors that refuse the lock, while this run waits for it.
pub(crate) struct Lookout {
    /// Receives the failure if there is one.
    pub(crate) refusal: Receiver<Failure>,
    /// Ends the thread when it is dropped.
    _waits: Sender<()>,
}

impl Lookout {
    /// Starts the thread; no thread if there are no ancestors.
    pub(crate) fn start(client: &Client, args: &Run) -> Result<Option<Self>, Failure> {
        let ancestors = Ancestors::of_environment();
        if ancestors.is_empty() {
            return Ok(None);
        }
        let (tell, refusal) = bounded(1);
        let (waits, ended) = bounded::<()>(0);
        let (client, args) = (client.clone(), args.clone());
        let look = move || {
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                // If Redis does not reply or refuses the query, the wait itself reports that.
                if let Ok(Some(refusal)) = ancestors.refusal(&client, &args) {
                    let _ = tell.send(refusal);
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("leasehold-ancestors".into())
            .spawn(look)
            .map_err(|error| Failure::system("cannot start a thread", &error))?;
        Ok(Some(Self {
            refusal,
            _waits: waits,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_has_one_line_for_each_ancestor() {
        let none = Ancestors(Vec::new());
        assert_eq!(
            none.and(["a b/1:0123abcd".to_owned()].into_iter()),
            "a b/1:0123abcd"
        );
        let one = Ancestors(vec!["a b/1:0123abcd".into()]);
        assert_eq!(
            one.and(["c/2:4567cdef".to_owned()].into_iter()),
            "a b/1:0123abcd\nc/2:4567cdef"
        );
    }
}
