//! A kind of lock whose calls wait in both queues: only the first call of a client has a place in
//! Redis.

use std::thread;

use crossbeam_channel::unbounded;
use support::{Server, eventually, ms};

use super::*;
use crate::config::Settings;
use crate::holder_id::HolderId;
use crate::lock::acquire::{WaitLimit, acquire};
use crate::lock::release::release;
use crate::lock::shutdown::Core;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::Keys;
use crate::protocol::primitive::{Acquire, AtRelease, Primitive, RedisQueue};
use crate::protocol::script::Call;
use crate::runtime::tests::runtime_of;

const LONG: Duration = ms(60_000);

/// A fair lock that waits in its client's queue, too.
#[derive(Debug)]
struct InBothQueues(Arc<dyn Primitive>);

impl Primitive for InBothQueues {
    fn keys(&self) -> &Keys {
        self.0.keys()
    }

    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a> {
        self.0.acquire(request)
    }

    fn release<'a>(&'a self, value: &'a [u8], at: AtRelease) -> Call<'a> {
        self.0.release(value, at)
    }

    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        self.0.undo(arguments)
    }

    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a> {
        self.0.renew(id, ttl, may_shorten)
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        self.0.queue()
    }

    fn has_local_queue(&self) -> bool {
        true
    }
}

fn client(server: &Server) -> Core {
    Core {
        runtime: runtime_of(&server.url()),
    }
}

fn lock(client: &Core, keys: &Arc<dyn Primitive>) -> Arc<HeldLease> {
    let until = WaitLimit::Until(Instant::now().after(LONG));
    let hold = acquire(&client.runtime, keys, &Settings::default(), until);
    hold.unwrap().expect("the lock within a minute")
}

fn unlock(client: &Core, hold: &Arc<HeldLease>) {
    let now = Instant::now();
    let released = release(&client.runtime, hold, hold.token(), now, now.after(LONG));
    released.unwrap();
}

#[test]
fn first_of_a_client_waits_in_redis_and_the_others_behind_it() {
    let server = Server::start();
    let (here, elsewhere) = (client(&server), client(&server));
    let fair = FairMutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
    let both: Arc<dyn Primitive> = Arc::new(InBothQueues(Arc::clone(&fair)));
    let places = || -> u64 {
        let queue = fair.queue().unwrap().key().to_vec();
        let mut length = redis::cmd("LLEN");
        length.arg(queue).query(&mut server.connection()).unwrap()
    };
    let held = lock(&elsewhere, &fair);
    let (locked, holds) = unbounded();
    thread::scope(|scope| {
        for n in 1..=3 {
            let (here, both, locked) = (&here, &both, locked.clone());
            scope.spawn(move || locked.send((n, lock(here, both))).unwrap());
            eventually(LONG, || here.runtime.waiters.count() == (0, n));
            eventually(LONG, || places() == 1);
        }
        unlock(&elsewhere, &held);
        let mut token = held.token();
        for n in 1..=3 {
            let (waiter, hold) = holds.recv_timeout(LONG).expect("the next has the lock");
            assert_eq!(waiter, n, "in the order of the local queue");
            assert!(hold.token() > token);
            token = hold.token();
            assert_eq!(
                places(),
                0,
                "the others sleep while this client has the lock"
            );
            unlock(&here, &hold);
        }
    });
    assert!(here.runtime.waiters.is_idle() && !here.runtime.waiters.anybody());
}
