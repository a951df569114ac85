//! Reads until when an X.509 certificate is valid. Feature `tls` only.

/// The tags of the values that this reads:
/// <https://www.rfc-editor.org/rfc/rfc5280#section-4.1>.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the last second in which a certificate in DER is valid, in Unix time. Returns `None` if
/// it cannot be read.
pub(crate) fn not_after(der: &[u8]) -> Option<i64> {
    let certificate = Values(der).next_of(SEQUENCE)?;
    let mut fields = Values(Values(certificate).next_of(SEQUENCE)?);
    if fields.0.first() == Some(&VERSION) {
        fields.next()?;
    }
    // The serial number, the algorithm and the issuer.
    for _ in 0..3 {
        fields.next()?;
    }
    let mut validity = Values(fields.next_of(SEQUENCE)?);
    let (_not_before, (tag, text)) = (validity.next()?, validity.next()?);
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.strip_suffix('Z')?;
    let (century, rest) = match tag {
        UTC_TIME => (None, digits),
        GENERALIZED_TIME => (Some(number(digits.get(..2)?)?), digits.get(2..)?),
        _ => return None,
    };
    let mut parts = [0; 6];
    for (n, part) in parts.iter_mut().enumerate() {
        *part = number(rest.get(2 * n..2 * n + 2)?)?;
    }
    let [year, month, day, hours, minutes, seconds] = parts;
    let year = match century {
        Some(century) => 100 * century + year,
        None if year < 50 => 2000 + year,
        None => 1900 + year,
    };
    Some(days(year, month, day) * 86_400 + hours * 3_600 + minutes * 60 + seconds)
}

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

fn number(digits: &str) -> Option<i64> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// The values of a sequence in DER that have not been read.
struct Values<'a>(&'a [u8]);

impl<'a> Values<'a> {
    /// Returns the tag and the contents of the next value.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (length, rest) = match first {
            0..0x80 => (usize::from(first), rest),
            _ => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let length = bytes.iter().try_fold(0_usize, |length, byte| {
                    Some(length.checked_mul(256)? | usize::from(*byte))
                });
                (length?, rest)
            }
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, contents))
    }

    fn next_of(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|(found, _)| *found == tag)
            .map(|(_, contents)| contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    #[test]
    fn end_of_a_certificate_is_read() {
        let pem = include_bytes!("../tests/support/certificates/expired.pem");
        let certificate = CertificateDer::from_pem_slice(pem).unwrap();
        let end = not_after(&certificate).unwrap();
        assert_eq!(date(end), "2025-03-10 14:25:36 UTC");
        for length in 0..certificate.len() {
            // A part of a certificate is no panic.
            let _ = not_after(&certificate[..length]);
        }
        let pem = include_bytes!("../tests/support/certificates/ca.pem");
        let certificate = CertificateDer::from_pem_slice(pem).unwrap();
        assert!(date(not_after(&certificate).unwrap()).starts_with("21"));
    }

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
