//! Which leaf's deltas leave memory, by policy: all keep what was committed, and each saves the page
//! writes that it is made to save.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use flagstone::{Database, Options, Victim};
use flagstone_nand::{Crashable as _, Profile, SimNand};

const ROWS: u32 = 20_000;
const CHANGES: u32 = 20_000;

/// Keys of which few take most changes, as names do.
struct Skewed(u64);

impl Skewed {
    fn draw(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let uniform = (self.0 >> 33) as f64 / f64::from(1u32 << 31);
        (uniform.powi(4) * f64::from(ROWS)) as u32 % ROWS
    }
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Deltas that each merge took, after many changes that were all there in the end.
fn deltas_a_merge(victim: Victim) -> f64 {
    let options = Options { victim, ..Options::default().with_memory(128 << 10) };
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut expected = vec![0u32; ROWS as usize];
    for first in (0..ROWS).step_by(100) {
        let mut transaction = database.begin();
        (first..first + 100)
            .for_each(|number| transaction.put(table, &key(number), &[0; 60]).unwrap());
        transaction.commit().unwrap();
    }
    database.runtime().checkpoint_now().unwrap();
    let before = database.stats().engine;
    let mut keys = Skewed(7);
    for change in 1..=CHANGES {
        let number = keys.draw();
        let mut transaction = database.begin();
        transaction.patch(table, &key(number), 8, &change.to_be_bytes()).unwrap();
        transaction.commit().unwrap();
        expected[number as usize] = change;
    }
    let after = database.stats().engine;
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    let database = Database::open_on(device, &options).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    for (number, change) in expected.iter().enumerate() {
        let value = database.begin().get(table, &key(number as u32)).unwrap().unwrap();
        assert_eq!(value[8..12], change.to_be_bytes(), "{victim:?}: row {number}");
    }
    assert!(database.check().unwrap().faults.is_empty(), "{victim:?}");
    (after.merged_deltas - before.merged_deltas) as f64 / (after.merges - before.merges) as f64
}

#[test]
fn bigger_groups_make_fewer_page_writes() {
    let [window, fifo, lru, biggest, cost] = Victim::ALL.map(deltas_a_merge);
    let all = format!("window {window:.1}, fifo {fifo:.1}, lru {lru:.1}, {biggest:.1}, {cost:.1}");
    assert!(biggest > 1.3 * fifo && biggest > 1.3 * lru, "{all}");
    assert!(cost > 0.9 * biggest, "nothing splits: cost is size. {all}");
    assert!(window > 0.8 * biggest, "the hand looks at a part of the tree. {all}");
}
