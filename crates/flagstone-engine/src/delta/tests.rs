//! The map against a model, its memory, and its encoding against damaged bytes.

use std::collections::BTreeMap;
use std::ops::Bound;

use flagstone_space::Lsn;
use proptest::prelude::*;

use super::*;

#[test]
fn the_head_of_a_key_is_the_key_padded_with_zeros() {
    let key: Vec<u8> = (1..=10).map(|byte| byte * 23).collect();
    for size in 0..=key.len() {
        let mut padded = [0; 8];
        padded[..size.min(8)].copy_from_slice(&key[..size.min(8)]);
        assert_eq!(key_head(&key[..size]), u64::from_be_bytes(padded), "{size} bytes");
    }
}

/// An operation that owns its bytes.
#[derive(Clone, Debug)]
enum OwnedOp {
    Put(Vec<u8>),
    PutRef(Vec<u8>),
    Delete,
    Patch(PatchBuf),
}

impl OwnedOp {
    fn as_op(&self) -> Op<'_> {
        match self {
            OwnedOp::Put(value) => Op::Put(value),
            OwnedOp::PutRef(descriptor) => Op::PutRef(descriptor),
            OwnedOp::Delete => Op::Delete,
            OwnedOp::Patch(patch) => Op::Patch(patch.as_patch()),
        }
    }
}

fn patch_strategy() -> impl Strategy<Value = PatchBuf> {
    let run = (0..40_u32, prop::collection::vec(any::<u8>(), 1..9));
    (0..48_u32, prop::collection::vec(run, 0..4)).prop_map(|(size, runs)| {
        let mut patch = PatchBuf::new(size).unwrap();
        for (offset, bytes) in runs {
            let outside = patch.set(offset, &bytes).is_err();
            assert_eq!(outside, offset as usize + bytes.len() > size as usize);
        }
        patch
    })
}

fn op_strategy() -> impl Strategy<Value = OwnedOp> {
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..40).prop_map(OwnedOp::Put),
        1 => prop::collection::vec(any::<u8>(), 4..6).prop_map(OwnedOp::PutRef),
        2 => Just(OwnedOp::Delete),
        5 => patch_strategy().prop_map(OwnedOp::Patch),
    ]
}

fn key_strategy() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0..60_u16).prop_map(|key| (key * 7).to_be_bytes().to_vec()),
        1 => prop::collection::vec(0..3_u8, 0..5),
        1 => (0..4_u8).prop_map(|key| vec![key; 40]),
    ]
}

/// Keys with little and much in common.
fn long_key_strategy() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        2 => key_strategy(),
        1 => (0..40_usize, any::<u8>()).prop_map(|(size, last)| [&vec![7; size][..], &[last]].concat()),
    ]
}

/// Every version ever inserted, unfolded.
type Model = BTreeMap<(Vec<u8>, Lsn), OwnedOp>;

/// Value of `key` at `upto` over `base`; patches on out-of-line values are recorded in order.
fn model_value(model: &Model, key: &[u8], upto: Lsn, base: &Option<Value>) -> Option<Value> {
    let mut value = base.clone();
    let versions = model.range((key.to_vec(), Lsn::ZERO)..=(key.to_vec(), upto));
    versions.for_each(|(_, op)| apply_or_record(op.as_op(), &mut value));
    value
}

fn map_value(map: &DeltaMap, key: &[u8], upto: Lsn, base: &Option<Value>) -> Option<Value> {
    let mut value = base.clone();
    let versions = map.versions(key).take_while(|(lsn, _)| *lsn <= upto);
    versions.for_each(|(_, op)| apply_or_record(op, &mut value));
    value
}

/// Stands in for reading an out-of-line value: its bytes follow from its descriptor.
fn apply_or_record(op: Op<'_>, value: &mut Option<Value>) {
    if let Op::Patch(_) = op
        && let Some(Value::Ref(descriptor)) = value
    {
        *value = Some(Value::Inline(descriptor.repeat(5)));
    }
    apply(op, value).unwrap();
}

fn bases() -> [Option<Value>; 4] {
    [
        None,
        Some(Value::Inline(vec![])),
        Some(Value::Inline((1..=17).collect())),
        Some(Value::Inline((1..=60).collect())),
    ]
}

fn assert_books(map: &DeltaMap) {
    let entries: Vec<_> = map.forward(Bound::Unbounded).collect();
    let counted: usize = entries.iter().map(|entry| entry.versions().count()).sum();
    assert_eq!(map.len(), counted, "len counts every version");
    assert!(entries.is_sorted_by(|left, right| left.key() < right.key()), "keys ascend");
    let mut backward: Vec<_> = map.backward(Bound::Unbounded).map(|it| it.key()).collect();
    backward.reverse();
    assert!(entries.iter().map(Entry::key).eq(backward), "both directions see the same keys");
    let lsns = entries.iter().flat_map(Entry::versions).map(|(lsn, _)| lsn);
    assert_eq!(map.lsn_min(), lsns.min());
    assert!(map.is_sound(), "memory and heads are those of the slots");
}

proptest! {
    /// Goal: no boundary and no newest reader can tell a folded map from all versions ever inserted,
    /// also when the oldest versions come last and some come again, as in redo after a checkpoint
    /// (M5).
    #[test]
    fn folding_is_invisible_at_floors_and_at_the_end(
        inserts in prop::collection::vec((key_strategy(), op_strategy(), any::<bool>()), 1..250),
        boundaries in prop::collection::vec(0..250_u64, 0..4),
        late_upto in prop_oneof![2 => Just(0_u64), 3 => 0..200_u64],
    ) {
        let mut boundaries: Vec<Lsn> = boundaries.into_iter().map(Lsn).collect();
        boundaries.sort_unstable();
        let (mut map, mut model) = (DeltaMap::new(), Model::new());
        let (mut early, mut late, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (key, op, again)) in inserts.iter().enumerate() {
            let lsn = Lsn(index as u64 + 1);
            model.insert((key.clone(), lsn), op.clone());
            let side = if lsn.0 <= late_upto { &mut late } else { &mut early };
            side.push((key, op, lsn));
            if *again {
                copies.push((key, op, lsn));
            }
        }
        let arrivals = early.into_iter().chain(late).chain(copies);
        for (key, op, lsn) in arrivals {
            map.insert(key, op.as_op(), lsn, &boundaries);
        }
        assert_books(&map);
        let ends = boundaries.iter().copied().chain([Lsn(1 << 50)]);
        for upto in ends {
            for (key, _) in model.keys() {
                for base in bases() {
                    let (expected, found) =
                        (model_value(&model, key, upto, &base), map_value(&map, key, upto, &base));
                    prop_assert_eq!(expected, found, "key {:?} at {:?}", key, upto);
                }
            }
        }
    }

    /// Goal: a range removal takes exactly the versions up to its LSN, totals announce it, and an
    /// extraction holds the removed versions.
    #[test]
    fn range_removal_takes_what_totals_count(
        inserts in prop::collection::vec((key_strategy(), op_strategy()), 1..400),
        bounds in (key_strategy(), prop::option::of(key_strategy())),
        upto in 0..400_u64,
    ) {
        let every: Vec<Lsn> = (0..400).map(Lsn).collect();
        let mut map = DeltaMap::new();
        let mut model = Model::new();
        for (index, (key, op)) in inserts.iter().enumerate() {
            let lsn = Lsn(index as u64 + 1);
            map.insert(key, op.as_op(), lsn, &every);
            model.insert((key.clone(), lsn), op.clone());
        }
        prop_assert_eq!(map.len(), model.len(), "a boundary at each LSN keeps every version");
        let range = KeyRange { low: &bounds.0, high: bounds.1.as_deref() };
        let goes = |key: &[u8], lsn: Lsn| range.contains(key) && lsn.0 <= upto;
        let totals = map.range_totals(range, Lsn(upto));
        prop_assert_eq!(map.range_bytes(range), map.range_totals(range, Lsn(u64::MAX)).bytes);
        prop_assert_eq!(map.has_upto(range, Lsn(upto)), totals.count > 0);
        let mut other = map.clone();
        let extracted = other.extract_range(range, Lsn(upto));
        prop_assert_eq!(map.remove_range(range, Lsn(upto)), totals);
        for (part, wanted) in [(&map, false), (&other, false), (&extracted, true)] {
            assert_books(part);
            let found: Vec<_> = part
                .forward(Bound::Unbounded)
                .flat_map(|it| it.versions().map(move |(lsn, _)| (it.key().to_vec(), lsn)))
                .collect();
            let expected: Vec<_> =
                model.keys().filter(|it| goes(&it.0, it.1) == wanted).cloned().collect();
            prop_assert_eq!(found, expected);
        }
        prop_assert_eq!(extracted.len(), totals.count);
    }

    /// Goal: sums over consecutive ranges are those of their versions, one by one, also behind folds and
    /// removals, and whether all versions count or not.
    #[test]
    fn sums_are_those_of_each_range(
        inserts in prop::collection::vec((key_strategy(), op_strategy()), 1..400),
        bounds in prop::collection::btree_set(key_strategy(), 1..20),
        boundary_step in 1..40_usize,
        removed in 0..400_u64,
        upto in prop_oneof![0..400_u64, Just(u64::MAX)],
    ) {
        let every: Vec<Lsn> = (0..400).step_by(boundary_step).map(Lsn).collect();
        let mut map = DeltaMap::new();
        for (index, (key, op)) in inserts.iter().enumerate() {
            map.insert(key, op.as_op(), Lsn(index as u64 + 1), &every);
        }
        let bounds: Vec<_> = bounds.iter().map(|key| &key[..]).collect();
        map.remove_range(KeyRange { low: bounds[0], high: bounds.last().copied() }, Lsn(removed));
        let mut sums = map.sums(bounds[0], Lsn(upto));
        let highs = bounds[1..].iter().copied().map(Some).chain([None]);
        for (low, high) in bounds.iter().zip(highs) {
            let totals = map.range_totals(KeyRange { low, high }, Lsn(upto));
            let expected = Sum { count: totals.count, bytes: totals.bytes };
            prop_assert_eq!(sums.below(high), expected, "from {:?} to {:?}", low, high);
        }
        prop_assert!(sums.is_over());
    }

    /// Goal: a cursor made anew from any key continues as the old one would have.
    #[test]
    fn cursors_resume_from_any_key(
        inserts in prop::collection::vec(key_strategy(), 1..300),
        from in key_strategy(),
    ) {
        let mut map = DeltaMap::new();
        for (index, key) in inserts.iter().enumerate() {
            map.insert(key, Op::Put(b"0123456789"), Lsn(index as u64), &[]);
        }
        let keys: std::collections::BTreeSet<_> = inserts.into_iter().collect();
        for bound in [Bound::Included(&from[..]), Bound::Excluded(&from[..]), Bound::Unbounded] {
            let up = (bound, Bound::Unbounded);
            let expected: Vec<_> = keys.range::<[u8], _>(up).map(|key| &key[..]).collect();
            let found: Vec<_> = map.forward(bound).map(|it| it.key()).collect();
            prop_assert_eq!(found, expected);
            let down = (Bound::Unbounded, bound);
            let expected: Vec<_> = keys.range::<[u8], _>(down).rev().map(|key| &key[..]).collect();
            let found: Vec<_> = map.backward(bound).map(|it| it.key()).collect();
            prop_assert_eq!(found, expected);
        }
    }

    /// Goal: encoded operations decode to the same, and damaged bytes give a value or a fault.
    #[test]
    fn decoding_is_total_and_inverts_encoding(
        op in op_strategy(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        op.as_op().encode(&mut bytes);
        prop_assert_eq!(bytes.len(), op.as_op().encoded_size());
        prop_assert_eq!(Op::decode(&bytes), Ok(op.as_op()));
        for (index, byte) in damage {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        if let Ok(op) = Op::decode(&bytes) {
            let size = match op { Op::Patch(patch) => patch.value_size(), _ => 0 };
            if size < 100_000 {
                apply_or_record(op, &mut Some(Value::Inline(vec![1; 20])));
            }
        }
    }

    /// Goal: packed changes unpack to the same, and damaged bytes give changes or a fault (K1).
    #[test]
    fn unpacking_is_total_and_inverts_packing(
        changes in prop::collection::vec((any::<u64>(), long_key_strategy(), op_strategy()), 0..12),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (mut bytes, mut before) = (Vec::new(), &[][..]);
        for (number, key, op) in &changes {
            pack(before, *number, key, op.as_op(), &mut bytes);
            before = key;
        }
        let mut unpacker = Unpacker::new(&bytes);
        for (number, key, op) in &changes {
            let change = unpacker.next().expect("as many as were packed").expect("they decode");
            prop_assert_eq!((change.number, change.key, change.op), (*number, &key[..], op.as_op()));
        }
        prop_assert!(unpacker.next().is_none());
        for (index, byte) in damage {
            if !bytes.is_empty() {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
        }
        let mut unpacker = Unpacker::new(&bytes);
        while let Some(change) = unpacker.next() {
            prop_assert!(change.is_err() || change.is_ok_and(|change| change.key.len() <= bytes.len()));
        }
    }

    /// Goal: the patch between two values turns one into the other.
    #[test]
    fn patch_between_values_gives_the_second(
        old in prop::collection::vec(0..3_u8, 0..50),
        new in prop::collection::vec(0..3_u8, 0..50),
    ) {
        let patch = PatchBuf::between(&old, &new).unwrap();
        let mut value = old;
        patch.as_patch().apply(&mut value);
        prop_assert_eq!(value, new);
    }
}

/// Goal: a record adds little to its changes. Method: small rows of ascending keys, as a checkpoint
/// copies them, and the first of them alone, as in a commit.
#[test]
fn small_changes_are_packed_tightly() {
    let (mut bytes, mut before) = (Vec::new(), [0; 0].to_vec());
    for index in 0..100_u32 {
        let key = (0x7000_0000 + 3 * index).to_be_bytes();
        pack(&before, u64::from(index) * 100, &key, Op::Put(b"1234"), &mut bytes);
        before = key.to_vec();
        assert!(index > 0 || bytes.len() == 11, "{} bytes for the first", bytes.len());
    }
    assert!(bytes.len() <= 950, "{} bytes for 100 changes", bytes.len());
}

#[test]
fn a_put_over_an_out_of_line_value_hands_its_descriptor_back() {
    let mut map = DeltaMap::new();
    assert!(map.insert(b"k", Op::PutRef(b"d1"), Lsn(1), &[]).is_empty());
    assert_eq!(map.insert(b"k", Op::PutRef(b"d2"), Lsn(2), &[]), vec![b"d1".to_vec()]);
    assert!(map.insert(b"k", Op::Delete, Lsn(4), &[Lsn(3)]).is_empty(), "a boundary holds it");
    assert_eq!(map.len(), 2);
    assert_eq!(map.insert(b"k", Op::Put(b"v"), Lsn(5), &[]), vec![b"d2".to_vec()]);
    assert_eq!(map.len(), 1, "the chain collapses when the boundary is gone");
}

#[test]
fn a_patch_waits_behind_the_out_of_line_put_of_its_own_commit() {
    let mut map = DeltaMap::new();
    let patch = PatchBuf::of_run(8, 2, b"xy").unwrap();
    for _ in 0..2 {
        map.insert(b"k", Op::PutRef(b"d1"), Lsn(7), &[]);
        map.insert(b"k", Op::Patch(patch.as_patch()), Lsn(7), &[]);
    }
    let versions: Vec<_> = map.versions(b"k").collect();
    let expected = [(Lsn(7), Op::PutRef(b"d1")), (Lsn(7), Op::Patch(patch.as_patch()))];
    assert_eq!(versions, expected);
}

#[test]
fn rollback_removes_the_versions_above_a_savepoint() {
    let mut map = DeltaMap::new();
    map.insert(b"a", Op::Put(b"1"), Lsn(1), &[]);
    map.insert(b"a", Op::Put(b"2"), Lsn(3), &[Lsn(2)]);
    map.insert(b"b", Op::PutRef(b"d"), Lsn(4), &[Lsn(2)]);
    assert_eq!(map.remove_newer(Lsn(2)), vec![b"d".to_vec()]);
    assert_eq!(map.len(), 1);
    assert_eq!(map.versions(b"a").next(), Some((Lsn(1), Op::Put(b"1"))));
}

/// Pseudo-random permutation of 64-bit numbers, so that figures repeat.
fn scramble(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (mixed >> 32)
}

fn map_of_small_patches(count: u64, key_of: impl Fn(u64) -> u64) -> DeltaMap {
    let mut map = DeltaMap::new();
    for index in 0..count {
        let patch = PatchBuf::of_run(100, 12, &index.to_le_bytes()).unwrap();
        let key = key_of(index).to_be_bytes();
        map.insert(&key, Op::Patch(patch.as_patch()), Lsn(5 << 40 | index), &[]);
    }
    map
}

/// Goal: the budget of a small machine holds many changes: at most 55 bytes in all for a delta with
/// an 8-byte key and an 8-byte patch.
#[test]
fn a_small_delta_costs_at_most_55_bytes() {
    for count in [10_000, 16_384, 40_000] {
        let scattered = map_of_small_patches(count, scramble);
        let dense = map_of_small_patches(count, |index| scramble(index) % 1_000_000_000);
        let ascending = map_of_small_patches(count, |index| index);
        for map in [&scattered, &dense, &ascending] {
            let each = map.bytes() as f64 / map.len() as f64;
            assert!(each <= 55.0, "{count} deltas cost {each:.1} bytes each");
        }
    }
}

/// Goal: a map of many groups finds every key, and keeps its totals exact, while keys come, change
/// and go. Method: a map of keys with few and many bytes in common against a model.
#[test]
fn a_large_map_finds_what_comes_and_goes() {
    let key_of = |number: u64| match number % 3 {
        0 => number.to_be_bytes().to_vec(),
        1 => format!("a long name in common {number}").into_bytes(),
        _ => number.to_be_bytes()[6..].to_vec(),
    };
    let (mut map, mut model) = (DeltaMap::new(), BTreeMap::new());
    for round in 0..60_000_u64 {
        let (key, lsn) = (key_of(scramble(round) % 20_000), Lsn(round + 1));
        let boundaries = [Lsn(round / 1_000 * 1_000)];
        let value = vec![round as u8; (round % 40) as usize];
        map.insert(&key, Op::Put(&value), lsn, &boundaries);
        model.insert(key, value);
        if round % 7_001 == 7_000 {
            let (low, high) = (key_of(scramble(round) % 20_000), None);
            map.remove_range(KeyRange { low: &low, high }, Lsn(u64::MAX));
            model.retain(|key, _| *key < low);
        }
        if round % 10_000 == 0 {
            assert_books(&map);
            for (key, value) in &model {
                let newest = map.versions(key).last().map(|(_, op)| op);
                assert!(matches!(newest, Some(Op::Put(found)) if found == value), "{key:?}");
            }
        }
    }
    assert!(map.bytes() > 300 << 10, "{} bytes are few groups", map.bytes());
    let found: Vec<_> = map.forward(Bound::Unbounded).map(|entry| entry.key().to_vec()).collect();
    assert!(found.iter().eq(model.keys()));
}

#[test]
fn an_emptied_map_gives_its_memory_back() {
    let mut map = map_of_small_patches(20_000, scramble);
    let full = map.bytes();
    let totals = map.remove_range(KeyRange::ALL, Lsn(5 << 40 | 19_799));
    assert_eq!(totals.count, 19_800);
    assert_eq!(map.len(), 200);
    assert!(map.bytes() < full / 20, "{} of {full} bytes are left", map.bytes());
    map.remove_range(KeyRange::ALL, Lsn(u64::MAX));
    assert!(map.bytes() < 3000, "{} bytes are left of an empty map", map.bytes());
}
