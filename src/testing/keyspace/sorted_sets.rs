//! Sorted sets.

use std::collections::BTreeMap;

use super::args::{self, integer, is, parse_float, score};
use super::{Keyspace, Outcome, Reply};

/// The score of each member. Ranges sort by score: no set of a test is large.
pub(super) type SortedSetValue = BTreeMap<Vec<u8>, f64>;

/// The options of ZADD.
#[derive(Clone, Copy, Default)]
struct Options {
    only_new: bool,
    only_existing: bool,
    only_greater: bool,
    only_less: bool,
    count_changed: bool,
    increment: bool,
}

/// What adding a member did.
enum Added {
    New(f64),
    /// The member existed; its score is now this, and was another if the flag is set.
    Existing(f64, bool),
    Refused,
}

/// A range of scores.
struct Range {
    min: f64,
    max: f64,
    excludes_min: bool,
    excludes_max: bool,
}

pub(super) fn zadd(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let (options, pairs) = Options::parse(&args[2..]);
    add(keyspace, &args[1], options, pairs)
}

pub(super) fn zincrby(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let options = Options {
        increment: true,
        ..Options::default()
    };
    add(keyspace, &args[1], options, &args[2..])
}

fn add(keyspace: &mut Keyspace, key: &[u8], options: Options, pairs: &[Vec<u8>]) -> Outcome {
    let (pairs, rest) = pairs.as_chunks();
    if pairs.is_empty() || !rest.is_empty() {
        return Err(args::syntax());
    }
    options.check(pairs.len())?;
    let scores = pairs.iter().map(|[number, _]| score(number));
    let scores = scores.collect::<Result<Vec<f64>, String>>()?;
    let is_absent = keyspace.find::<SortedSetValue>(key)?.is_none();
    if options.only_existing && is_absent {
        return Ok(match options.increment {
            true => Reply::NIL,
            false => Reply::Int(0),
        });
    }
    let set = keyspace.find_or_create(key)?;
    let (mut new, mut changed, mut last) = (0, 0, None);
    for ([_, member], score) in pairs.iter().zip(scores) {
        match options.add(set, member, score)? {
            Added::New(score) => {
                new += 1;
                last = Some(score);
            }
            Added::Existing(score, has_changed) => {
                changed += usize::from(has_changed);
                last = Some(score);
            }
            Added::Refused => {}
        }
    }
    Ok(if options.increment {
        Reply::Bulk(last.map(format_score))
    } else if options.count_changed {
        Reply::count(new + changed)
    } else {
        Reply::count(new)
    })
}

pub(super) fn zscore(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.read(&args[1], Reply::NIL, |set: &SortedSetValue| {
        Reply::Bulk(set.get(&args[2]).copied().map(format_score))
    })
}

pub(super) fn zcard(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.read(&args[1], Reply::Int(0), |set: &SortedSetValue| {
        Reply::count(set.len())
    })
}

pub(super) fn zrem(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.change(&args[1], Reply::Int(0), |set: &mut SortedSetValue| {
        let members = args[2..].iter();
        Reply::count(members.filter_map(|member| set.remove(member)).count())
    })
}

pub(super) fn zremrangebyscore(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let range = Range::parse(&args[2], &args[3])?;
    keyspace.change(&args[1], Reply::Int(0), |set: &mut SortedSetValue| {
        let before = set.len();
        set.retain(|_, score| !range.contains(*score));
        Reply::count(before - set.len())
    })
}

pub(super) fn zrangebyscore(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let (mut with_scores, mut offset, mut limit) = (false, 0, -1);
    let mut rest = &args[4..];
    loop {
        match rest {
            [] => break,
            [option, more @ ..] if is(option, "WITHSCORES") => {
                with_scores = true;
                rest = more;
            }
            [option, from, most, more @ ..] if is(option, "LIMIT") => {
                (offset, limit) = (integer(from)?, integer(most)?);
                rest = more;
            }
            _ => return Err(args::syntax()),
        }
    }
    let range = Range::parse(&args[2], &args[3])?;
    keyspace.read(&args[1], Reply::array([]), |set: &SortedSetValue| {
        let mut found: Vec<_> = set
            .iter()
            .filter(|(_, score)| range.contains(**score))
            .collect();
        // No score is NaN. The sort keeps members with the same score in their order.
        found.sort_by(|(_, one), (_, other)| one.partial_cmp(other).unwrap());
        // A negative offset skips all, a negative limit is none.
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let found = found.into_iter().skip(offset).take(limit);
        Reply::array(found.flat_map(|(member, score)| {
            let score = with_scores.then(|| Reply::bulk(format_score(*score)));
            [Some(Reply::bulk(member.clone())), score]
                .into_iter()
                .flatten()
        }))
    })
}

impl Options {
    /// Returns the options, and the scores and members behind them.
    fn parse(args: &[Vec<u8>]) -> (Self, &[Vec<u8>]) {
        let mut options = Self::default();
        for (index, arg) in args.iter().enumerate() {
            let option = match arg {
                arg if is(arg, "NX") => &mut options.only_new,
                arg if is(arg, "XX") => &mut options.only_existing,
                arg if is(arg, "GT") => &mut options.only_greater,
                arg if is(arg, "LT") => &mut options.only_less,
                arg if is(arg, "CH") => &mut options.count_changed,
                arg if is(arg, "INCR") => &mut options.increment,
                _ => return (options, &args[index..]),
            };
            *option = true;
        }
        (options, &[])
    }

    fn check(self, pairs: usize) -> Result<(), String> {
        let error = if self.only_new && self.only_existing {
            "ERR XX and NX options at the same time are not compatible"
        } else if (self.only_new && (self.only_greater || self.only_less))
            || (self.only_greater && self.only_less)
        {
            "ERR GT, LT, and/or NX options at the same time are not compatible"
        } else if self.increment && pairs > 1 {
            "ERR INCR option supports a single increment-element pair"
        } else {
            return Ok(());
        };
        Err(error.to_owned())
    }

    fn add(self, set: &mut SortedSetValue, member: &[u8], score: f64) -> Result<Added, String> {
        let Some(current) = set.get_mut(member) else {
            if self.only_existing {
                return Ok(Added::Refused);
            }
            set.insert(member.to_vec(), score);
            return Ok(Added::New(score));
        };
        if self.only_new {
            return Ok(Added::Refused);
        }
        let score = match self.increment {
            true => *current + score,
            false => score,
        };
        if score.is_nan() {
            return Err("ERR resulting score is not a number (NaN)".to_owned());
        }
        if (self.only_greater && score <= *current) || (self.only_less && score >= *current) {
            return Ok(Added::Refused);
        }
        let has_changed = score != *current;
        if has_changed {
            *current = score;
        }
        Ok(Added::Existing(score, has_changed))
    }
}

impl Range {
    fn parse(min: &[u8], max: &[u8]) -> Result<Self, String> {
        let bound = |arg: &[u8]| {
            let exclusive = arg.strip_prefix(b"(");
            let number = parse_float(exclusive.unwrap_or(arg));
            let number = number.ok_or("ERR min or max is not a float")?;
            Ok::<_, String>((number, exclusive.is_some()))
        };
        let (min, excludes_min) = bound(min)?;
        let (max, excludes_max) = bound(max)?;
        Ok(Self {
            min,
            max,
            excludes_min,
            excludes_max,
        })
    }

    fn contains(&self, score: f64) -> bool {
        let is_above = score > self.min || (score == self.min && !self.excludes_min);
        let is_below = score < self.max || (score == self.max && !self.excludes_max);
        is_above && is_below
    }
}

/// Writes a score with as few digits as tell it from its neighbours.
fn format_score(score: f64) -> Vec<u8> {
    score.to_string().into_bytes()
}
