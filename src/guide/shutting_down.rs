//! How a pool of threads or processes ends without leaving locks behind.
//!
//! A process that is killed keeps its locks until their [ttl](crate::guide::ttl) ends. One that
//! ends in order leaves none. Four steps, in this order:
//!
//! 1. Give out no more work.
//! 2. Cancel the calls that wait for locks, with a [`CancelToken`]. Holders go on.
//! 3. Join the workers: each finishes the section in which it is.
//! 4. [Shut the client down](crate::Client::shutdown). It releases what is still held, waits for
//!    releases that Redis has not confirmed, and reports what it did.
//!
//! # A pool of threads
//!
//! ```
//! use std::thread;
//! use std::time::Duration;
//! use leasehold::crossbeam_channel::unbounded;
//! use leasehold::{CancelToken, Error};
//!
//! # let server = leasehold::testing::Server::start();
//! # let client = server.client();
//! let stopping = CancelToken::new();
//! let (orders, queue) = unbounded::<u32>();
//! let workers: Vec<_> = (0..4)
//!     .map(|_| {
//!         let (client, queue, stopping) = (client.clone(), queue.clone(), stopping.clone());
//!         thread::spawn(move || -> Result<(), Error> {
//!             for order in queue {
//!                 let lock = client.mutex(format!("order:{order}")).cancel_on(&stopping);
//!                 match lock.lock() {
//!                     Ok(_guard) => println!("packing order {order}"),
//!                     Err(Error::Cancelled) => println!("order {order} is left for later"),
//!                     Err(error) => return Err(error),
//!                 }
//!             }
//!             Ok(())
//!         })
//!     })
//!     .collect();
//! # let _other = server.hold("order:3");
//! (1..=5).for_each(|order| orders.send(order).expect("the workers have the other end"));
//!
//! // On SIGTERM:
//! drop(orders);
//! stopping.cancel();
//! for worker in workers {
//!     worker.join().expect("no worker panics")?;
//! }
//! let report = client.shutdown(Duration::from_secs(5));
//! assert!(report.is_clean(), "{report}");
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! - If sections may be interrupted, do steps 3 and 4 in the other order: the shutdown tells every
//!   holder through its [`lost`](crate::Lease::lost) channel, and releases the locks at once.
//! - The last handle of a client that is dropped ends it, too, but does not report what was left.
//! - A worker that panics releases its locks when its guards are dropped. With `panic = "abort"` it
//!   releases nothing.
//! - A thread that is never joined may still be in a section when `main` returns. Its lock then
//!   stays taken for the ttl.
//!
//! # A pool of processes
//!
//! - **Each process makes its own client, after `fork`.** A copy of the parent's does nothing in
//!   the child: see [threads](crate::guide::threads#fork).
//! - **The parent sends `SIGTERM` to its children and waits for them.** Each child follows the four
//!   steps above. `examples/graceful_shutdown.rs` is such a child.
//! - **The parent kills those that take too long.** It waits for the longest section, and for the
//!   time that `shutdown` gets plus one
//!   [`command_timeout`](crate::ClientBuilder::command_timeout). Locks of a child that is killed
//!   stay taken until their ttl ends. Another process gets them then, so what the child did must
//!   be [fenced](crate::guide::fencing), or safe to repeat.
//! - **Whatever stops the parent waits longer than the parent does**: `TimeoutStopSec` of systemd,
//!   `terminationGracePeriodSeconds` of Kubernetes, `--stop-timeout` of Docker.
//! - **With systemd, set `KillMode=mixed`** if the parent forwards the signal. Otherwise the
//!   children get it twice.
//!
//! [`CancelToken`]: crate::CancelToken
