//! A page of a scan over all keys.

use std::time::Duration;

/// A page of a scan, as [`Client::list_pages`](crate::Client::list_pages) and
/// [`Client::list_permits_pages`](crate::Client::list_permits_pages) find it.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// # let _guard = client.mutex("account:123").lock()?;
/// # let mut shown = Vec::new();
/// client.list_pages("account:", |page| {
///     for held in page.found() {
///         println!("{} is held; {:.0} % are scanned", held.name(), page.progress() * 100.0);
///         # shown.push(held.name().clone());
///     }
/// })?;
/// # assert_eq!(shown, ["account:123"]);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
pub struct ListPage<'a, T> {
    pub(super) found: &'a [T],
    pub(super) progress: f64,
    pub(super) took: Duration,
}

impl<T> ListPage<'_, T> {
    /// Returns what was found on this page. Most pages have nothing.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let _guard = client.mutex("account:123").lock()?;
    /// let mut found = 0;
    /// client.list_pages("account:", |page| found += page.found().len())?;
    /// assert_eq!(found, 1);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn found(&self) -> &[T] {
        self.found
    }

    /// Returns how much of the keys is scanned: 1 at the end.
    ///
    /// An estimate: it may decrease while the server resizes its table of keys. In a cluster, it
    /// counts the nodes whose scan has ended.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let mut progress = 0.0;
    /// client.list_pages("account:", |page| progress = page.progress())?;
    /// assert_eq!(progress, 1.0);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn progress(&self) -> f64 {
        self.progress
    }

    /// Returns how long the server took for this page, including the way there and back.
    ///
    /// The server serves no other client meanwhile, so a scan that pauses 19 times as long after
    /// each page takes at most 5 % of the server's time.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let held = client.list_pages("", |page| std::thread::sleep(page.took() * 19))?;
    /// # assert!(held.is_empty());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn took(&self) -> Duration {
        self.took
    }
}
