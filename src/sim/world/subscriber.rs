//! The subscriber of a simulated client: its subscription at each server.

use super::show::shown_down;
use super::{Actor, Arc, Checked, Down, Effects, MS, Message, NEVER, Todo, Up, World};
use crate::quorum::messages::released;

impl World {
    pub(super) fn subscriber(&mut self, client: usize) -> Checked {
        if let Some(todo) = self.clients[client].sub_todo.pop_front() {
            match todo {
                Todo::Effects(fx) => self.effects(client, Some(Actor::Sub), fx)?,
                Todo::GiveUp(it) => self.give_up(client, Some(Actor::Sub), it)?,
                _ => unreachable!("of another actor"),
            }
            self.go_on(client, Actor::Sub);
            return Ok(());
        }
        let kernel = Arc::clone(&self.clients[client].kernel);
        let now = self.clocks[client].at(self.now);
        let mut fx = Effects::default();
        let closed = self.clients[client].subs.iter().position(|it| it.is_closed);
        if let Some(server) = closed {
            self.unsubscribed(client, server);
            if self.plan.is_quorum() {
                let deaf = self.clients[client].messages.deaf(server);
                kernel.deaf_for(deaf.iter(), now, &mut fx);
            } else {
                let wanted = self.clients[client].wanted.values();
                kernel.deaf_for(wanted.map(|it| &it.0), now, &mut fx);
            }
        } else if let Some((server, down)) = self.clients[client].sub_mail.pop_front() {
            self.say(|| format!("c{client} sub s{server}: {}", shown_down(&down)));
            let (it, is_quorum) = (&mut self.clients[client], self.plan.is_quorum());
            match down {
                Down::Subscribed(None) => it.subs[server].was_live = true,
                Down::Subscribed(Some(channel)) => {
                    let live = it.subs[server].asked.get_mut(&channel);
                    let since = live.map_or(now, |since| *since.get_or_insert(now));
                    if let Some((name, _)) = it.wanted.get(&channel) {
                        if !is_quorum {
                            kernel.listening_since(name, since, now, &mut fx);
                        } else if it.messages.listening(server, name) {
                            kernel.listening_since(name, now, now, &mut fx);
                        }
                    }
                }
                Down::Message(Message::Inbox(payload)) => kernel.inbox(&payload, now, &mut fx),
                Down::Message(Message::Released(channel, payload)) => {
                    if let Some((name, _)) = it.wanted.get(&channel).cloned() {
                        let id = if is_quorum {
                            released(&payload).into_owned()
                        } else {
                            payload.clone()
                        };
                        if is_quorum && kernel.doubt(&name, &id, now, &mut fx) {
                            it.messages.deleted(server, &payload);
                        }
                        if !is_quorum || it.messages.heard(server, &name, &payload) {
                            kernel.announced(&name, &id, now, &mut fx);
                            self.note_announced(client, &name, &id);
                        }
                    }
                }
                Down::Hello
                | Down::Reply(_)
                | Down::Error
                | Down::Rejected
                | Down::Again(_)
                | Down::NotReplicated => unreachable!("not on this connection"),
            }
        } else {
            self.subscribe(client);
            return Ok(());
        }
        self.after_kernel(client, &mut fx)?;
        self.clients[client].sub_todo.push_back(Todo::Effects(fx));
        self.stop_if_due(client, Actor::Sub);
        self.go_on(client, Actor::Sub);
        Ok(())
    }

    /// The connection to a server has ended.
    fn unsubscribed(&mut self, client: usize, server: usize) {
        if let Some(n) = self.clients[client].subs[server].conn.take() {
            self.close(n);
        }
        let pause = self.net.range(MS, 50 * MS);
        let it = &mut self.clients[client];
        it.sub_mail.retain(|(of, _)| *of != server);
        let sub = &mut it.subs[server];
        sub.is_closed = false;
        sub.asked.clear();
        sub.connect_at = self.now + pause;
    }

    /// Connects to each server if somebody waits, and subscribes to what is wanted.
    pub(super) fn subscribe(&mut self, client: usize) {
        if self.clients[client].wanted.is_empty() {
            return;
        }
        let mut connects_at = NEVER;
        for server in 0..self.plan.servers {
            let sub = &self.clients[client].subs[server];
            let n = match sub.conn {
                Some(n) => n,
                None if self.now < sub.connect_at => {
                    connects_at = connects_at.min(sub.connect_at);
                    continue;
                }
                None => {
                    let peer = self.peer_of(client, server);
                    let n = self.connect(client, Actor::Sub, peer);
                    self.clients[client].subs[server].conn = Some(n);
                    self.send(n, Up::Subscribe(None));
                    n
                }
            };
            let it = &mut self.clients[client];
            let sub = &mut it.subs[server];
            sub.asked
                .retain(|channel, _| it.wanted.contains_key(channel));
            let new = it.wanted.keys().filter(|it| !sub.asked.contains_key(*it));
            let new: Vec<Vec<u8>> = new.cloned().collect();
            for channel in new {
                let sub = &mut self.clients[client].subs[server];
                sub.asked.insert(channel.clone(), None);
                self.send(n, Up::Subscribe(Some(channel)));
            }
        }
        if connects_at < NEVER {
            self.timer(client, Actor::Sub, connects_at);
        }
    }
}
