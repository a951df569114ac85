//! Tests of durations on the command line.

use super::*;

#[test]
fn durations_have_a_unit() {
    assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
    assert_eq!(duration("0s"), Ok(Duration::ZERO));
    assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
    assert_eq!(duration("2h"), Ok(Duration::from_secs(7_200)));
    assert_eq!(duration("36500d"), Ok(LONGEST));
    for wrong in [
        "",
        "10",
        "s",
        "-1s",
        "+1s",
        "10 s",
        "1S",
        "99999999999999999999s",
        "18446744073709551615d",
        "36501d",
        "36500.1d",
    ] {
        assert!(duration(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn pause_is_longer_than_0() {
    assert_eq!(pause("1ms"), Ok(Duration::from_millis(1)));
    for wrong in ["0s", "0.0000001ms", "x"] {
        assert!(pause(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn durations_may_have_decimals() {
    assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1_500)));
    assert_eq!(duration("0.25h"), Ok(Duration::from_secs(900)));
    assert_eq!(duration("2.5ms"), Ok(Duration::from_micros(2_500)));
    assert_eq!(duration("0.1s"), Ok(Duration::from_millis(100)));
    assert_eq!(duration("1.05s"), Ok(Duration::from_millis(1_050)));
    assert_eq!(
        duration("1.00000000000000000000001s"),
        Ok(Duration::from_secs(1))
    );
    for wrong in [".5s", "1.s", "1.5.5s", "1,5s", ".s", "1.5"] {
        assert!(duration(wrong).is_err(), "{wrong}");
    }
}
