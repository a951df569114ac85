//! A server with the real scripts, and clients: their engine, their subscriber, their calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use shuttle::thread::yield_now;

use crate::cancel::CancelToken;
use crate::clock::Instant;
use crate::kernel::call::{Call, Step};
use crate::kernel::command::{Command, Inbox};
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Engine, Route, Ticket};
use crate::kernel::failure::Failure;
use crate::kernel::held::HeldLease;
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::kernel::waiter::CallTerms;
use crate::kernel::waiter::Outcome;
use crate::kernel::{Kernel, Limits};
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::{Primitive, Reached};
use crate::sync::Mutex;
use crate::testing::scripted::Scripted;
use crate::token::FencingToken;
use crate::wakeup::WakeUp;

/// The pause between the backstop's looks at the calls. A look would hide a lost wake-up, so no
/// thread waits for one.
const BACKSTOP: Duration = Duration::from_millis(500);

pub(crate) struct World {
    server: Mutex<Scripted>,
    /// µs. Each look at the clock takes one.
    time: AtomicU64,
    pub(crate) clients: Vec<Client>,
    /// The engine is not woken by what other threads make due.
    pub(crate) forgets_wake_ups: bool,
}

/// A command of the engine that has run.
pub(crate) struct Sent {
    at: Instant,
    ticket: Ticket,
    answer: Answer,
}

pub(crate) struct Client {
    no: u64,
    pub(crate) kernel: Kernel,
    engine: WakeUp,
    subscriber: WakeUp,
    heard: Mutex<Heard>,
    is_over: AtomicBool,
}

/// The channels that a subscriber is to listen to, and the messages that have arrived.
#[derive(Default)]
struct Heard {
    /// The name and the number of the last change, by channel.
    wanted: BTreeMap<Vec<u8>, (Name, u64)>,
    subscribed: BTreeSet<Vec<u8>>,
    messages: VecDeque<(Vec<u8>, Vec<u8>)>,
}

struct OneServer;

impl Route for OneServer {}

impl World {
    pub(crate) fn new(clients: u64) -> Self {
        let limits = Limits {
            command_timeout: Duration::from_secs(1),
            unreachable_for: Duration::from_secs(4),
            backstop: Duration::from_secs(1),
            may_fail_over: false,
            replies_are_final: true,
            engine_sends: false,
            wall: 0,
        };
        let client = |no| Client {
            no,
            kernel: Kernel::new(limits.clone(), &format!("c{no}")),
            engine: WakeUp::new(),
            subscriber: WakeUp::new(),
            heard: Mutex::default(),
            is_over: AtomicBool::new(false),
        };
        Self {
            server: Mutex::new(Scripted::new()),
            time: AtomicU64::new(1_000_000_000),
            clients: (0..clients).map(client).collect(),
            forgets_wake_ups: false,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::START.after(Duration::from_micros(
            self.time.fetch_add(1, Ordering::Relaxed),
        ))
    }

    fn wait_until(&self, at: Instant) {
        let micros = at.as_nanos().div_ceil(1_000);
        self.time.fetch_max(micros, Ordering::Relaxed);
    }

    /// Runs a command, and passes on what it publishes.
    pub(crate) fn run(&self, client: &Client, command: &Command) -> Answer {
        let now = self.now().as_nanos() / 1_000;
        let is_listening = client.heard.lock().subscribed.contains(&client.inbox());
        let inbox = Inbox {
            channel: client.inbox(),
            reached: if is_listening {
                Reached::WhileListening
            } else {
                Reached::Soon
            },
        };
        let mut server = self.server.lock();
        let answer = command.with_call(&inbox, |call| {
            let reply = server.run(&call, now).expect("the script runs");
            call.verb.read(reply).expect("its reply is known")
        });
        for (to, channel, payload) in server.take_messages() {
            let to = &self.clients[to as usize];
            to.heard.lock().messages.push_back((channel, payload));
            to.subscriber.unpark();
        }
        answer
    }

    /// The loop of a client's engine.
    pub(crate) fn run_engine(&self, client: &Client) {
        let mut engine = Engine::default();
        loop {
            client.kernel.engine_awake();
            self.turn(client, &mut engine);
            let now = self.now();
            let until = client.kernel.engine_sleeps(now, Duration::from_secs(1));
            if client.is_over.load(Ordering::SeqCst) {
                return;
            }
            if now.until(until) < BACKSTOP {
                yield_now();
                self.wait_until(until);
            } else {
                client.engine.park();
            }
        }
    }

    /// Sends what is due, and applies the replies.
    pub(crate) fn turn(&self, client: &Client, engine: &mut Engine) {
        for sent in self.send_due(client, engine) {
            self.ended(client, engine, sent);
        }
    }

    /// Sends what is due, and returns the replies.
    pub(crate) fn send_due(&self, client: &Client, engine: &mut Engine) -> Vec<Sent> {
        let mut fx = Effects::default();
        let out = engine.due(&client.kernel, self.now(), &OneServer, &mut fx);
        self.carry_out(client, fx);
        let sent = out.into_iter().map(|out| Sent {
            at: self.now(),
            ticket: out.ticket,
            answer: self.run(client, &out.command),
        });
        sent.collect()
    }

    /// Applies a reply.
    pub(crate) fn ended(&self, client: &Client, engine: &mut Engine, sent: Sent) {
        let mut fx = Effects::default();
        let times = [sent.at, self.now()];
        let end = Ok(sent.answer);
        engine.ended(&client.kernel, sent.ticket, end, times, &OneServer, &mut fx);
        self.carry_out(client, fx);
    }

    /// The loop of a client's subscriber.
    pub(crate) fn run_subscriber(&self, client: &Client) {
        loop {
            let mut heard = client.heard.lock();
            let is_new = |channel: &&Vec<u8>| !heard.subscribed.contains(*channel);
            let new = heard.wanted.keys().find(is_new).cloned();
            let message = heard.messages.pop_front();
            let name = |channel| heard.wanted.get(channel).map(|(name, _)| name.clone());
            let of_new = new.as_ref().and_then(name);
            let of_message = message.as_ref().and_then(|(channel, _)| name(channel));
            drop(heard);
            let has_message = message.is_some();
            let mut fx = Effects::default();
            if let Some((channel, payload)) = message {
                if channel == client.inbox() {
                    client.kernel.inbox(&payload, self.now(), &mut fx);
                } else if let Some(name) = of_message {
                    client
                        .kernel
                        .announced(&name, &payload, self.now(), &mut fx);
                }
            }
            if let (Some(channel), Some(name)) = (new, of_new) {
                for channel in [client.inbox(), channel] {
                    self.server.lock().subscribe(client.no, &channel);
                    client.heard.lock().subscribed.insert(channel);
                }
                let now = self.now();
                client.kernel.listening_since(&name, now, now, &mut fx);
            } else if !has_message {
                if client.is_over.load(Ordering::SeqCst) {
                    return;
                }
                client.subscriber.park();
            }
            self.carry_out(client, fx);
        }
    }

    /// Makes the client's inbox receive messages.
    pub(crate) fn subscribe(&self, client: &Client) {
        self.server.lock().subscribe(client.no, &client.inbox());
        client.heard.lock().subscribed.insert(client.inbox());
    }

    /// Receives one message in the client's inbox.
    pub(crate) fn receive(&self, client: &Client) {
        let message = client.heard.lock().messages.pop_front();
        let (_, payload) = message.expect("it was published");
        self.with(client, |now, fx| client.kernel.inbox(&payload, now, fx));
    }

    /// Calls the kernel, and carries out the effects.
    pub(crate) fn with<T>(
        &self,
        client: &Client,
        act: impl FnOnce(Instant, &mut Effects) -> T,
    ) -> T {
        let mut fx = Effects::default();
        let result = act(self.now(), &mut fx);
        self.carry_out(client, fx);
        result
    }

    fn carry_out(&self, client: &Client, fx: Effects) {
        let is_closed = client.kernel.is_closed();
        assert!(
            fx.lost.is_empty() || is_closed,
            "nothing takes a lease away"
        );
        drop(fx.wake);
        fx.operations.iter().for_each(|cell| cell.parker.unpark());
        if fx.engine_by.is_some() && !self.forgets_wake_ups {
            client.engine.unpark();
        }
        if fx.listen.is_empty() && fx.unlisten.is_empty() {
            return;
        }
        let mut heard = client.heard.lock();
        for (lock, change) in fx.listen {
            let key = lock.keys().key(0);
            let before = heard
                .wanted
                .get(key.channel)
                .map_or(0, |(_, before)| *before);
            let wanted = (key.name.clone(), change.max(before));
            heard.wanted.insert(key.channel.to_vec(), wanted);
        }
        for (name, change) in fx.unlisten {
            heard
                .wanted
                .retain(|_, (it, last)| *it != name || *last > change);
        }
        drop(heard);
        client.subscriber.unpark();
    }

    /// The client is shut down: its leases are released, and its calls end.
    pub(crate) fn close(&self, client: &Client) {
        let mut fx = Effects::default();
        client.kernel.close(self.now(), &mut fx);
        self.carry_out(client, fx);
    }

    pub(crate) fn call(&self, client: &Client, lock: &Arc<dyn Primitive>, by_engine: bool) -> Call {
        let handoffs = if lock.has_local_queue() { 4 } else { 0 };
        let mut wants = CallTerms::endless(lock, Duration::from_secs(30));
        (wants.terms.handoffs, wants.holder.handoffs) = (handoffs, handoffs);
        wants.by_engine = by_engine;
        Call::new(&client.kernel, wants, self.now())
    }

    /// Acquires the lock. `None` if the call was cancelled, or the client closed, first.
    pub(crate) fn acquire(
        &self,
        client: &Client,
        lock: &Arc<dyn Primitive>,
        cancel: Option<&CancelToken>,
    ) -> Option<(Arc<HeldLease>, FencingToken)> {
        let kernel = &client.kernel;
        let mut call = self.call(client, lock, cancel.is_some());
        let mut fx = Effects::default();
        let mut step = call.begin(kernel, self.now(), &mut fx);
        loop {
            self.carry_out(client, fx);
            fx = Effects::default();
            step = match step {
                Step::Send(command, _) => {
                    let sent = self.now();
                    let end = Ok(self.run(client, &command));
                    call.replied(kernel, end, sent, self.now(), &mut fx)
                }
                Step::Park(until) => {
                    let parker = &call.cell().expect("it is parked").parker;
                    match cancel {
                        Some(token) => token.park(parker, until),
                        None => parker.park(until),
                    }
                    if cancel.is_some_and(CancelToken::is_cancelled) {
                        Step::Done(call.leave(kernel, Failure::Cancelled, self.now(), &mut fx))
                    } else {
                        call.woken(kernel, self.now(), &mut fx)
                    }
                }
                Step::Done(Outcome::Lease(lease, token)) => return Some((lease, token)),
                Step::Done(Outcome::Failed(Failure::Cancelled | Failure::Closed)) => return None,
                Step::Done(outcome) => panic!("{outcome:?}"),
            };
        }
    }

    pub(crate) fn release(&self, client: &Client, lease: &Arc<HeldLease>, token: FencingToken) {
        let kernel = &client.kernel;
        let mut has_renewed = false;
        loop {
            let mut fx = Effects::default();
            let unlock = kernel.begin_unlock(lease, token, has_renewed, self.now(), &mut fx);
            self.carry_out(client, fx);
            match unlock {
                Unlock::HandedOff | Unlock::Lingers => return,
                Unlock::RenewFirst(cell) => {
                    while cell.result.lock().is_none() {
                        cell.parker.park(Instant::NEVER);
                    }
                    has_renewed = true;
                }
                Unlock::Send(command) => {
                    let end = Ok(self.run(client, &command));
                    let mut fx = Effects::default();
                    let unlocked = kernel.unlocked(lease, end, false, self.now(), &mut fx);
                    self.carry_out(client, fx);
                    assert!(unlocked == Unlocked::Released || kernel.is_closed());
                    return;
                }
                Unlock::AlreadyLost(_) | Unlock::Over if kernel.is_closed() => return,
                Unlock::Wait(_) | Unlock::AlreadyLost(_) | Unlock::Over => panic!("{unlock:?}"),
            }
        }
    }

    /// Ends the engines and the subscribers.
    ///
    /// # Panics
    ///
    /// If a client still listens for calls that have returned.
    pub(crate) fn end(&self) {
        for client in &self.clients {
            let wanted = &client.heard.lock().wanted;
            let mut names = wanted.values().map(|(name, _)| name);
            assert!(names.all(|name| client.kernel.listens(name)), "a leak");
            client.is_over.store(true, Ordering::SeqCst);
            client.engine.unpark();
            client.subscriber.unpark();
        }
    }
}

impl Client {
    fn inbox(&self) -> Vec<u8> {
        format!("inbox:c{}", self.no).into_bytes()
    }
}
