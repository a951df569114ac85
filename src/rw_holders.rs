//! The holders of a read-write lock, as other clients see them.

use std::fmt;

use crate::holder::Holder;

/// The holders of an [`RwLock`](crate::RwLock), as [`RwLock::inspect`](crate::RwLock::inspect)
/// found them.
///
/// ```
/// use leasehold::RwHolders;
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
///
/// let catalogue = client.rw_lock("catalogue");
/// # let reading = catalogue.read()?;
/// match catalogue.inspect()? {
///     Some(RwHolders::Writer(writer)) => println!("being written by {writer}"),
///     Some(RwHolders::Readers(readers)) => println!("being read by {} readers", readers.len()),
///     None => println!("free"),
/// }
/// if let Some(holders) = catalogue.inspect()? {
///     // readers web-1/12:1b9d6bcd, for another 8.2 s; web-2/7:ef052da9, for another 9.9 s
///     println!("{holders}");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(PartialEq))]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "lowercase")
)]
pub enum RwHolders {
    /// A writer, a holder of a [`Mutex`](crate::Mutex) or a [`FairMutex`](crate::FairMutex) of the
    /// same name, or another program.
    Writer(Holder),
    /// The readers, at least one, each with its own time left, sorted by when their leases end: the
    /// first 10,000 if there are more, and fewer if their ids are long.
    Readers(Vec<Holder>),
}

/// Prints the word `writer`, `reader` or `readers`, then the holders, separated by semicolons.
impl fmt::Display for RwHolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(writer) => write!(f, "writer {writer}"),
            Self::Readers(readers) => {
                let plural = if readers.len() == 1 { "" } else { "s" };
                write!(f, "reader{plural} ")?;
                for (at, reader) in readers.iter().enumerate() {
                    write!(f, "{}{reader}", if at == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::holder_id::HolderId;

    #[test]
    fn display_distinguishes_a_writer_one_reader_and_several_readers() {
        let id = HolderId::fresh("a");
        let left = Some(Duration::from_millis(1_500));
        let holder = Holder::new(id.as_str().into(), left, None);
        let shown = format!("{}, for another 1.5 s", id.short());
        for (holders, expected) in [
            (RwHolders::Writer(holder.clone()), format!("writer {shown}")),
            (
                RwHolders::Readers(vec![holder.clone()]),
                format!("reader {shown}"),
            ),
            (
                RwHolders::Readers(vec![holder.clone(), holder]),
                format!("readers {shown}; {shown}"),
            ),
        ] {
            assert_eq!(holders.to_string(), expected);
        }
    }
}
