use super::*;

const TABLE: TableIndex = TableIndex(0);
const SLOT: SlotIndex = SlotIndex(0);
const OTHER: SlotIndex = SlotIndex(1);

fn put(model: &mut Model, slot: SlotIndex, key: &[u8], value: &[u8]) {
    model.lock(slot, KeyRange::of(TABLE, key), Access::Write);
    model.set(slot, (TABLE, key.to_vec()), Some(value.to_vec()));
}

fn commit(model: &mut Model, key: &[u8], value: &[u8]) -> PendingCommit {
    model.begin(SLOT);
    put(model, SLOT, key, value);
    model.commit_asked(SLOT)
}

fn contents(pairs: &[(&[u8], &[u8])]) -> Contents {
    let mut contents = Contents::default();
    for (key, value) in pairs {
        contents.insert(TABLE, key.to_vec(), value.to_vec());
    }
    contents
}

#[test]
fn any_prefix_of_later_commits_is_admitted_and_nothing_else() {
    let mut model = Model::default();
    commit(&mut model, b"a", b"1");
    commit(&mut model, b"b", b"2");
    let admitted: [&[(&[u8], &[u8])]; 3] = [&[], &[(b"a", b"1")], &[(b"a", b"1"), (b"b", b"2")]];
    for (index, pairs) in admitted.into_iter().enumerate() {
        assert_eq!(model.clone().settle(&contents(pairs)), Ok(index));
    }
    assert!(model.clone().settle(&contents(&[(b"b", b"2")])).is_err(), "a gap was admitted");
    assert!(model.settle(&contents(&[(b"a", b"2")])).is_err(), "a wrong value was admitted");
}

#[test]
fn a_durable_commit_carries_those_before_it() {
    let mut model = Model::default();
    commit(&mut model, b"a", b"1");
    let second = commit(&mut model, b"b", b"2");
    model.commit_durable(second);
    assert!(model.clone().settle(&contents(&[(b"a", b"1")])).is_err());
    assert!(model.settle(&contents(&[(b"a", b"1"), (b"b", b"2")])).is_ok());
}

#[test]
fn a_content_found_once_must_be_found_again() {
    let mut model = Model::default();
    commit(&mut model, b"a", b"1");
    assert_eq!(model.settle(&contents(&[])), Ok(0));
    assert!(model.settle(&contents(&[(b"a", b"1")])).is_err(), "a dead commit came back");
}

#[test]
fn a_durable_read_only_commit_makes_durable_what_it_read() {
    let mut model = Model::default();
    commit(&mut model, b"a", b"1");
    commit(&mut model, b"b", b"2");
    model.begin(OTHER);
    model.lock(OTHER, KeyRange::of(TABLE, b"a"), Access::Read);
    let reader = model.commit_asked(OTHER);
    model.commit_durable(reader);
    assert!(model.clone().settle(&contents(&[])).is_err());
    assert!(model.settle(&contents(&[(b"a", b"1")])).is_ok());
}

#[test]
fn savepoints_take_back_what_came_after() {
    let mut model = Model::default();
    model.begin(SLOT);
    put(&mut model, SLOT, b"a", b"1");
    let savepoint = model.savepoint(SLOT);
    put(&mut model, SLOT, b"a", b"2");
    put(&mut model, SLOT, b"b", b"2");
    model.rollback_to(SLOT, savepoint);
    assert_eq!(model.view(SLOT), contents(&[(b"a", b"1")]));
}

#[test]
fn a_refused_commit_leaves_nothing() {
    let mut model = Model::default();
    let kept = commit(&mut model, b"a", b"1");
    let refused = commit(&mut model, b"a", b"2");
    model.commit_refused(refused);
    model.commit_durable(kept);
    assert_eq!(model.visible(), &contents(&[(b"a", b"1")]));
    assert!(model.settle(&contents(&[(b"a", b"2")])).is_err());
}

#[test]
fn writers_exclude_each_other_and_readers_do_not() {
    let mut model = Model::default();
    model.begin(SLOT);
    model.lock(SLOT, KeyRange::of(TABLE, b"m"), Access::Read);
    let all = KeyRange { table: TABLE, low: Vec::new(), high: None };
    let left = KeyRange { high: Some(b"m".to_vec()), ..all.clone() };
    assert!(model.may_lock(OTHER, &all, Access::Read));
    assert!(!model.may_lock(OTHER, &all, Access::Write));
    assert!(model.may_lock(OTHER, &left, Access::Write), "the high end is exclusive");
    assert!(model.may_lock(SLOT, &all, Access::Write), "own locks never clash");
}

#[test]
fn a_range_without_keys_excludes_nobody() {
    let mut model = Model::default();
    model.begin(SLOT);
    let all = KeyRange { table: TABLE, low: Vec::new(), high: None };
    model.lock(SLOT, all.clone(), Access::Write);
    let nothing = KeyRange { low: b"m".to_vec(), high: Some(b"m".to_vec()), ..all };
    assert!(model.may_lock(OTHER, &nothing, Access::Read));
    assert!(!model.may_lock(OTHER, &KeyRange::of(TABLE, b"m"), Access::Read));
}

#[test]
fn a_snapshot_keeps_to_one_state() {
    let mut model = Model::default();
    commit(&mut model, b"a", b"1");
    model.snapshot(OTHER);
    let key = (TABLE, b"a".to_vec());
    assert!(model.snapshot_agrees(OTHER, |state| state.get(&key).is_none()));
    assert!(!model.snapshot_agrees(OTHER, |state| state.get(&key) == Some(b"1")));
}

#[test]
fn ranges_are_half_open_and_stay_in_their_table() {
    let mut contents = contents(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]);
    contents.insert(TableIndex(1), b"a".to_vec(), b"4".to_vec());
    let keys = |low: &[u8], high: Option<&[u8]>| {
        let pairs = contents.range(TABLE, low, high);
        pairs.into_iter().map(|(key, _)| key.to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(keys(b"a", Some(b"c")), [b"a", b"b"]);
    assert_eq!(keys(b"b", None), [b"b", b"c"]);
    assert!(keys(b"c", Some(b"b")).is_empty(), "an empty range has no keys");
    assert_eq!(contents.range(TABLE, b"", None).last(), Some(&(&b"c"[..], &b"3"[..])));
}
