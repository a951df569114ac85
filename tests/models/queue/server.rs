//! The scripts, as the server runs them.

use super::phase::Phase;
use super::rules::{Broken, Flaw, GRANT, Rules};
use super::state::{Id, Kind, Listens, Mark, Place, State, owner};
use super::wire::{Command, Entered, Refreshed, Released, Tokens};

impl State {
    /// The server runs a command, and replies.
    pub(super) fn run(&mut self, command: Command, id: Id, rules: &Rules) {
        match command {
            Command::Acquire => {
                // A client that got no reply to its release cannot know that it must not try.
                let is_again = self.freed_by == Some(owner(id)) && !self.has_lost;
                if is_again && self.holder.is_none() && self.others_wait(id) {
                    self.break_promise(Broken::TwoTurns);
                }
                let answer = match self.holder {
                    None => self.acquire(id, rules),
                    Some(holder) if holder == id => Entered::RanBefore,
                    Some(_) => Entered::Refused,
                };
                self.on_their_way[id].entered = Some(answer);
            }
            Command::Enter => self.run_enter(id, rules),
            Command::Refresh => self.run_refresh(id, rules),
            Command::Renew => {
                let is_ours = self.holder == Some(id);
                if is_ours {
                    self.left = self.left.max(rules.ttl);
                    self.is_provisional = false;
                }
                self.on_their_way[id].renewed = Some(is_ours);
            }
            Command::Release | Command::ReleasePlain | Command::ReleaseBehind => {
                let may_be_plain = command == Command::ReleasePlain;
                self.run_release(id, may_be_plain, rules);
            }
        }
    }

    fn acquire(&mut self, id: Id, rules: &Rules) -> Entered {
        (self.holder, self.left, self.is_provisional) = (Some(id), rules.ttl, false);
        let block = self.on_their_way[id].asked;
        Entered::Granted(self.draw(block, rules))
    }

    /// Draws a block of fencing tokens.
    pub(super) fn draw(&mut self, block: u8, rules: &Rules) -> Tokens {
        if !rules.has_tokens {
            return Tokens::default();
        }
        let first = self.fence + 1;
        self.fence = if rules.has(Flaw::BlockIsNotKept) {
            first
        } else {
            self.fence + block
        };
        Tokens {
            first,
            count: block,
        }
    }

    fn run_enter(&mut self, id: Id, rules: &Rules) {
        self.keep_places(|place| place.age < GRANT);
        let is_ours = self.holder == Some(id);
        let answer = if self.holder.is_none() && self.queue[0].is_none() {
            self.acquire(id, rules)
        } else if is_ours && !rules.has(Flaw::SecondRunIsQueued) {
            // A lease that ends sooner may be a grant to the id's place: the next refresh tells.
            if self.left > GRANT {
                Entered::RanBefore
            } else {
                Entered::Refused
            }
        } else {
            self.join(id, rules);
            self.grant(None, rules);
            if is_ours {
                Entered::RanBefore
            } else {
                Entered::Refused
            }
        };
        self.on_their_way[id].entered = Some(answer);
    }

    /// Puts an id at the end of the queue. If the network runs its enter again, the id keeps its
    /// position.
    fn join(&mut self, id: Id, rules: &Rules) {
        let client = self.clients[owner(id)];
        let is_new = client.listens == Listens::Soon;
        let place = Place {
            id,
            age: 0,
            block: self.on_their_way[id].asked,
            mark: if is_new && !rules.has(Flaw::NewPlaceIsPassedOver) {
                Mark::New
            } else {
                Mark::Listed
            },
            has_listener: client.listens == Listens::Here,
        };
        match self.place_mut(id) {
            Some(before) => *before = place,
            None => {
                let end = self.queue.iter().flatten().count();
                self.queue[end] = Some(place);
            }
        }
    }

    fn run_refresh(&mut self, id: Id, rules: &Rules) {
        let is_listening = self.clients[owner(id)].listens == Listens::Here;
        let block = self.on_their_way[id].asked;
        let (mut was_passed, was_ours) = (false, self.holder == Some(id));
        if let Some(place) = self.place_mut(id) {
            place.age = 0;
            place.block = block;
            place.has_listener = is_listening;
            was_passed = place.mark == Mark::Passed;
            place.mark = match place.mark {
                Mark::Returned if rules.has(Flaw::TurnIsKept) => Mark::Returned,
                _ if is_listening => Mark::Listed,
                Mark::Passed if rules.has(Flaw::NoTurnAfterARefresh) => Mark::Listed,
                Mark::Passed => Mark::Returned,
                mark => mark,
            };
        }
        let granted = self.grant(Some(id), rules).unwrap_or_default();
        let waits = matches!(self.phase(id), Phase::Waiting { id: current, .. } if current == id);
        let client = &mut self.clients[owner(id)];
        if is_listening {
            client.passed = 0;
        } else if was_passed && rules.is_prompt && waits {
            client.passed += 1;
            if client.passed > 1 {
                self.break_promise(Broken::PassedOver);
            }
        }
        let found = match (self.holder == Some(id), self.is_queued(id)) {
            // The id was granted the lock before: the message of that is lost or on its way.
            (true, _) if was_ours => Refreshed::Granted(self.fence),
            (true, _) => Refreshed::Granted(granted.first),
            (false, true) => Refreshed::Waiting,
            (false, false) => Refreshed::Gone,
        };
        let is_undisturbed = !self.has_lost && !self.was_deleted;
        if found == Refreshed::Gone && rules.is_prompt && waits && is_undisturbed {
            self.break_promise(Broken::PlaceLost);
        }
        self.on_their_way[id].refreshed = Some(found);
    }

    fn run_release(&mut self, id: Id, may_be_plain: bool, rules: &Rules) {
        let was_ours = self.holder == Some(id);
        let is_broadcast = self.clients[owner(id)].kind == Kind::Broadcast;
        let was_queued = !is_broadcast && self.remove_place(id);
        if self.is_in_use(id, was_ours, was_queued) {
            self.break_promise(Broken::TakenInUse);
        }
        if was_ours {
            self.holder = None;
        }
        let is_plain =
            may_be_plain && was_ours && self.plain_releases > 0 && self.queue[0].is_some();
        self.plain_releases -= u8::from(is_plain);
        if !is_plain && !is_broadcast {
            let granted = self.grant(None, rules);
            if granted.is_some() && was_ours {
                self.check_turns(id, rules);
            }
        }
        if was_ours && self.holder.is_none() {
            self.announce(rules);
        }
        if is_plain && rules.is_prompt {
            self.freed_by = Some(owner(id));
        }
        self.on_their_way[id].released = Some(if is_plain {
            Released::Plain
        } else if was_ours || was_queued {
            Released::Done
        } else {
            Released::NotOurs
        });
    }

    /// Whether the id's client uses the lease or the place that a release has removed.
    fn is_in_use(&self, id: Id, was_ours: bool, was_queued: bool) -> bool {
        match self.phase(id) {
            Phase::Held { id: current, .. } => was_ours && current == id,
            Phase::Waiting { id: current, .. } | Phase::Entering { id: current, .. } => {
                was_queued && current == id
            }
            _ => false,
        }
    }

    /// Checks the grant by the release of this id: it must not go to the same client while others
    /// wait.
    fn check_turns(&mut self, id: Id, rules: &Rules) {
        let is_same_client =
            |other: Id| owner(other) == owner(id) && self.on_their_way[other].undone == 0;
        // The undo of a lease that was never held is no turn.
        let was_held = self.phase(id) == Phase::Leaving { id };
        let is_again = was_held && self.holder.is_some_and(is_same_client);
        if rules.is_prompt && is_again && self.others_wait(id) {
            self.break_promise(Broken::TwoTurns);
        }
    }

    /// Whether the queue has a living place of another client that lives and listens.
    fn others_wait(&self, id: Id) -> bool {
        self.queue.iter().flatten().any(|place| {
            let client = self.clients[owner(place.id)];
            let listens = client.phase != Phase::Dead && client.listens == Listens::Here;
            owner(place.id) != owner(id) && place.age < GRANT && listens
        })
    }

    /// Deletes the key, and announces that to the clients. They react to it only in prompt runs.
    pub(super) fn announce(&mut self, rules: &Rules) {
        self.left = 0;
        for client in &mut self.clients {
            let is_told = matches!(client.listens, Listens::Here | Listens::AtReplica);
            client.is_announced |= is_told && rules.is_prompt;
        }
    }
}
