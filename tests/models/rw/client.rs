//! The steps of clients, of other programs, of the network and of time.

use super::server;
use super::state::{Broken, Command, Flaw, Id, Key, Phase, Reply, Rules, State, TTL, Wants};

/// While this many connections are in use, clients send no new command. The undo of an acquire that
/// a client gives up is sent nevertheless.
const CONNECTIONS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Tick,
    Runs(Command),
    /// The server runs a command, which will arrive a second time.
    RunsAgain(Command),
    LosesReply(Command),
    CutsConnection(Command),
    Reads(Reply),
    Sends(Command),
    /// An acquire or a renewal got no reply.
    GivesUp(Id),
    ForeignLocks,
    ForeignReleases,
    KeyIsDeleted,
}

/// Calls `take` with every step from `state`, and the state after it.
pub(super) fn each_next(state: &State, rules: &Rules, take: impl FnMut(Step, State)) {
    if state.broken.is_some() {
        return;
    }
    let mut steps = Steps { state, rules, take };
    steps.step(Step::Tick, tick);
    for n in 0..state.connections.len() {
        // The connections are sorted: of several equal ones, one step is enough.
        if n == 0 || state.connections[n] != state.connections[n - 1] {
            steps.deliver(n);
        }
    }
    for n in 0..state.replies.len() {
        steps.step(Step::Reads(state.replies[n]), |next| {
            let reply = next.replies.remove(n);
            receive(next, rules, reply);
        });
    }
    for client in 0..state.clients.len() {
        steps.act(client);
    }
    steps.interfere();
}

fn tick(state: &mut State) {
    state.key = match state.key {
        Key::Free | Key::Writer(_, 1) | Key::Flag(1) | Key::Foreign(1) => Key::Free,
        Key::Writer(id, left) => Key::Writer(id, left - 1),
        Key::Flag(left) => Key::Flag(left - 1),
        Key::Foreign(left) => Key::Foreign(left - 1),
    };
    for reader in &mut state.readers {
        reader.1 = (reader.1 - 1).max(0);
    }
    for client in &mut state.clients {
        match &mut client.phase {
            Phase::Asking(_, age) => *age = (*age + 1).min(TTL),
            Phase::Held { left: 1, .. } => client.phase = Phase::Idle,
            Phase::Held { left, pending, .. } => {
                *left -= 1;
                if let Some((_, age, _)) = pending {
                    *age = (*age + 1).min(TTL);
                }
            }
            Phase::Idle | Phase::Leaving(_) => {}
        }
    }
}

struct Steps<'a, F> {
    state: &'a State,
    rules: &'a Rules,
    take: F,
}

impl<F: FnMut(Step, State)> Steps<'_, F> {
    fn step(&mut self, step: Step, act: impl FnOnce(&mut State)) {
        let mut next = self.state.clone();
        act(&mut next);
        (self.take)(step, next);
    }

    /// A client sends a command on a connection that no other command uses, and enters `phase`.
    fn send(&mut self, n: usize, command: Command, phase: Phase) {
        if self.state.connections.len() >= CONNECTIONS {
            return;
        }
        self.step(Step::Sends(command), |next| {
            next.connections.push(vec![command]);
            let client = &mut next.clients[n];
            client.phase = phase;
            match command {
                Command::Acquire(..) => client.tries += 1,
                Command::Renew(..) => client.calls += 1,
                Command::Release(_) => {}
            }
        });
    }

    /// The server runs the first command of a connection. The reply may be lost, or the connection
    /// may break before the command arrives.
    fn deliver(&mut self, n: usize) {
        let (state, rules) = (self.state, self.rules);
        let command = state.connections[n][0];
        let run = |next: &mut State| {
            next.connections[n].remove(0);
            server::run(next, rules, command)
        };
        if state.repeats > 0 {
            self.step(Step::RunsAgain(command), |next| {
                next.repeats -= 1;
                run(next);
                next.connections[n].insert(0, command);
            });
        }
        if state.losses > 0 {
            self.step(Step::LosesReply(command), |next| {
                next.losses -= 1;
                run(next);
            });
            self.step(Step::CutsConnection(command), |next| {
                next.losses -= 1;
                next.connections.remove(n);
            });
        }
        self.step(Step::Runs(command), |next| {
            let reply = run(next);
            next.replies.push(reply);
        });
    }

    /// The steps of one client.
    fn act(&mut self, n: usize) {
        let client = &self.state.clients[n];
        match client.phase {
            Phase::Idle if client.tries < self.rules.tries => {
                let id = (n as u8, client.tries);
                let acquire = Command::Acquire(id, self.rules.wants[n]);
                self.send(n, acquire, Phase::Asking(id, 0));
            }
            Phase::Asking(id, _) => self.step(Step::GivesUp(id), |next| give_up(next, id)),
            Phase::Held {
                id,
                left,
                as_what,
                pending: None,
            } => {
                self.renew(n, id, left, as_what);
                self.send(n, Command::Release(id), Phase::Leaving(id));
            }
            Phase::Held { id, .. } => {
                self.step(Step::GivesUp(id), |next| {
                    if let Phase::Held { pending, .. } = &mut next.clients[n].phase {
                        *pending = None;
                    }
                });
                self.send(n, Command::Release(id), Phase::Leaving(id));
            }
            Phase::Leaving(id) if !is_releasing(self.state, id) => {
                self.send(n, Command::Release(id), Phase::Leaving(id));
            }
            _ => {}
        }
    }

    /// A holder renews its lease. A writer may become a reader instead.
    fn renew(&mut self, n: usize, id: Id, left: i8, as_what: Wants) {
        let (rules, call) = (self.rules, self.state.clients[n].calls);
        if call == rules.calls {
            return;
        }
        let mut send = |reads, as_what| {
            let held = Phase::Held {
                id,
                left,
                as_what,
                pending: Some((call, 0, reads)),
            };
            self.send(n, Command::Renew(id, call, reads), held);
        };
        send(as_what == Wants::Read, as_what);
        if rules.downgrades && as_what == Wants::Write {
            let becomes = if rules.has(Flaw::LateReader) {
                Wants::Write
            } else {
                Wants::Read
            };
            send(true, becomes);
        }
    }

    /// The steps of other programs.
    fn interfere(&mut self) {
        let state = self.state;
        if state.foreign_locks > 0 && state.key == Key::Free {
            self.step(Step::ForeignLocks, |next| {
                next.foreign_locks -= 1;
                next.was_foreign = true;
                next.key = Key::Foreign(2);
                next.displace_readers();
            });
        }
        if let Key::Foreign(_) = state.key {
            self.step(Step::ForeignReleases, |next| next.key = Key::Free);
        }
        if state.deletions > 0 && state.key != Key::Free {
            self.step(Step::KeyIsDeleted, |next| {
                next.deletions -= 1;
                next.was_deleted = true;
                next.key = Key::Free;
            });
        }
    }
}

/// The client reads a reply. [`State::normalized`] keeps only replies that a client still expects.
fn receive(state: &mut State, rules: &Rules, reply: Reply) {
    let (Reply::Acquired(id, _) | Reply::Renewed(id, ..) | Reply::Released(id)) = reply;
    let n = id.0 as usize;
    let phase = state.clients[n].phase;
    state.clients[n].phase = match (reply, phase) {
        (Reply::Acquired(_, None), _) => Phase::Idle,
        // The command was sent a ttl ago, so the lease may have ended.
        (Reply::Acquired(_, Some(_)), Phase::Asking(_, TTL)) => Phase::Leaving(id),
        (Reply::Acquired(_, Some(token)), Phase::Asking(_, age)) => {
            let as_what = rules.wants[n];
            note_token(state, as_what, token);
            Phase::Held {
                id,
                left: TTL - age,
                as_what,
                pending: None,
            }
        }
        (
            Reply::Renewed(_, _, true),
            Phase::Held {
                left,
                as_what,
                pending,
                ..
            },
        ) => {
            let (_, age, reads) = pending.expect("only a pending renewal gets a reply");
            Phase::Held {
                id,
                left: left.max(TTL - age),
                as_what: if reads { Wants::Read } else { as_what },
                pending: None,
            }
        }
        (Reply::Renewed(_, _, false), _) => {
            if !state.was_deleted && !state.was_foreign {
                state.broken = Some(Broken::NotYours);
            }
            Phase::Idle
        }
        _ => Phase::Idle,
    };
}

/// Records the token of a holder, which must not be too low. After a deletion, holders overlap, and
/// any token is right.
fn note_token(state: &mut State, as_what: Wants, token: u8) {
    let [written, read] = &mut state.tokens;
    let is_right = match as_what {
        Wants::Write => token > *written.max(read),
        Wants::Read => token >= *written,
    };
    match as_what {
        Wants::Write => *written = token.max(*written),
        Wants::Read => *read = token.max(*read),
    }
    if !is_right && !state.was_deleted {
        state.broken = Some(Broken::Token);
    }
}

/// The client gives up an acquire. The undo follows the acquire on its connection if the acquire is
/// still under way.
fn give_up(state: &mut State, id: Id) {
    state.clients[id.0 as usize].phase = Phase::Leaving(id);
    let undo = Command::Release(id);
    let is_acquire = |command: &Command| matches!(command, Command::Acquire(own, _) if *own == id);
    let mut connections = state.connections.iter_mut();
    match connections.find(|commands| commands.iter().any(is_acquire)) {
        Some(commands) => commands.push(undo),
        None => state.connections.push(vec![undo]),
    }
}

/// Whether a release of this lease is under way, or its reply.
fn is_releasing(state: &State, id: Id) -> bool {
    let release = Command::Release(id);
    state.replies.contains(&Reply::Released(id))
        || state
            .connections
            .iter()
            .any(|commands| commands.contains(&release))
}
