//! Times on the command line: a number and a unit.

use std::time::Duration;

/// The longest time: a hundred years, which can be added to the current time without overflow.
const LONGEST: Duration = Duration::from_secs(36_500 * 86_400);

/// How many digits after the point are read. Further digits are worth less than 0.1 ms, even with
/// the unit `d`.
const DECIMALS: usize = 9;

const FORM: &str = "expected a number and a unit: 500ms, 1.5s, 30s, 5m, 2h or 1d";

/// Parses a number and its unit: `500ms`, `1.5s`, `30s`, `5m`, `2h`, `1d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3_600),
        "d" => Duration::from_secs(86_400),
        _ => return Err(FORM.into()),
    };
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || decimals.is_empty() || decimals.contains('.') {
        return Err(FORM.into());
    }
    let decimals = decimals.get(..DECIMALS).unwrap_or(decimals);
    let billionths: u128 = format!("{decimals:0<DECIMALS$}")
        .parse()
        .map_err(|_| FORM)?;
    // A number that does not fit into 128 bits is longer than the longest time.
    let nanos = whole
        .parse()
        .ok()
        .and_then(|whole: u128| unit.as_nanos().checked_mul(whole))
        .and_then(|nanos| nanos.checked_add(unit.as_nanos() * billionths / 1_000_000_000))
        .filter(|&nanos| nanos <= LONGEST.as_nanos())
        .ok_or("must be at most a hundred years")?;
    // A hundred years are 3.2e18 ns, which fit into 64 bits.
    Ok(Duration::from_nanos(
        u64::try_from(nanos).unwrap_or(u64::MAX),
    ))
}

/// Parses a time that must not be 0.
pub(crate) fn pause(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        pause if pause.is_zero() => Err("must be longer than 0".into()),
        pause => Ok(pause),
    }
}

#[cfg(test)]
mod tests {
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
}
