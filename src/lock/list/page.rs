//! A page of a scan over all keys.

use std::time::Duration;

use crate::held::Held;

/// A page of a scan, as [`Client::list_pages`](crate::Client::list_pages) and
/// [`Client::list_permits_pages`](crate::Client::list_permits_pages) find it.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// # let _guard = client.mutex("account:123").lock()?;
/// # let mut shown = Vec::new();
/// client.list_pages("account:", |page| {
///     for held in page.found {
///         println!("{} is held; {:.0} % are scanned", held.name(), page.progress * 100.0);
///         # shown.push(held.name().clone());
///     }
/// })?;
/// # assert_eq!(shown, ["account:123"]);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct ListPage<'a> {
    /// What was found on this page. Most pages have nothing.
    pub found: &'a [Held],
    /// How much of the keys is scanned: 1 at the end.
    ///
    /// An estimate: it may decrease while the server resizes its table of keys. In a cluster, it
    /// counts the nodes whose scan has ended.
    pub progress: f64,
    /// How long the server took for this page, including the way there and back.
    ///
    /// The server serves no other client meanwhile, so a scan that pauses 19 times as long after
    /// each page takes at most 5 % of the server's time.
    pub took: Duration,
}
