//! Sorted sets.

use super::super::reply::Reply;
use super::args::{self, integer, is, parse_float, score};
use super::data::{Keyspace, Outcome};
use super::lists::first_and_count;
use super::value::SortedSetValue;

/// The options of ZADD that the kit lacks.
const LACKING: [&str; 5] = ["NX", "GT", "LT", "CH", "INCR"];

/// A range of scores.
struct Range {
    min: f64,
    max: f64,
    excludes_min: bool,
    excludes_max: bool,
}

pub(super) fn zadd(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let options = args[2..].iter().take_while(|arg| is(arg, "XX")).count();
    let is_lacking = |arg: &Vec<u8>| LACKING.iter().any(|option| is(arg, option));
    if args.get(2 + options).is_some_and(is_lacking) {
        // Always fails, with an error that names the option.
        args::no_options(args, 2 + options)?;
    }
    let (pairs, rest) = args[2 + options..].as_chunks();
    if pairs.is_empty() || !rest.is_empty() {
        return Err(args::syntax());
    }
    let scores = pairs.iter().map(|[number, _]| score(number));
    let scores = scores.collect::<Result<Vec<f64>, String>>()?;
    let only_existing = options > 0;
    if only_existing && keyspace.find::<SortedSetValue>(&args[1])?.is_none() {
        return Ok(Reply::Int(0));
    }
    let set: &mut SortedSetValue = keyspace.find_or_create(&args[1])?;
    let mut new = 0;
    for ([_, member], score) in pairs.iter().zip(scores) {
        if let Some(current) = set.get_mut(member) {
            *current = score;
        } else if !only_existing {
            set.insert(member.clone(), score);
            new += 1;
        }
    }
    Ok(Reply::count(new))
}

pub(super) fn zincrby(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let (by, member) = (score(&args[2])?, &args[3]);
    let set: &mut SortedSetValue = keyspace.find_or_create(&args[1])?;
    let score = set.get(member).map_or(by, |current| current + by);
    // Only the sum of two infinities is NaN, so the member existed: this call has not created the
    // set, and leaves no empty one.
    if score.is_nan() {
        return Err("ERR resulting score is not a number (NaN)".to_owned());
    }
    set.insert(member.clone(), score);
    Ok(Reply::Bulk(Some(format_score(score))))
}

pub(super) fn zscore(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.read(&args[1], Reply::NIL, |set: &SortedSetValue| {
        Reply::Bulk(set.get(&args[2]).copied().map(format_score))
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
        let mut found = sorted(set);
        found.retain(|(_, score)| range.contains(**score));
        // A negative offset skips all members. A negative limit means no limit.
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        listed(found.into_iter().skip(offset).take(limit), with_scores)
    })
}

/// Only by index.
pub(super) fn zrange(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    // Redis accepts the option more than once.
    let with_scores = args.len() > 4;
    if !args[4..].iter().all(|option| is(option, "WITHSCORES")) {
        return Err(args::syntax());
    }
    let (first, last) = (integer(&args[2])?, integer(&args[3])?);
    keyspace.read(&args[1], Reply::array([]), |set: &SortedSetValue| {
        let (first, count) = first_and_count(first, last, set.len());
        listed(sorted(set).into_iter().skip(first).take(count), with_scores)
    })
}

/// Returns all members by their score.
fn sorted(set: &SortedSetValue) -> Vec<(&Vec<u8>, &f64)> {
    let mut found: Vec<_> = set.iter().collect();
    // The sort keeps members with the same score in their order. `f64::total_cmp` would order the
    // scores -0 and 0.
    found.sort_by(|(_, one), (_, other)| one.partial_cmp(other).expect("no score is NaN"));
    found
}

fn listed<'a>(found: impl Iterator<Item = (&'a Vec<u8>, &'a f64)>, with_scores: bool) -> Reply {
    Reply::array(found.flat_map(|(member, score)| {
        let score = with_scores.then(|| Reply::bulk(format_score(*score)));
        [Some(Reply::bulk(member.clone())), score]
            .into_iter()
            .flatten()
    }))
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
