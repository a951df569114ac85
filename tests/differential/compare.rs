//! Compares the replies of the test kit with those of a real server.

use std::iter;

use crate::kit::Reply;

/// How much times may differ: the kit runs a command at the start of the time in which the real
/// server may have run it.
const TOLERANCE_MS: u64 = 2;

/// The sorts of numbers that may differ.
#[derive(Clone, Copy)]
pub(crate) struct Tolerance {
    /// Numbers near this time, in µs, are fresh tokens; near this time in ms, they are times.
    pub(crate) now: u64,
    /// Numbers above 10 may be remaining times in ms.
    pub(crate) ttls: bool,
}

/// Returns whether two replies to a command are equal, up to the order of unordered collections.
pub(crate) fn are_equal(command: &[u8], real: &Reply, kit: &Reply, now: u64) -> bool {
    // The kit refuses an option that it lacks before it looks for the error that Redis reports.
    if let (Reply::Error(_), Reply::Error(text)) = (real, kit)
        && text.contains("leasehold::testing does not know")
    {
        return true;
    }
    let width = match &command.to_ascii_uppercase()[..] {
        b"HGETALL" => 2,
        b"HVALS" | b"KEYS" | b"SMEMBERS" => 1,
        b"TIME" => {
            let number = |reply: &Reply| micros(reply).map_or_else(|| reply.clone(), Reply::Int);
            return are_alike(&number(real), &number(kit), Tolerance { now, ttls: false });
        }
        // A page that is not all of the keys depends on the server.
        b"SCAN" if is_first_page(real) && is_page(kit) || is_first_page(kit) && is_page(real) => {
            return true;
        }
        b"SCAN" => {
            let [real, kit] = [real, kit].map(|reply| in_order(reply, 1));
            return are_alike(&real, &kit, Tolerance { now, ttls: false });
        }
        command => {
            let ttls = matches!(command, b"PTTL" | b"EVALSHA");
            let tolerance = Tolerance { now, ttls };
            let [by_id, by_id_of_kit] = [real, kit].map(holders_by_id);
            return are_alike(real, kit, tolerance) || are_alike(&by_id, &by_id_of_kit, tolerance);
        }
    };
    let [real, kit] = [real, kit].map(|reply| sorted(reply, width));
    are_alike(&real, &kit, Tolerance { now, ttls: false })
}

/// Returns the time in a reply to TIME, in µs.
pub(crate) fn micros(reply: &Reply) -> Option<i64> {
    let Reply::Array(Some(parts)) = reply else {
        return None;
    };
    let part = |n: usize| match parts.get(n) {
        Some(Reply::Bulk(Some(text))) => str::from_utf8(text).ok()?.parse::<i64>().ok(),
        _ => None,
    };
    part(0)?.checked_mul(1_000_000)?.checked_add(part(1)?)
}

fn is_page(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(Some(_)))
}

/// Returns whether a page of keys is followed by another one.
fn is_first_page(reply: &Reply) -> bool {
    let end = Reply::bulk("0");
    matches!(reply, Reply::Array(Some(parts)) if parts[0] != end)
}

/// Sorts the holders at the end of a list, each with its ttl, by their ids.
///
/// A script lists them by their ends. Of two that end in the same millisecond on one server, either
/// can be first on the other.
fn holders_by_id(reply: &Reply) -> Reply {
    let Reply::Array(Some(items)) = reply else {
        return reply.clone();
    };
    let is_holder = |pair: &[Reply]| matches!(pair, [Reply::Bulk(_), Reply::Int(_)]);
    let holders = items.rchunks(2).take_while(|pair| is_holder(pair)).count();
    let (head, holders) = items.split_at(items.len() - 2 * holders);
    let Reply::Array(Some(holders)) = sorted(&Reply::Array(Some(holders.to_vec())), 2) else {
        unreachable!("a list stays one")
    };
    Reply::Array(Some([head, &holders].concat()))
}

/// Sorts the items of a list by groups of `width`.
pub(crate) fn sorted(reply: &Reply, width: usize) -> Reply {
    let Reply::Array(Some(items)) = reply else {
        return reply.clone();
    };
    let mut groups: Vec<&[Reply]> = items.chunks(width).collect();
    groups.sort_by_key(|group| format!("{group:?}"));
    Reply::Array(Some(groups.concat()))
}

/// Sorts the lists in a list.
fn in_order(reply: &Reply, width: usize) -> Reply {
    let Reply::Array(Some(items)) = reply else {
        return reply.clone();
    };
    let items = items.iter().map(|item| sorted(item, width));
    Reply::Array(Some(items.collect()))
}

pub(crate) fn are_alike(real: &Reply, kit: &Reply, tolerance: Tolerance) -> bool {
    match (real, kit) {
        (Reply::Int(real), Reply::Int(kit)) => numbers_are_alike(*real, *kit, tolerance),
        (Reply::Bulk(Some(real)), Reply::Bulk(Some(kit))) => texts_are_alike(real, kit, tolerance),
        (Reply::Array(Some(real)), Reply::Array(Some(kit))) => {
            // The time since a grant can be short. It is the fourth item of a refusal, and precedes
            // the holder in the reply to a refresh.
            let precedes_holder = |n| n + 2 == real.len() && matches!(real[n + 1], Reply::Bulk(_));
            let is_age = |n: usize| n == 3 && real[0] == Reply::Int(0) || precedes_holder(n);
            let mut pairs = iter::zip(real, kit).enumerate();
            real.len() == kit.len()
                && pairs.all(|(n, pair)| match pair {
                    (Reply::Int(real), Reply::Int(kit)) if is_age(n) => {
                        // A fence beyond 2^53 gives an age that a Lua number only has about.
                        let rounding = real.unsigned_abs() >> 50;
                        real.abs_diff(*kit) <= TOLERANCE_MS + rounding
                    }
                    (real, kit) => are_alike(real, kit, tolerance),
                })
        }
        _ => real == kit,
    }
}

fn numbers_are_alike(real: i64, kit: i64, tolerance: Tolerance) -> bool {
    let differ_by = |limit: u64| real.abs_diff(kit) <= limit;
    let are_near = |time: u64, by: u64| {
        let mut numbers = [real, kit].into_iter();
        numbers.all(|number| number.abs_diff(time.cast_signed()) < by)
    };
    // Not more than two hours from now.
    (are_near(tolerance.now, 7_200_000_000) && differ_by(TOLERANCE_MS * 1000))
        || (are_near(tolerance.now / 1000, 7_200_000) && differ_by(TOLERANCE_MS))
        || (tolerance.ttls && real.min(kit) > 10 && differ_by(TOLERANCE_MS))
        || real == kit
}

/// Compares texts such as `grant 1700000000000000 id`, in which only times may differ.
fn texts_are_alike(real: &[u8], kit: &[u8], tolerance: Tolerance) -> bool {
    if real == kit {
        return true;
    }
    let times_only = Tolerance {
        ttls: false,
        ..tolerance
    };
    let [real, kit] = [real, kit].map(|text| {
        let is_border = |pair: &[u8; 2]| pair[0].is_ascii_digit() == pair[1].is_ascii_digit();
        text.chunk_by(|one, other| is_border(&[*one, *other]))
            .map(|run| String::from_utf8_lossy(run).into_owned())
            .collect::<Vec<_>>()
    });
    let runs_are_alike = |(real, kit): (&String, &String)| match (real.parse(), kit.parse()) {
        (Ok(real), Ok(kit)) => numbers_are_alike(real, kit, times_only),
        _ => real == kit,
    };
    real.len() == kit.len() && iter::zip(&real, &kit).all(runs_are_alike)
}
