use flagstone_engine::Options;
use flagstone_nand::Profile;

use super::*;
use crate::bench::BenchConfig;
use crate::workload::tpcb::Dialect;

const SHAPE: PageShape = PageShape { payload_size: 2048, parts: 1, pages_per_block: 64 };
const FIXED: FixedBlocks = FixedBlocks { log: 5, ring: 4 };

fn config(warmup: Warmup) -> BenchConfig {
    let profile = Profile::named("slc-2k").expect("the profile exists");
    BenchConfig { warmup, ..BenchConfig::tpcb(profile, vec![Options::default()]) }
}

fn size(config: &BenchConfig) -> ChipSize {
    let workload = config.tpcb_of(Dialect::Spec);
    ChipSize::of(Job { config, workload: &workload }, &SHAPE, FIXED, &Estimate::for_clients(1))
}

#[test]
fn the_accounts_of_one_branch_take_their_leaves() {
    let contents = config(Warmup::None).tpcb_of(Dialect::Spec).contents(0, 1);
    let pages = live_pages(&contents, &SHAPE);
    // 18 rows of 108 bytes a leaf: 5556 leaves of accounts, two small tables, inner nodes.
    assert_eq!(pages, 5556 + 1 + 1 + 49);
}

#[test]
fn live_pages_are_the_asked_share_of_the_data_region() {
    for warmup in [Warmup::None, Warmup::Txns(10_000), Warmup::Auto] {
        let config = config(warmup);
        let size = size(&config);
        let data_pages = f64::from(size.data_blocks) * 64.0;
        let fill = size.live_pages as f64 / data_pages;
        assert!((0.79..=0.8).contains(&fill), "{warmup:?}: {fill}");
        assert_eq!(size.block_count(), size.data_blocks + 9, "log and anchors come on top");
    }
}

#[test]
fn an_automatic_warm_up_is_three_overwrites() {
    let size = size(&config(Warmup::Auto));
    let warmup = (size.txns - 50_000) as f64;
    let overwrites = warmup * 1.1 / (f64::from(size.data_blocks) * 64.0);
    assert!((2.97..=3.03).contains(&overwrites), "{overwrites}");
}

#[test]
fn history_makes_the_chip_larger() {
    let short = size(&config(Warmup::None));
    let long = size(&config(Warmup::Txns(100_000)));
    assert!(long.live_pages > short.live_pages + 100_000 / 40);
}
