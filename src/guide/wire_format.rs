//! The keys and channels in Redis, and how other programs can share a lock.
//!
//! For a lock named `x`, with the default prefixes:
//!
//! | key or channel | type | contents |
//! |---|---|---|
//! | `lock:x` | string with a ttl | the holder id, `<owner>:<uuid>`, which ends in `000`, or in a number at a server of a quorum that was healed; the key exists while the lock is held, or kept by a set that waits |
//! | `leasehold:fence:{lock:x}` | string, expires after 24 to 25 hours, counted from the time that the token is made of if the clock was set back | the last fencing token |
//! | `lock_release:x` | channel | the holder id, for each release that frees the lock; `next <n> <holder id>` after a plain release, which frees it although *n* of the first 100 places wait: the id is that of the first one |
//! | `leasehold:queue:{lock:x}` | list | the queue of plain, fair and read-write locks and of sets: holder ids in order of arrival |
//! | `leasehold:places:{lock:x}` | hash | for each entry of the queue: when it was last refreshed, and where its grant is sent |
//! | `leasehold:readers:{lock:x}` | sorted set | while readers hold `x`: their holder ids, with the ends of their leases in ms |
//! | `leasehold:permits:{lock:x}` | sorted set | the holders of the semaphore `x`: see below |
//! | `leasehold:permits-fence:…`, `…-queue:…`, `…-places:…` | | the same for the semaphore `x` as the keys above for a lock |
//! | `leasehold:<uuid>` | channel | the inbox of a client: `grant <token> <want> <holder id>` for each grant to one of its places; `refresh <holder id>` if its client must refresh its place; messages of the client to itself |
//! | `leasehold:fence:probe:<uuid>` | string, expires after 5 s | written by a client that compares two of its connections: do they lead to one server? |
//! | `lock_stats` | hash | the [shared statistics](super::observability#statistics), if a client shares them |
//!
//! [`key_prefix`](crate::ClientBuilder::key_prefix) and
//! [`channel_prefix`](crate::ClientBuilder::channel_prefix) replace `lock:` and `lock_release:`. If
//! the name has a hash tag, the other keys end in `:lock:…` without further braces, so that
//! all keys of a name are in one slot.
//!
//! # Permits
//!
//! A semaphore is independent of the lock of the same name. Each of its holders is a member of
//! the sorted set: `<k> <owner>:<uuid>` holds *k* permits, and its score is when they end, in ms of
//! the server's clock. The member `out` has the score −*n* while *n* permits are out. The set ends
//! with the last permit. If someone deletes it, all holders lose their permits, and the count
//! starts from zero. Other programs cannot share a semaphore.
//!
//! # Readers
//!
//! A writer of a read-write lock holds `lock:x` as a mutex does. While readers hold it, the key
//! contains `leasehold:readers`. So a program that acquires the key with `SET … NX` is kept out by
//! readers, and keeps them out.
//!
//! The last reader to release deletes the key. If readers crash, the key expires when the last of
//! their leases ends.
//!
//! # Sharing a lock with other programs
//!
//! A program in any language shares the lock with these three commands:
//!
//! ```text
//! SET lock:x <unique value> NX PX 10000            acquires; a nil reply means that it is held
//! EVAL "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0" 1 lock:x <unique value>
//! PUBLISH lock_release:x <unique value>            wakes waiters at once; optional
//! ```
//!
//! - The value must be unique for each attempt.
//! - Not every release publishes: one that grants the lock to a client in the queue frees nothing.
//! - While a plain lock passes from client to client, each of which waits with one thread, at least
//!   one release in 90 ms is a plain one, which deletes the key, publishes, and leaves the lock
//!   free for 2 ms, so that a program that asks every 100 ms gets it within 30 s in 99 of 100
//!   cases.
//! - A run of [local hand-offs](crate::Mutex::local_handoffs) has no such release, and lasts at most
//!   1 s and one critical section. No release is a plain one if it is that of a set, a fair lock
//!   or a writer, or while a fair lock or a read-write lock is among the first 100 places of the
//!   queue: then the wait has no bound.
//! - Without the `PUBLISH`, or if a program or a person deletes the key, clients in the queue
//!   notice that the lock is free at their next refresh, within 0.9 s. Until then, a program that
//!   asks again at once gets it again.
//! - A program that uses these commands draws no fencing token, and does not enter the queue.
//! - [`Client::list`](crate::Client::list) and `leasehold status` show holders of both kinds.
