//! Tests of the replies and messages about places.

use super::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn a_place_is_refreshed_three_times_within_its_provisional_time() {
    assert_eq!(provisional(ms(10_000)), ms(3_000));
    assert_eq!(provisional(ms(500)), ms(500));
    assert_eq!(refresh_every(ms(10_000)), ms(900));
    assert_eq!(refresh_every(ms(400)), ms(90));
    for ttl in [10, 11, 400, 2_999, 3_000, 3_999, 4_000, 10_000].map(ms) {
        let lasts = provisional_of(refresh_every(ttl));
        assert!(
            lasts <= provisional(ttl) && lasts + ms(1) > provisional(ttl),
            "{ttl:?}"
        );
    }
}

#[test]
fn only_a_grant_is_read_from_an_inbox() {
    let id = HolderId::fresh("host/7 of ours");
    let payload = format!("grant 1700000000000000 33 {id}");
    let tokens = TokenBlock {
        first: FencingToken::new(1_700_000_000_000_000),
        count: 33,
    };
    assert_eq!(read_grant(payload.as_bytes()), Some((id.clone(), tokens)));
    let token = TokenBlock::one(FencingToken::new(7));
    let payload = format!("grant 7 r {id}");
    assert_eq!(read_grant(payload.as_bytes()), Some((id, token)));
    let id = HolderId::fresh("3 host/7");
    let payload = format!("grant 7 3/10 {id}");
    let token = TokenBlock::one(FencingToken::new(7));
    assert_eq!(read_grant(payload.as_bytes()), Some((id, token)));
    for payload in [
        &b"probe"[..],
        b"grant ",
        b"grant 7",
        b"grant 7 1",
        b"grant x 1 y:z",
        b"grant 7 o:123e4567-e89b-12d3-a456-426614174000",
        b"grant 7 0 o:123e4567-e89b-12d3-a456-426614174000",
        b"grant 0 1 o:123e4567-e89b-12d3-a456-426614174000",
        b"grant 9007199254740992 1 o:123e4567-e89b-12d3-a456-426614174000",
        b"grant 9007199254740991 2 o:123e4567-e89b-12d3-a456-426614174000",
        b"\xff",
        b"",
    ] {
        assert_eq!(read_grant(payload), None);
    }
}

#[test]
fn only_a_plain_release_names_the_first_place() {
    let first = HolderId::fresh("7 of ours");
    for waiting in [1, 100] {
        let payload = format!("next {waiting} {}", first.as_str());
        let first = Some(first.clone());
        assert_eq!(read_next(payload.as_bytes()), Some(Next { first, waiting }));
    }
    let foreign = Next {
        first: None,
        waiting: 1,
    };
    assert_eq!(read_next(b"next 1 foreign"), Some(foreign));
    let id = "o:123e4567-e89b-12d3-a456-426614174000";
    for payload in ["", "next", "next ", "next 1", "next 1 ", id] {
        assert_eq!(read_next(payload.as_bytes()), None, "{payload}");
    }
    for number in ["0", "101", "+1", "-1", "", "x", "1.5", "99999999999"] {
        let payload = format!("next {number} {id}");
        assert_eq!(read_next(payload.as_bytes()), None, "{payload}");
    }
}

#[test]
fn refresh_of_a_place_is_no_grant() {
    let id = HolderId::fresh("3 host/7");
    let payload = format!("refresh {id}");
    assert_eq!(read_refresh(payload.as_bytes()), Some(id.clone()));
    assert_eq!(read_grant(payload.as_bytes()), None);
    for payload in [
        format!("grant 7 3/10 {id}"),
        "refresh x".into(),
        "refresh".into(),
    ] {
        assert_eq!(read_refresh(payload.as_bytes()), None, "{payload}");
    }
}

#[test]
fn each_place_has_its_state_and_one_lock_one_holder() {
    let read = |items: &[i64]| {
        let reply = Reply::List(items.iter().map(|n| Reply::Int(*n)).collect());
        Some(Refreshed::read(reply, 3, false)?.0)
    };
    assert_eq!(
        read(&[0, 7, -1, 900, -1]),
        Some(vec![
            Refreshed::Waiting(Some(Duration::from_millis(900))),
            Refreshed::Granted(FencingToken::new(7)),
            Refreshed::Gone
        ])
    );
    let endless = Refreshed::Waiting(None);
    assert_eq!(read(&[0, 0, 0, -1, 5]), Some(vec![endless; 3]));
    assert_eq!(read(&[0, 0, -2, 900, 5]), None);
    assert_eq!(read(&[0, 0, 0, -3, 5]), None);
    assert_eq!(read(&[0, 0, 1 << 53, 900, 5]), None);
    assert_eq!(read(&[0, 0, 0, 5]), None, "one is missing");
    assert_eq!(read(&[7, 7, 0, 900, 5]), None, "one lock has one holder");
    let reply = Reply::List([7, 8, 0, 900, 5].map(Reply::Int).to_vec());
    assert!(Refreshed::read(reply, 3, true).is_some(), "two of several");
    assert_eq!(Refreshed::read(Reply::Int(1), 3, false), None);
}

#[test]
fn a_refresh_says_who_holds_the_lock() {
    let read = |last: &[Reply]| {
        let items = [Reply::Int(0), Reply::Int(900)].into_iter();
        let reply = Reply::List(items.chain(last.iter().cloned()).collect());
        Some(Refreshed::read(reply, 1, false)?.1)
    };
    let refusal = |holder: &str, detail| RefusedName {
        name: 0,
        holder: holder.into(),
        remaining: Some(ms(900)),
        detail,
    };
    let holder = Reply::Text(b"v".to_vec());
    assert_eq!(read(&[Reply::Int(4)]), Some(refusal("", Some(4))));
    assert_eq!(
        read(&[Reply::Int(-1), holder.clone()]),
        Some(refusal("v", None))
    );
    assert_eq!(read(&[holder]), None);
}

#[test]
fn a_place_has_its_time_of_entry_unless_it_is_malformed() {
    let entered = |place: &str| entered_ms(place.as_bytes());
    let inbox = "leasehold:inbox:123e4567-e89b-12d3-a456-426614174000";
    assert_eq!(entered(&format!("17 3000 1 12 l {inbox}")), Some(12));
    assert_eq!(entered("17 3000 2/3 12 a "), Some(12));
    for other in ["", "17 3000 ", "17 3000 1 +12 l x", "17 3000 1 x l x"] {
        assert_eq!(entered(other), None, "{other}");
    }
    assert_eq!(entered(&format!("17 3000 {inbox}")), None);
}
