mod cuts;

use std::collections::{BTreeMap, BTreeSet};

use flagstone_engine::blocking::Database;
use flagstone_engine::{Options, ScanRange};
use flagstone_nand::{Profile, SimNand};

use super::input::{Chosen, OrderedItem};
use super::keys::DistrictKey;
use super::rows::{self, Account, Line, Order};
use super::terminal::Transaction;
use super::*;
use crate::workload::stuttering::Stuttering;
use crate::workload::{Draws, Outcome, Terminal as _};

const INPUT_COUNT: usize = 100_000;

fn small(dialect: Dialect, scale: u16) -> Setting {
    Setting { cardinality: Cardinality::SMALL, ..Setting::new(dialect, scale, 7) }
}

fn inputs(setting: Setting) -> Vec<Inputs> {
    let mut stream = Stream::new(setting, 0);
    (0..INPUT_COUNT).map(|_| stream.inputs()).collect()
}

/// Share of `all` for which `is` holds.
fn share<T>(all: impl IntoIterator<Item = T>, is: impl Fn(&T) -> bool) -> f64 {
    let (mut count, mut hits) = (0, 0);
    for one in all {
        count += 1;
        hits += u32::from(is(&one));
    }
    f64::from(hits) / f64::from(count)
}

fn new_orders(inputs: &[Inputs]) -> impl Iterator<Item = (&DistrictKey, &Vec<OrderedItem>)> {
    inputs.iter().filter_map(|one| match one {
        Inputs::NewOrder { place, items, .. } => Some((place, items)),
        _ => None,
    })
}

#[test]
fn the_mix_is_that_of_the_specification() {
    let inputs = inputs(Setting::new(Dialect::Spec, 4, 1));
    for (class, expected) in [
        (Class::NewOrder, 0.45),
        (Class::Payment, 0.43),
        (Class::OrderStatus, 0.04),
        (Class::Delivery, 0.04),
        (Class::StockLevel, 0.04),
    ] {
        let found = share(&inputs, |one| one.class() == class);
        assert!((found - expected).abs() < 0.005, "{class:?}: {found}");
    }
}

#[test]
fn new_orders_have_the_lines_remotes_and_failures_of_their_dialect() {
    for (dialect, least, unknown) in [(Dialect::Spec, 5, 100_001), (Dialect::Dbt2, 6, 0)] {
        let inputs = inputs(Setting::new(dialect, 4, 1));
        let counts: BTreeSet<usize> = new_orders(&inputs).map(|(_, items)| items.len()).collect();
        assert_eq!(counts, (least..=15).collect(), "{dialect}");
        let failing = share(new_orders(&inputs), |(_, items)| {
            items.last().is_some_and(|item| item.item == unknown)
        });
        assert!((failing - 0.01).abs() < 0.002, "{dialect}: {failing}");
        let lines = new_orders(&inputs).flat_map(|(_, items)| items);
        let remote = share(lines, |item| item.supply != 1);
        assert!((remote - 0.01).abs() < 0.001, "{dialect}: {remote}");
    }
}

#[test]
fn dbt2_orders_from_a_warehouse_that_is_not_there() {
    let lines = |dialect| {
        let inputs = inputs(Setting::new(dialect, 4, 1));
        let supplies: BTreeSet<u16> = new_orders(&inputs)
            .flat_map(|(_, items)| items.iter().map(|item| item.supply))
            .collect();
        supplies
    };
    assert_eq!(lines(Dialect::Spec), (1..=4).collect());
    // Drawn from 1 to 3, then one more modulo 4.
    assert_eq!(lines(Dialect::Dbt2), (0..=3).collect());
}

#[test]
fn payments_come_from_customers_as_the_specification_says() {
    let setting = Setting::new(Dialect::Spec, 4, 1);
    let inputs = inputs(setting);
    let payments = || {
        inputs.iter().filter_map(|one| match one {
            Inputs::Payment { place, home, customer, amount } => {
                Some((place, home, customer, amount))
            }
            _ => None,
        })
    };
    let away = share(payments(), |(place, home, ..)| place.warehouse != home.warehouse);
    assert!((away - 0.15).abs() < 0.01, "{away}");
    let named = share(payments(), |(_, _, customer, _)| matches!(customer, Chosen::Name(_)));
    assert!((named - 0.6).abs() < 0.01, "{named}");
    assert!(payments().all(|(.., amount)| (100..=500_000).contains(amount)));
}

#[test]
fn non_uniform_numbers_stay_in_bounds_and_are_not_uniform() {
    let setting = Setting::new(Dialect::Spec, 1, 1);
    assert_eq!(setting.customer_numbers().a, 1023);
    assert_eq!(setting.item_numbers().a, 8191);
    let mut draws = Draws::new(3, 0);
    for numbers in [setting.customer_numbers(), setting.item_numbers(), setting.name_numbers(223)] {
        let mut hits: BTreeMap<u32, u32> = BTreeMap::new();
        for _ in 0..INPUT_COUNT {
            for drawn in [numbers.draw(&mut draws), numbers.draw_dbt2(&mut draws)] {
                assert!((numbers.low..=numbers.high).contains(&drawn));
                *hits.entry(drawn).or_default() += 1;
            }
        }
        let mean = 2.0 * INPUT_COUNT as f64 / f64::from(numbers.high);
        let hottest = hits.values().max().copied().unwrap_or(0);
        assert!(f64::from(hottest) > 2.5 * mean, "{numbers:?}: {hottest} of {mean}");
    }
}

#[test]
fn last_names_are_three_syllables() {
    assert_eq!(random::last_name(0), "BARBARBAR");
    assert_eq!(random::last_name(371), "PRICALLYOUGHT");
    assert_eq!(random::last_name(999), "EINGEINGEING");
}

#[test]
fn equal_seeds_give_equal_inputs_and_clients_differ() {
    let inputs = |seed, number| {
        let mut stream = Stream::new(Setting::new(Dialect::Spec, 2, seed), number);
        (0..20).map(|_| stream.inputs()).collect::<Vec<_>>()
    };
    assert_eq!(inputs(1, 3), inputs(1, 3));
    assert_ne!(inputs(1, 3), inputs(1, 5));
    assert_ne!(inputs(1, 3), inputs(2, 3));
}

#[test]
fn a_fresh_database_has_the_rows_of_the_specification_in_key_order() {
    let setting = Setting::new(Dialect::Spec, 1, 1);
    let mut counts = [0_u64; TABLE_NAMES.len()];
    let mut last: (usize, Vec<u8>) = (0, Vec::new());
    let mut original = 0;
    load::load(&setting, &mut |kind, key, value| {
        let table = kind as usize;
        assert!((last.0, last.1.as_slice()) < (table, key), "sorted load");
        last = (table, key.to_vec());
        counts[table] += 1;
        let data = rows::text_at(value, rows::stock::DATA);
        original += u32::from(kind == load::Kind::Stock && rows::is_original(data));
        Ok::<(), ()>(())
    })
    .expect("nothing refuses a row");
    let lines = counts[8];
    assert_eq!(
        counts,
        [1, 10, 30_000, 30_000, 30_000, 30_000, 30_000, 9_000, lines, 100_000, 100_000]
    );
    assert!((295_000..305_000).contains(&lines), "{lines}");
    assert!((9_500..10_500).contains(&original), "{original}");
}

/// Tables of an empty database, for their names only.
fn tables() -> Tables {
    let profile = Profile::named("slc-2k").expect("the profile exists");
    let device = SimNand::new(&profile, 0);
    let database = Database::create_on(device, &Options::default()).expect("a fresh database");
    Tables::open(|name| database.table(name)).expect("eleven tables")
}

/// A loaded map that stops every operation once.
fn loaded(tpcc: &Tpcc, tables: Tables) -> Stuttering {
    let mut engine = Stuttering::default();
    let mut put = |table, key: &[u8], value: &[u8]| {
        engine.load(table, key, value);
        Ok(())
    };
    tpcc.load(tables, &mut put).expect("a map takes every row");
    engine
}

fn audit(tpcc: &Tpcc, tables: Tables, engine: &Stuttering) -> Audit {
    let mut audit = Audit::new(tpcc.setting());
    let mut names = (0..).zip(TABLE_NAMES);
    let mut visit = |name: &str, table| {
        let (place, expected) = names.next().expect("eleven tables");
        assert_eq!(name, expected);
        let rows = engine.tables.get(&table).into_iter().flatten();
        rows.for_each(|(key, value)| audit.add(place, key, value));
    };
    let Tables { warehouse, district, customer, customer_name, history, .. } = tables;
    let Tables { order, order_customer, new_order, order_line, stock, item, .. } = tables;
    visit("warehouse", warehouse);
    visit("district", district);
    visit("customer", customer);
    visit("customer_name", customer_name);
    visit("history", history);
    visit("order", order);
    visit("order_customer", order_customer);
    visit("new_order", new_order);
    visit("order_line", order_line);
    visit("stock", stock);
    visit("item", item);
    audit
}

/// Runs one transaction of `terminal` to its end.
fn transact(terminal: &mut Terminal, engine: &mut Stuttering) -> Outcome {
    loop {
        if let Ok(outcome) = terminal.advance(engine) {
            return outcome;
        }
    }
}

/// A map after the load and `count` transactions of two clients, and the acknowledged commits.
/// Transactions that must fail are undone by putting the map back.
fn worked(tpcc: &Tpcc, tables: Tables, count: u32) -> (Stuttering, Acknowledged) {
    let mut engine = loaded(tpcc, tables);
    let mut acknowledged = Acknowledged::new();
    let mut terminals = [0, 1].map(|number| tpcc.terminal(tables, number));
    for number in 0..count {
        let client = (number % 2) as usize;
        let terminal = &mut terminals[client];
        let before = engine.tables.clone();
        let (class, outcome) = (terminal.class(), transact(terminal, &mut engine));
        if outcome == Outcome::Commit {
            let counts = acknowledged.entry(client as u64).or_insert_with(|| vec![0; 5]);
            counts[class] += 1;
        } else {
            engine.tables = before;
        }
        terminal.next(outcome);
    }
    (engine, acknowledged)
}

/// Goal: transactions that stop at every operation keep every condition, in every dialect and with
/// every unit of delivery. Method: a map that refuses every operation once.
#[test]
fn all_conditions_hold_after_the_load_and_after_any_transactions() {
    let tables = tables();
    for dialect in Dialect::ALL {
        for delivery in [DeliveryUnit::Warehouse, DeliveryUnit::District] {
            let tpcc = Tpcc::new(Setting { delivery, ..small(dialect, 2) });
            let engine = loaded(&tpcc, tables);
            let fresh = audit(&tpcc, tables, &engine);
            fresh.verify_loaded().expect("condition 11");
            fresh.verify(&Acknowledged::new()).expect("the other conditions");
            let (engine, mut acknowledged) = worked(&tpcc, tables, 400);
            let after = audit(&tpcc, tables, &engine);
            after.verify(&acknowledged).expect("all conditions");
            assert!(after.commits_of(Class::NewOrder) > 100);
            assert!(after.commits_of(Class::Delivery) > 5);
            for class in [Class::NewOrder, Class::Payment, Class::Delivery] {
                let counts = acknowledged.get_mut(&0).expect("client 0 committed");
                counts[class as usize] += 1;
                let lost = after.verify(&acknowledged);
                assert!(matches!(lost, Err(Fault::Lost { .. })), "a missing commit is seen");
                acknowledged.get_mut(&0).expect("still there")[class as usize] -= 1;
            }
        }
    }
}

/// Takes a row of the worked map that `is` asks for, and changes it.
fn change(
    engine: &mut Stuttering,
    table: Table,
    is: impl Fn(&[u8], &[u8]) -> bool,
    with: impl FnOnce(&mut Vec<u8>),
) {
    let rows = engine.tables.get_mut(&table).expect("the table has rows");
    let row = rows.iter_mut().find(|(key, value)| is(key, value)).expect("such a row");
    with(row.1);
}

/// Goal: each check sees a violation of its own. Method: one row of a worked database is changed,
/// or removed, for each; the check must fail, and must not have failed before.
#[test]
fn every_condition_sees_a_row_that_violates_it() {
    let tables = tables();
    let tpcc = Tpcc::new(small(Dialect::Spec, 1));
    let any = |_: &[u8], _: &[u8]| true;
    let undelivered = |_: &[u8], value: &[u8]| Line::decode(value).delivery == 0;
    let delivered =
        |_: &[u8], value: &[u8]| Line::decode(value).amount > 0 && !undelivered(&[], value);
    type Mutate<'a> = Box<dyn Fn(&mut Stuttering) + 'a>;
    let mutations: Vec<(u8, Mutate<'_>)> = vec![
        (1, Box::new(|engine| change(engine, tables.warehouse, any, |row| row[0] ^= 1))),
        (2, Box::new(|engine| change(engine, tables.district, any, |row| row[0] ^= 1))),
        (3, Box::new(|engine| remove_second(engine, tables.new_order))),
        (4, Box::new(|engine| remove_second(engine, tables.order_line))),
        (5, Box::new(|engine| remove_second(engine, tables.new_order))),
        (6, Box::new(|engine| change(engine, tables.order, any, |row| row[11] += 1))),
        (7, Box::new(|engine| change(engine, tables.order_line, undelivered, |row| row[0] = 1))),
        (8, Box::new(|engine| change(engine, tables.history, any, |row| row[16] ^= 1))),
        (9, Box::new(|engine| change(engine, tables.district, any, |row| row[6] ^= 1))),
        (10, Box::new(|engine| change(engine, tables.customer, any, |row| row[0] ^= 1))),
        (11, Box::new(|engine| remove_second(engine, tables.new_order))),
        (12, Box::new(|engine| change(engine, tables.order_line, delivered, |row| row[8] ^= 1))),
    ];
    let (engine, _) = worked(&tpcc, tables, 400);
    let fresh = loaded(&tpcc, tables);
    for (condition, mutate) in mutations {
        let tables_before = if condition == 11 { &fresh.tables } else { &engine.tables };
        let mut changed = Stuttering::of(tables_before.clone());
        audit(&tpcc, tables, &changed).check(condition).expect("it held before");
        mutate(&mut changed);
        let seen = audit(&tpcc, tables, &changed).check(condition);
        let is_seen =
            matches!(seen, Err(Fault::Condition { condition: number, .. }) if number == condition);
        assert!(is_seen, "condition {condition}: {seen:?}");
    }
}

/// Removes the second row of a table.
fn remove_second(engine: &mut Stuttering, table: Table) {
    let rows = engine.tables.get_mut(&table).expect("the table has rows");
    let key = rows.keys().nth(1).expect("two rows").clone();
    rows.remove(&key);
}

#[test]
fn indexes_stock_and_gaps_are_checked_too() {
    let tables = tables();
    let tpcc = Tpcc::new(small(Dialect::Spec, 1));
    let (engine, acknowledged) = worked(&tpcc, tables, 400);
    let verify = |mutate: &dyn Fn(&mut Stuttering)| {
        let mut changed = Stuttering::of(engine.tables.clone());
        mutate(&mut changed);
        audit(&tpcc, tables, &changed).verify(&acknowledged)
    };
    let any = |_: &[u8], _: &[u8]| true;
    for index in [tables.customer_name, tables.order_customer] {
        let seen = verify(&|engine| remove_second(engine, index));
        assert!(matches!(seen, Err(Fault::Index { .. })), "{seen:?}");
    }
    let seen = verify(&|engine| change(engine, tables.stock, any, |row| row[2] ^= 1));
    assert!(matches!(seen, Err(Fault::Stock { .. })), "{seen:?}");
    let of_client = |_: &[u8], row: &[u8]| Order::decode(row).entry == 1 << 32 | 2;
    let seen = verify(&|engine| change(engine, tables.order, of_client, |row| row[2] = 1));
    assert!(matches!(seen, Err(Fault::Gap { .. } | Fault::Lost { .. })), "{seen:?}");
}

/// Runs `transaction` as client 1 on `engine`.
fn run(engine: &mut Stuttering, tables: Tables, transaction: Transaction) -> (Outcome, Terminal) {
    let mut terminal = Terminal::new(small(Dialect::Spec, 1), tables, 0);
    terminal.transaction = transaction;
    (transact(&mut terminal, engine), terminal)
}

fn account(engine: &Stuttering, tables: Tables, key: &[u8]) -> Account {
    Account::decode(&engine.tables[&tables.customer][key])
}

/// Goal: the five transactions have the effect and the output of the specification. Method: known
/// inputs on a loaded map, results computed from the rows.
#[test]
fn each_transaction_does_what_the_specification_says() {
    let tables = tables();
    let tpcc = Tpcc::new(small(Dialect::Spec, 1));
    let mut engine = loaded(&tpcc, tables);
    let place = DistrictKey { warehouse: 1, district: 3 };

    let item = |item| OrderedItem { item, supply: 1, quantity: 4 };
    let order = new_order::NewOrder::new(place, 5, vec![item(10), item(20)]);
    let (outcome, terminal) = run(&mut engine, tables, Transaction::NewOrder(order));
    assert_eq!(outcome, Outcome::Commit);
    let Output::NewOrder { order, total, .. } = terminal.output() else { panic!("a New-Order") };
    assert_eq!(order, 31, "after 30 loaded orders");
    let price = |item: u32| rows::u32_at(&engine.tables[&tables.item][&item.to_be_bytes()[..]], 0);
    let amount = u64::from(4 * (price(10) + price(20)));
    assert!((amount / 2..=amount * 14 / 10).contains(&total), "at most half off, 40 % on top");
    let lines = ScanRange::prefix(&place.order(31));
    let high = lines.high.expect("an end");
    assert_eq!(engine.tables[&tables.order_line].range(lines.low..high).count(), 2);

    let before = account(&engine, tables, &place.customer(5));
    let status = order_status::OrderStatus::new(place, Chosen::Number(5));
    let (_, terminal) = run(&mut engine, tables, Transaction::OrderStatus(status));
    assert_eq!(terminal.output(), Output::OrderStatus { order: 31, lines: 2 }, "the newest");

    let payment = payment::Payment::new(place, place, Chosen::Number(5), 12_345);
    let (_, terminal) = run(&mut engine, tables, Transaction::Payment(payment));
    assert_eq!(terminal.output(), Output::Payment { customer: 5 });
    let after = account(&engine, tables, &place.customer(5));
    assert_eq!(before.balance - after.balance, 12_345);
    assert_eq!((after.ytd_payment - before.ytd_payment, after.payments), (12_345, 2));

    let delivery = delivery::Delivery::new(1, 7, 1..=DISTRICTS);
    let (_, terminal) = run(&mut engine, tables, Transaction::Delivery(delivery));
    assert_eq!(terminal.output(), Output::Delivery { delivered: DISTRICTS });
    let oldest = place.order(u32::from(Cardinality::SMALL.customers) - 8);
    assert!(!engine.tables[&tables.new_order].contains_key(&oldest[..]));
    assert_eq!(Order::decode(&engine.tables[&tables.order][&oldest[..]]).carrier, 7);

    let level = stock_level::StockLevel::new(place, 101);
    let (_, terminal) = run(&mut engine, tables, Transaction::StockLevel(level));
    let items: BTreeSet<u32> = engine.tables[&tables.order_line]
        .range(place.order(12).to_vec()..place.order(32).to_vec())
        .map(|(_, line)| Line::decode(line).item)
        .collect();
    let low = items.len() as u32;
    assert_eq!(terminal.output(), Output::StockLevel { low }, "every item holds fewer than 101");
}

#[test]
fn a_payment_by_name_takes_the_customer_in_the_middle() {
    let tables = tables();
    let tpcc = Tpcc::new(small(Dialect::Spec, 1));
    let mut engine = loaded(&tpcc, tables);
    let place = DistrictKey { warehouse: 1, district: 1 };
    // Three more customers of the name of number 4, around the one that is there.
    let last = random::last_name(4);
    for (first, number) in [("0", 101), ("00", 102), ("zzz", 103)] {
        let entry = place.name(last.as_bytes(), first.as_bytes(), number);
        engine.load(tables.customer_name, &entry, &[]);
        let row = engine.tables[&tables.customer][&place.customer(1)[..]].clone();
        engine.load(tables.customer, &place.customer(number), &row);
    }
    let payment = payment::Payment::new(place, place, Chosen::Name(4), 100);
    run(&mut engine, tables, Transaction::Payment(payment));
    // Of four, the second by first name.
    assert_eq!(account(&engine, tables, &place.customer(102)).payments, 2);
}

#[test]
fn bad_credit_is_written_down_in_at_most_500_characters() {
    let tables = tables();
    let tpcc = Tpcc::new(small(Dialect::Spec, 1));
    let mut engine = loaded(&tpcc, tables);
    let customers = &engine.tables[&tables.customer];
    let (key, before) = customers
        .iter()
        .find(|(_, row)| row[rows::customer::CREDIT.offset..].starts_with(b"BC"))
        .map(|(key, row)| (key.clone(), row.clone()))
        .expect("one in ten has bad credit");
    let (place, rest) = DistrictKey::decode(&key).expect("a customer's key");
    let number = keys::last_u16(rest);
    for _ in 0..30 {
        let payment = payment::Payment::new(place, place, Chosen::Number(number), 123_456);
        run(&mut engine, tables, Transaction::Payment(payment));
    }
    let after = &engine.tables[&tables.customer][&key];
    let data = rows::customer::data_offset(&before);
    assert_eq!(after[20..data], before[20..data], "the other columns stay");
    let note = format!("{number} {} 1 {} 1 1234.56 ", place.district, place.district);
    assert!(after[data..].starts_with(note.repeat(2).as_bytes()));
    assert_eq!(after.len() - data, rows::customer::DATA_SIZE_MAX);
}

#[test]
fn a_new_order_for_an_unknown_item_or_warehouse_fails() {
    let tables = tables();
    let tpcc = Tpcc::new(small(Dialect::Dbt2, 1));
    let place = DistrictKey { warehouse: 1, district: 1 };
    for (item, supply) in [(0, 1), (501, 1), (1, 0)] {
        let mut engine = loaded(&tpcc, tables);
        let items = vec![OrderedItem { item, supply, quantity: 1 }];
        let order = new_order::NewOrder::new(place, 1, items);
        let (outcome, _) = run(&mut engine, tables, Transaction::NewOrder(order));
        assert_eq!(outcome, Outcome::Abort);
    }
}

#[test]
fn dialects_are_found_by_name() {
    for dialect in Dialect::ALL {
        assert_eq!(Dialect::named(dialect.name()), Some(dialect));
    }
    assert_eq!(Dialect::named("spec2"), None);
}
