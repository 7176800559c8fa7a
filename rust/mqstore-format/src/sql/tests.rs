//! Tests of the documented semantics, the error messages and the limits; `tests/interop` compares with RocketMQ.

use proptest::prelude::*;

use super::*;
use crate::properties::PropertiesBuilder;

/// The properties of a message.
type Message<'a> = &'a [(&'a str, &'a str)];

/// Returns T, F, N for unknown or E, for each message.
fn outcomes(expression: &str, messages: &[Message<'_>]) -> String {
    let filter = SqlFilter::parse(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    let outcome = |message: &Message<'_>| {
        let mut text = PropertiesBuilder::new();
        message.iter().for_each(|(name, value)| text.push_reserved(name, value).unwrap());
        let properties = Properties::new(text.as_bytes());
        let get = |name: &str| properties.get(name).map(Cow::from);
        let found = filter.evaluate(properties);
        assert_eq!(filter.evaluate_with(get), found);
        assert_eq!(filter.matches(properties), found == Ok(Some(true)));
        found.map_or('E', |truth| truth.map_or('N', |truth| if truth { 'T' } else { 'F' }))
    };
    messages.iter().map(outcome).collect()
}

#[test]
fn the_specified_table() {
    let (none, a, b): (&[_], _, _) = (&[], "a", "b");
    let cases: [(&str, &[Message<'_>], &str); 14] = [
        ("a > 5", &[&[(a, "6")], &[(a, "x")], none], "TEN"),
        ("a = 5", &[&[(a, "5")], &[(a, "5.0")], none], "TEN"),
        ("NOT (a > 5) -- \n", &[none, &[(a, "5")]], "NT"),
        ("a <> 5", &[none, &[(a, "4")]], "NT"),
        ("a NOT IN ('x')", &[none, &[(a, "y")], &[(a, "x")]], "NTF"),
        ("a NOT CONTAINS 'zz'", &[none, &[(a, "z")], &[(a, "zzz")]], "FTF"),
        ("a IS NULL", &[none, &[(a, "y")]], "TF"),
        ("a > b", &[&[(a, "10"), (b, "9")], &[(a, "x"), (b, "9")]], "TE"),
        ("a = TRUE", &[&[(a, "tRuE")], &[(a, "yes")]], "TF"),
        ("a AND b", &[&[(a, "true"), (b, "true")]], "F"),
        ("a > 5 OR b = 1", &[&[(b, "1")], &[(b, "2")], &[(a, "6"), (b, "x")]], "TNT"),
        ("a BETWEEN 1 AND 5", &[&[(a, "5")], &[(a, "6")], none], "TFN"),
        ("a NOT BETWEEN 1 AND 5", &[&[(a, "5")], &[(a, "6")], none], "FTN"),
        ("a STARTSWITH 'it''s' AND a endswith 's'", &[&[(a, "it's his")], &[(a, "it's")]], "TT"),
    ];
    for (expression, messages, expected) in cases {
        assert_eq!(outcomes(expression, messages), expected, "{expression}");
    }
}

#[test]
fn equality_is_not_symmetrical() {
    let (none, one): (&[_], &[_]) = (&[], &[("a", "1")]);
    assert_eq!(outcomes("a = 1", &[none, one]), "NT");
    assert_eq!(outcomes("1 = a", &[none, one]), "FT");
    assert_eq!(outcomes("NOT (1 = a)", &[none, one]), "TF");
    assert_eq!(outcomes("a = b", &[none, one, &[("b", "1")]]), "TFN");
    assert_eq!(outcomes("TRUE = a", &[none, one]), "FE");
    assert_eq!(outcomes("(a = 1) = (b IS NULL)", &[none, one]), "NT");
    assert_eq!(outcomes("-a = -b", &[one]), "T");
    assert_eq!(outcomes("(a = 1) = 1", &[one]), "F");
}

#[test]
fn of_two_properties_with_one_name_the_later_counts() {
    assert_eq!(outcomes("a = '2'", &[&[("a", "1"), ("a", "2")]]), "T");
    // More names than fit without an allocation.
    let many: Vec<_> = (0..20).map(|number| format!("p{number} = '{number}'")).collect();
    let message = |last| [("p3", "3"), ("p19", "x"), ("other", "1"), ("p19", last)];
    assert_eq!(outcomes(&many.join(" OR "), &[&message("x"), &[("p19", "19")], &[]]), "TTN");
    assert_eq!(outcomes(&many[18..].join(" OR "), &[&message("19")]), "T");
    // Bytes that are not UTF-8 are replaced, as in Java.
    let filter = SqlFilter::parse("a = '\u{fffd}x'").unwrap();
    assert!(filter.matches(Properties::new(b"a\x01\xffx\x02")));
}

#[test]
fn doubles_have_javas_order() {
    let pair = |a, b| [("a", a), ("b", b)];
    let messages = [pair("-0.0", "0.0"), pair("NaN", "Infinity"), pair("NaN", "-NaN"), pair("5.0", "5")];
    let messages: Vec<&[_]> = messages.iter().map(|message| &message[..]).collect();
    assert_eq!(outcomes("a > b", &messages), "FTFF");
    assert_eq!(outcomes("a < b", &messages), "TFFF");
    assert_eq!(outcomes("a >= b", &messages), "FTTT");
    assert_eq!(outcomes("a > 9007199254740993", &[&[("a", "9007199254740994")]]), "T");
    assert_eq!(outcomes("9007199254740993 = 9007199254740992e0", &[&[]]), "T");
}

#[test]
fn what_follows_is_ignored() {
    for (expression, position, rest) in [
        ("a > 5 b = 6", 6, "b = 6"),
        ("'ä' = a LIKE 'x' #!", 8, "LIKE 'x' #!"),
        ("a > 00", 5, "0"),
        ("a IS NULL > 5", 10, "> 5"),
        ("a = 1) OR (b = 2", 5, ") OR (b = 2"),
        ("a > 5 -- the end", 6, "-- the end"),
    ] {
        assert_eq!(SqlFilter::parse(expression).unwrap().ignored(), Some((position, rest)), "{expression}");
    }
    assert_eq!(SqlFilter::parse("a > 5 -- the end\n").unwrap().ignored(), None);
}

#[test]
fn errors_name_the_place_and_what_was_expected() {
    for (expression, place, part) in [
        ("", "column 1", "found the end"),
        ("a > > 5", "column 5", "expected a property, a value, NOT or (, found `>`"),
        ("a >\n  \"x\"", "line 2, column 3", "texts need single quotes"),
        ("ü = 1", "column 1", "ASCII letters"),
        ("'ü' != a", "column 5", "unequal is <>"),
        ("a > 5 && b", "column 7", "joined by AND"),
        ("a || b", "column 3", "joined by OR"),
        ("a = 'x", "column 5", "no closing quote"),
        ("a = 1 /* x", "column 7", "the comment has no end"),
        ("(a = 1", "column 7", "expected an operator or ), found the end"),
        ("a NOT b", "column 7", "CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN after NOT"),
        ("a IS 5", "column 6", "NULL or NOT NULL after IS"),
        ("a IN 'x'", "column 6", "( after IN"),
        ("a IN (5)", "column 7", "a text in single quotes for IN, found `5`"),
        ("a IN ('x' 'y')", "column 11", "expected , or )"),
        ("a CONTAINS b", "column 12", "a text in single quotes for CONTAINS"),
        ("5 IN ('x')", "column 1", "only a property can be IN a list"),
        ("a BETWEEN 1 OR 2", "column 13", "AND and the upper bound of BETWEEN"),
        ("a BETWEEN 5 AND 3", "column 17", "the upper bound"),
        ("a > 'x'", "column 5", "a text has no order"),
        ("(a = 1) > 2", "column 2", "a condition has no order"),
        ("a = NULL", "column 5", "IS NULL"),
        ("TRUE = 5", "column 8", "TRUE and FALSE cannot be compared"),
        ("NOT 5", "column 5", "a number by itself is not a condition"),
        ("a AND 'x'", "column 7", "a text by itself is not a condition"),
        ("-a", "column 1", "a negative by itself is not a condition"),
        ("a > 9223372036854775808", "column 5", "does not fit 64 bits"),
        ("a > 1e309", "column 5", "exceeds the largest double"),
        ("a > 0.0", "column 5", "write 0"),
    ] {
        let error = SqlFilter::parse(expression).expect_err(expression).to_string();
        assert!(error.starts_with(&format!("{place}: ")) && error.contains(part), "{expression}: {error}");
    }
}

#[test]
fn limits_are_errors() {
    let nested = |depth: usize| format!("{}a = 1{}", "NOT (".repeat(depth), ")".repeat(depth));
    assert!(SqlFilter::parse(&nested(MAX_SQL_DEPTH - 1)).is_ok());
    let error = SqlFilter::parse(&nested(MAX_SQL_DEPTH)).unwrap_err();
    assert_eq!((error.position, error.reason.contains("256 levels")), (0, true), "{error}");
    for chain in ["NOT ", "- ", "-("] {
        assert!(SqlFilter::parse(&format!("{}a = 1", chain.repeat(100_000))).is_err(), "{chain}");
    }
    for chain in [" IS NULL", " CONTAINS 'x'", " = TRUE"] {
        assert!(SqlFilter::parse(&format!("a{}", chain.repeat(50_000))).is_err(), "{chain}");
    }
    let long = format!("a = '{}'", "x".repeat(MAX_SQL_BYTES - 6));
    assert!(SqlFilter::parse(&long).is_ok());
    assert!(SqlFilter::parse(&format!("{long} ")).unwrap_err().reason.contains("1048577 bytes"));
}

#[test]
fn the_deepest_and_the_longest_take_little_of_the_stack() {
    let work = || {
        let deepest = format!("{}a = 1{}", "NOT (".repeat(MAX_SQL_DEPTH - 1), ")".repeat(MAX_SQL_DEPTH - 1));
        let operands = format!("{}a{}", "b = (".repeat(MAX_SQL_DEPTH / 2), ")".repeat(MAX_SQL_DEPTH / 2));
        let parentheses = format!("{}a{} = 1", "(".repeat(400_000), ")".repeat(400_000));
        let chain = vec!["a=1"; 149_000].join(" OR ");
        let comments = format!("{}\n a = 1", "-".repeat(1 << 19));
        let minuses = format!("a = 1 {}", "-".repeat(1 << 19));
        for expression in [deepest, operands, parentheses, chain, comments, minuses] {
            let filter = SqlFilter::parse(&expression).unwrap_or_else(|error| panic!("{error}"));
            let _ = filter.matches(Properties::new(b"a\x012\x02b\x01true\x02"));
            let copy = filter.clone();
            assert!(!copy.explain().is_empty());
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap();
}

#[test]
fn it_is_explained_in_plain_words() {
    let filter = SqlFilter::parse(
        "price > 5 AND (region IN ('eu', 'us') OR region IS NULL) AND NOT urgent AND weight BETWEEN 1 AND 2.5 \
         AND vip = (spent > 3000000000) LIKE 'x'",
    );
    let expected = "\
all of:
  price > 5: price is read as a 32-bit integer (int), unknown if it is not set
  any of:
    region IN ('eu', 'us'): compared as text, unknown if region is not set
    region IS NULL: true if region is not set, else false
  not:
    urgent: false if it is set (a property is text, which is never TRUE), unknown if it is not
  weight BETWEEN 1 AND 2.5: weight is read as a 32-bit integer (int) and as a double, unknown if it is not set
  vip = (…): vip is true if it reads true in any case, unknown if it is not set
    where (…) is:
      spent > 3000000000: spent is read as a 64-bit integer (long), unknown if it is not set
reads: price, region, spent, urgent, vip, weight
ignored, as in RocketMQ, after the first 132 characters: \"LIKE 'x'\"";
    assert_eq!(filter.unwrap().explain(), expected);
}

#[test]
fn equal_by_the_text() {
    let [one, same, other] = ["a = 1", "a = 1", "a=1"].map(|text| SqlFilter::parse(text).unwrap());
    assert!(one == same && one != other);
    assert_eq!(format!("{one:?} {:?}", one.properties().collect::<Vec<_>>()), "SqlFilter(\"a = 1\") [\"a\"]");
}

proptest! {
    #[test]
    fn any_text_ends_in_a_filter_or_an_error(text in "[ab5.'()<>=/*\\-\n, +A-Z\u{e4}]{0,60}") {
        if let Ok(filter) = SqlFilter::parse(&text) {
            let _ = (filter.evaluate(Properties::new(b"a\x015\x02b\x01x\x02")), filter.explain());
        }
    }
}
