//! Encrypted connections, and the permissions of the Redis user.
//!
//! With the feature `tls`, the schemes `rediss://`, `rediss+sentinel://` and `rediss+cluster://`
//! encrypt every connection of the client. `ClientBuilder::tls_root` replaces the system's
//! certificate authorities, and `ClientBuilder::tls_client_cert` sets a certificate for servers
//! that require one. If either side does not trust the other's certificate, the call fails at once
//! with [`Error::Refused`].
//!
//! With Sentinel, the master's certificate must be valid for the host that the sentinels report,
//! usually an address. In a cluster, each node's certificate must be valid for the host that
//! `CLUSTER SLOTS` reports.
//!
//! A Redis user with no more permissions than locking needs:
//!
//! ```text
//! ACL SETUSER leasehold reset on >password resetchannels ~lock:* ~leasehold:* &lock_release:* &leasehold:* +evalsha +eval +get +set +del +time +pttl +pexpire +rpush +lpop +lindex +lrem +hset +hget +hdel +publish +subscribe +unsubscribe +ping +client|setname +select +role +wait +cluster|slots +asking
//! ```
//!
//! A missing permission fails with [`Error::Refused`]; the message lists the permissions that the
//! command or script needs. Without `+subscribe`, `+publish` or one of the channels, waiters retry
//! after growing pauses. Some calls need permissions that locking does not:
//!
//! - [`Client::list`] needs `+scan`.
//! - [`Mutex::waiting`] needs `+pubsub|numsub`, and [`FairMutex::waiting`] needs `+llen`.
//! - Sharing [statistics](crate::guide::observability#statistics) needs `~lock_stats +hincrby`;
//!   reading them needs `+hgetall`.
//!
//! The README lists which permissions are optional, and those of an operator and of a user on the
//! sentinels.
//!
//! [`Client::list`]: crate::Client::list
//! [`Error::Refused`]: crate::Error::Refused
//! [`FairMutex::waiting`]: crate::FairMutex::waiting
//! [`Mutex::waiting`]: crate::Mutex::waiting
