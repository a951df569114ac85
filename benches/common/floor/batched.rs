//! Many threads over one connection, as a careful user of `redis` would write it by hand: one
//! thread sends all gathered commands in one write.

use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use redis::{Script, ScriptInvocation, Value};
use support::scripts::granted;

use super::pair::{ACQUIRE, Named, RELEASE, connect, fresh_id};

/// A command, and the channel for its reply.
type Order = (Vec<u8>, Sender<Value>);

/// One of several names that share a connection.
pub struct Batched {
    writer: Sender<Order>,
    answer: Sender<Value>,
    answers: Receiver<Value>,
    named: Named,
}

impl Batched {
    /// Creates `names` names over one connection. Its thread ends when the last of them is dropped.
    pub fn several(url: &str, names: usize) -> Vec<Self> {
        let (writer, orders) = unbounded();
        let mut connection = connect(url);
        for script in [ACQUIRE, RELEASE] {
            Script::new(script).load(&mut connection).unwrap();
        }
        thread::spawn(move || write(connection, &orders));
        (0..names)
            .map(|n| {
                let (answer, answers) = bounded(1);
                Self {
                    writer: writer.clone(),
                    answer,
                    answers,
                    named: Named::new(&format!("batched-{n}"), ACQUIRE, RELEASE),
                }
            })
            .collect()
    }

    fn call(&self, script: &ScriptInvocation<'_>) -> Value {
        let command = redis::pipe().invoke_script(script).get_packed_pipeline();
        self.writer.send((command, self.answer.clone())).unwrap();
        self.answers.recv().unwrap()
    }

    pub fn pair(&mut self) {
        let id = fresh_id();
        let answer = self.call(&self.named.acquire(&id));
        assert!(granted(&answer).is_some(), "the acquire was refused");
        let released = self.call(&self.named.release(&id));
        assert!(
            matches!(released, Value::Int(1)),
            "the lock was lost before its release"
        );
    }
}

fn write(mut connection: redis::Connection, orders: &Receiver<Order>) {
    let mut commands = Vec::new();
    let mut waiting = Vec::new();
    while let Ok(first) = orders.recv() {
        commands.clear();
        for (command, answer) in std::iter::once(first).chain(orders.try_iter()) {
            commands.extend(command);
            waiting.push(answer);
        }
        connection.send_packed_command(&commands).unwrap();
        for answer in waiting.drain(..) {
            answer.send(connection.recv_response().unwrap()).unwrap();
        }
    }
}
