//! One leader among several processes, and another if it fails.
//!
//! Every process locks the same name, and the one that gets the lock is the leader. It works until
//! it loses the lock, and then locks again. The others sleep in `lock` meanwhile.
//!
//! ```
//! use std::thread;
//! use std::time::Duration;
//! use leasehold::crossbeam_channel::{select, tick};
//! use leasehold::{CancelToken, Client, Error, Lease};
//!
//! /// Leads whenever this process has the lock, until `stopping` is cancelled.
//! fn lead(
//!     client: &Client,
//!     stopping: &CancelToken,
//!     mut step: impl FnMut(&Lease),
//! ) -> Result<(), Error> {
//!     let leader = client.mutex("scheduler:leader").cancel_on(stopping);
//!     let ticks = tick(Duration::from_millis(100));
//!     loop {
//!         let guard = match leader.lock() {
//!             Ok(guard) => guard,
//!             Err(Error::Cancelled | Error::Closed) => return Ok(()),
//!             Err(error) if error.is_retryable() => {
//!                 eprintln!("nobody can become the leader: {error}");
//!                 thread::sleep(Duration::from_secs(1));
//!                 continue;
//!             }
//!             Err(error) => return Err(error),
//!         };
//!         println!("this process is the leader, with token {}", guard.fencing_token());
//!         let lost = guard.lost();
//!         loop {
//!             select! {
//!                 recv(lost) -> why => {
//!                     println!("no longer the leader: {why:?}");
//!                     break;
//!                 }
//!                 recv(stopping.receiver()) -> _ => return Ok(()), // dropping `guard` releases
//!                 recv(ticks) -> _ => if guard.is_held() { step(&guard) },
//!             }
//!         }
//!     }
//! }
//! # let server = leasehold::testing::Server::start();
//! # let stopping = CancelToken::new();
//! # let mut tokens = Vec::new();
//! # lead(&server.client(), &stopping, |guard| {
//! #     tokens.push(guard.fencing_token());
//! #     server.lose("scheduler:leader");
//! #     let _ = guard.lost().recv();
//! #     if tokens.len() == 2 {
//! #         stopping.cancel();
//! #     }
//! # })?;
//! # assert!(tokens[0] < tokens[1]);
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! - **A leader that crashes** is replaced after its [ttl](crate::guide::ttl). One that ends in
//!   order releases the lock, and the next one leads at once: see
//!   [shutting down](crate::guide::shutting_down).
//! - **A leader that hangs** stays the leader: renewal proves that its process lives, not that it
//!   works. With [`auto_renew(false)`](crate::Mutex::auto_renew), and a call of
//!   [`renew`](crate::Lease::renew) before each step, only a loop that turns keeps the lock, and
//!   another process leads a ttl after the last step began. The ttl must then be longer than a step
//!   and the pause before it. [`max_hold`](crate::Mutex::max_hold) ends the term of every leader,
//!   also of one that works.
//! - **Keep steps short.** A step that runs while the lock is lost runs beside the next leader's
//!   steps. A leader that was paused notices the loss only after its current step. So let what it
//!   writes compare the [fencing token](crate::guide::fencing): the old leader's writes are then
//!   rejected.
//! - **Do not retry a step because of a loss.** The next leader decides what is still to be done.
//! - **Who leads?** `leasehold status scheduler:leader` and
//!   [`Mutex::inspect`](crate::Mutex::inspect) name the owner.
//! - **To let another process lead**, end or restart this one. There is no lasting preference: the
//!   process that has waited longest is next.
//!
//! A program that knows nothing of locks can be the leader as well: `leasehold run` starts it when
//! the lock is acquired, and ends it if the lock is lost. [The page of the
//! program](crate::guide::cli#a-leader-among-several-hosts) has a unit for systemd.
