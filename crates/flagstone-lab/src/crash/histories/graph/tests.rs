use super::*;

const X: ListKey = ListKey(1);
const Y: ListKey = ListKey(2);

fn begin(history: &mut History) -> NodeIndex {
    history.begin_unordered(Reader::Transaction)
}

fn keep(history: &mut History, nodes: &[NodeIndex]) {
    nodes.iter().for_each(|node| history.nodes[node.0].fate = Fate::Kept);
}

fn finals(lists: &[(ListKey, &[Element])]) -> Lists {
    lists.iter().map(|(key, list)| (*key, list.to_vec())).collect()
}

fn name(result: Result<Checked, Anomaly>) -> Option<&'static str> {
    match result {
        Err(Anomaly::Cycle { name, .. }) => Some(name),
        _ => None,
    }
}

#[test]
fn a_serial_history_is_in_order() {
    let mut history = History::default();
    let one = history.begin(Reader::Transaction);
    let first = history.append(one, X);
    history.committed(one);
    history.durable(one);
    let two = history.begin(Reader::Transaction);
    history.read(two, X, vec![first]).unwrap();
    let second = history.append(two, X);
    history.read(two, X, vec![first, second]).unwrap();
    history.committed(two);
    let snapshot = history.begin(Reader::Snapshot);
    history.read(snapshot, X, vec![first]).unwrap();
    history.snapshot_ended(snapshot);
    let checked = history.check(&finals(&[(X, &[first, second])])).unwrap();
    assert_eq!((checked.transactions, checked.snapshots, checked.reads), (2, 1, 3));
}

#[test]
fn dirty_writes_are_a_cycle() {
    let mut history = History::default();
    let (one, two) = (begin(&mut history), begin(&mut history));
    let (a, b) = (history.append(one, X), history.append(two, X));
    let (c, d) = (history.append(two, Y), history.append(one, Y));
    keep(&mut history, &[one, two]);
    assert_eq!(name(history.check(&finals(&[(X, &[a, b]), (Y, &[c, d])]))), Some("G0"));
}

#[test]
fn circular_information_flow_is_a_cycle() {
    let mut history = History::default();
    let (one, two) = (begin(&mut history), begin(&mut history));
    let (a, b) = (history.append(one, X), history.append(two, Y));
    history.read(one, Y, vec![b]).unwrap();
    history.read(two, X, vec![a]).unwrap();
    keep(&mut history, &[one, two]);
    assert_eq!(name(history.check(&finals(&[(X, &[a]), (Y, &[b])]))), Some("G1c"));
}

#[test]
fn read_skew_of_a_snapshot_is_a_cycle() {
    let mut history = History::default();
    let (writer, reader) = (begin(&mut history), history.begin(Reader::Snapshot));
    let (a, b) = (history.append(writer, X), history.append(writer, Y));
    history.read(reader, X, vec![]).unwrap();
    history.read(reader, Y, vec![b]).unwrap();
    keep(&mut history, &[writer]);
    assert_eq!(name(history.check(&finals(&[(X, &[a]), (Y, &[b])]))), Some("G-single"));
}

#[test]
fn write_skew_is_a_cycle() {
    let mut history = History::default();
    let (one, two) = (begin(&mut history), begin(&mut history));
    history.read(one, Y, vec![]).unwrap();
    history.read(two, X, vec![]).unwrap();
    let (a, b) = (history.append(one, X), history.append(two, Y));
    keep(&mut history, &[one, two]);
    assert_eq!(name(history.check(&finals(&[(X, &[a]), (Y, &[b])]))), Some("G2"));
}

#[test]
fn a_stale_snapshot_contradicts_time() {
    let mut history = History::default();
    let one = history.begin(Reader::Transaction);
    let a = history.append(one, X);
    history.committed(one);
    history.durable(one);
    let snapshot = history.begin(Reader::Snapshot);
    history.read(snapshot, X, vec![]).unwrap();
    let found = name(history.check(&finals(&[(X, &[a])])));
    assert_eq!(found, Some("an order that contradicts time"));
}

#[test]
fn reads_of_what_nobody_committed_are_found() {
    let mut history = History::default();
    let (one, two) = (begin(&mut history), begin(&mut history));
    let (a, b) = (history.append(one, X), history.append(one, X));
    history.read(two, X, vec![a]).unwrap();
    keep(&mut history, &[one, two]);
    let lists = finals(&[(X, &[a, b])]);
    assert_eq!(history.check(&lists), Err(Anomaly::IntermediateRead(two, X, a)));
    history.aborted(one);
    let found = history.check(&finals(&[]));
    assert_eq!(found, Err(Anomaly::AbortedRead(two, X, a)));
    assert!(matches!(history.check(&lists), Err(Anomaly::AbortedRead(..))));
}

#[test]
fn a_lost_append_is_found() {
    let mut history = History::default();
    let one = begin(&mut history);
    let a = history.append(one, X);
    keep(&mut history, &[one]);
    assert_eq!(history.check(&finals(&[])), Err(Anomaly::Lost(one, X, a)));
    let two = begin(&mut history);
    history.append(two, Y);
    assert_eq!(history.read(two, Y, vec![]), Err(Anomaly::OwnLost(two, Y, vec![])));
}

#[test]
fn the_power_takes_commits_from_the_end() {
    let mut history = History::default();
    let (one, two) = (begin(&mut history), begin(&mut history));
    let (_, b) = (history.append(one, X), history.append(two, Y));
    history.committed(one);
    history.committed(two);
    assert_eq!(history.power_off(&finals(&[(Y, &[b])])), Err(Anomaly::Gap(one, two)));
}
