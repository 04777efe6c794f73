//! Histories made by hand: one for each anomaly that the checker has to see, and some without an anomaly.

use super::super::record::{Flush, List};
use super::*;

/// A history in the making.
#[derive(Default)]
struct Story {
    base: Base,
    notes: Notes,
    clock: u64,
}

const A: Key = Key::new(Area::Registers, 1);
const B: Key = Key::new(Area::Registers, 2);
const L: Key = Key::new(Area::Lists, 1);
const M: Key = Key::new(Area::Lists, 2);

/// Version of the write `operation` of transaction `number`.
fn version(number: u64, operation: u64) -> Version {
    TxnId::new(1, 0, number).version(operation)
}

fn saw(number: u64) -> Look {
    Look::Version(version(number, 1))
}

/// A write of transaction `number`; each of its rows has the version with operation 1 in these tests.
fn wrote(key: Key, number: u64) -> Op {
    let operation = if key == A || key == L { 1 } else { 2 };
    let version = version(number, operation);
    Op::Write(key, version, Look::Version(version))
}

fn saw_b(number: u64) -> Look {
    Look::Version(version(number, 2))
}

impl Story {
    fn stamp(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A transaction that begins when the one before is over.
    fn txn(&mut self, number: u64, lsn: u64, ops: Vec<Op>) -> &mut Txn {
        let (begun, ended) = (self.stamp(), Some(self.stamp()));
        let outcome = Outcome::Committed { lsn: Some(lsn) };
        let id = TxnId::new(1, 0, number);
        self.notes.txns.push(Txn { id, begun, ended, outcome, is_durable: false, ops });
        self.notes.txns.last_mut().unwrap()
    }

    /// As `txn`, beside all others.
    fn beside(&mut self, number: u64, lsn: u64, ops: Vec<Op>) -> &mut Txn {
        let txn = self.txn(number, lsn, ops);
        (txn.begun, txn.ended) = (0, Some(1_000 + number));
        txn
    }

    fn view(&mut self, viewer: Viewer, ops: Vec<Op>) {
        let (begun, ended) = (self.stamp(), self.stamp());
        self.notes.views.push(View { viewer, begun, ended, ops });
    }

    fn forms(&self) -> Vec<String> {
        let session = Session { number: 1, base: &self.base, notes: &self.notes };
        let findings = check(&session).findings;
        findings.into_iter().map(|finding| finding.form).collect()
    }
}

fn list(elements: &[Version]) -> List {
    List { before: 0, elements: elements.to_vec() }
}

#[test]
fn a_serial_history_is_sound() {
    let mut story = Story::default();
    story.txn(1, 10, vec![Op::Read(A, Look::Absent), wrote(A, 1)]);
    story.txn(2, 11, vec![Op::Read(A, saw(1)), wrote(A, 2), wrote(B, 2)]).is_durable = true;
    story.view(Viewer::Snapshot, vec![Op::Read(A, saw(2)), Op::Read(B, saw_b(2))]);
    story.txn(3, 12, vec![wrote(A, 3)]);
    story.view(Viewer::Cut, vec![Op::Read(A, saw(2)), Op::Read(B, saw_b(2))]);
    assert!(story.forms().is_empty(), "{:?}", story.forms());
}

#[test]
fn g0_two_lists_in_two_orders() {
    let mut story = Story::default();
    let (one, two) = (version(1, 1), version(2, 1));
    let (other_one, other_two) = (version(1, 2), version(2, 2));
    story.beside(1, 10, vec![wrote(L, 1), wrote(M, 1)]);
    story.beside(2, 11, vec![wrote(L, 2), wrote(M, 2)]);
    story.view(
        Viewer::Snapshot,
        vec![
            Op::Read(L, Look::Version(two)),
            Op::List(L, list(&[one, two])),
            Op::Read(M, Look::Version(other_one)),
            Op::List(M, list(&[other_two, other_one])),
        ],
    );
    assert!(story.forms().contains(&"transactions: G0".into()), "{:?}", story.forms());
}

#[test]
fn lists_that_disagree_are_an_incompatible_order() {
    let mut story = Story::default();
    let (one, two) = (version(1, 1), version(2, 1));
    story.beside(1, 10, vec![wrote(L, 1), Op::List(L, list(&[one]))]);
    story.beside(2, 11, vec![wrote(L, 2), Op::List(L, list(&[two]))]);
    assert!(story.forms().contains(&"incompatible order".into()), "{:?}", story.forms());
}

#[test]
fn g1a_g1b_and_writes_of_nobody() {
    let mut story = Story::default();
    story.txn(1, 0, vec![wrote(A, 1)]).outcome = Outcome::Aborted;
    story.txn(2, 11, vec![Op::Hidden(version(2, 7)), wrote(B, 2)]);
    story.txn(
        3,
        12,
        vec![
            Op::Read(A, saw(1)),
            Op::Read(B, Look::Version(version(2, 7))),
            Op::Read(L, Look::Version(version(9, 1))),
            Op::Read(M, Look::Version(TxnId::new(0, 0, 1).version(1))),
        ],
    );
    let expected =
        ["G1a aborted read", "G1b intermediate read", "unwritten read", "dead write read"];
    assert_eq!(story.forms(), expected);
}

#[test]
fn a_value_of_another_row_is_misplaced() {
    let mut story = Story::default();
    story.txn(1, 10, vec![wrote(A, 1)]);
    story.txn(2, 11, vec![wrote(B, 2)]);
    story.view(Viewer::Snapshot, vec![Op::Read(A, saw_b(2)), Op::Read(B, saw_b(2))]);
    assert_eq!(story.forms(), ["misplaced"]);
}

#[test]
fn g1c_two_that_read_from_each_other() {
    let mut story = Story::default();
    story.beside(1, 10, vec![wrote(A, 1), Op::Read(B, saw_b(2))]);
    story.beside(2, 11, vec![wrote(B, 2), Op::Read(A, saw(1))]);
    assert_eq!(story.forms(), ["transactions: G1c"]);
}

#[test]
fn g_single_a_lost_update() {
    let mut story = Story::default();
    story.base.rows.insert(A, Look::Version(TxnId::new(0, 0, 1).version(1)));
    let old = Op::Read(A, Look::Version(TxnId::new(0, 0, 1).version(1)));
    story.beside(1, 10, vec![old.clone(), wrote(A, 1)]);
    story.beside(2, 11, vec![old, wrote(A, 2)]);
    assert_eq!(story.forms(), ["transactions: G-single"]);
}

#[test]
fn g2_write_skew() {
    let mut story = Story::default();
    story.beside(1, 10, vec![Op::Read(A, Look::Absent), wrote(B, 1)]);
    story.beside(2, 11, vec![Op::Read(B, Look::Absent), wrote(A, 2)]);
    assert_eq!(story.forms(), ["transactions: G2"]);
}

#[test]
fn g2_a_phantom_in_a_scan() {
    let mut story = Story::default();
    let all = Op::Scan { first: A, last: B, rows: vec![] };
    story.beside(1, 10, vec![all.clone(), wrote(B, 1)]);
    story.beside(2, 11, vec![all, wrote(A, 2)]);
    assert_eq!(story.forms(), ["transactions: G2"]);
}

#[test]
fn a_stale_read_of_a_transaction() {
    let mut story = Story::default();
    story.txn(1, 10, vec![wrote(A, 1)]);
    story.txn(2, 11, vec![Op::Read(A, Look::Absent), wrote(B, 2)]);
    assert_eq!(story.forms(), ["transactions: G-single-order"]);
}

#[test]
fn half_a_transaction_in_each_kind_of_view() {
    for (viewer, form) in [
        (Viewer::Snapshot, "snapshot: torn"),
        (Viewer::Backup, "backup: torn"),
        (Viewer::Kept, "named snapshot: torn"),
        (Viewer::Cut, "restart after a cut: half"),
    ] {
        let mut story = Story::default();
        story.beside(1, 10, vec![wrote(A, 1), wrote(B, 1)]);
        story.view(viewer, vec![Op::Read(A, saw(1)), Op::Read(B, Look::Absent)]);
        assert_eq!(story.forms(), [form]);
    }
}

#[test]
fn a_durable_commit_that_a_view_lacks() {
    for (viewer, form, form_of_earlier) in [
        (Viewer::Snapshot, "snapshot: stale", "snapshot: stale"),
        (Viewer::Backup, "backup: stale", "backup: stale"),
        (Viewer::Cut, "restart after a cut: acknowledged commit lost", "restart after a cut: lost"),
    ] {
        let mut story = Story::default();
        story.txn(1, 10, vec![wrote(A, 1)]);
        story.view(viewer, vec![Op::Read(A, Look::Absent)]);
        assert!(story.forms().is_empty(), "it may be lost");
        story.notes.txns[0].is_durable = true;
        assert_eq!(story.forms(), [form]);
        story.notes.txns[0].is_durable = false;
        story.txn(2, 11, vec![wrote(B, 2)]).is_durable = true;
        let view = story.notes.views.remove(0);
        story.view(viewer, view.ops);
        assert_eq!(story.forms(), [form_of_earlier], "a later one is durable");
    }
}

#[test]
fn a_loss_is_told_of_beside_half_a_transaction() {
    let mut story = Story::default();
    story.beside(1, 10, vec![wrote(A, 1), wrote(B, 1)]);
    let half = vec![Op::Read(A, saw(1)), Op::Read(B, Look::Absent)];
    story.view(Viewer::Cut, half.clone());
    assert_eq!(story.forms(), ["restart after a cut: half"]);
    story.notes.txns[0] = Txn { ended: Some(0), is_durable: true, ..story.notes.txns[0].clone() };
    assert_eq!(
        story.forms(),
        ["restart after a cut: half", "restart after a cut: acknowledged commit lost"]
    );
}

#[test]
fn a_flush_makes_durable_what_was_over() {
    let mut story = Story::default();
    story.txn(1, 10, vec![wrote(A, 1)]);
    let flush = Flush { begun: story.stamp(), ended: story.stamp() };
    story.notes.flushes.push(flush);
    story.view(Viewer::Cut, vec![Op::Read(A, Look::Absent)]);
    assert_eq!(story.forms(), ["restart after a cut: lost"]);
}

#[test]
fn what_a_snapshot_showed_is_not_lost() {
    let mut story = Story::default();
    story.txn(1, 10, vec![wrote(A, 1)]);
    story.view(Viewer::Snapshot, vec![Op::Read(A, saw(1))]);
    story.view(Viewer::Cut, vec![Op::Read(A, Look::Absent)]);
    let forms = story.forms();
    assert!(forms.contains(&"restart after a cut: lost".into()), "{forms:?}");
}

#[test]
fn a_later_commit_does_not_outlive_an_earlier_one() {
    let mut story = Story::default();
    story.beside(1, 10, vec![wrote(A, 1)]);
    story.beside(2, 11, vec![wrote(B, 2)]);
    story.view(Viewer::Cut, vec![Op::Read(A, Look::Absent), Op::Read(B, saw_b(2))]);
    assert_eq!(story.forms(), ["restart after a cut: half"]);
}

#[test]
fn a_commit_in_flight_is_there_or_not_but_never_in_part() {
    let story = |ops: Vec<Op>| {
        let mut story = Story::default();
        let txn = story.beside(1, 0, vec![wrote(A, 1), wrote(B, 1)]);
        (txn.outcome, txn.ended) = (Outcome::Unknown, None);
        story.view(Viewer::Cut, ops);
        story.forms()
    };
    assert!(story(vec![Op::Read(A, saw(1)), Op::Read(B, saw_b(1))]).is_empty());
    assert!(story(vec![Op::Read(A, Look::Absent), Op::Read(B, Look::Absent)]).is_empty());
    let half = story(vec![Op::Read(A, saw(1)), Op::Read(B, Look::Absent)]);
    assert_eq!(half, ["restart after a cut: half"]);
}

#[test]
fn a_row_that_was_deleted_twice_is_missing_at_the_right_time() {
    let mut story = Story::default();
    let gone = |number, operation| Op::Write(A, version(number, operation), Look::Absent);
    story.txn(1, 10, vec![wrote(A, 1)]);
    story.txn(2, 11, vec![gone(2, 1)]);
    story.txn(3, 12, vec![wrote(A, 3)]);
    story.txn(4, 13, vec![gone(4, 1), wrote(B, 4)]);
    story.view(Viewer::Cut, vec![Op::Read(A, Look::Absent), Op::Read(B, saw_b(4))]);
    story.view(Viewer::Cut, vec![Op::Read(A, Look::Absent), Op::Read(B, Look::Absent)]);
    assert!(story.forms().is_empty(), "{:?}", story.forms());
}

/// Goal: a reader that saw only missing rows comes behind the deletes that explain them, and so do all later readers.
/// Method: a row that was missing twice, and was deleted while it was missing.
#[test]
fn missing_rows_alone_place_a_reader_and_the_ones_behind_it() {
    let mut story = Story::default();
    let gone = |key, number, operation| Op::Write(key, version(number, operation), Look::Absent);
    let reads = |key| vec![Op::Read(key, Look::Absent)];
    story.txn(1, 10, vec![wrote(A, 1), wrote(B, 1)]);
    story.txn(2, 11, vec![gone(A, 2, 1)]).is_durable = true;
    story.txn(3, 12, vec![gone(A, 3, 1), gone(B, 3, 2)]);
    story.view(Viewer::Snapshot, reads(B));
    story.view(Viewer::Snapshot, reads(A));
    assert!(story.forms().is_empty(), "{:?}", story.forms());
    // Without a reader before it, a snapshot of `A` may be of any moment behind the first delete.
    story.notes.views.remove(0);
    story.txn(4, 13, vec![wrote(A, 4), wrote(B, 4)]);
    story.txn(5, 14, vec![gone(A, 5, 1)]);
    story.view(Viewer::Snapshot, [reads(A), vec![Op::Read(B, saw_b(4))]].concat());
    assert!(story.forms().is_empty(), "{:?}", story.forms());
    story.view(Viewer::Snapshot, vec![Op::Read(B, saw_b(1))]);
    assert_eq!(story.forms(), ["snapshot: stale"]);
}

#[test]
fn no_two_commits_have_one_place() {
    let mut story = Story::default();
    story.txn(1, 10, vec![wrote(A, 1)]);
    story.txn(2, 10, vec![Op::Read(A, saw(1))]);
    assert!(story.forms().is_empty(), "a reader has the place of an earlier commit");
    story.txn(3, 10, vec![wrote(A, 3)]);
    assert_eq!(story.forms(), ["two commits of one place"]);
}

#[test]
fn tables_of_a_thread_as_they_never_were() {
    let mut story = Story::default();
    let churn = Key::new(Area::Churn, 0);
    let write = |number, hash| Op::Write(churn, version(number, 1), Look::Content(hash));
    story.txn(1, 10, vec![write(1, 70)]);
    story.txn(2, 11, vec![write(2, 71)]);
    story.view(Viewer::Cut, vec![Op::Read(churn, Look::Content(70))]);
    assert!(story.forms().is_empty(), "{:?}", story.forms());
    story.view(Viewer::Cut, vec![Op::Read(churn, Look::Content(72))]);
    assert_eq!(story.forms(), ["restart after a cut: never was"]);
}
