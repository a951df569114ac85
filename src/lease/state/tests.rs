//! Tests of the states of a lease.

use super::*;

/// A lease of this ttl is valid for 8998 ms from the send: 10 s less 10 % and 2 ms.
const TTL: Duration = Duration::from_secs(10);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at(n: u64) -> Instant {
    Instant::START.after(ms(n))
}

const fn due_at(at: Instant) -> Due {
    Due::At {
        best: at,
        latest: at,
    }
}

fn terms() -> LeaseTerms {
    LeaseTerms {
        ttl: TTL,
        renew_every: Some(TTL / 3),
        max_hold: Duration::MAX,
        replicas: None,
        handoffs: 32,
        linger: Duration::ZERO,
    }
}

fn lease() -> LeaseState {
    LeaseState::acquired(at(1000), at(1001), &terms()).unwrap()
}

/// Returns a lease on these terms whose command was sent at 0.
fn acquired_on(terms: LeaseTerms) -> LeaseState {
    LeaseState::acquired(at(0), at(1), &terms).unwrap()
}

#[test]
fn lease_is_held_for_its_validity_and_then_lost_for_good() {
    let mut lease = lease();
    assert_eq!(lease.status(at(1001)), LeaseStatus::Held(ms(8997)));
    assert_eq!(lease.status(at(9_998)), LeaseStatus::Lost(Lost::Expired));
    assert_eq!(
        lease.status(at(1001)),
        LeaseStatus::Lost(Lost::Expired),
        "a loss is final"
    );
}

#[test]
fn reply_later_than_the_validity_grants_nothing() {
    assert!(LeaseState::acquired(at(0), at(8997), &terms()).is_some());
    assert!(LeaseState::acquired(at(0), at(8998), &terms()).is_none());
}

#[test]
fn validity_counts_from_before_the_send() {
    let mut lease = lease();
    let request = lease.begin_renewal(at(4000)).unwrap();
    assert_eq!(
        lease.begin_renewal(at(4000)),
        None,
        "renewals never overlap"
    );
    lease.confirmed(at(4000), at(4000), request);
    assert_eq!(lease.status(at(5000)), LeaseStatus::Held(ms(7998)));
}

#[test]
fn late_renewal_revives_no_expired_lease() {
    let mut lease = lease();
    let request = lease.begin_renewal(at(9_900)).unwrap();
    lease.confirmed(at(9_900), at(9_998), request);
    assert_eq!(lease.status(at(9_998)), LeaseStatus::Lost(Lost::Expired));
}

#[test]
fn short_lease_is_not_renewed_with_every_round() {
    let mut lease = acquired_on(LeaseTerms {
        ttl: ms(100),
        renew_every: Some(ms(33)),
        ..terms()
    });
    assert_eq!(lease.due(at(1)), due_at(at(33)));
    assert_eq!(lease.begin_due_renewal(at(1)), None);
    assert!(
        lease.begin_due_renewal(at(30)).is_some(),
        "in one round with due renewals"
    );
}

#[test]
fn clock_jump_past_the_validity_is_a_loss() {
    let mut lease = lease();
    assert_eq!(lease.due(at(2000)), due_at(at(1000).after(TTL / 3)));
    assert_eq!(
        lease.status(at(3_600_000)),
        LeaseStatus::Lost(Lost::Expired)
    );
    assert_eq!(lease.due(at(3_600_000)), Due::Nothing);
    assert_eq!(lease.begin_renewal(at(3_600_000)), None);
}

#[test]
fn failed_renewal_is_retried_until_the_lease_expires() {
    let mut lease = lease();
    let mut now = at(4334);
    let mut tries = 0;
    while lease.begin_renewal(now).is_some() {
        tries += 1;
        lease.unconfirmed(now);
        match lease.due(now) {
            Due::At { best: next, .. } => now = next.max(now.after(ms(1))),
            Due::Renewal => now = now.after(ms(1)),
            Due::Nothing => break,
        }
    }
    assert!(tries > 10, "{tries}");
    assert_eq!(lease.status(at(9_997)), LeaseStatus::Held(ms(1)));
    assert_eq!(lease.status(at(9_998)), LeaseStatus::Lost(Lost::Expired));
}

#[test]
fn granted_lease_is_renewed_soon_whatever_renew_every_says() {
    for renew_every in [Some(TTL / 3), None] {
        let terms = LeaseTerms {
            renew_every,
            max_hold: ms(5000),
            ..terms()
        };
        let lasting = ms(3000);
        assert!(
            LeaseState::granted(at(0), at(1350), lasting, &terms).is_none(),
            "less than half of its validity is left"
        );
        let mut lease = LeaseState::granted(at(0), at(1348), lasting, &terms).unwrap();
        assert_eq!(lease.status(at(1348)), LeaseStatus::Held(ms(1350)));
        assert_eq!(
            lease.due(at(1348)),
            Due::At {
                best: at(1351),
                latest: at(2023)
            }
        );
        let request = lease.begin_due_renewal(at(1351)).unwrap();
        assert_eq!(
            request,
            RenewalRequest {
                ttl: TTL,
                renews: true
            }
        );
        lease.unconfirmed(at(1500));
        assert!(matches!(lease.due(at(1500)), Due::At { best: next, .. } if next < at(1600)));
        let request = lease.begin_renewal(at(1600)).unwrap();
        assert!(request.renews, "the failed renewal is repeated");
        lease.confirmed(at(1600), at(1601), request);
        assert_eq!(
            lease.status(at(1601)),
            LeaseStatus::Held(ms(4747)),
            "max_hold limits the renewal"
        );
        assert_eq!(
            lease.begin_renewal(at(1601)).unwrap().renews,
            renew_every.is_some()
        );
    }
}

#[test]
fn lease_is_lost_at_max_hold() {
    let mut lease = acquired_on(LeaseTerms {
        max_hold: ms(2000),
        ..terms()
    });
    assert_eq!(lease.due(at(1)), due_at(at(2000)));
    assert_eq!(lease.status(at(2000)), LeaseStatus::Lost(Lost::MaxHold));
}

#[test]
fn suspected_loss_is_checked_without_renewing() {
    let mut lease = acquired_on(LeaseTerms {
        renew_every: None,
        ..terms()
    });
    assert_eq!(lease.due(at(1)), due_at(at(8998)));
    lease.suspect(at(2));
    assert_eq!(lease.due(at(2)), Due::Renewal);
    let request = lease.begin_renewal(at(5000)).unwrap();
    assert_eq!(
        request,
        RenewalRequest {
            ttl: ms(1),
            renews: false
        }
    );
    lease.confirmed(at(5000), at(5000), request);
    assert_eq!(lease.status(at(5000)), LeaseStatus::Held(ms(3998)));
}

#[test]
fn lease_in_doubt_asks_for_a_key_that_outlasts_it() {
    let mut lease = acquired_on(LeaseTerms {
        renew_every: None,
        ..terms()
    });
    assert!(lease.distrust(ms(20_000), at(5000)));
    let request = lease.begin_renewal(at(5000)).unwrap();
    assert!(!request.renews);
    assert_eq!(
        request.ttl,
        ms(5000),
        "what the key has if no machine was paused"
    );
    lease.confirmed(at(5000), at(5000), request);
    assert_eq!(lease.status(at(5000)), LeaseStatus::Held(ms(3998)));
}

#[test]
fn suspected_loss_is_checked_until_a_later_reply() {
    let mut lease = acquired_on(LeaseTerms {
        renew_every: None,
        ..terms()
    });
    lease.suspect(at(10));
    lease.begin_renewal(at(10)).unwrap();
    lease.unconfirmed(at(20));
    assert!(
        matches!(lease.due(at(20)), Due::At { best: next, .. } if next <= at(20).after(ms(50)))
    );
    let request = lease.begin_renewal(at(80)).unwrap();
    lease.suspect(at(81));
    lease.confirmed(at(80), at(82), request);
    assert_eq!(
        lease.due(at(82)),
        Due::Renewal,
        "the renewal may have run before the second suspicion"
    );
}

#[test]
fn unanswered_set_ttl_limits_a_later_longer_one() {
    let mut lease = acquired_on(LeaseTerms {
        ttl: ms(1000),
        ..terms()
    });
    lease.set_ttl(at(100), ms(2000)).unwrap();
    lease.unanswered(at(200), ms(2000));
    lease.set_ttl(at(300), ms(20_000)).unwrap();
    lease.ttl_set(at(300), at(301), ms(20_000), true);
    assert_eq!(
        lease.status(at(300)),
        LeaseStatus::Held(ms(1798)),
        "the first change may run after the second"
    );
}

#[test]
fn shortening_set_ttl_counts_before_it_is_sent() {
    let mut lease = lease();
    lease.set_ttl(at(2000), ms(1000)).unwrap();
    assert_eq!(lease.status(at(2000)), LeaseStatus::Held(ms(898)));
    lease.ttl_set(at(2000), at(2000), ms(1000), true);
    assert_eq!(lease.status(at(2000)), LeaseStatus::Held(ms(898)));
    assert_eq!(lease.due(at(2000)), due_at(at(2000).after(ms(1000) / 3)));
}

#[test]
fn unanswered_shortening_set_ttl_limits_later_renewals() {
    let mut lease = lease();
    lease.set_ttl(at(2000), ms(1000)).unwrap();
    lease.unanswered(at(2100), ms(1000));
    let request = lease.begin_renewal(at(2200)).unwrap();
    assert_eq!(request.ttl, TTL);
    lease.confirmed(at(2200), at(2200), request);
    assert_eq!(lease.status(at(2200)), LeaseStatus::Held(ms(898)));
    lease.set_ttl(at(2300), TTL).unwrap();
    lease.ttl_set(at(2300), at(2300), TTL, true);
    assert_eq!(
        lease.status(at(2300)),
        LeaseStatus::Held(ms(898)),
        "the first change may still run"
    );
}

#[test]
fn unanswered_lengthening_set_ttl_prolongs_the_key_but_not_the_lease() {
    let mut lease = lease();
    assert_eq!(lease.longest, TTL);
    lease.set_ttl(at(2000), 360 * TTL).unwrap();
    assert_eq!(lease.longest, 360 * TTL, "counts before it is sent");
    lease.unanswered(at(2100), 360 * TTL);
    assert_eq!(lease.ttl, TTL);
    assert_eq!(lease.status(at(2100)), LeaseStatus::Held(ms(7898)));
    lease.set_ttl(at(2200), TTL).unwrap();
    lease.ttl_set(at(2200), at(2201), TTL, true);
    assert_eq!(
        lease.longest,
        360 * TTL,
        "the first change may run after the second"
    );
    assert_eq!(lease.key_may_last(), 720 * TTL);
}

#[test]
fn answered_set_ttl_replaces_the_longest_expiry() {
    let mut lease = lease();
    lease.set_ttl(at(2000), 360 * TTL).unwrap();
    lease.ttl_set(at(2000), at(2001), 360 * TTL, true);
    lease.set_ttl(at(3000), TTL).unwrap();
    assert_eq!(lease.longest, 360 * TTL, "until it is answered");
    lease.ttl_set(at(3000), at(3001), TTL, true);
    assert_eq!(lease.longest, TTL);
    assert_eq!(lease.key_may_last(), 2 * TTL);
    assert_eq!(lease.key_may_last_at(at(3001)), TTL, "nothing runs late");
    // Not final: another copy of the key may still have the longer ttl.
    lease.set_ttl(at(4000), ms(1000)).unwrap();
    lease.ttl_set(at(4000), at(4001), ms(1000), false);
    assert_eq!(lease.longest, TTL);
}

#[test]
fn longest_expiry_falls_once_no_unanswered_command_can_run() {
    let renewal = |lease: &mut LeaseState| {
        lease.begin_renewal(at(2000)).unwrap();
        lease.unconfirmed(at(2100));
    };
    let set_ttl = |lease: &mut LeaseState| {
        lease.set_ttl(at(2000), TTL).unwrap();
        lease.unanswered(at(2100), TTL);
    };
    let silences: [&dyn Fn(&mut LeaseState); 2] = [&renewal, &set_ttl];
    for silence in silences {
        // The command may run until 12.1 s: the client gave up on it at 2.1 s, and the longest ttl
        // is 10 s.
        for (sent, falls) in [(12_099, false), (12_100, true)] {
            let mut lease = LeaseState::acquired(at(1000), at(1001), &terms()).unwrap();
            silence(&mut lease);
            let request = lease.begin_renewal(at(7000)).unwrap();
            lease.confirmed(at(7000), at(7001), request);
            lease.set_ttl(at(sent), ms(5000)).unwrap();
            lease.ttl_set(at(sent), at(sent), ms(5000), true);
            assert_eq!(lease.longest < TTL, falls, "{sent} ms");
        }
    }
}

#[test]
fn set_ttl_that_did_not_run_changes_nothing() {
    let mut lease = lease();
    let before = lease.set_ttl(at(2000), ms(1000)).unwrap();
    lease.ttl_not_set(at(2010), before);
    assert_eq!(lease.status(at(2010)), LeaseStatus::Held(ms(7988)));
    let before = lease.set_ttl(at(2020), 2 * TTL).unwrap();
    lease.ttl_not_set(at(2030), before);
    assert_eq!(lease.longest, TTL);
}

#[test]
fn lengthening_set_ttl_counts_when_confirmed() {
    let mut lease = lease();
    lease.set_ttl(at(2000), ms(60_000)).unwrap();
    assert_eq!(lease.status(at(2000)), LeaseStatus::Held(ms(7998)));
    lease.ttl_set(at(2000), at(2000), ms(60_000), true);
    assert_eq!(lease.status(at(2000)), LeaseStatus::Held(ms(53_998)));
}

#[test]
fn released_lease_cannot_be_lost() {
    let mut lease = lease();
    assert_eq!(lease.release(at(2000)), LeaseStatus::Held(ms(7998)));
    lease.lose(Lost::Deleted, at(2000));
    assert_eq!(lease.status(at(60_000)), LeaseStatus::Released);
    assert_eq!(lease.release(at(2001)), LeaseStatus::Released);
}

#[test]
fn lease_that_has_run_out_expired_whoever_holds_the_key() {
    let mut lease = lease();
    lease.lose(Lost::Taken, at(60_000));
    assert_eq!(lease.lost(), Some(Lost::Expired));
}

/// The wall clock ran ahead by this much.
const AHEAD: Duration = ms(4000);

#[test]
fn lease_that_the_wall_clock_puts_in_doubt_is_renewed_at_once() {
    let mut lease = lease();
    assert_eq!(lease.confirmed_at(), at(1000));
    assert!(lease.distrust(AHEAD, at(2000)));
    assert!(!lease.distrust(AHEAD, at(2000)), "it is planned");
    assert_eq!(lease.due(at(2000)), Due::Renewal);
    let request = lease.begin_renewal(at(2001)).unwrap();
    lease.confirmed(at(2001), at(2002), request);
    assert_eq!(lease.confirmed_at(), at(2001));
    assert_eq!(
        lease.due(at(2002)),
        due_at(at(2001).after(TTL / 3)),
        "that is all"
    );
    assert!(lease.distrust(AHEAD, at(2003)), "once more");
}

#[test]
fn doubt_while_a_renewal_is_in_flight_is_asked_about_again() {
    let mut lease = lease();
    let request = lease.begin_renewal(at(2000)).unwrap();
    assert!(lease.distrust(AHEAD, at(2001)));
    lease.confirmed(at(2000), at(2002), request);
    assert_eq!(lease.due(at(2002)), Due::Renewal);
}

#[test]
fn lease_that_is_not_renewed_is_asked_for_when_the_reply_decides() {
    let mut lease = acquired_on(LeaseTerms {
        renew_every: None,
        ..terms()
    });
    // By the wall clock, the lease is over at 4998 ms, and its key is gone at 7002 ms at the
    // latest: twice the margin later.
    assert!(lease.distrust(AHEAD, at(1000)));
    assert_eq!(lease.due(at(1000)), due_at(at(7002)));
    lease.suspect(at(2000));
    let early = lease.begin_due_renewal(at(2000)).unwrap();
    lease.confirmed(at(2000), at(2001), early);
    assert_eq!(lease.confirmed_at(), at(0), "the key may be gone later");
    assert_eq!(lease.due(at(2001)), due_at(at(7002)));
    let check = lease.begin_due_renewal(at(7002)).unwrap();
    assert!(!check.renews);
    lease.confirmed(at(7002), at(7003), check);
    assert_eq!(lease.confirmed_at(), at(7002), "the wall clock was set");
    assert_eq!(lease.status(at(7003)), LeaseStatus::Held(ms(8998 - 7003)));
    assert_eq!(lease.due(at(7003)), due_at(at(8998)));
}

#[test]
fn renewal_of_a_lease_in_doubt_counts_although_more_counted_before() {
    let mut lease = lease();
    lease.limit(ms(1000));
    lease.distrust(AHEAD, at(2000));
    let request = lease.begin_renewal(at(2000)).unwrap();
    lease.confirmed(at(2000), at(2000), request);
    assert_eq!(lease.status(at(2000)), LeaseStatus::Held(ms(898)));
}
