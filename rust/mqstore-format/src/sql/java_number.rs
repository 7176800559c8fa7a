//! Parses numbers as Java does: `Integer.valueOf`, `Long.valueOf`, `Double.valueOf`.
//!
//! An integer consists of ASCII digits or other decimal digits of the basic plane, with or without a sign, and no
//! surrounding characters. A double can have surrounding blanks, a suffix `d` or `f`, and hexadecimal digits with a
//! binary exponent. It can be `NaN` or `Infinity`. Both are exact: a double is the nearest one, ties to even.

use winnow::ascii::{digit0, digit1, hex_digit0};
use winnow::combinator::{alt, opt};
use winnow::error::EmptyError;
use winnow::prelude::*;
use winnow::token::one_of;

/// The decimal zeros of the basic plane. The nine characters after each are its digits (`Character#digit`, Unicode's
/// category Nd).
const ZEROS: [char; 37] = [
    '\u{0030}', '\u{0660}', '\u{06f0}', '\u{07c0}', '\u{0966}', '\u{09e6}', '\u{0a66}', '\u{0ae6}',
    '\u{0b66}', '\u{0be6}', '\u{0c66}', '\u{0ce6}', '\u{0d66}', '\u{0de6}', '\u{0e50}', '\u{0ed0}',
    '\u{0f20}', '\u{1040}', '\u{1090}', '\u{17e0}', '\u{1810}', '\u{1946}', '\u{19d0}', '\u{1a80}',
    '\u{1a90}', '\u{1b50}', '\u{1bb0}', '\u{1c40}', '\u{1c50}', '\u{a620}', '\u{a8d0}', '\u{a900}',
    '\u{a9d0}', '\u{a9f0}', '\u{aa50}', '\u{abf0}', '\u{ff10}',
];

/// Parses a 32-bit integer.
#[inline]
pub(super) fn int(text: &str) -> Option<i32> {
    text.parse().ok().or_else(|| unusual(text)?.try_into().ok())
}

/// Parses a 64-bit integer.
#[inline]
pub(super) fn long(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| unusual(text))
}

/// Parses an integer with digits other than ASCII.
#[cold]
fn unusual(text: &str) -> Option<i64> {
    if text.is_ascii() {
        return None;
    }
    let (digits, sign) = match text.strip_prefix('-') {
        Some(digits) => (digits, -1),
        None => (text.strip_prefix('+').unwrap_or(text), 1),
    };
    digits.chars().try_fold(0i64, |value, character| {
        let zero = ZEROS.get(ZEROS.partition_point(|zero| *zero <= character).checked_sub(1)?)?;
        let digit = i64::from(u32::from(character) - u32::from(*zero));
        value.checked_mul(10)?.checked_add(sign * Some(digit).filter(|digit| *digit < 10)?)
    })
}

/// Parses a double.
pub(super) fn double(text: &str) -> Option<f64> {
    // As Java's `String#trim`, removes control characters and the space.
    let text = text.trim_matches(|character| character <= ' ');
    let number = text.strip_prefix(['+', '-']).unwrap_or(text);
    let magnitude = match number {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        _ => decimal(number).or_else(|| hexadecimal(number))?,
    };
    Some(if text.starts_with('-') { -magnitude } else { magnitude })
}

fn is_suffix(text: &str) -> bool {
    matches!(text, "" | "d" | "D" | "f" | "F")
}

/// Parses `12.5e-3` without its sign.
fn decimal(text: &str) -> Option<f64> {
    let mut rest = text;
    let mantissa = alt(((digit1, opt(('.', digit0))).void(), ('.', digit1).void()));
    let exponent = (one_of(['e', 'E']), opt(one_of(['+', '-'])), digit1);
    let number: Result<&str, EmptyError> = (mantissa, opt(exponent)).take().parse_next(&mut rest);
    number.ok().filter(|_| is_suffix(rest))?.parse().ok()
}

/// Larger than any exponent that makes a difference, with enough distance for the digits.
const FAR: i64 = 1 << 40;

/// Parses `0x1.8p-3` without its sign.
fn hexadecimal(text: &str) -> Option<f64> {
    let mut rest = text;
    let point = opt(('.', hex_digit0)).map(|found| found.map(|(_, fraction)| fraction).unwrap_or_default());
    let power = (one_of(['p', 'P']), (opt(one_of(['+', '-'])), digit1).take());
    let mut parts = (alt(("0x", "0X")), hex_digit0, point, power);
    let (_, whole, fraction, (_, power)): (&str, &str, &str, (char, &str)) =
        parts.parse_next(&mut rest).map_err(|_: EmptyError| ()).ok()?;
    if whole.is_empty() && fraction.is_empty() || !is_suffix(rest) {
        return None;
    }
    let far = if power.starts_with('-') { -FAR } else { FAR };
    let power = power.parse().map_or(far, |power: i64| power.clamp(-FAR, FAR));
    // The first sixty bits, and one bit for all that follow.
    let (mut bits, mut exponent) = (0u64, power - 4 * i64::try_from(fraction.len()).ok()?);
    for digit in whole.chars().chain(fraction.chars()) {
        let digit = u64::from(digit.to_digit(16)?);
        if bits < 1 << 56 {
            bits = bits << 4 | digit;
        } else {
            (bits, exponent) = (bits | u64::from(digit != 0), exponent + 4);
        }
    }
    Some(nearest(bits, exponent))
}

/// Returns the double nearest to `bits` times two to the power of `exponent`, ties to even.
///
/// If there are more than 56 bits, the lowest one may represent further bits.
fn nearest(bits: u64, exponent: i64) -> f64 {
    const LEAST_NORMAL: i64 = f64::MIN_EXP as i64 - 1;
    if bits == 0 {
        return 0.0;
    }
    let shift = bits.leading_zeros();
    let bits = bits << shift;
    // The number is 1.… times two to this power.
    let power = exponent - i64::from(shift) + 63;
    if power >= i64::from(f64::MAX_EXP) {
        return f64::INFINITY;
    }
    let lost = i64::from(u64::BITS - f64::MANTISSA_DIGITS) + (LEAST_NORMAL - power).max(0);
    if lost > 64 {
        return 0.0;
    }
    let kept = bits.checked_shr(lost as u32).unwrap_or(0);
    let half = 1u64 << (lost - 1);
    let rest = bits & ((half - 1) | half);
    let rounded = kept + u64::from(rest > half || rest == half && kept & 1 == 1);
    // The top bit of a normal number is not stored. A carry correctly increases the exponent.
    let biased = u64::try_from(power - LEAST_NORMAL).unwrap_or(0);
    f64::from_bits((biased << (f64::MANTISSA_DIGITS - 1)) + rounded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers_are_digits_of_any_script() {
        for (text, number) in [("5", 5), ("+5", 5), ("-05", -5), ("٥", 5), ("-٥5", -55), ("２１", 21)] {
            assert_eq!((int(text), long(text)), (Some(number), Some(number.into())), "{text}");
        }
        for text in
            ["", "+", "-", " 5", "5 ", "5.0", "5L", "0x5", "½", "𝟓", "٥-", "--٥", "١٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠"]
        {
            assert_eq!((int(text), long(text)), (None, None), "{text}");
        }
        assert_eq!((int("-2147483648"), int("2147483648")), (Some(i32::MIN), None));
        assert_eq!((long("-9223372036854775808"), long("9223372036854775808")), (Some(i64::MIN), None));
        assert_eq!(int("٢١٤٧٤٨٣٦٤٨"), None);
    }

    #[test]
    fn doubles_are_what_java_reads() {
        let cases = [
            ("5", 5.0),
            ("5.", 5.0),
            (".5f", 0.5),
            (" +5e0D\n", 5.0),
            ("\0-1.5e-3\x1f", -0.0015),
            ("1e400", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("0x1p2", 4.0),
            ("-0X.8P1d", -1.0),
            ("0x1.p-1074", 5e-324),
            ("0x1p-1075", 0.0),
            ("0x1.000001p-1075", 5e-324),
            ("0x3p-1075", 1e-323),
            ("0x0p99999999999999999999", 0.0),
            ("0x1p99999999999999999999", f64::INFINITY),
            ("0x1p-99999999999999999999", 0.0),
            ("0x1.fffffffffffff7p1023", f64::MAX),
            ("0x1.fffffffffffff8p1023", f64::INFINITY),
        ];
        for (text, number) in cases {
            assert_eq!(double(text), Some(number), "{text}");
        }
        assert!(double("-NaN").is_some_and(f64::is_nan));
        assert!(double("-0").is_some_and(|zero| zero == 0.0 && zero.is_sign_negative()));
        let bad = [
            "", " ", ".", "e5", "1e", "1e+", "nan", "inf", "NaNd", "5L", "0x1", "0x.p1", "0xp1", "٥",
            "\u{a0}5", "- 5",
        ];
        for text in bad {
            assert_eq!(double(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn hexadecimal_doubles_are_exact(bits: u64, tail in "[0-9a-f]{0,20}") {
            let number = f64::from_bits(bits).abs();
            prop_assume!(number.is_finite());
            // Mantissa and exponent, by the layout of a double.
            let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7ff) as i64);
            let (mantissa, power) = if exponent == 0 { (fraction, -1074) } else { (fraction | 1 << 52, exponent - 1075) };
            prop_assert_eq!(double(&format!("0x{mantissa:x}p{power}")), Some(number));
            // Digits after it lead to it or to the next double, whichever is nearer, ties to even.
            let next = f64::from_bits(number.to_bits() + 1);
            let beyond = tail.trim_end_matches('0');
            let up = beyond > "8" || beyond == "8" && mantissa & 1 == 1;
            prop_assert_eq!(double(&format!("-0x{mantissa:x}.{tail}p{power}")), Some(-if up { next } else { number }));
        }
    }
}
