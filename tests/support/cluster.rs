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

/// The setup of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterSetup {
    pub masters: usize,
    pub replicas_per_master: usize,
    /// The password that every node requires.
    pub password: Option<&'static str>,
    /// Whether the nodes use TLS among each other, and have a TLS port besides the plain one.
    /// The TLS port requires a client certificate.
    pub has_tls: bool,
    /// The certificate that the nodes present over TLS, and the authority that they trust.
    pub certificate: [&'static str; 2],
    /// A master that is silent for this long is replaced one or two seconds later.
    pub node_timeout: Duration,
    /// Additional options of every node.
    pub options: &'static [&'static str],
}

impl ClusterSetup {
    /// A cluster that replaces no master unless told to, however slow this machine is.
    pub const fn steady(masters: usize, replicas_per_master: usize) -> Self {
        Self {
            masters,
            replicas_per_master,
            password: None,
            has_tls: false,
            certificate: ["server", "ca.pem"],
            node_timeout: ms(60_000),
            options: &[],
        }
    }

    /// A cluster that replaces a dead master within seconds.
    pub const fn fast_failover(masters: usize, replicas_per_master: usize) -> Self {
        Self {
            node_timeout: ms(1_500),
            ..Self::steady(masters, replicas_per_master)
        }
    }
}

/// A running cluster. Nodes are numbered: the initial masters first, then the replicas of master 0,
/// of master 1, and so on.
pub struct Cluster {
    nodes: Vec<Node>,
    setup: ClusterSetup,
    permit: Option<Permit>,
    /// Held while a slot gets its new owner: one at a time.
    slot_assignment: Mutex<()>,
}

struct Node {
    server: Server,
    id: String,
    /// False while the node is killed or paused.
    answers: AtomicBool,
}

impl Cluster {
    /// Starts a cluster that replaces a dead master within seconds.
    pub fn start(masters: usize, replicas_per_master: usize) -> Self {
        Self::with(ClusterSetup::fast_failover(masters, replicas_per_master))
    }

    /// Starts the nodes and waits until each accepts commands and knows all owners and replicas.
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
            slot_assignment: Mutex::new(()),
        };
        this.set_password();
        this.join();
        let node_timeout = setup.node_timeout.as_millis().to_string();
        this.run_on_every_node(&["CONFIG", "SET", "cluster-node-timeout", &node_timeout]);
        this
    }

    /// Runs without a time limit, for a cluster that several tests share.
    pub fn long_lived(mut self) -> Self {
        let without_limit = |node: Node| Node {
            server: node.server.long_lived(),
            ..node
        };
        self.nodes = self.nodes.into_iter().map(without_limit).collect();
        self.permit = None;
        self
    }

    /// Returns the URL of a client: all nodes, and the password if one is required.
    pub fn url(&self) -> String {
        let password = self.setup.password;
        let login = password.map(|password| format!(":{}@", encoded(password)));
        self.url_as(&login.unwrap_or_default())
    }

    /// Returns the URL of a client with this login: `user:password@`.
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

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the server of a node, for calls that need no password: its port, log and process.
    pub fn node(&self, i: usize) -> &Server {
        &self.nodes[i].server
    }

    /// Returns the port that the cluster's clients use: the TLS port if there is one.
    pub fn client_port(&self, i: usize) -> u16 {
        let server = self.node(i);
        let port = server.option("--tls-port");
        port.map_or_else(|| server.port(), |port| port.parse().expect("a port"))
    }

    /// Opens a plain connection to this node, with all permissions and a timeout.
    pub fn connection(&self, i: usize) -> Connection {
        self.try_connection(i)
            .expect("the node accepts a connection")
    }

    /// Sends a command to this node and returns its reply or error.
    pub fn ask<T: FromRedisValue>(&self, i: usize, command: &[&str]) -> RedisResult<T> {
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut self.try_connection(i)?)
    }

    /// Runs a command on every node, which `ACL SETUSER` needs.
    #[track_caller]
    pub fn run_on_every_node(&self, command: &[&str]) {
        for i in 0..self.nodes.len() {
            self.run(i, command);
        }
    }

    /// Returns the slot of a key.
    #[track_caller]
    pub fn slot(&self, key: &str) -> u16 {
        let asked = self.live_nodes().next().expect("a node is alive");
        self.ask(asked, &["CLUSTER", "KEYSLOT", key])
            .expect("CLUSTER KEYSLOT answers")
    }

    /// Returns a lock's name with this prefix whose slot belongs to this master initially.
    #[track_caller]
    pub fn name_owned_by(&self, prefix: &str, master: usize) -> String {
        let is_there = |name: &String| {
            let slot = usize::from(self.slot(&format!("lock:{name}")));
            self.first_slots(master).contains(&slot)
        };
        let mut names = (0..).map(|n| format!("{prefix}{n}"));
        names.find(is_there).expect("every master owns some name")
    }

    /// Waits until exactly one live node claims the key's slot, and returns it.
    #[track_caller]
    pub fn master_of(&self, key: &str) -> usize {
        self.owner(self.slot(key))
    }

    /// Waits until exactly one live node claims the slot, and returns it.
    #[track_caller]
    pub fn owner(&self, slot: u16) -> usize {
        let mut owner = None;
        eventually(ms(60_000), || {
            let claims = |i: &usize| self.owner_according_to(*i, slot) == Some(*i);
            let claiming: Vec<usize> = self.live_nodes().filter(claims).collect();
            // Two nodes claim it while one does not know yet that it has been replaced.
            owner = claiming.first().copied();
            claiming.len() == 1
        });
        owner.expect("one node claims the slot")
    }

    /// Returns the initial replicas of an initial master.
    pub fn replicas_of(&self, master: usize) -> impl Iterator<Item = usize> + use<> {
        let (masters, each) = (self.setup.masters, self.setup.replicas_per_master);
        assert!(master < masters, "node {master} was no master initially");
        let first = masters + master * each;
        first..first + each
    }

    /// Kills a node, as a power cut would, and waits for its exit.
    pub fn kill(&mut self, i: usize) {
        self.nodes[i].answers.store(false, Ordering::SeqCst);
        self.nodes[i].server.kill();
    }

    /// Restarts a killed node. It still knows the cluster, but its keys are gone.
    pub fn restart(&mut self, i: usize) {
        assert!(
            self.setup.password.is_none(),
            "the restarted node would require no password"
        );
        self.nodes[i].server.restart();
        self.nodes[i].answers.store(true, Ordering::SeqCst);
    }

    /// Pauses a node: its connections stay open, but it does not reply.
    pub fn pause(&self, i: usize) {
        self.nodes[i].answers.store(false, Ordering::SeqCst);
        self.node(i).pause();
    }

    pub fn resume(&self, i: usize) {
        self.node(i).resume();
        self.nodes[i].answers.store(true, Ordering::SeqCst);
    }

    /// Starts a failover from a healthy master to its replica; `wait_for_new_master` awaits it.
    #[track_caller]
    pub fn failover(&self, replica: usize) {
        self.run(replica, &["CLUSTER", "FAILOVER"]);
    }

    /// Makes a replica the master of its shard, without the consent of the other nodes.
    pub fn take_over(&self, replica: usize) {
        self.run(replica, &["CLUSTER", "FAILOVER", "TAKEOVER"]);
    }

    /// Waits until another node of the same shard owns its slots and accepts writes.
    #[track_caller]
    pub fn wait_for_new_master(&self, old: usize) -> usize {
        let shard = self.shard(old);
        let mut new = None;
        eventually(ms(60_000), || {
            let others = self
                .live_nodes()
                .filter(|i| *i != old && self.shard(*i) == shard);
            new = others.into_iter().find(|i| self.is_serving(*i));
            new.is_some()
        });
        new.expect("a new master serves the shard")
    }

    /// Waits until all live nodes accept commands and agree on the owner of every slot.
    ///
    /// Replicas must also be connected to their master.
    #[track_caller]
    pub fn wait_until_settled(&self) {
        eventually(ms(60_000), || {
            let mut owners = self.live_nodes().map(|i| self.owners_according_to(i));
            let first = owners.next().expect("a node is alive");
            first.iter().all(Option::is_some)
                && owners.all(|seen| seen == first)
                && self.live_nodes().all(|i| self.is_healthy(i))
        });
    }

    /// Waits until all masters know each other's config epochs, and no two epochs are equal.
    ///
    /// Otherwise the next owner of a slot might not raise its epoch above that of the previous one,
    /// and two masters that gave each other slots would keep contradicting each other.
    #[track_caller]
    fn wait_until_epochs_agree(&self) {
        eventually(ms(60_000), || {
            let mut known = self.live_nodes().map(|i| self.epochs(i));
            let first = known.next().expect("a node is alive");
            let distinct: BTreeSet<&String> = first.values().collect();
            distinct.len() == first.len() && known.all(|seen| seen == first)
        });
    }

    /// Returns the config epoch of each live master by its id, according to this node.
    fn epochs(&self, i: usize) -> BTreeMap<String, String> {
        let nodes: String = self.ask(i, &["CLUSTER", "NODES"]).unwrap_or_default();
        let lines = nodes
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let masters = lines.filter(|fields| {
            fields[2].contains("master") && self.live_nodes().any(|i| self.id(i) == fields[0])
        });
        let epochs = masters.map(|fields| (fields[0].to_owned(), fields[6].to_owned()));
        epochs.collect()
    }

    /// Starts to migrate a slot: from now on both nodes may hold keys of it.
    ///
    /// The old node redirects clients with ASK if it does not have the key.
    #[track_caller]
    pub fn begin_migration(&self, slot: u16, from: usize, to: usize) {
        self.wait_until_epochs_agree();
        let slot = slot.to_string();
        self.run(
            to,
            &["CLUSTER", "SETSLOT", &slot, "IMPORTING", self.id(from)],
        );
        self.run(
            from,
            &["CLUSTER", "SETSLOT", &slot, "MIGRATING", self.id(to)],
        );
    }

    /// Moves the keys of the slot that the old node holds now and returns their number.
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

    /// Moves one key of a migrating slot.
    #[track_caller]
    pub fn move_key(&self, key: &str, from: usize, to: usize) {
        self.migrate(&[key.into()], from, to);
    }

    fn migrate(&self, keys: &[Vec<u8>], from: usize, to: usize) {
        // To the port that clients use: with TLS, nodes migrate keys over TLS.
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(self.client_port(to));
        migrate.arg("").arg(0).arg(5_000);
        if let Some(password) = self.setup.password {
            migrate.arg("AUTH").arg(password);
        }
        migrate.arg("KEYS").arg(keys);
        // The reply is NOKEY if all keys have expired meanwhile.
        let migrated = migrate.exec(&mut self.connection(from));
        migrated.expect("MIGRATE succeeds");
    }

    /// Assigns the slot to the new node and waits until all live nodes know it.
    ///
    /// Keys that the old node still holds are lost.
    #[track_caller]
    pub fn end_migration(&self, slot: u16, from: usize, to: usize) {
        let _one = self.slot_assignment.lock();
        self.wait_until_epochs_agree();
        let number = slot.to_string();
        let masters = self.live_nodes().filter(|i| self.is_master(*i));
        let others = masters.filter(|i| ![from, to].contains(i));
        // The new owner first: a crash in between must not leave the slot without an owner.
        for i in [to, from].into_iter().chain(others) {
            self.run(i, &["CLUSTER", "SETSLOT", &number, "NODE", self.id(to)]);
        }
        eventually(ms(30_000), || {
            self.live_nodes()
                .all(|i| self.owner_according_to(i, slot) == Some(to))
        });
    }

    /// Migrates a slot with its keys, from the first step to the last.
    #[track_caller]
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_migration(slot, from, to);
        while self.move_keys(slot, from, to) > 0 {}
        self.end_migration(slot, from, to);
    }

    /// Sets the password that clients, and nodes among each other, must send.
    fn set_password(&self) {
        for what in ["masterauth", "requirepass"] {
            if let Some(password) = self.setup.password {
                for node in &self.nodes {
                    redis::cmd("CONFIG")
                        .arg(&["SET", what, password])
                        .exec(&mut node.server.connection())
                        .expect("CONFIG SET of a password succeeds");
                }
            }
        }
    }

    fn join(&mut self) {
        for i in 0..self.nodes.len() {
            self.nodes[i].id = self
                .ask(i, &["CLUSTER", "MYID"])
                .expect("CLUSTER MYID answers");
            // Before the nodes meet: masters with equal epochs would need time to resolve them.
            let epoch = (i + 1).to_string();
            self.run(i, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        let masters = self.setup.masters;
        for i in 0..masters {
            let slots = self.first_slots(i);
            if Server::version() >= 7 {
                let (first, last) = (slots.start.to_string(), (slots.end - 1).to_string());
                self.run(i, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            } else {
                let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
                let command = ["CLUSTER", "ADDSLOTS"].into_iter();
                let command = command.chain(slots.iter().map(String::as_str));
                self.run(i, &command.collect::<Vec<_>>());
            }
        }
        for i in 1..self.nodes.len() {
            let (port, bus) = (
                self.client_port(i).to_string(),
                self.bus_port(i).to_string(),
            );
            self.run(0, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        for master in 0..masters {
            for replica in self.replicas_of(master) {
                // Fails until the gossip has introduced the two nodes to each other.
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

    /// Returns the initial slots of a master.
    fn first_slots(&self, master: usize) -> Range<usize> {
        let masters = self.setup.masters;
        SLOTS * master / masters..SLOTS * (master + 1) / masters
    }

    fn live_nodes(&self) -> impl Iterator<Item = usize> {
        let answers = |i: &usize| self.nodes[*i].answers.load(Ordering::SeqCst);
        (0..self.nodes.len()).filter(answers)
    }

    fn id(&self, i: usize) -> &str {
        &self.nodes[i].id
    }

    /// Returns the initial master that this node was, or was a replica of.
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
    fn run(&self, i: usize, command: &[&str]) {
        if let Err(error) = self.ask::<Value>(i, command) {
            panic!("node {i}: {command:?}: {error}");
        }
    }

    /// Returns each slot range according to this node: first and last slot, and the plain ports of
    /// its master and replicas.
    fn slots(&self, i: usize) -> Vec<(u16, u16, Vec<u16>)> {
        let ranges: Vec<Vec<Value>> = self.ask(i, &["CLUSTER", "SLOTS"]).unwrap_or_default();
        let port = |node: Value| match node {
            Value::Array(fields) => u16::from_redis_value(fields[1].clone()).expect("a port"),
            other => panic!("not a node: {other:?}"),
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

    /// Returns the owner of each slot according to this node.
    fn owners_according_to(&self, i: usize) -> Vec<Option<usize>> {
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

    fn owner_according_to(&self, i: usize, slot: u16) -> Option<usize> {
        self.owners_according_to(i)[usize::from(slot)]
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

    /// Returns whether the node accepts commands and, if it is a replica, has its master's data.
    fn is_healthy(&self, i: usize) -> bool {
        let link = self.field(i, &["INFO", "replication"], "master_link_status");
        let state = self.field(i, &["CLUSTER", "INFO"], "cluster_state");
        state.as_deref() == Some("ok") && link.is_none_or(|link| link == "up")
    }

    fn is_serving(&self, i: usize) -> bool {
        self.is_master(i) && self.is_healthy(i) && self.owners_according_to(i).contains(&Some(i))
    }
}

fn options(setup: &ClusterSetup) -> Vec<String> {
    let mut options = vec![
        "--cluster-enabled",
        "yes",
        // Until the nodes know each other: a shorter timeout makes them meet sooner.
        // The setup's value is set afterwards.
        "--cluster-node-timeout",
        "1500",
        "--cluster-announce-ip",
        "127.0.0.1",
        // A replica is not listed until it has received something: at the earliest, this ping.
        "--repl-ping-replica-period",
        "1",
        // No replica leaves its shard, because the tests expect the next master there.
        "--cluster-migration-barrier",
        "100",
    ];
    options.extend(setup.options);
    let mut options: Vec<String> = options.into_iter().map(str::to_owned).collect();
    let mut add = |name: &str, value: String| options.extend([name.to_owned(), value]);
    // Redis 6.2 adds 10000 to the port and does not start if that is taken: the caller then retries
    // with another port.
    if Server::version() >= 7 {
        add("--cluster-port", port::free().to_string());
    }
    if setup.has_tls {
        let [shown, authority] = setup.certificate;
        for [name, value] in tls_options(port::free(), shown, authority) {
            add(&format!("--{name}"), value);
        }
        for name in ["--tls-cluster", "--tls-replication"] {
            add(name, "yes".to_owned());
        }
    }
    options
}
