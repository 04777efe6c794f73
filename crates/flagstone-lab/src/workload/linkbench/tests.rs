mod cuts;

use std::collections::BTreeSet;

use flagstone_engine::Options;
use flagstone_engine::blocking::Database;
use flagstone_nand::{Profile, SimNand};

use super::rows::{Count, Link, LinkKey, VISIBLE};
use super::*;
use crate::workload::stuttering::Stuttering;
use crate::workload::{Outcome, Terminal as _};

const INPUT_COUNT: u64 = 100_000;

fn small(dialect: Dialect) -> Linkbench {
    let setting = Setting::new(dialect, 1_500, 2, 7);
    Linkbench::new(Setting { bounds: Bounds::SMALL, ..setting })
}

fn large(dialect: Dialect) -> Linkbench {
    Linkbench::new(Setting::new(dialect, 100_000, 1, 1))
}

fn inputs(linkbench: &Linkbench) -> impl Iterator<Item = Inputs> {
    let mut stream = Stream::new(Arc::clone(&linkbench.graph), 0);
    (0..INPUT_COUNT).map(move |_| stream.inputs())
}

fn tables() -> Tables {
    let profile = Profile::named("slc-2k").expect("the profile exists");
    let device = SimNand::new(&profile, 0);
    let database = Database::create_on(device, &Options::default()).expect("a fresh database");
    small(Dialect::Spec).tables(|name| database.table(name)).expect("five tables")
}

/// A loaded map that stops every operation once.
fn loaded(linkbench: &Linkbench, tables: Tables) -> Stuttering {
    let mut engine = Stuttering::default();
    let mut put = |table, key: &[u8], value: &[u8]| {
        engine.load(table, key, value);
        Ok(())
    };
    linkbench.load(tables, &mut put).expect("a map takes every row");
    engine
}

fn verify(
    linkbench: &Linkbench,
    tables: Tables,
    engine: &Stuttering,
    acknowledged: &Acknowledged,
) -> Result<(), Fault> {
    let mut audit = Audit::new(linkbench, acknowledged);
    for (place, table) in tables.handles().iter().enumerate() {
        let rows = engine.tables.get(table).into_iter().flatten();
        rows.for_each(|(key, value)| audit.add(place, key, value));
    }
    audit.verify()
}

fn transact(terminal: &mut Terminal, engine: &mut Stuttering) {
    let outcome = loop {
        if let Ok(outcome) = terminal.advance(engine) {
            break outcome;
        }
    };
    assert_eq!(outcome, Outcome::Commit, "every operation commits");
}

/// Runs `count` operations of two clients in turns.
fn work(
    linkbench: &Linkbench,
    tables: Tables,
    engine: &mut Stuttering,
    count: u64,
) -> Acknowledged {
    let mut terminals = [0, 1].map(|number| linkbench.terminal(tables, number));
    let mut acknowledged: Acknowledged = [0, 1].map(|client| (client, vec![0; 10])).into();
    for number in 0..count {
        let terminal = &mut terminals[(number % 2) as usize];
        let class = terminal.class();
        transact(terminal, engine);
        acknowledged.get_mut(&(number % 2)).expect("two clients")[class] += 1;
        terminal.next(Outcome::Commit);
    }
    acknowledged
}

#[test]
fn the_mix_is_the_published_one() {
    assert_eq!(Class::SHARES.iter().sum::<u64>(), input::SHARE_SUM);
    let mut counts = [0_u64; 10];
    inputs(&large(Dialect::Spec)).for_each(|one| counts[one.class as usize] += 1);
    for (count, share) in counts.into_iter().zip(Class::SHARES) {
        let expected = share as f64 / input::SHARE_SUM as f64;
        let error = (expected * (1.0 - expected) / INPUT_COUNT as f64).sqrt();
        let found = count as f64 / INPUT_COUNT as f64;
        assert!((found - expected).abs() < 4.0 * error, "{counts:?}");
    }
}

#[test]
fn a_multiget_asks_for_2_62_links_on_average_and_3_62_in_the_program() {
    for (dialect, mean, least) in [(Dialect::Spec, 2.618, 1), (Dialect::Linkbench, 3.618, 2)] {
        let linkbench = large(dialect);
        let mut stream = Stream::new(Arc::clone(&linkbench.graph), 0);
        let gets =
            std::iter::repeat_with(|| stream.inputs()).filter(|it| it.class == Class::GetLink);
        let sizes: Vec<usize> = gets
            .take(5_000)
            .map(|one| {
                let different: BTreeSet<&u64> = one.id2s.iter().collect();
                assert_eq!(different.len(), one.id2s.len());
                one.id2s.len()
            })
            .collect();
        let found = sizes.iter().sum::<usize>() as f64 / sizes.len() as f64;
        assert!((found - mean).abs() < 0.12, "{dialect}: {found}");
        assert_eq!(sizes.iter().min(), Some(&least));
    }
}

#[test]
fn links_to_write_are_there_as_often_as_asked() {
    let linkbench = large(Dialect::Spec);
    let mut counts = [[0_u32; 2]; 10];
    for one in inputs(&linkbench) {
        let links = linkbench.graph.degrees.of_type(one.id.min(100_000), one.kind);
        // Only with many links is the range close to the share that the chance asks for.
        if let (Some(id2), true) = (one.id2s.first(), links >= 20) {
            counts[one.class as usize][usize::from(id2 - one.id < links)] += 1;
        }
    }
    for (class, expected) in
        [(Class::AddLink, 0.05), (Class::DeleteLink, 0.9), (Class::UpdateLink, 0.9)]
    {
        let [absent, present] = counts[class as usize];
        let found = f64::from(present) / f64::from(absent + present);
        assert!((found - expected).abs() < 0.06, "{class:?}: {found}");
    }
}

/// Goal: operations go to the hottest id as often as Zipf's law says, reads and writes apart.
/// Method: the most frequent id of many inputs; the two dialects differ in the writes alone.
#[test]
fn the_hottest_ids_get_their_share() {
    let hottest = |dialect, classes: &[Class]| {
        let mut hits = std::collections::BTreeMap::<u64, u32>::new();
        let mut count = 0;
        for one in inputs(&large(dialect)).filter(|one| classes.contains(&one.class)) {
            *hits.entry(one.id).or_default() += 1;
            count += 1;
        }
        f64::from(hits.values().copied().max().unwrap_or(0)) / f64::from(count)
    };
    let zetan = |theta: f64| (1..=100_000).map(|it| f64::from(it).powf(-theta)).sum::<f64>();
    let reads = [Class::CountLink, Class::GetLink, Class::GetLinkList];
    let writes = [Class::AddLink, Class::DeleteLink, Class::UpdateLink];
    for (dialect, classes, share) in [
        (Dialect::Spec, &reads[..], 0.995 / zetan(0.8)),
        (Dialect::Linkbench, &reads, 0.995 / zetan(0.8)),
        (Dialect::Spec, &writes, 0.95 / zetan(0.741)),
        (Dialect::Linkbench, &writes, 0.995 / zetan(0.8)),
        (Dialect::Spec, &[Class::GetNode], 1.0 / zetan(0.625)),
        (Dialect::Spec, &[Class::UpdateNode], 1.0 / zetan(0.606)),
    ] {
        let found = hottest(dialect, classes);
        assert!((found / share - 1.0).abs() < 0.3, "{dialect} {classes:?}: {found}, not {share}");
    }
    assert!(hottest(Dialect::Spec, &[Class::DeleteNode]) < 0.01, "evenly");
}

#[test]
fn a_fresh_database_has_the_degrees_of_its_dialect_in_key_order() {
    for dialect in Dialect::ALL {
        let linkbench = small(dialect);
        let mut last: (usize, Vec<u8>) = (0, Vec::new());
        let mut rows = [0_u64; 5];
        let (mut links, mut bytes) = (0, 0);
        load::load(&linkbench.graph, &mut |table, key, value| {
            assert!((last.0, last.1.as_slice()) < (table, key), "sorted load");
            last = (table, key.to_vec());
            rows[table] += 1;
            bytes += (key.len() + value.len()) as u64;
            if table == 2 {
                links += u64::from(Count::decode(value).expect("a count").count);
            }
            Ok::<(), ()>(())
        })
        .expect("nothing refuses a row");
        let degrees = |id| [0, 1].map(|kind| linkbench.graph.degrees.of_type(id, kind));
        let expected: u64 = (1..=1_500).flat_map(degrees).sum();
        assert_eq!([rows[0], rows[1], links], [expected; 3], "{dialect}");
        assert_eq!(rows[3], 1_500);
        assert!(rows[4] > 30, "some nodes are long");
        assert_eq!(linkbench.row_count(), rows.iter().sum::<u64>());
        assert_eq!(linkbench.loaded_bytes(), bytes);
    }
}

/// Goal: operations that stop everywhere leave the rows that their inputs say. Method: a map that
/// refuses every operation once.
#[test]
fn inputs_explain_every_row() {
    let tables = tables();
    for dialect in Dialect::ALL {
        let linkbench = small(dialect);
        let mut engine = loaded(&linkbench, tables);
        verify(&linkbench, tables, &engine, &Acknowledged::new()).expect("a right load");
        let acknowledged = work(&linkbench, tables, &mut engine, 12_000);
        assert_eq!(verify(&linkbench, tables, &engine, &acknowledged), Ok(()), "{dialect}");
    }
}

/// Goal: a commit that returned and left nothing is seen, in every class. Method: the database
/// before each change, with the counts after it.
#[test]
fn a_lost_commit_of_any_class_is_seen() {
    let linkbench = small(Dialect::Spec);
    let tables = tables();
    let mut engine = loaded(&linkbench, tables);
    let mut terminal = linkbench.terminal(tables, 0);
    let mut counts = vec![0; 10];
    let mut losses = [0_u32; 10];
    for _ in 0..500 {
        let (class, inputs) = (terminal.class(), terminal.inputs().clone());
        let before = engine.tables.clone();
        transact(&mut terminal, &mut engine);
        terminal.next(Outcome::Commit);
        counts[class] += 1;
        let has_changed = before != engine.tables;
        // A deleted link may look again as it did before.
        if !has_changed || inputs.class == Class::DeleteLink {
            continue;
        }
        let acknowledged: Acknowledged = [(0, counts.clone())].into();
        let lost = verify(&linkbench, tables, &Stuttering::of(before), &acknowledged);
        assert!(lost.is_err(), "{:?} is lost", inputs.class);
        losses[class] += 1;
    }
    for class in [Class::AddLink, Class::UpdateLink, Class::AddNode, Class::UpdateNode] {
        assert!(losses[class as usize] > 3, "{class:?}: {losses:?}");
    }
}

/// Goal: each check sees a violation of its own. Method: a worked database, one row changed.
#[test]
fn every_check_sees_a_row_that_violates_it() {
    let linkbench = small(Dialect::Spec);
    let tables = tables();
    let mut engine = loaded(&linkbench, tables);
    let acknowledged = work(&linkbench, tables, &mut engine, 6_000);
    let seen = |table: Table, with: &dyn Fn(&mut crate::workload::stuttering::Map)| {
        let mut changed = Stuttering::of(engine.tables.clone());
        with(changed.tables.get_mut(&table).expect("the table has rows"));
        verify(&linkbench, tables, &changed, &acknowledged).expect_err("it is seen")
    };
    let flip = |place: usize| {
        move |rows: &mut crate::workload::stuttering::Map| {
            rows.values_mut().nth(5).expect("six rows")[place] ^= 1;
        }
    };
    let drop_one = |rows: &mut crate::workload::stuttering::Map| {
        let key = rows.keys().nth(5).expect("six rows").clone();
        rows.remove(&key);
    };
    assert!(matches!(seen(tables.link, &flip(5)), Fault::Link { .. }), "time");
    assert!(matches!(seen(tables.link, &drop_one), Fault::Count { .. }));
    assert!(matches!(seen(tables.index, &flip(0)), Fault::Index { .. }), "version");
    assert!(matches!(seen(tables.index, &drop_one), Fault::Index { .. }));
    assert!(matches!(seen(tables.count, &flip(0)), Fault::Count { .. }));
    assert!(matches!(seen(tables.count, &drop_one), Fault::Count { .. }));
    assert!(matches!(seen(tables.node, &flip(12)), Fault::Node { .. }), "time");
    assert!(matches!(seen(tables.text, &flip(0)), Fault::Node { .. }));
    assert!(matches!(seen(tables.text, &drop_one), Fault::Row { .. }));
}

/// Runs an operation with these inputs.
fn run(engine: &mut Stuttering, tables: Tables, class: Class, link: LinkKey, time: u64) -> usize {
    let data = vec![b'x'; 3];
    let LinkKey { kind, id1: id, id2 } = link;
    let inputs = Inputs { class, id, kind, id2s: vec![id2], data, time, is_history: false };
    let mut one = transaction::Transaction::new(inputs, None, &Bounds::SMALL);
    while one.advance(&tables, engine).is_err() {}
    one.found
}

/// Goal: a link goes through its states as described. Method: known inputs on a loaded map.
#[test]
fn links_are_added_hidden_and_shown_again() {
    let linkbench = small(Dialect::Spec);
    let tables = tables();
    let mut engine = loaded(&linkbench, tables);
    let key = LinkKey { kind: 0, id1: 9_000, id2: 9_005 };
    let time = |step: u64| (1 << 32) + step;
    let count = |engine: &mut Stuttering| run(engine, tables, Class::CountLink, key, 0);
    let row = |engine: &Stuttering| Link::decode(&engine.tables[&tables.link][&key.encode()[..]]);
    run(&mut engine, tables, Class::DeleteLink, key, time(0));
    assert_eq!(count(&mut engine), 0, "not there: nothing to do");
    run(&mut engine, tables, Class::AddLink, key, time(1));
    run(&mut engine, tables, Class::UpdateLink, key, time(2));
    assert_eq!(count(&mut engine), 1, "added once");
    assert_eq!(row(&engine).expect("a link").time, time(2));
    run(&mut engine, tables, Class::DeleteLink, key, time(3));
    let hidden = row(&engine).expect("hidden, not removed");
    assert_eq!((hidden.visibility, hidden.time), (rows::HIDDEN, time(2)));
    assert_eq!(run(&mut engine, tables, Class::GetLinkList, key, 0), 0);
    run(&mut engine, tables, Class::AddLink, key, time(4));
    assert_eq!((count(&mut engine), row(&engine).expect("a link").visibility), (1, VISIBLE));
    assert_eq!(run(&mut engine, tables, Class::GetLinkList, key, 0), 1);
    let counts = &engine.tables[&tables.count][&key.count()[..]];
    assert_eq!(
        Count::decode(counts).expect("a count").version,
        2,
        "changed twice after it was made"
    );
}

#[test]
fn a_list_goes_on_where_it_was_cut_off() {
    let linkbench = small(Dialect::Spec);
    let tables = tables();
    let mut engine = loaded(&linkbench, tables);
    let key = |id2| LinkKey { kind: 1, id1: 9_000, id2 };
    for id2 in 0..12 {
        run(&mut engine, tables, Class::AddLink, key(id2), (1 << 32) + id2);
    }
    let list = |engine: &mut Stuttering, tail| {
        let inputs = Inputs {
            class: Class::GetLinkList,
            id: 9_000,
            kind: 1,
            id2s: Vec::new(),
            data: Vec::new(),
            time: 0,
            is_history: false,
        };
        let mut one = transaction::Transaction::new(inputs, tail, &Bounds::SMALL);
        while one.advance(&tables, engine).is_err() {}
        (one.found, one.cut_off)
    };
    let (found, first) = list(&mut engine, None);
    assert_eq!((found, first.map(|tail| tail.time)), (5, Some((1 << 32) + 7)));
    let (found, second) = list(&mut engine, first);
    assert_eq!((found, second.map(|tail| tail.time)), (5, Some((1 << 32) + 2)));
    assert_eq!(list(&mut engine, second), (2, None));
}

#[test]
fn dialects_are_found_by_name() {
    for dialect in Dialect::ALL {
        assert_eq!(Dialect::named(dialect.name()), Some(dialect));
    }
    assert_eq!(Dialect::named("spec2"), None);
}
