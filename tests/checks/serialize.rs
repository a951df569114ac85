//! Promise: with the feature `serde`, tokens, names, holders and statistics have a fixed form,
//! which contains no id with which a lock can be released.

use std::fmt::Debug;

use leasehold::{Client, FencingToken, Name, Stats};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json, to_value};
use serde_test::{Configure, Token, assert_ser_tokens, assert_tokens};
use support::{Server, client};

#[track_caller]
fn assert_form<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, form: Value) {
    assert_eq!(to_value(value).unwrap(), form);
    assert_eq!(from_value::<T>(form).unwrap(), *value);
}

#[test]
fn tokens_are_numbers_and_only_tokens_are_read() {
    assert_form(&FencingToken::try_from(7_u64).unwrap(), json!(7));
    for form in [json!(0), json!(-1), json!(1_u64 << 53), json!("7")] {
        assert!(from_value::<FencingToken>(form.clone()).is_err(), "{form}");
    }
}

#[test]
fn names_are_text_or_bytes_and_are_also_read_from_numbers() {
    assert_form(&Name::from("order:7"), json!("order:7"));
    assert_form(&Name::from(b"\xff\x00"), json!([255, 0]));
    assert_eq!(from_value::<Name>(json!(7)).unwrap(), Name::from("7"));
    assert_eq!(from_value::<Name>(json!(-7)).unwrap(), Name::from(-7));
    assert!(from_value::<Name>(json!([256])).is_err());
    // In a binary format a name is always bytes: some such formats do not say which type follows.
    let bytes = Token::Bytes(b"order:7");
    assert_tokens(&Name::from("order:7").compact(), &[bytes]);
}

#[test]
fn holders_show_no_whole_id() {
    let server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex("a").lock().unwrap();
    let permit = client.semaphore("b", 3).many(2).acquire().unwrap();
    let reading = client.rw_lock("c").read().unwrap();
    server.run("SET", &["lock:d", "a secret of another program"]);

    let held = to_value(client.list("").unwrap()).unwrap();
    let [a, c, d] = held.as_array().unwrap().as_slice() else {
        panic!("{held}");
    };
    assert_eq!((&a["name"], &a["shared"]), (&json!("a"), &json!(false)));
    assert_eq!(a["fencing_token"], guard.fencing_token().value());
    let first = &a["holders"][0];
    assert_eq!(first["holder"], guard.holder_id().short().to_string());
    assert_eq!(first["owner"], guard.holder_id().owner());
    assert!(first["remaining_ms"].as_u64().is_some_and(|left| left > 0));
    assert_eq!(c["shared"], true);
    assert_eq!(c["holders"][0]["holder"], Value::Null);
    assert_eq!(d["holders"][0]["remaining_ms"], Value::Null);

    let permits = to_value(client.list_permits("").unwrap()).unwrap();
    assert_eq!(permits[0]["name"], "b");
    assert_eq!(permits[0]["permits"], 2);
    assert_eq!(permits[0]["holders"][0]["permits"], 2);
    let readers = to_value(client.rw_lock("c").inspect().unwrap()).unwrap();
    assert_eq!(readers["holders"][0]["shared"], false);

    let all = format!("{held} {permits} {readers}");
    for secret in [
        guard.holder_id().as_str(),
        permit.holder_id().as_str(),
        reading.holder_id().as_str(),
        "secret",
    ] {
        assert!(!all.contains(secret), "{all}");
    }
}

#[test]
fn a_refusal_shows_the_owner_and_what_is_not_known_is_null() {
    let server = Server::start();
    let owner = |owner| Client::builder().url(server.url()).owner(owner).build();
    let (one, two) = (owner("one").unwrap(), owner("two").unwrap());
    let guard = one.mutex("a").lock().unwrap();
    let _permit = one.semaphore("b", 1).acquire().unwrap();
    let taken = to_value(two.mutex("a").try_lock().unwrap().unwrap_err()).unwrap();
    assert_eq!(
        (&taken["name"], &taken["owner"]),
        (&json!("a"), &json!("one"))
    );
    assert_eq!(taken["this_client"], false);
    assert_eq!(taken["shared"], false);
    assert_eq!(taken["permits_out"], Value::Null);
    assert!(taken["held_for_ms"].as_u64().is_some());
    assert!(taken["remaining_ms"].as_u64().is_some_and(|left| left > 0));
    let permits = to_value(two.semaphore("b", 1).try_acquire().unwrap().unwrap_err()).unwrap();
    assert_eq!(permits["owner"], Value::Null);
    assert_eq!(permits["permits_out"], 1);
    assert_eq!(permits["held_for_ms"], Value::Null);
    let all = format!("{taken} {permits}");
    assert!(
        !all.contains(&guard.holder_id().as_str()["one:".len()..]),
        "{all}"
    );
}

/// Formats such as MessagePack write the number of fields first.
#[test]
fn held_lock_has_a_known_number_of_fields() {
    let server = Server::start();
    server.run("SET", &["lock:d", "of another program"]);
    let held = client(&server.url()).list("").unwrap();
    let fields = [
        Token::Struct {
            name: "Held",
            len: 5,
        },
        Token::Str("name"),
        Token::Str("d"),
        Token::Str("permits"),
        Token::U64(1),
        Token::Str("shared"),
        Token::Bool(false),
        Token::Str("fencing_token"),
        Token::None,
        Token::Str("holders"),
        Token::Seq { len: Some(1) },
        Token::Struct {
            name: "Holder",
            len: 7,
        },
        Token::Str("owner"),
        Token::None,
        Token::Str("holder"),
        Token::None,
        Token::Str("permits"),
        Token::U32(1),
        Token::Str("remaining_ms"),
        Token::None,
        Token::Str("fencing_token"),
        Token::None,
        Token::Str("shared"),
        Token::Bool(false),
        Token::Str("lingering"),
        Token::Bool(false),
        Token::StructEnd,
        Token::SeqEnd,
        Token::StructEnd,
    ];
    assert_ser_tokens(&held[0].clone().readable(), &fields);
}

#[test]
fn statistics_are_read_back_and_may_lack_fields() {
    let server = Server::start();
    let client = client(&server.url());
    drop(client.mutex("a").lock().unwrap());
    let stats = client.stats();
    let form = to_value(stats).unwrap();
    assert_eq!(form["totals"]["acquired_at_once"], 1);
    assert_form(&stats, form);
    // A value that an earlier version has written lacks the fields of later versions.
    assert_eq!(
        from_value::<Stats>(json!({"held": 0})).unwrap(),
        Stats::default()
    );
}
