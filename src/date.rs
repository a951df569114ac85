//! Writes times as dates. Feature `tls` only.

/// Returns a time as a date and a time of day, in UTC.
pub(crate) fn date(unix: i64) -> String {
    let (mut day, second) = (unix.div_euclid(86_400), unix.rem_euclid(86_400));
    let mut year = 1970 + day / 366;
    while days(year + 1, 1, 1) <= day {
        year += 1;
    }
    let mut month = 12;
    while days(year, month, 1) > day {
        month -= 1;
    }
    day = day - days(year, month, 1) + 1;
    let (hours, minutes) = (second / 3_600, second / 60 % 60);
    let seconds = second % 60;
    format!("{year}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02} UTC")
}

/// Returns the number of days from 1 January 1970 to a day of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years that begin in March, so that a leap day is the last day.
    let year = year - i64::from(month <= 2);
    let month = (month + 9) % 12;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_799, "2000-02-29 23:59:59 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(date(unix), expected);
        }
    }
}
