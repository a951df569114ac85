//! The settings that every kind of lock has, documented once.

/// Implements the setters of `$lock`. `$settings` is the path from `self` to its `Settings`, such
/// as `0.settings`.
///
/// The examples make the lock with `$lock_example`, and acquire it with `$acquire_example`.
macro_rules! lock_settings {
    ($lock:ident, $lock_example:literal, $acquire_example:literal, $($settings:tt)+) => {
        /// Settings. Each setter consumes the lock and returns it.
        impl $lock {
            /// Sets how long a lease lasts unless it is renewed.
            ///
            /// At least 10 ms. Defaults to the client's [`ttl`](crate::ClientBuilder::ttl), 10 s
            /// unless set.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            /// // Free again at most 30 s after this process has died.
            #[doc = concat!($lock_example, ".ttl(Duration::from_secs(30));")]
            #[doc = $acquire_example]
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use]
            pub fn ttl(mut self, ttl: ::std::time::Duration) -> Self {
                self.$($settings)+.ttl = Some(ttl);
                self
            }

            /// Sets how often a held lease is renewed.
            ///
            /// At most nine tenths of the ttl. An interval of more than nine tenths of the time for
            /// which the lease [is certain](crate::guide::ttl#how-long-a-lease-is-certain) is
            /// shortened to that: to about 8.1 s with a ttl of 10 s. Defaults to a third of the
            /// ttl, which leaves time for two retries.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            /// // Five renewals in a row may fail before the lease ends.
            #[doc = $lock_example]
            ///     .ttl(Duration::from_secs(30))
            ///     .renew_every(Duration::from_secs(5));
            #[doc = $acquire_example]
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use]
            pub fn renew_every(mut self, interval: ::std::time::Duration) -> Self {
                self.$($settings)+.renew_every = Some(interval);
                self
            }

            /// Sets whether a held lease is renewed in the background. Defaults to true.
            ///
            /// Without renewal the lease ends after the ttl, whatever its holder does, unless the
            /// holder calls `renew` or `set_ttl` on the guard.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            /// // Ends after 5 s, even if this process is alive and busy.
            #[doc = $lock_example]
            ///     .ttl(Duration::from_secs(5))
            ///     .auto_renew(false);
            #[doc = $acquire_example]
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use]
            pub fn auto_renew(mut self, renewed: bool) -> Self {
                self.$($settings)+.no_renewal = !renewed;
                self
            }

            /// Sets the longest time for which the lock is held. Defaults to no limit.
            ///
            /// After that time renewal stops, the lock counts as lost
            /// ([`Lost::MaxHold`](crate::Lost::MaxHold)), and the key stays until the guard is
            /// dropped or its ttl ends, because the critical section may still run.
            ///
            /// Renewal proves that the process lives, not that it works: without a limit, the lease
            /// of a critical section that hangs is renewed for ever. Instead of a limit, the loop
            /// that does the work can call [`renew`](crate::Lease::renew) itself, with
            /// [`auto_renew(false)`](Self::auto_renew).
            ///
            /// ```
            /// # use std::time::Duration;
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            /// // Lost after ten minutes, even if the critical section hangs.
            #[doc = concat!($lock_example, ".max_hold(Duration::from_secs(600));")]
            #[doc = $acquire_example]
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use]
            pub fn max_hold(mut self, longest: ::std::time::Duration) -> Self {
                self.$($settings)+.max_hold = Some(longest);
                self
            }

            /// Attaches an identifier, such as a request id, to every log record about this lock.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = concat!($lock_example, r#".trace_id("request-7f3a");"#)]
            #[doc = $acquire_example]
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use]
            pub fn trace_id(mut self, id: impl Into<::std::sync::Arc<str>>) -> Self {
                self.$($settings)+.trace_id = Some(id.into());
                self
            }

            /// Calls `callback` once when a lease of this lock is lost.
            ///
            /// All callbacks of a client run one after another on one thread. A slow callback
            /// delays the next ones, and a panic ends only that callback; neither affects a lease.
            /// Calls that wait for their turn stay in memory, without a limit on their number: a
            /// callback must return.
            /// The receiver that the guard's `lost` returns gets its message sooner. `callback`
            /// receives only the reason: capture the lock's name in the closure.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = concat!($lock_example, r#".on_lost(|lost| eprintln!("stop: {lost}"));"#)]
            #[doc = $acquire_example]
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use]
            pub fn on_lost(
                mut self,
                callback: impl Fn(&crate::Lost) + Send + Sync + 'static,
            ) -> Self {
                self.$($settings)+.on_lost = Some(::std::sync::Arc::new(callback));
                self
            }

            /// Calls `callback` after every renewal that Redis confirmed, on the callback thread.
            ///
            /// Like that of [`on_lost`](Self::on_lost), `callback` must return: while one blocks,
            /// the others wait. Renewals are not reported while 1,000 calls wait.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = concat!($lock_example, ".on_renew(|renewed| {")]
            ///     println!("{} is held for another {:?}", renewed.name(), renewed.remaining());
            /// });
            #[doc = $acquire_example]
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use]
            pub fn on_renew(
                mut self,
                callback: impl Fn(&crate::Renewed) + Send + Sync + 'static,
            ) -> Self {
                self.$($settings)+.on_renew = Some(::std::sync::Arc::new(callback));
                self
            }

            /// Sets how a waiting call learns that the lock may be free.
            ///
            /// Defaults to [`WaitPolicy::Wake`](crate::WaitPolicy::Wake).
            ///
            /// ```
            /// use std::time::Duration;
            /// use leasehold::{Backoff, WaitPolicy};
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            ///
            /// let pauses = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
            #[doc = concat!($lock_example, ".wait_policy(WaitPolicy::Backoff(pauses));")]
            #[doc = $acquire_example]
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use]
            pub fn wait_policy(mut self, policy: crate::WaitPolicy) -> Self {
                self.$($settings)+.wait = policy;
                self
            }

            /// Cancels the calls that acquire this lock once `token` is cancelled.
            ///
            /// A call that is cancelled while it waits or asks Redis fails at once with
            /// [`Error::Cancelled`](crate::Error::Cancelled), even if Redis does not answer. What
            /// it has sent is undone in the background. Every later call that acquires the lock
            /// fails in the same way. Guards, and calls that acquire nothing, are not affected.
            ///
            /// The client's own thread sends the commands of such a call, so that its caller can
            /// leave it at any moment. That costs the change of threads for each call.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            /// let token = leasehold::CancelToken::new();
            #[doc = concat!($lock_example, ".cancel_on(&token);")]
            #[doc = $acquire_example]
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use]
            pub fn cancel_on(mut self, token: &crate::CancelToken) -> Self {
                self.$($settings)+.cancel = Some(token.clone());
                self
            }

            /// Sets how many replicas must acknowledge the lease and each of its renewals.
            ///
            /// They must do so within `within`, which is at least 1 ms and at most the command
            /// timeout less 200 ms, because Redis can answer up to 200 ms late. A `count` of 0
            /// asks for none. Defaults to the client's
            /// [`min_replicas`](crate::ClientBuilder::min_replicas), none unless set.
            ///
            /// A lease that too few replicas acknowledge is undone, and the call fails with
            /// [`Error::NotReplicated`](crate::Error::NotReplicated). A renewal that too few
            /// acknowledge does not lengthen the time that the holder counts on. The
            /// acknowledgement costs no round trip: `WAIT` is sent behind the script in the same
            /// write.
            ///
            /// A granted lease is known to the master and to `count` replicas, which limits [what a
            /// failover can cost](crate::guide::sentinel#what-a-failover-can-cost). A master that
            /// is cut off from its replicas grants nothing, because nobody acknowledges. The
            /// fencing token rises in every case.
            ///
            /// Available for one server, Sentinel and Cluster. Over a quorum of independent
            /// servers the first call that locks fails with
            /// [`Error::Config`](crate::Error::Config).
            ///
            /// ```
            /// # use std::time::Duration;
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            /// // Granted only if a replica knows the lease.
            #[doc = concat!($lock_example, ".min_replicas(1, Duration::from_millis(100));")]
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use]
            pub fn min_replicas(mut self, count: usize, within: ::std::time::Duration) -> Self {
                self.$($settings)+.replicas = Some(crate::replicas::Replicas {
                    wanted: count,
                    within,
                });
                self
            }
        }
    };
}
pub(crate) use lock_settings;
