//! Many threads over one connection, as a careful user of `redis` would write it by hand: a thread that sends what has
//! gathered in one write.

use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use redis::{Script, Value, cmd};
use uuid::Uuid;

use super::hand::{ACQUIRE, RELEASE, TTL_MS, channel, connect};

/// A command, and where its answer goes.
type Order = (Vec<u8>, Sender<Value>);

/// One name of many that share a connection.
pub(crate) struct Batched {
    writer: Sender<Order>,
    answer: Sender<Value>,
    answers: Receiver<Value>,
    acquire: Script,
    release: Script,
    lock: String,
    fence: String,
    channel: String,
    owner: String,
}

impl Batched {
    /// So many names over one connection. Its thread ends with the last of them.
    pub(crate) fn several(url: &str, names: usize) -> Vec<Self> {
        let (writer, orders) = unbounded();
        let mut connection = connect(url);
        for script in [ACQUIRE, RELEASE] {
            Script::new(script).load(&mut connection).unwrap();
        }
        thread::spawn(move || write(connection, &orders));
        (0..names)
            .map(|n| {
                let name = format!("batched-{n}");
                let lock = format!("lock:{name}");
                let (answer, answers) = bounded(1);
                Self {
                    writer: writer.clone(),
                    answer,
                    answers,
                    acquire: Script::new(ACQUIRE),
                    release: Script::new(RELEASE),
                    fence: format!("leasehold:fence:{{{lock}}}"),
                    channel: channel(&name),
                    owner: format!("bench/{}", std::process::id()),
                    lock,
                }
            })
            .collect()
    }

    fn call(&self, command: Vec<u8>) -> Value {
        self.writer.send((command, self.answer.clone())).unwrap();
        self.answers.recv().unwrap()
    }

    pub(crate) fn pair(&mut self) {
        let id = format!("{}:{}", self.owner, Uuid::new_v4());
        let mut command = cmd("EVALSHA");
        command.arg(self.acquire.get_hash()).arg(2);
        command
            .arg(&self.lock)
            .arg(&self.fence)
            .arg(&id)
            .arg(TTL_MS);
        let granted = self.call(command.get_packed_command());
        assert!(matches!(&granted, Value::Array(items) if items.len() == 2));
        let mut command = cmd("EVALSHA");
        command.arg(self.release.get_hash()).arg(1);
        command.arg(&self.lock).arg(&id).arg(&self.channel);
        let released = self.call(command.get_packed_command());
        assert!(matches!(released, Value::Int(1)), "it was ours");
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
