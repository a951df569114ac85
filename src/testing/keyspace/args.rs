//! Arguments of commands, and the texts of Redis's errors.

pub(super) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Parses an integer as Redis does: without a plus sign, leading zeros or spaces.
pub(super) fn parse_integer(arg: &[u8]) -> Option<i64> {
    let number: i64 = str::from_utf8(arg).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == arg).then_some(number)
}

pub(crate) fn integer(arg: &[u8]) -> Result<i64, String> {
    parse_integer(arg).ok_or_else(not_an_integer)
}

/// Parses a decimal number as C's `strtod` does. Hexadecimal ones are not supported.
pub(super) fn parse_float(arg: &[u8]) -> Option<f64> {
    let number: f64 = str::from_utf8(arg).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Parses a score, which must not overflow to infinity or underflow to zero.
pub(super) fn score(arg: &[u8]) -> Result<f64, String> {
    // Whether the mantissa contains a digit of a range, given by its first and last digit.
    let has_digit = |digits: [u8; 2]| {
        let mantissa = arg.split(|byte| matches!(byte, b'e' | b'E')).next();
        let mut bytes = mantissa.unwrap_or_default().iter();
        bytes.any(|byte| (digits[0]..=digits[1]).contains(byte))
    };
    let is_in_range = |number: f64| match number {
        0.0 => !has_digit(*b"19"),
        _ if number.is_infinite() => !has_digit(*b"09"),
        _ => true,
    };
    parse_float(arg)
        .filter(|number| is_in_range(*number))
        .ok_or_else(|| "ERR value is not a valid float".to_owned())
}

/// Returns an error if `args`, which begins with the command, has more than `count` items.
pub(super) fn no_options(args: &[Vec<u8>], count: usize) -> Result<(), String> {
    match args.get(count) {
        None => Ok(()),
        Some(option) => Err(unknown_part(&args[0], option)),
    }
}

/// Returns the error for a part of a command that the kit does not support.
pub(crate) fn unknown_part(command: &[u8], part: &[u8]) -> String {
    let [command, part] = [command, part].map(|word| word.to_ascii_uppercase());
    format!(
        "ERR {} {}: the server of leasehold::testing does not know this command, or these \
         arguments; test this with a real server",
        command.escape_ascii(),
        part.escape_ascii()
    )
}

pub(crate) fn wrong_number(command: &str) -> String {
    format!(
        "ERR wrong number of arguments for '{}' command",
        command.to_ascii_lowercase()
    )
}

pub(super) fn wrong_type() -> String {
    "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned()
}

pub(super) fn syntax() -> String {
    "ERR syntax error".to_owned()
}

fn not_an_integer() -> String {
    "ERR value is not an integer or out of range".to_owned()
}

pub(super) fn overflow() -> String {
    "ERR increment or decrement would overflow".to_owned()
}

pub(super) fn invalid_expire(command: &str) -> String {
    format!("ERR invalid expire time in '{command}' command")
}
