//! A cluster: masters that share the slots, and replicas of each.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Connection, FromRedisValue, RedisResult, Value};

use super::certificates::tls_options;
use super::permit::{self, Permit};
use super::port;
use super::sentinels::encoded;
use super::server::{Server, connect};
use super::time::{eventually, ms};

const SLOTS: usize = 16_384;

/// How it is to be set up.
#[derive(Clone, Copy, Debug)]
pub struct ClusterSetup {
    pub masters: usize,
    pub replicas_per_master: usize,
    /// What every node asks for.
    pub password: Option<&'static str>,
    /// With a port for TLS beside the plain one on every node, which asks for a certificate, and TLS between the nodes.
    pub has_tls: bool,
    /// A master that says nothing for so long is replaced, a second or two later.
    pub node_timeout: Duration,
    /// Further options of every node.
    pub options: &'static [&'static str],
}

impl ClusterSetup {
    /// For a test in which nothing is to be replaced unasked, however late this machine is.
    pub const fn steady(masters: usize, replicas_per_master: usize) -> Self {
        Self {
            masters,
            replicas_per_master,
            password: None,
            has_tls: false,
            node_timeout: ms(60_000),
            options: &[],
        }
    }

    /// For a test in which a master is to be replaced soon.
    pub const fn fast_failover(masters: usize, replicas_per_master: usize) -> Self {
        Self {
            node_timeout: ms(1_500),
            ..Self::steady(masters, replicas_per_master)
        }
    }
}

/// Nodes go by their index: first the masters of the start, then the replicas of the first, of the second, ...
pub struct Cluster {
    nodes: Vec<Node>,
    setup: ClusterSetup,
    permit: Option<Permit>,
    /// One slot at a time gets its new owner.
    handing_over: Mutex<()>,
}

struct Node {
    server: Server,
    id: String,
    /// Neither killed nor stopped.
    answers: AtomicBool,
}

impl Cluster {
    /// One in which a dead master is replaced soon.
    pub fn start(masters: usize, replicas_per_master: usize) -> Self {
        Self::with(ClusterSetup::fast_failover(masters, replicas_per_master))
    }

    /// Starts the nodes, and waits until each of them takes commands and knows the owner of every slot and all replicas.
    pub fn with(setup: ClusterSetup) -> Self {
        let permit = Some(Permit::take(permit::CLUSTER));
        let count = setup.masters * (1 + setup.replicas_per_master);
        let servers = (0..count).map(|_| Server::with_fresh(|| options(&setup)));
        let nodes = servers.map(|server| Node {
            server,
            id: String::new(),
            answers: AtomicBool::new(true),
        });
        let mut this = Self {
            nodes: nodes.collect(),
            setup,
            permit,
            handing_over: Mutex::new(()),
        };
        this.secure();
        this.join();
        let node_timeout = setup.node_timeout.as_millis().to_string();
        this.everywhere(&["CONFIG", "SET", "cluster-node-timeout", &node_timeout]);
        this
    }

    /// Lets it run for as long as it likes: several tests share it.
    pub fn long_lived(mut self) -> Self {
        let untimed = |node: Node| Node {
            server: node.server.long_lived(),
            ..node
        };
        self.nodes = self.nodes.into_iter().map(untimed).collect();
        self.permit = None;
        self
    }

    /// Through all nodes, with the password that is asked for.
    pub fn url(&self) -> String {
        let password = self.setup.password;
        let login = password.map(|password| format!(":{}@", encoded(password)));
        self.url_as(&login.unwrap_or_default())
    }

    /// The same, for this login: `user:password@`.
    pub fn url_as(&self, login: &str) -> String {
        let scheme = if self.setup.has_tls {
            "rediss"
        } else {
            "redis"
        };
        let hosts: Vec<String> = (0..self.nodes.len())
            .map(|i| format!("127.0.0.1:{}", self.client_port(i)))
            .collect();
        format!("{scheme}+cluster://{login}{}", hosts.join(","))
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// What works without the password works through this too: its counters, its log, its process.
    pub fn node(&self, i: usize) -> &Server {
        &self.nodes[i].server
    }

    /// Where the cluster's clients go: the port for TLS where there is one.
    pub fn client_port(&self, i: usize) -> u16 {
        let server = self.node(i);
        let port = server.option("--tls-port");
        port.map_or_else(|| server.port(), |port| port.parse().expect("a port"))
    }

    /// A plain connection to this very node, with every right. It fails rather than hangs.
    pub fn connection(&self, i: usize) -> Connection {
        self.try_connection(i)
            .expect("the node accepts a connection")
    }

    /// Asks this very node, which may be about to hang up.
    pub fn ask<T: FromRedisValue>(&self, i: usize, command: &[&str]) -> RedisResult<T> {
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut self.try_connection(i)?)
    }

    /// Has every node do the same, as `ACL SETUSER` needs it.
    #[track_caller]
    pub fn everywhere(&self, command: &[&str]) {
        for i in 0..self.nodes.len() {
            self.must(i, command);
        }
    }

    /// The slot of a key.
    #[track_caller]
    pub fn slot(&self, key: &str) -> u16 {
        let asked = self.living().next().expect("one node is left");
        self.ask(asked, &["CLUSTER", "KEYSLOT", key])
            .expect("CLUSTER KEYSLOT answers")
    }

    /// A name that begins like this, and belongs to this master as the slots are at the start.
    #[track_caller]
    pub fn name_owned_by(&self, what: &str, master: usize) -> String {
        let is_there = |name: &String| {
            let slot = usize::from(self.slot(&format!("lock:{name}")));
            self.first_slots(master).contains(&slot)
        };
        let mut names = (0..).map(|n| format!("{what}{n}"));
        names.find(is_there).expect("there are names for every one")
    }

    /// The node that a key belongs to, once a single living one says so of itself.
    #[track_caller]
    pub fn master_of(&self, key: &str) -> usize {
        self.owner(self.slot(key))
    }

    /// The node that a slot belongs to, once a single living one says so of itself.
    #[track_caller]
    pub fn owner(&self, slot: u16) -> usize {
        let mut owner = None;
        eventually(ms(60_000), || {
            let claims = |i: &usize| self.seen_owner(*i, slot) == Some(*i);
            let claiming: Vec<usize> = self.living().filter(claims).collect();
            // Two, where one has not heard yet that it has been replaced.
            owner = claiming.first().copied();
            claiming.len() == 1
        });
        owner.expect("just seen to be there")
    }

    /// The replicas that a master had at the start.
    pub fn replicas_of(&self, master: usize) -> impl Iterator<Item = usize> + use<> {
        let (masters, each) = (self.setup.masters, self.setup.replicas_per_master);
        assert!(master < masters, "no master at the start");
        let first = masters + master * each;
        first..first + each
    }

    /// Kills it, as a power cut would. It is gone when this returns.
    pub fn kill(&mut self, i: usize) {
        self.nodes[i].answers.store(false, Ordering::SeqCst);
        self.nodes[i].server.kill();
    }

    /// Starts a killed one again: what it knew of the cluster it knows, its keys are gone.
    pub fn restart(&mut self, i: usize) {
        assert!(
            self.setup.password.is_none(),
            "it would ask for no password"
        );
        self.nodes[i].server.restart();
        self.nodes[i].answers.store(true, Ordering::SeqCst);
    }

    /// Stops it where it stands: connections stay open, nothing is answered.
    pub fn stop(&self, i: usize) {
        self.nodes[i].answers.store(false, Ordering::SeqCst);
        self.node(i).pause();
    }

    pub fn resume(&self, i: usize) {
        self.node(i).resume();
        self.nodes[i].answers.store(true, Ordering::SeqCst);
    }

    /// Has a replica take over from its master, which is well. It has when `wait_for_new_master` returns.
    #[track_caller]
    pub fn failover(&self, replica: usize) {
        self.must(replica, &["CLUSTER", "FAILOVER"]);
    }

    /// Waits until another node of the same shard owns its slots and takes writes.
    #[track_caller]
    pub fn wait_for_new_master(&self, old: usize) -> usize {
        let shard = self.shard(old);
        let mut new = None;
        eventually(ms(60_000), || {
            let others = self
                .living()
                .filter(|i| *i != old && self.shard(*i) == shard);
            new = others.into_iter().find(|i| self.is_serving(*i));
            new.is_some()
        });
        new.expect("just seen to be there")
    }

    /// Waits until all living nodes take commands, agree on the owner of every slot and follow it where they are replicas.
    #[track_caller]
    pub fn wait_until_settled(&self) {
        eventually(ms(60_000), || {
            let mut owners = self.living().map(|i| self.seen_owners(i));
            let first = owners.next().expect("one node is left");
            first.iter().all(Option::is_some)
                && owners.all(|seen| seen == first)
                && self.living().all(|i| self.is_well(i))
        });
    }

    /// Waits until all masters have heard of each other's last gain. Otherwise who gains a slot now may number that no
    /// higher than the one before, and two that have gained from each other go on to contradict each other.
    #[track_caller]
    fn wait_until_epochs_agree(&self) {
        eventually(ms(60_000), || {
            let mut known = self.living().map(|i| self.epochs(i));
            let first = known.next().expect("one node is left");
            let distinct: BTreeSet<&String> = first.values().collect();
            distinct.len() == first.len() && known.all(|seen| seen == first)
        });
    }

    /// The number of each living master's last gain, by the master's id, as this node sees it.
    fn epochs(&self, i: usize) -> BTreeMap<String, String> {
        let nodes: String = self.ask(i, &["CLUSTER", "NODES"]).unwrap_or_default();
        let lines = nodes
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let masters = lines.filter(|fields| {
            fields[2].contains("master") && self.living().any(|i| self.id(i) == fields[0])
        });
        let epochs = masters.map(|fields| (fields[0].to_owned(), fields[6].to_owned()));
        epochs.collect()
    }

    /// From now on both nodes may hold keys of the slot: the old one sends clients on with ASK for a key that is not there.
    #[track_caller]
    pub fn begin_migration(&self, slot: u16, from: usize, to: usize) {
        self.wait_until_epochs_agree();
        let slot = slot.to_string();
        self.must(
            to,
            &["CLUSTER", "SETSLOT", &slot, "IMPORTING", self.id(from)],
        );
        self.must(
            from,
            &["CLUSTER", "SETSLOT", &slot, "MIGRATING", self.id(to)],
        );
    }

    /// Moves the keys that the old node holds of the slot now; how many.
    #[track_caller]
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) -> usize {
        let keys: Vec<Vec<u8>> = redis::cmd("CLUSTER")
            .arg("GETKEYSINSLOT")
            .arg(slot)
            .arg(10_000)
            .query(&mut self.connection(from))
            .expect("CLUSTER GETKEYSINSLOT answers");
        if !keys.is_empty() {
            self.migrate(&keys, from, to);
        }
        keys.len()
    }

    /// Moves one key of a slot that moves.
    #[track_caller]
    pub fn move_key(&self, key: &str, from: usize, to: usize) {
        self.migrate(&[key.into()], from, to);
    }

    fn migrate(&self, keys: &[Vec<u8>], from: usize, to: usize) {
        // Towards the node that the cluster's clients would go to: where there is TLS, it migrates over TLS.
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(self.client_port(to));
        migrate.arg("").arg(0).arg(5_000);
        if let Some(password) = self.setup.password {
            migrate.arg("AUTH").arg(password);
        }
        migrate.arg("KEYS").arg(keys);
        // NOKEY if all of them have expired meanwhile.
        let migrated = migrate.exec(&mut self.connection(from));
        migrated.expect("MIGRATE succeeds");
    }

    /// Gives the slot to the new node, and waits until all living nodes know. Keys that the old one still holds are lost.
    #[track_caller]
    pub fn end_migration(&self, slot: u16, from: usize, to: usize) {
        let _one = self.handing_over.lock();
        self.wait_until_epochs_agree();
        let number = slot.to_string();
        let masters = self.living().filter(|i| self.is_master(*i));
        let others = masters.filter(|i| ![from, to].contains(i));
        // The new owner first: otherwise a crash in between would leave the slot without one.
        for i in [to, from].into_iter().chain(others) {
            self.must(i, &["CLUSTER", "SETSLOT", &number, "NODE", self.id(to)]);
        }
        eventually(ms(30_000), || {
            self.living().all(|i| self.seen_owner(i, slot) == Some(to))
        });
    }

    /// All steps of a migration.
    #[track_caller]
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_migration(slot, from, to);
        while self.move_keys(slot, from, to) > 0 {}
        self.end_migration(slot, from, to);
    }

    /// Has every node ask for the password, and give it to the others.
    fn secure(&self) {
        for what in ["masterauth", "requirepass"] {
            if let Some(password) = self.setup.password {
                for node in &self.nodes {
                    redis::cmd("CONFIG")
                        .arg(&["SET", what, password])
                        .exec(&mut node.server.connection())
                        .expect("it takes a password");
                }
            }
        }
    }

    fn join(&mut self) {
        for i in 0..self.nodes.len() {
            self.nodes[i].id = self
                .ask(i, &["CLUSTER", "MYID"])
                .expect("CLUSTER MYID answers");
            // Before they meet: no two masters may have the same, and to find that out costs time.
            let epoch = (i + 1).to_string();
            self.must(i, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        let masters = self.setup.masters;
        for i in 0..masters {
            let slots = self.first_slots(i);
            if Server::version() >= 7 {
                let (first, last) = (slots.start.to_string(), (slots.end - 1).to_string());
                self.must(i, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            } else {
                let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
                let command = ["CLUSTER", "ADDSLOTS"].into_iter();
                let command = command.chain(slots.iter().map(String::as_str));
                self.must(i, &command.collect::<Vec<_>>());
            }
        }
        for i in 1..self.nodes.len() {
            let (port, bus) = (
                self.client_port(i).to_string(),
                self.bus_port(i).to_string(),
            );
            self.must(0, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        for master in 0..masters {
            for replica in self.replicas_of(master) {
                // Unknown until the two have heard of each other.
                let command = ["CLUSTER", "REPLICATE", self.id(master)];
                eventually(ms(30_000), || self.ask::<()>(replica, &command).is_ok());
            }
        }
        self.wait_until_settled();
        let knows_replicas = |i: usize| {
            let entries = self.slots(i);
            entries.len() == masters
                && entries
                    .iter()
                    .all(|(_, _, ports)| ports.len() == 1 + self.setup.replicas_per_master)
        };
        eventually(ms(30_000), || (0..self.nodes.len()).all(knows_replicas));
    }

    /// The slots of a master at the start.
    fn first_slots(&self, master: usize) -> Range<usize> {
        let masters = self.setup.masters;
        SLOTS * master / masters..SLOTS * (master + 1) / masters
    }

    fn living(&self) -> impl Iterator<Item = usize> {
        let answers = |i: &usize| self.nodes[*i].answers.load(Ordering::SeqCst);
        (0..self.nodes.len()).filter(answers)
    }

    fn id(&self, i: usize) -> &str {
        &self.nodes[i].id
    }

    /// Which of the masters of the start it was, or was a replica of.
    fn shard(&self, i: usize) -> usize {
        let (masters, each) = (self.setup.masters, self.setup.replicas_per_master);
        i.checked_sub(masters).map_or(i, |replica| replica / each)
    }

    fn bus_port(&self, i: usize) -> u16 {
        let server = self.node(i);
        let named = server.option("--cluster-port");
        named.map_or_else(
            || self.client_port(i) + 10_000,
            |port| port.parse().expect("a port"),
        )
    }

    fn try_connection(&self, i: usize) -> RedisResult<Connection> {
        let password = self.setup.password;
        let login =
            password.map_or_else(String::new, |password| format!(":{}@", encoded(password)));
        let url = format!("redis://{login}127.0.0.1:{}", self.node(i).port());
        connect(&url, ms(2_000))
    }

    #[track_caller]
    fn must(&self, i: usize, command: &[&str]) {
        if let Err(error) = self.ask::<Value>(i, command) {
            panic!("node {i}: {command:?}: {error}");
        }
    }

    /// The first and last slot of each range, and the plain ports of its master and replicas, as this node sees it.
    fn slots(&self, i: usize) -> Vec<(u16, u16, Vec<u16>)> {
        let ranges: Vec<Vec<Value>> = self.ask(i, &["CLUSTER", "SLOTS"]).unwrap_or_default();
        let port = |node: Value| match node {
            Value::Array(fields) => u16::from_redis_value(fields[1].clone()).expect("a port"),
            other => panic!("no node: {other:?}"),
        };
        let parsed = ranges.into_iter().map(|range| {
            let mut fields = range.into_iter();
            let mut slot = || {
                let slot = fields.next().expect("a range begins and ends with a slot");
                u16::from_redis_value(slot).expect("a slot")
            };
            (slot(), slot(), fields.map(port).collect())
        });
        parsed.collect()
    }

    /// The owner of each slot, as this node sees it.
    fn seen_owners(&self, i: usize) -> Vec<Option<usize>> {
        let mut owners = vec![None; SLOTS];
        for (first, last, ports) in self.slots(i) {
            let owner = self
                .nodes
                .iter()
                .position(|node| node.server.port() == ports[0]);
            owners[usize::from(first)..=usize::from(last)].fill(owner);
        }
        owners
    }

    fn seen_owner(&self, i: usize, slot: u16) -> Option<usize> {
        self.seen_owners(i)[usize::from(slot)]
    }

    fn field(&self, i: usize, command: &[&str], field: &str) -> Option<String> {
        let text: String = self.ask(i, command).ok()?;
        let mut lines = text.lines();
        lines.find_map(|line| {
            let value = line.strip_prefix(field)?.strip_prefix(':')?;
            Some(value.to_owned())
        })
    }

    fn is_master(&self, i: usize) -> bool {
        self.field(i, &["INFO", "replication"], "role").as_deref() == Some("master")
    }

    /// It takes commands and, as a replica, has its master's data.
    fn is_well(&self, i: usize) -> bool {
        let link = self.field(i, &["INFO", "replication"], "master_link_status");
        let state = self.field(i, &["CLUSTER", "INFO"], "cluster_state");
        state.as_deref() == Some("ok") && link.is_none_or(|link| link == "up")
    }

    fn is_serving(&self, i: usize) -> bool {
        self.is_master(i) && self.is_well(i) && self.seen_owners(i).contains(&Some(i))
    }
}

fn options(setup: &ClusterSetup) -> Vec<String> {
    let mut options = vec![
        "--cluster-enabled",
        "yes",
        // That of the setup comes later: the shorter it is, the sooner they know each other.
        "--cluster-node-timeout",
        "1500",
        "--cluster-announce-ip",
        "127.0.0.1",
        // A replica that has received nothing yet is not listed, and the first that it receives is this ping.
        "--repl-ping-replica-period",
        "1",
        // A replica stays with its shard, where the tests look for the next master.
        "--cluster-migration-barrier",
        "100",
    ];
    options.extend(setup.options);
    let mut options: Vec<String> = options.into_iter().map(str::to_owned).collect();
    let mut add = |name: &str, value: String| options.extend([name.to_owned(), value]);
    // Older ones add 10000 to their port, and do not start where that is taken: another port is tried then.
    if Server::version() >= 7 {
        add("--cluster-port", port::free().to_string());
    }
    if setup.has_tls {
        for [name, value] in tls_options(port::free(), "server") {
            add(&format!("--{name}"), value);
        }
        for name in ["--tls-cluster", "--tls-replication"] {
            add(name, "yes".to_owned());
        }
    }
    options
}
