//! A plan as one line of text: `SIM_PLAN='…'` replays it.
//!
//! `seed=7 family=Calm clients=2 … drifts=12,-40 faults=1500:Cut.0.Engine.true,2000:Kill.1`
//!
//! A fault of a server names it: `Server.2.Stall.900`. That of the only one need not: `Stall.900`.

use std::fmt;
use std::str::{FromStr, Split};

use super::plan::{Actor, Family, Fault, Kind, Plan, ServerFault, Why};
use super::server::Time;
use crate::kernel::bounds::bound_of;

/// Why a text is no plan.
#[derive(Debug)]
pub(super) struct Malformed(#[expect(dead_code, reason = "Debug shows it")] String);

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |items: Vec<String>| items.join(",");
        let kinds = list(self.kinds.iter().map(word).collect());
        let drifts = list(self.drifts.iter().map(i64::to_string).collect());
        let by = if self.by_engine { " by=Engine" } else { "" };
        let low = self
            .low
            .map_or_else(String::new, |low| format!(" low={low:?}"));
        let fault = |(at, it): &(Time, Fault)| {
            let text = word(it);
            let of_only_one = text.strip_prefix("Server.0.").filter(|_| !self.is_quorum());
            format!("{at}:{}", of_only_one.unwrap_or(&text))
        };
        let faults = list(self.faults.iter().map(fault).collect());
        write!(
            f,
            "seed={} family={:?} servers={} clients={} threads={} ops={} names={} kinds={kinds} ttl={} \
             handoffs={} backoff={} linger={} drifts={drifts}{low}{by} faults={faults}",
            self.seed,
            self.family,
            self.servers,
            self.clients,
            self.threads,
            self.ops,
            self.names,
            self.ttl,
            self.handoffs,
            self.backoff,
            self.linger
        )
    }
}

/// The words of a value's `Debug`, with dots between them: `Cut(0, Caller(1), true)` is
/// `Cut.0.Caller.1.true`.
fn word(value: &impl fmt::Debug) -> String {
    let text = format!("{value:?}");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(".")
}

impl FromStr for Plan {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let text_of = |key: &str| {
            let mut fields = text.split_ascii_whitespace();
            let found = fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
            found.ok_or_else(|| Malformed(format!("no {key}")))
        };
        let items = |key| {
            let items = text_of(key)?.split(',').filter(|item| !item.is_empty());
            Ok::<_, Malformed>(items)
        };
        let family = text_of("family")?;
        let is_it = |it: &Family| format!("{it:?}") == family;
        let low = |text| bound_of(text).ok_or_else(|| malformed(text));
        let faults = items("faults")?.map(|item| {
            let (at, fault) = item.split_once(':').ok_or_else(|| malformed(item))?;
            Ok((number(at)?, Words(fault.split('.')).fault()?))
        });
        Ok(Self {
            seed: number(text_of("seed")?)?,
            family: Family::ALL
                .into_iter()
                .find(is_it)
                .ok_or_else(|| malformed(family))?,
            servers: text_of("servers").map_or(Ok(1), number)?,
            clients: number(text_of("clients")?)?,
            threads: number(text_of("threads")?)?,
            ops: number(text_of("ops")?)?,
            names: number(text_of("names")?)?,
            kinds: items("kinds")?
                .map(|it| Words(it.split('.')).kind())
                .collect::<Result<_, _>>()?,
            ttl: number(text_of("ttl")?)?,
            handoffs: number(text_of("handoffs")?)?,
            backoff: number(text_of("backoff")?)?,
            linger: text_of("linger").map_or(Ok(0), number)?,
            drifts: items("drifts")?.map(number).collect::<Result<_, _>>()?,
            faults: faults.collect::<Result<_, Malformed>>()?,
            low: text_of("low").ok().map(low).transpose()?,
            by_engine: text_of("by").is_ok(),
        })
    }
}

fn malformed(text: &str) -> Malformed {
    Malformed(format!("cannot read {text:?}"))
}

fn number<T: FromStr>(text: &str) -> Result<T, Malformed> {
    text.parse().map_err(|_| malformed(text))
}

/// The words of one value.
struct Words<'a>(Split<'a, char>);

impl Words<'_> {
    fn next<T: FromStr>(&mut self) -> Result<T, Malformed> {
        number(self.0.next().unwrap_or_default())
    }

    fn kind(&mut self) -> Result<Kind, Malformed> {
        Ok(match &*self.next::<String>()? {
            "Mutex" => Kind::Mutex,
            "NoQueue" => Kind::NoQueue,
            "Fair" => Kind::Fair,
            "Set" => Kind::Set,
            "PlainSet" => Kind::PlainSet,
            "SlotSet" => Kind::SlotSet(self.next()?),
            "Reader" => Kind::Reader,
            "Writer" => Kind::Writer,
            "Permits" => Kind::Permits(self.next()?),
            other => return Err(malformed(other)),
        })
    }

    fn actor(&mut self) -> Result<Actor, Malformed> {
        Ok(match &*self.next::<String>()? {
            "Caller" => Actor::Caller(self.next()?),
            "Engine" => Actor::Engine,
            "Sub" => Actor::Sub,
            other => return Err(malformed(other)),
        })
    }

    fn actor_or_all(&mut self) -> Result<Option<Actor>, Malformed> {
        match &*self.next::<String>()? {
            "None" => Ok(None),
            "Some" => self.actor().map(Some),
            other => Err(malformed(other)),
        }
    }

    fn why(&mut self) -> Result<Why, Malformed> {
        Ok(match &*self.next::<String>()? {
            "Full" => Why::Full,
            "NoRight" => Why::NoRight,
            "Half" => Why::Half,
            "NoScript" => Why::NoScript,
            other => return Err(malformed(other)),
        })
    }

    fn fault(&mut self) -> Result<Fault, Malformed> {
        Ok(match &*self.next::<String>()? {
            "Stop" => Fault::Stop(self.next()?, self.actor_or_all()?, self.next()?),
            "StopNext" => Fault::StopNext(self.next()?, self.actor()?, self.next()?),
            "Suspend" => Fault::Suspend(self.next()?, self.next()?),
            "Pause" => Fault::Pause(self.next()?, self.next()?),
            "Kill" => Fault::Kill(self.next()?),
            "Panic" => Fault::Panic(self.next()?, self.next()?),
            "Cancel" => Fault::Cancel(self.next()?, self.next()?),
            "Shutdown" => Fault::Shutdown(self.next()?),
            "LoseMessages" => Fault::LoseMessages(self.next()?, self.next()?),
            "Server" => {
                let server = self.next()?;
                let what: String = self.next()?;
                Fault::Server(server, self.server_fault(&what)?)
            }
            what => Fault::Server(0, self.server_fault(what)?),
        })
    }

    fn server_fault(&mut self, what: &str) -> Result<ServerFault, Malformed> {
        Ok(match what {
            "Cut" => ServerFault::Cut(self.next()?, self.actor()?, self.next()?),
            "Slow" => ServerFault::Slow(self.next()?, self.actor()?, self.next()?),
            "Twice" => ServerFault::Twice(self.next()?, self.actor()?),
            "Stall" => ServerFault::Stall(self.next()?),
            "Hang" => ServerFault::Hang(self.next()?),
            "Errors" => ServerFault::Errors(self.next()?),
            "Reject" => ServerFault::Reject(self.why()?, self.next()?),
            "FlushScripts" => ServerFault::FlushScripts,
            "Ahead" => ServerFault::Ahead(self.next()?),
            "Back" => ServerFault::Back(self.next()?),
            "Move" => ServerFault::Move(self.next()?),
            "Foreign" => ServerFault::Foreign(self.next()?, self.next()?),
            "Delete" => ServerFault::Delete(self.next()?),
            "Snapshot" => ServerFault::Snapshot,
            "Failover" => ServerFault::Failover,
            "RestartEmpty" => ServerFault::RestartEmpty,
            "Restart" => ServerFault::Restart(self.next()?),
            "Force" => ServerFault::Force(self.next()?),
            "Forget" => ServerFault::Forget,
            other => return Err(malformed(other)),
        })
    }
}

#[test]
fn plans_are_read_as_they_are_written() {
    for family in Family::ALL {
        for seed in 0..50 {
            let plan = super::plan::families::plan(family, seed);
            let line = plan.to_string();
            let read: Plan = line
                .parse()
                .unwrap_or_else(|error| panic!("{error:?}: {line}"));
            assert_eq!(format!("{read:?}"), format!("{plan:?}"));
        }
    }
    assert!("seed=1 family=Calm".parse::<Plan>().is_err());
}
