use super::super::faults::Campaign;
use super::campaigns::{campaign, share_of_pairs};
use super::commands::{ANOMALIES, clean};
use super::cuts::{Cuts, cuts_of_all, every_preset, explored};
use super::*;

#[test]
fn a_row_is_measured_or_says_that_it_is_not() {
    let outcome = Outcome { cases: 1_234_567, failures: 1, ..Outcome::default() };
    let outcome = Outcome { value: counted(&outcome, "states"), ..outcome };
    let measured =
        Measured { outcome, commit: String::from("abc1234"), command: String::from("x") };
    let text = document(&Results::from([(String::from("A2"), measured)]));
    assert!(text.contains("**not met**: 1,234,567 states, 1 failures | abc1234 | `x` |"));
    assert!(text.contains("| not measured |  |  |"));
    assert_eq!(text.lines().filter(|line| line.starts_with("| ")).count(), ROWS.len() + 2);
}

fn results(rows: &[(&str, Outcome)]) -> Results {
    let (commit, command) = (String::new(), String::new());
    let measured = |outcome: &Outcome| Measured {
        outcome: outcome.clone(),
        commit: commit.clone(),
        command: command.clone(),
    };
    rows.iter().map(|(id, outcome)| ((*id).to_owned(), measured(outcome))).collect()
}

/// Goal: row A1 runs with every preset. Method: the row, with two operations for each preset.
#[test]
fn the_chips_of_row_a1_have_what_their_presets_ask_for() {
    let (cuts, outcome) = explored(every_preset(2, 1)).unwrap();
    assert!(cuts.points > 0 && outcome.failures == 0, "{outcome:?}");
}

/// Goal: row A1 has its denominator from the device. Method: cuts that leave an operation out.
#[test]
fn an_operation_that_is_not_cut_is_seen() {
    let sound = Outcome { is_met: true, ..Outcome::default() };
    let all = cuts_of_all(Cuts { points: 7, operations: 7 }, sound.clone());
    assert_eq!((all.value.as_str(), all.is_met), ("7/7, 0 failures", true));
    let short = cuts_of_all(Cuts { points: 6, operations: 7 }, sound.clone());
    assert_eq!((short.value.as_str(), short.is_met), ("6/7, 0 failures", false));
    assert!(!cuts_of_all(Cuts::default(), sound).is_met);
    let (cuts, _) = explored([config("flagstone", "tiny", 6, 1, 1)]).unwrap();
    assert!(cuts.points > 10 && cuts.points == cuts.operations, "{cuts:?}");
}

/// Goal: row A5 has every failure in it, and no bug that was planted.
#[test]
fn a_failure_that_is_no_loss_is_in_the_total() {
    let sound = Outcome { cases: 10, ..Outcome::default() };
    let planted = Outcome { cases: 5, failures: 1, lost: 1, ..Outcome::default() };
    let fine = total(&results(&[("A1", sound.clone()), ("T1", planted)]));
    assert!(fine.is_met && fine.value.contains("in 10 states"), "{}", fine.value);
    let panicked = Outcome { failures: 1, ..sound.clone() };
    assert!(!total(&results(&[("A1", sound), ("D1", panicked)])).is_met);
    assert!(!total(&Results::new()).is_met, "nothing was run");
}

#[test]
fn a_part_of_the_pairs_does_not_meet_the_target() {
    let sound = || Outcome { is_met: true, ..Outcome::default() };
    assert!(share_of_pairs(sound(), 1).is_met);
    let part = share_of_pairs(sound(), 16);
    assert!(!part.is_met && part.value.contains("one pair in 16"));
}

#[test]
fn what_nobody_can_tell_is_said() {
    let found = Campaign { cases: 3, unknowable: 2, ..Campaign::default() };
    assert!(campaign(&found).value.contains("2 that nobody can tell"));
}

#[test]
fn what_a_command_did_is_counted_in_what_it_printed() {
    let kills_of = |text: &str| (kills(text).cases, kills(text).is_met);
    assert_eq!(kills_of("x\n5020 kills in 5 s, 7 of them\n"), (5_020, true));
    assert_eq!(kills_of("30 kills in 5 s, 7 of them"), (30, false));
    assert_eq!(kills_of("test result: ok. 0 passed"), (0, false));
    let checked = "500 transactions in 3 histories of 9 sessions: 7 snapshots, 4 restarts, 1 backups; 2.0 s, 250 \
                   transactions a second\nanomalies: 0\n";
    let found = concurrent(checked);
    assert_eq!(found.value, "500 transactions, 7 snapshots, 4 restarts, 0 anomalies");
    assert!(!found.is_met && concurrent(&checked.replace("500 t", "1000000 t")).is_met);
    assert!(!concurrent("1000000 transactions in 3 histories").is_met);
    assert!(!concurrent("").is_met);
    let drawn = |text: &str| (schedules(text).cases, schedules(text).is_met);
    assert_eq!(drawn("1000000 schedules in 9 s, 0 failures; x\n"), (1_000_000, true));
    assert_eq!(drawn("999500 schedules in 9 s, 0 failures; x\n"), (999_500, false));
    assert_eq!(drawn(""), (0, false));
    let calls_of = |text: &str| (failing_calls(text).cases, failing_calls(text).is_met);
    assert_eq!(calls_of("x\n500 of 500 failures in 5 s (1 did not\n"), (500, true));
    assert_eq!(calls_of("499 of 500 failures in 5 s (1 did not"), (499, false));
    assert_eq!(calls_of("test result: ok. 0 passed"), (0, false));
    let tested = |text: &str| (mutants(text).cases, mutants(text).is_met);
    assert_eq!(tested("x\n12 mutants tested in 9s: 11 caught, 1 unviable\n"), (12, true));
    assert_eq!(tested("Found 12 mutants to test"), (0, false));
    let line = |it: &&str| format!("test isolation::{it}x ... ok\n");
    let passed: String = ANOMALIES.iter().map(line).collect();
    assert_eq!(anomalies(&passed).value, "10/10 prevented");
    let one_less = anomalies(&passed.replace("test isolation::otv_x ... ok", ""));
    assert_eq!((one_less.value.as_str(), one_less.is_met), ("9/10 prevented", false));
}

#[test]
fn what_cannot_be_fetched_is_said() {
    let said = |is_clean, advisories| {
        (clean(is_clean, advisories).is_met, clean(is_clean, advisories).value)
    };
    let (is_met, value) = said(true, None);
    assert!(is_met && value.contains("could not be fetched"), "{value}");
    assert!(said(true, Some(true)).0 && !said(false, Some(true)).0 && !said(false, None).0);
    let (is_met, value) = said(true, Some(false));
    assert!(!is_met && value.ends_with("advisories **not clean**"), "{value}");
}

/// Goal: results of images add up. Method: a drawing that fails once.
#[test]
fn images_go_on_where_they_stopped() {
    let draw: fn(Range<u64>) -> Result<Tried, CrashError> = |numbers| {
        let failures = if numbers.contains(&100_000) { vec![String::from("x")] } else { vec![] };
        Ok(Tried { images: numbers.end - numbers.start, reported: 1, failures })
    };
    let mut told = 0;
    let first = drawn(draw, 1, None, &mut |_| told += 1).unwrap();
    assert_eq!((first.cases, first.failures, told), (100_000, 0, 5));
    let both = drawn(draw, 1, Some(&first), &mut |_| told += 1).unwrap();
    assert_eq!((both.cases, both.failures, both.reported, told), (200_000, 1, 10, 10));
    assert_eq!(both, drawn(draw, 2, None, &mut |_| ()).unwrap());
    assert!(!both.is_met);
    let row = ROWS.iter().find(|row| row.id == "D1").unwrap();
    assert_eq!(row.effort_of(&both, 1), 2);
}

#[test]
fn unsafe_code_is_counted_and_texts_of_it_are_not() {
    let open = ["    unsafe { go() }", "pub unsafe fn go() {}", "unsafe impl Send for A {}"];
    assert!(open.iter().all(|line| opens_unsafe(line)));
    let other = ["contains(\"unsafe {\")", "// unsafe { }", "deny(unsafe_code)"];
    assert!(!other.iter().any(|line| opens_unsafe(line)));
    assert!(!unsafe_below(Path::new("no-such-directory")).is_met);
    let own = unsafe_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(own.is_met && own.value.starts_with("0 in "), "{}", own.value);
}

#[test]
fn rows_have_names_of_their_own() {
    let names: std::collections::BTreeSet<_> = ROWS.iter().map(|row| row.id).collect();
    assert_eq!(names.len(), ROWS.len());
}
