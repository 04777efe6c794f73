//! Encodings: order, round trips, and bytes that no encoder wrote.

use std::fmt::Debug;

use proptest::prelude::*;

use super::key::{EncodeKey as _, Key};
use super::*;
use crate::{Key as DeriveKey, Value as DeriveValue};

/// K1, K2 and K3 for two keys, at the end and before something else.
fn keep_their_order<K: Key + Ord + Debug + Clone>(one: &K, other: &K, then: (u8, u8)) {
    assert_eq!(one.to_key().cmp(&other.to_key()), one.cmp(other), "{one:?} {other:?}");
    assert_eq!(&K::from_key(&one.to_key()).expect("it was encoded"), one);
    let (long, longer) = ((one.clone(), then.0), (other.clone(), then.1));
    assert_eq!(long.to_key().cmp(&longer.to_key()), long.cmp(&longer), "{long:?} {longer:?}");
    assert_eq!(<(K, u8)>::from_key(&long.to_key()).expect("it was encoded"), long);
}

/// Any bytes are no key, or the key of one value (K2).
fn are_refused_or_canonical<K: Key + Debug>(bytes: &[u8]) {
    if let Ok(key) = K::from_key(bytes) {
        assert_eq!(key.to_key(), bytes, "{key:?}");
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, DeriveKey)]
struct Nested {
    name: String,
    pair: (i16, Option<Vec<u8>>),
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, DeriveKey, DeriveValue)]
enum Kind {
    Empty,
    Text(String),
    Both { high: i8, low: [u16; 2] },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, DeriveKey, DeriveValue)]
struct Generic<T>(T, T);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, DeriveKey, DeriveValue)]
struct Unit;

#[derive(Clone, Debug, PartialEq, DeriveValue)]
struct Everything {
    small: u8,
    large: i128,
    ratio: f64,
    letter: char,
    texts: Vec<String>,
    bytes: Vec<u8>,
    kind: Box<Kind>,
    maybe: Option<(u32, bool)>,
    array: [Unit; 3],
    #[flagstone(default)]
    later: u64,
    #[flagstone(default)]
    latest: Option<String>,
}

fn text() -> impl Strategy<Value = String> {
    "[\0\u{1}a\u{ff}]{0,4}"
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Empty),
        text().prop_map(Kind::Text),
        (any::<i8>(), any::<[u16; 2]>()).prop_map(|(high, low)| Kind::Both { high, low }),
    ]
}

fn nested() -> impl Strategy<Value = Nested> {
    let bytes =
        prop::option::of(prop::collection::vec(prop_oneof![Just(0), Just(1), Just(255)], 0..4));
    (text(), (-2..2_i16, bytes), kind()).prop_map(|(name, pair, kind)| Nested { name, pair, kind })
}

fn everything() -> impl Strategy<Value = Everything> {
    let scalars = (any::<u8>(), any::<i128>(), -1e9..1e9_f64, any::<char>());
    let lists = (prop::collection::vec(text(), 0..4), prop::collection::vec(any::<u8>(), 0..300));
    let rest = (kind(), any::<Option<(u32, bool)>>(), any::<u64>(), prop::option::of(text()));
    (scalars, lists, rest).prop_map(|(scalars, (texts, bytes), (kind, maybe, later, latest))| {
        let (small, large, ratio, letter) = scalars;
        let (kind, array) = (Box::new(kind), [Unit, Unit, Unit]);
        Everything { small, large, ratio, letter, texts, bytes, kind, maybe, array, later, latest }
    })
}

proptest! {
    #[test]
    fn integers_keep_their_order(one: (i8, i64, i128), other: (i8, i64, i128), then: (u8, u8)) {
        keep_their_order(&one, &other, then);
        keep_their_order(&(one.1.cast_unsigned(), one.0), &(other.1.cast_unsigned(), other.0), then);
        keep_their_order(&one.2.cast_unsigned(), &other.2.cast_unsigned(), then);
        keep_their_order(&(one.0 > 0, 'a'), &(other.0 > 0, 'b'), then);
    }

    #[test]
    fn texts_and_bytes_keep_their_order(one in (text(), text()), other in (text(), text()), then: (u8, u8)) {
        keep_their_order(&one, &other, then);
        let bytes = |pair: &(String, String)| [pair.0.clone().into_bytes(), pair.1.clone().into_bytes()];
        keep_their_order(&bytes(&one), &bytes(&other), then);
        keep_their_order(&Some(one.0.clone()), &None, then);
    }

    #[test]
    fn derived_keys_keep_their_order(one in nested(), other in nested(), then: (u8, u8)) {
        keep_their_order(&one, &other, then);
        let generic = |nested: &Nested| Generic(nested.clone(), Nested { name: String::new(), ..nested.clone() });
        keep_their_order(&generic(&one), &generic(&other), then);
    }

    #[test]
    fn values_come_back(value in everything()) {
        let row = value.to_row();
        prop_assert_eq!(&Everything::from_row(&row).expect("it was encoded"), &value);
        let mut list = Vec::new();
        vec![value.clone(), value.clone()].encode(&mut list);
        prop_assert_eq!(Vec::<Everything>::from_row(&list).expect("it was encoded"), vec![value; 2]);
    }

    /// A row that is cut is refused, but where the fields with defaults begin.
    #[test]
    fn a_row_cut_short_is_refused_or_has_defaults(value in everything()) {
        let row = value.to_row();
        let without_latest = row.len() - value.latest.as_ref().map_or(1, |latest| {
            let mut bytes = vec![1];
            latest.encode(&mut bytes);
            bytes.len()
        });
        let old = Everything { latest: None, ..value.clone() };
        prop_assert_eq!(Everything::from_row(&row[..without_latest]).expect("an old row"), old.clone());
        let older = Everything { later: 0, ..old };
        prop_assert_eq!(Everything::from_row(&row[..without_latest - 8]).expect("an old row"), older);
        for length in 0..row.len() {
            if length != without_latest && length != without_latest - 8 {
                prop_assert!(Everything::from_row(&row[..length]).is_err(), "{}", length);
            }
        }
        // Inside another value the end of a row cannot be told.
        let mut bytes = &row[..without_latest];
        prop_assert!(Everything::decode(&mut bytes).is_err());
    }

    #[test]
    fn any_bytes_are_refused_or_canonical(bytes in prop::collection::vec(prop_oneof![0..3_u8, Just(255), any::<u8>()], 0..40)) {
        are_refused_or_canonical::<Nested>(&bytes);
        are_refused_or_canonical::<(Option<String>, char, bool, [Vec<u8>; 2])>(&bytes);
        are_refused_or_canonical::<(String, i128)>(&bytes);
        are_refused_or_canonical::<Unit>(&bytes);
        let _ = Everything::from_row(&bytes);
        let _ = Vec::<Vec<Vec<Unit>>>::from_row(&bytes);
    }
}

#[test]
fn the_bytes_of_keys_and_values_never_change() {
    let name = String::from("a\0b");
    let nested = Nested { name, pair: (-1, Some(vec![0])), kind: Kind::Text("z".into()) };
    let expected = b"a\x00\xffb\x00\x01\x7f\xff\x01\x00\xff\x00\x01\x01z";
    assert_eq!(nested.to_key(), expected);
    assert_eq!(Kind::Both { high: -2, low: [1, 0x203] }.to_row(), b"\x02\xfe\x01\0\x03\x02");
    assert_eq!((String::from("ab"), Some(7_u16), 'c').to_row(), b"\x02ab\x01\x07\0c\0\0\0");
    assert_eq!(vec![5_u32; 200].to_row()[..6], [0xC8, 1, 5, 0, 0, 0]);
    assert_eq!((String::from("ab").to_row(), vec![0_u8, 9].to_row()), (b"ab".to_vec(), vec![0, 9]));
}

#[test]
fn a_count_that_lies_allocates_nothing() {
    let mut row = vec![0xFF; 9];
    row.push(1);
    assert_eq!(Vec::<u64>::from_row(&row), Err(DecodeError::Truncated));
    assert_eq!(Vec::<()>::from_row(&row), Err(DecodeError::Truncated));
    assert_eq!(String::decode(&mut row.as_slice()), Err(DecodeError::Truncated));
    row[9] = 2;
    assert_eq!(Vec::<u64>::from_row(&row), Err(DecodeError::Count));
    assert_eq!(Vec::<u64>::from_row(&[0x80, 0]), Err(DecodeError::Count));
}

/// Goal: a list of elements without bytes comes back, however long, and in one form alone.
#[test]
fn lists_of_nothing_come_back() {
    for count in [0, 1, 65_535, 65_536, 100_000] {
        let lists = (vec![(); count], vec![Unit; count], 7_u8);
        let row = lists.to_row();
        assert_eq!(<(Vec<()>, Vec<Unit>, u8)>::from_row(&row), Ok(lists), "{count}");
    }
    assert_eq!(vec![(); 65_535].to_row(), [0xFF, 0xFF, 3]);
    let mut row = vec![(); 65_536].to_row();
    assert_eq!(row.len(), 3 + 65_536);
    row[9] = 1;
    assert_eq!(Vec::<()>::from_row(&row), Err(DecodeError::Count));
    row.truncate(65_000);
    assert_eq!(Vec::<()>::from_row(&row), Err(DecodeError::Truncated));
}
