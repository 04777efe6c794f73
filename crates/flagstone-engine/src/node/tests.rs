//! Pages against a model, merges against a model, and damaged pages against the parser.

use std::collections::BTreeMap;

use flagstone_space::{LogicalPage, Lsn};
use proptest::prelude::*;

use super::merge::Outline;
use super::*;
use crate::delta::{DeltaMap, KeyRange, Op, PatchBuf, Value};

const TREE: u32 = 7;

type Model = BTreeMap<Vec<u8>, Value>;

fn value_ref(value: &Value) -> ValueRef<'_> {
    match value {
        Value::Inline(bytes) => ValueRef::Inline(bytes),
        Value::Ref(descriptor) => ValueRef::Ref(descriptor),
    }
}

fn owned_value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Inline(bytes) => Value::Inline(bytes.to_vec()),
        ValueRef::Ref(descriptor) => Value::Ref(descriptor.to_vec()),
    }
}

fn leaves(model: &Model, range: KeyRange<'_>, page_size: usize, fill: FillPolicy) -> Vec<Built> {
    let entries = model.iter().map(|(key, value)| (&key[..], value_ref(value)));
    build_leaves(TREE, range, entries, page_size, fill).unwrap()
}

/// Parses pages, checks that their fences chain over `range`, and returns all entries.
fn contents(pages: &[Built], range: KeyRange<'_>) -> Model {
    let views: Vec<_> = pages.iter().map(|page| NodeView::parse(&page.image).unwrap()).collect();
    assert_eq!(views.first().map(NodeView::low), Some(range.low));
    assert_eq!(views.last().and_then(NodeView::high), range.high);
    assert!(views.windows(2).all(|pair| pair[0].high() == Some(pair[1].low())), "fences chain");
    let mut model = Model::new();
    for (view, page) in views.iter().zip(pages) {
        assert_eq!(view.low(), page.low_key);
        assert_eq!((view.tree(), view.level(), view.is_leaf()), (TREE, 0, true));
        assert!(view.used_bytes() <= page.image.len());
        for (index, entry) in view.entries().enumerate() {
            let key = [entry.prefix, entry.suffix].concat();
            assert_eq!(view.search(&key), Ok(index));
            assert_eq!(view.separator(index), key);
            model.insert(key, owned_value(entry.value));
        }
    }
    model
}

fn key_strategy() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0..900_u64).prop_map(|key| (key * 3 + 5).to_be_bytes().to_vec()),
        2 => prop::collection::vec(0..4_u8, 1..8),
        1 => (0..4_u8, 1..108_usize, 0..4_u8).prop_map(|(byte, size, last)| {
            let mut key = vec![byte; size];
            key[size - 1] = last;
            key
        }),
    ]
}

fn value_strategy() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => any::<[u8; 20]>().prop_map(|bytes| Value::Inline(bytes.to_vec())),
        2 => prop::collection::vec(any::<u8>(), 0..108).prop_map(Value::Inline),
        1 => any::<[u8; 12]>().prop_map(|bytes| Value::Ref(bytes.to_vec())),
    ]
}

fn model_strategy(size_max: usize) -> impl Strategy<Value = Model> {
    let mixed = prop::collection::btree_map(key_strategy(), value_strategy(), 0..size_max);
    let value = any::<[u8; 20]>().prop_map(|bytes| Value::Inline(bytes.to_vec()));
    let key = (0..900_u64).prop_map(|key| (key * 3 + 5).to_be_bytes().to_vec());
    prop_oneof![mixed, prop::collection::btree_map(key, value, 0..size_max)]
}

/// An operation for the merge tests.
#[derive(Clone, Debug)]
enum Change {
    Put(Value),
    Delete,
    Patch(u32, u32, Vec<u8>),
}

fn change_strategy() -> impl Strategy<Value = Change> {
    let patch = (0..40_u32, prop::collection::vec(any::<u8>(), 0..20));
    prop_oneof![
        3 => value_strategy().prop_map(Change::Put),
        2 => Just(Change::Delete),
        4 => patch.prop_map(|(offset, bytes)| {
            let size = (offset + bytes.len() as u32).max(20);
            Change::Patch(size, offset, bytes)
        }),
    ]
}

/// Stands in for out-of-line values: their content follows from the descriptor.
struct FakeOutline;

impl Outline for FakeOutline {
    fn patched(&mut self, descriptor: &[u8], patch: crate::delta::Patch<'_>) -> Option<Value> {
        let mut bytes = descriptor.repeat(3);
        patch.apply(&mut bytes);
        Some(Value::Inline(bytes))
    }
}

fn change_model(model: &mut Model, key: &[u8], change: &Change) {
    match change {
        Change::Put(value) => {
            model.insert(key.to_vec(), value.clone());
        }
        Change::Delete => {
            model.remove(key);
        }
        Change::Patch(size, offset, bytes) => {
            let patch = PatchBuf::of_run(*size, *offset, bytes).unwrap();
            if let Some(value) = model.get_mut(key) {
                *value = match value {
                    Value::Ref(it) => FakeOutline.patched(it, patch.as_patch()).unwrap(),
                    Value::Inline(bytes) => {
                        patch.as_patch().apply(bytes);
                        Value::Inline(bytes.clone())
                    }
                };
            }
        }
    }
}

fn insert_delta(map: &mut DeltaMap, key: &[u8], change: &Change, lsn: Lsn, boundaries: &[Lsn]) {
    let patch;
    let op = match change {
        Change::Put(Value::Inline(bytes)) => Op::Put(bytes),
        Change::Put(Value::Ref(descriptor)) => Op::PutRef(descriptor),
        Change::Delete => Op::Delete,
        Change::Patch(size, offset, bytes) => {
            patch = PatchBuf::of_run(*size, *offset, bytes).unwrap();
            Op::Patch(patch.as_patch())
        }
    };
    map.insert(key, op, lsn, boundaries);
}

proptest! {
    /// Goal: pages return the entries they were built from, in any layout and with either policy.
    #[test]
    fn pages_give_back_what_they_were_built_from(
        model in model_strategy(300),
        page_size in prop_oneof![Just(464_usize), Just(2048), Just(4000)],
        append in any::<bool>(),
        probe in key_strategy(),
    ) {
        let fill = if append { FillPolicy::Append } else { FillPolicy::Balanced };
        let pages = leaves(&model, KeyRange::ALL, page_size, fill);
        prop_assert!(pages.iter().all(|page| page.image.len() == page_size));
        prop_assert_eq!(contents(&pages, KeyRange::ALL), model.clone());
        let page = pages.iter().rfind(|page| page.low_key <= probe).unwrap();
        let view = NodeView::trusted(&page.image);
        prop_assert!(view.covers(&probe));
        prop_assert_eq!(view.search(&probe).is_ok(), model.contains_key(&probe));
    }

    /// Goal: a merge agrees with the model, for single leaves and for neighbours together, and
    /// reports exactly the superseded descriptors.
    #[test]
    fn merges_give_what_the_model_gives(
        model in model_strategy(60),
        changes in prop::collection::vec((key_strategy(), change_strategy()), 0..60),
        same_size in any::<bool>(),
        upto in 0..80_u64,
        keep_all in any::<bool>(),
    ) {
        let page_size = 464;
        let pages = leaves(&model, KeyRange::ALL, page_size, FillPolicy::Balanced);
        let upto = Lsn(upto);
        let every: Vec<Lsn> = if keep_all { (0..80).map(Lsn).collect() } else { vec![upto] };
        let (mut map, mut expected) = (DeltaMap::new(), model.clone());
        let old_keys: Vec<_> = model.keys().cloned().collect();
        for (index, (key, change)) in changes.iter().enumerate() {
            let (mut key, mut change) = (key.clone(), change.clone());
            if same_size && !old_keys.is_empty() {
                key = old_keys[index % old_keys.len()].clone();
                change = Change::Patch(20, index as u32 % 12, vec![index as u8; 8]);
            }
            let lsn = Lsn(index as u64 + 1);
            insert_delta(&mut map, &key, &change, lsn, &every);
            if lsn <= upto {
                change_model(&mut expected, &key, &change);
            }
        }
        let request = |range| MergeRequest { tree: TREE, range, upto, page_size };
        let views: Vec<_> = pages.iter().map(|page| NodeView::trusted(&page.image)).collect();
        let together =
            merge_leaves(&views, &map, request(KeyRange::ALL), &mut FakeOutline).unwrap();
        prop_assert_eq!(contents(&together.pages, KeyRange::ALL), expected.clone());
        prop_assert_eq!(together.entry_count, expected.len());

        let mut single = Vec::new();
        let mut dropped = Vec::new();
        for (view, page) in views.iter().zip(&pages) {
            let range = KeyRange { low: view.low(), high: view.high() };
            let merged = merge_leaf(Some(*view), &map, request(range), &mut FakeOutline).unwrap();
            let mut image = page.image.clone();
            let fold = fold_in_place(&mut image, &map, upto, &mut FakeOutline).unwrap();
            prop_assert_eq!(fold.is_some(), merged.pages.len() == 1);
            let unchanged = if fold.is_some() { &merged.pages[0].image } else { &page.image };
            prop_assert_eq!(unchanged, &image);
            single.extend(merged.pages);
            dropped.extend(merged.dropped_refs);
        }
        prop_assert_eq!(contents(&single, KeyRange::ALL), expected.clone());
        prop_assert_eq!(&dropped, &together.dropped_refs);
        let kept = |it: &Vec<u8>| expected.values().any(|value| *value == Value::Ref(it.clone()));
        prop_assert!(!dropped.iter().any(kept), "a dropped descriptor is nowhere in the result");
        let gone = model.values().filter(|value| !expected.values().any(|it| it == *value));
        for value in gone {
            if let Value::Ref(descriptor) = value {
                prop_assert!(dropped.contains(descriptor), "{:?} is not referenced", descriptor);
            }
        }
    }

    /// Goal: no bytes make the parser or a view panic, and accepted pages keep their order.
    #[test]
    fn damaged_pages_are_refused_or_sound(
        model in model_strategy(40),
        inner in any::<bool>(),
        damage in prop::collection::vec((0..200_usize, any::<u8>()), 1..6),
        cut in prop::option::of(0..464_usize),
        probe in key_strategy(),
    ) {
        let mut image = if inner {
            let mut keys: Vec<_> = model.keys().map(|key| &key[..]).collect();
            keys.insert(0, &[]);
            let children = keys.iter().map(|key| (*key, LogicalPage(key.len() as u32)));
            let fill = FillPolicy::Append;
            build_inner((TREE, 1), KeyRange::ALL, children, 464, fill).unwrap().remove(0).image
        } else {
            leaves(&model, KeyRange::ALL, 464, FillPolicy::Append).remove(0).image
        };
        for (index, byte) in damage {
            image[index] = byte;
        }
        image.truncate(cut.unwrap_or(464));
        if let Ok(view) = NodeView::parse(&image) {
            let keys: Vec<_> = (0..view.count()).map(|index| view.separator(index)).collect();
            prop_assert!(keys.is_sorted_by(|left, right| left < right));
            prop_assert!(keys.iter().all(|key| view.covers(key)));
            prop_assert!(view.used_bytes() <= image.len());
        }
        let view = NodeView::trusted(&image);
        let _ = (view.low(), view.high(), view.used_bytes(), view.search(&probe));
        let _ = (view.entries().count(), view.child_for(&probe), view.separator(3));
    }

    /// Goal: inner nodes route every key to the child whose separator is the last at or below it,
    /// through any change.
    #[test]
    fn inner_nodes_route_like_the_model(
        keys in prop::collection::btree_set(key_strategy(), 1..200),
        puts in prop::collection::vec((key_strategy(), any::<u32>()), 0..20),
        deletes in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        probes in prop::collection::vec(key_strategy(), 20),
        page_size in prop_oneof![Just(464_usize), Just(2048)],
    ) {
        let mut model: BTreeMap<Vec<u8>, LogicalPage> =
            keys.iter().cloned().zip((1..).map(LogicalPage)).collect();
        model.insert(Vec::new(), LogicalPage(0));
        let children = model.iter().map(|(key, child)| (&key[..], *child));
        let fill = FillPolicy::Balanced;
        let mut pages =
            build_inner((TREE, 2), KeyRange::ALL, children, page_size, fill).unwrap();
        let keys: Vec<_> = keys.into_iter().collect();
        let deletes: Vec<_> = deletes.iter().map(|it| it.get(&keys).clone()).collect();
        let mut changed = Vec::new();
        for page in &pages {
            let view = NodeView::parse(&page.image).unwrap();
            let inside = |key: &[u8]| view.covers(key) && key != view.low();
            let puts: Vec<_> = puts.iter().filter(|(key, _)| inside(key)).collect();
            let puts: Vec<_> = puts.iter().map(|it| (&it.0[..], LogicalPage(it.1))).collect();
            let deletes: Vec<_> =
                deletes.iter().map(|key| &key[..]).filter(|key| inside(key)).collect();
            model.retain(|key, _| !deletes.contains(&&key[..]));
            model.extend(puts.iter().map(|(key, child)| (key.to_vec(), *child)));
            changed.extend(inner_with(&view, &puts, &deletes, page_size).unwrap());
        }
        pages = changed;
        let views: Vec<_> =
            pages.iter().map(|page| NodeView::parse(&page.image).unwrap()).collect();
        prop_assert!(views.windows(2).all(|pair| pair[0].high() == Some(pair[1].low())));
        prop_assert_eq!(views.iter().map(NodeView::count).sum::<usize>(), model.len());
        for probe in probes.iter().chain(model.keys()) {
            let view = views.iter().rfind(|view| view.low() <= &probe[..]).unwrap();
            let (separator, child) = model.range(..=probe.clone()).next_back().unwrap();
            let (index, found) = view.child_for(probe).unwrap();
            prop_assert_eq!((found, &view.separator(index)), (*child, separator));
            prop_assert_eq!(view.child(index), Some(found));
        }
    }

    /// Goal: entries at the limits always find room, under fences at the limits (N5).
    #[test]
    fn entries_at_the_limits_fit(
        shapes in prop::collection::btree_set(
            (0..3_u8, 0..3_usize, 0..3_u8), 1..12),
        page_size in prop_oneof![Just(464_usize), Just(512), Just(2048), Just(32_768)],
        is_ref in any::<bool>(),
    ) {
        let size = key_size_max(page_size);
        let key_of = |first: u8, place: usize, last: u8| {
            let mut key = vec![first; size];
            key[(size - 1) * place / 2] = last;
            key
        };
        let value = match is_ref {
            true => Value::Ref(vec![1; descriptor_size_max(page_size)]),
            false => Value::Inline(vec![1; value_size_max(page_size, size)]),
        };
        let model: Model = shapes
            .into_iter()
            .map(|(first, place, last)| (key_of(first + 2, place, last + 2), value.clone()))
            .collect();
        let (low, high) = (vec![0; size], vec![9; size]);
        let range = KeyRange { low: &low, high: Some(&high) };
        let pages = leaves(&model, range, page_size, FillPolicy::Balanced);
        prop_assert_eq!(contents(&pages, range), model.clone());
        let keys = [&low].into_iter().chain(model.keys());
        let children = keys.map(|key| (&key[..], LogicalPage(1)));
        let fill = FillPolicy::Append;
        let nodes = build_inner((TREE, 1), range, children, page_size, fill).unwrap();
        let counts: Vec<_> =
            nodes.iter().map(|node| NodeView::parse(&node.image).unwrap().count()).collect();
        prop_assert_eq!(counts.iter().sum::<usize>(), model.len() + 1);
        prop_assert!(counts.iter().rev().skip(1).all(|count| *count >= 2));
    }
}

fn numbered(count: u64, value_size: usize) -> Model {
    let value = |index: u64| Value::Inline(vec![index as u8; value_size]);
    (0..count).map(|index| ((index * 16).to_be_bytes().to_vec(), value(index))).collect()
}

#[test]
fn eighteen_entries_of_the_tpc_b_account_fit_2048_bytes() {
    let (low, high) = (0_u64.to_be_bytes(), 288_u64.to_be_bytes());
    let range = KeyRange { low: &low, high: Some(&high) };
    assert_eq!(leaves(&numbered(18, 100), range, 2048, FillPolicy::Balanced).len(), 1);
}

#[test]
fn an_inner_entry_with_an_8_byte_key_takes_12_bytes() {
    let keys: Vec<_> = (0..168_u64).map(|key| (key << 40).to_be_bytes()).collect();
    let mut children: Vec<_> = keys.iter().map(|key| (&key[..], LogicalPage(3))).collect();
    children[0].0 = &[];
    let build =
        build_inner((TREE, 1), KeyRange::ALL, children.into_iter(), 2048, FillPolicy::Balanced);
    let pages = build.unwrap();
    assert_eq!(pages.len(), 1);
    let view = NodeView::parse(&pages[0].image).unwrap();
    assert_eq!(view.used_bytes(), 20 + 168 * 12);
}

#[test]
fn inserts_at_the_right_edge_leave_full_pages_behind() {
    let base = leaves(&numbered(18, 100), KeyRange::ALL, 2048, FillPolicy::Balanced);
    let put = |map: &mut DeltaMap, key: u64| {
        map.insert(&key.to_be_bytes(), Op::Put(&[5; 100]), Lsn(key), &[]);
    };
    let request =
        MergeRequest { tree: TREE, range: KeyRange::ALL, upto: Lsn(5000), page_size: 2048 };
    let counts = |map: &DeltaMap| -> Vec<usize> {
        let view = NodeView::trusted(&base[0].image);
        let merged = merge_leaf(Some(view), map, request, &mut NoOutline).unwrap();
        merged.pages.iter().map(|page| NodeView::trusted(&page.image).count()).collect()
    };
    let mut edge = DeltaMap::new();
    (1000..1004).for_each(|key| put(&mut edge, key));
    assert_eq!(counts(&edge), [18, 4]);
    let mut inside = edge.clone();
    put(&mut inside, 17);
    assert_eq!(counts(&inside), [11, 12]);
}

/// Goal: a sequence that grows in front of another one leaves full pages behind; inserts at random
/// places fill pages no worse than before.
///
/// Method: merges of a few inserts each into a list of leaves, each insert into the leaf that
/// covers it; the result is the average used share of the pages.
#[test]
fn sequences_that_grow_side_by_side_leave_full_pages_behind() {
    let key = |prefix: u64, number: u64| [prefix.to_be_bytes(), number.to_be_bytes()].concat();
    let mut leaves = vec![empty_leaf(TREE, 2048)];
    for batch in 0..200_u64 {
        for prefix in 0..16 {
            let keys = (batch * 8..batch * 8 + 8).map(|number| key(prefix, number));
            insert_batch(&mut leaves, keys.collect());
        }
    }
    assert_eq!(leaves.iter().map(|leaf| NodeView::trusted(leaf).count()).sum::<usize>(), 16 * 1600);
    assert!(used_share(&leaves) > 0.9, "{}", used_share(&leaves));
}

/// Fill that even cuts reach: 0.69 for single keys, a little less for runs.
#[test]
fn inserts_at_random_places_fill_two_thirds_of_the_pages() {
    for run_size in [1_u64, 3, 8] {
        let mut leaves = vec![empty_leaf(TREE, 2048)];
        for batch in 0..8000 / run_size {
            // A dense key space, filled in an order without a pattern.
            let start = batch.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 51;
            let keys = (0..run_size).map(|number| (start * 8 + number).to_be_bytes().to_vec());
            insert_batch(&mut leaves, keys.collect());
        }
        assert!(used_share(&leaves) > 0.6, "runs of {run_size}: {}", used_share(&leaves));
    }
}

/// Merges `keys`, which are neighbours in key order, into the leaf that covers the first of them.
fn insert_batch(leaves: &mut Vec<Vec<u8>>, keys: Vec<Vec<u8>>) {
    let at = leaves.partition_point(|leaf| NodeView::trusted(leaf).low() <= &keys[0][..]) - 1;
    let mut map = DeltaMap::new();
    for key in &keys {
        map.insert(key, Op::Put(&[5; 50]), Lsn(1), &[]);
    }
    let base = leaves[at].clone();
    let view = NodeView::trusted(&base);
    let range = KeyRange { low: view.low(), high: view.high() };
    let request = MergeRequest { tree: TREE, range, upto: Lsn(1), page_size: 2048 };
    let merged = merge_leaf(Some(view), &map, request, &mut NoOutline).unwrap();
    leaves.splice(at..=at, merged.pages.into_iter().map(|page| page.image));
}

fn used_share(leaves: &[Vec<u8>]) -> f64 {
    let used: usize = leaves.iter().map(|leaf| NodeView::trusted(leaf).used_bytes()).sum();
    used as f64 / (leaves.len() * 2048) as f64
}

#[test]
fn a_patch_on_an_absent_key_leaves_it_absent() {
    let mut map = DeltaMap::new();
    let patch = PatchBuf::of_run(8, 0, b"12345678").unwrap();
    map.insert(b"absent", Op::Patch(patch.as_patch()), Lsn(1), &[]);
    let request = MergeRequest { tree: TREE, range: KeyRange::ALL, upto: Lsn(1), page_size: 512 };
    let merged = merge_leaf(None, &map, request, &mut NoOutline).unwrap();
    assert_eq!((merged.entry_count, merged.pages.len()), (0, 1));
    let again = NodeView::parse(&merged.pages[0].image).unwrap();
    let merged = merge_leaf(Some(again), &map, request, &mut NoOutline).unwrap();
    assert_eq!(merged.entry_count, 0);
}

#[test]
fn what_a_page_cannot_take_is_refused_with_its_limit() {
    let build_value = |key: &[u8], value: ValueRef<'_>, page_size| {
        let entries = [(key, value)].into_iter();
        build_leaves(TREE, KeyRange::ALL, entries, page_size, FillPolicy::Balanced)
    };
    let build =
        |key: &[u8], value: &[u8], page_size| build_value(key, ValueRef::Inline(value), page_size);
    let size_max = 120;
    assert_eq!(build(&[1; 121], b"", 512), Err(NodeError::KeyTooLarge { size: 121, size_max }));
    let descriptor = build_value(b"k", ValueRef::Ref(&[0; 121]), 512);
    assert_eq!(descriptor, Err(NodeError::ValueTooLarge { size: 121, size_max }));
    for key_size in [1, 120] {
        let (size, size_max) = (241 - key_size, 240 - key_size);
        let refused = build(&vec![1; key_size], &vec![0; size], 512);
        assert_eq!(refused, Err(NodeError::ValueTooLarge { size, size_max }));
        assert!(build(&vec![1; key_size], &vec![0; size_max], 512).is_ok());
    }
    assert_eq!(build(b"k", b"", 100), Err(NodeError::PageSize { page_size: 100 }));
    let mut map = DeltaMap::new();
    map.insert(b"k", Op::PutRef(b"descriptor"), Lsn(1), &[]);
    let patch = PatchBuf::of_run(8, 0, b"1").unwrap();
    map.insert(b"k", Op::Patch(patch.as_patch()), Lsn(2), &[]);
    let request = MergeRequest { tree: TREE, range: KeyRange::ALL, upto: Lsn(2), page_size: 512 };
    let refused = merge_leaf(None, &map, request, &mut NoOutline);
    assert_eq!(refused, Err(NodeError::OutOfLinePatch));
    let children = [(&b"a"[..], LogicalPage(1))].into_iter();
    let orphan = build_inner((TREE, 1), KeyRange::ALL, children, 512, FillPolicy::Balanced);
    assert_eq!(orphan, Err(NodeError::LowUncovered));
}

/// A row of TPC-C's largest table under its short key needs no pages of its own on a common chip.
#[test]
fn a_value_may_take_what_its_key_leaves_of_half_a_page() {
    assert_eq!(value_size_max(2048, 5) + 5, value_size_max(2048, 500) + 500);
    assert!(value_size_max(2048, 5) >= 655);
    assert!(descriptor_size_max(2048) < 655, "beside a key and two fences of the longest size");
}

/// Goal: however keys are spaced, a search that begins with a guess, or behind an entry before the
/// key, ends at the same place as a binary search. Method: even, skewed and clustered keys; every
/// key, and its neighbours on either side.
#[test]
fn a_guess_changes_no_search() {
    let spacings: [fn(u64) -> u64; 4] = [
        |n| n * 1000,
        |n| n * n * n * n,
        |n| u64::MAX / 2 + n * 3,
        |n| if n < 40 { n } else { u64::MAX - 500 + n },
    ];
    for (number, spacing) in spacings.into_iter().enumerate() {
        for count in [1, 15, 16, 17, 80] {
            let row = |n| (spacing(n).to_be_bytes().to_vec(), Value::Inline(vec![1; 8]));
            let model: Model = (1..=count).map(row).collect();
            let high = u64::MAX.to_be_bytes();
            for range in
                [KeyRange { low: &[], high: None }, KeyRange { low: &[], high: Some(&high) }]
            {
                let pages = leaves(&model, range, 4096, FillPolicy::Balanced);
                let view = NodeView::parse(&pages[0].image).unwrap();
                let keys: Vec<Vec<u8>> = (0..view.count()).map(|at| view.separator(at)).collect();
                for key in model.keys() {
                    let value = u64::from_be_bytes(key[..].try_into().unwrap());
                    for near in [value.wrapping_sub(1), value, value.wrapping_add(1)] {
                        let near = near.to_be_bytes();
                        let expected = keys.binary_search_by(|key| key[..].cmp(&near));
                        let found = view.search(&near);
                        assert_eq!(found, expected, "spacing {number}, {count} keys, {value}");
                        let at = expected.unwrap_or_else(|at| at);
                        for first in [0, at / 2, at] {
                            let found = view.search_behind(first, &near);
                            assert_eq!(found, expected, "{value} of {count} keys behind {first}");
                        }
                    }
                }
            }
        }
    }
}
