//! CPU time of this floor above the simulated device: `cargo bench -p flagstone-space`.
//!
//! Fixed seed; the space is filled once and overwritten once before anything is timed. Each line
//! gives the time of an operation with the device's own share, and that share alone.
#![expect(clippy::unwrap_used, reason = "a benchmark has nobody to report to")]

use std::time::Instant;

use flagstone_nand::{Nand, Profile, ProgramPart, ReadPart, SimNand};
use flagstone_space::{LogicalPage, Lsn, NoOwner, RegionId, Space, SpaceOptions, WriteTag};

const ROUNDS: u32 = 400_000;

fn main() {
    let profile = Profile::named("slc-2k").unwrap();
    let bare = bare_device(&profile);
    let device = SimNand::new(&profile, 1);
    let options = SpaceOptions { log_pages: 256, ..SpaceOptions::default() };
    let mut space = Space::format(device, &options).unwrap();
    let pages = space.capacity_pages() * 8 / 10;
    let payload = vec![0x5A; space.payload_size()];
    let tag = WriteTag::data(Lsn(1), RegionId(0));
    let mut seed = 1_u32;
    let mut draw = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        LogicalPage((seed >> 8) % pages)
    };
    for page in 0..pages {
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write(LogicalPage(page), &payload, &tag).unwrap();
    }
    for _ in 0..pages {
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write(draw(), &payload, &tag).unwrap();
    }
    let mut read = Vec::new();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        space.read(draw(), &mut read).unwrap();
    }
    report("read", start, bare.0);
    let mut wait_ns = 0;
    let start = Instant::now();
    space.reset_stats();
    for _ in 0..ROUNDS {
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write(draw(), &payload, &tag).unwrap();
        wait_ns = space.end_ns();
    }
    report("write, collection included", start, bare.1);
    let stats = space.stats();
    let programs: u64 = stats.programs_by_cause.iter().sum();
    let amplification = programs as f64 / f64::from(ROUNDS);
    println!("programs a write {amplification:.2}, device time {wait_ns} ns");
    let start = Instant::now();
    for _ in 0..ROUNDS / 100 {
        space.checkpoint(b"").unwrap();
    }
    report_count("checkpoint, nothing changed", start, ROUNDS / 100);
    let start = Instant::now();
    let (space, report) = Space::mount(space.into_device()).unwrap();
    println!("mount {:?}, {} pages read", start.elapsed(), report.pages_read);
    drop(space);
}

fn report(what: &str, start: Instant, bare_ns: f64) {
    let each = start.elapsed().as_nanos() as f64 / f64::from(ROUNDS);
    println!("{what}: {each:.0} ns each, of which the device about {bare_ns:.0}");
}

fn report_count(what: &str, start: Instant, count: u32) {
    let each = start.elapsed().as_nanos() as f64 / f64::from(count);
    println!("{what}: {each:.0} ns each");
}

/// Nanoseconds of a whole-page read and a whole-page program on the bare device.
fn bare_device(profile: &Profile) -> (f64, f64) {
    let mut device = SimNand::new(profile, 1);
    let geometry = device.geometry();
    let count = geometry.page_count();
    let data = vec![0x5A; geometry.page_size as usize];
    let spare = [0x5A; 35];
    let mut target = data.clone();
    for block in geometry.blocks() {
        for index in 0..geometry.pages_per_block {
            let part = ProgramPart { data_offset: 0, data: &data, spare_offset: 2, spare: &spare };
            device.program(geometry.page(block, index).unwrap(), part).unwrap();
        }
        device.erase(block).unwrap();
    }
    let start = Instant::now();
    for number in 0..count {
        let part = ProgramPart { data_offset: 0, data: &data, spare_offset: 2, spare: &spare };
        device.program(geometry.page_from_number(number).unwrap(), part).unwrap();
    }
    let programs = start.elapsed().as_nanos() as f64 / f64::from(count);
    let start = Instant::now();
    let mut bytes = [0; 35];
    for number in 0..count {
        let page = geometry.page_from_number(number.wrapping_mul(40_503) % count).unwrap();
        let part =
            ReadPart { data_offset: 0, data: &mut target, spare_offset: 2, spare: &mut bytes };
        device.read(page, part).unwrap();
    }
    (start.elapsed().as_nanos() as f64 / f64::from(count), programs)
}
