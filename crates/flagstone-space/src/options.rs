//! Options of a space: plain values, stored in every checkpoint record.

/// Which block the collector cleans next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GcPolicy {
    /// Fewest live pages. Best for uniform writes, poor when hot and cold data mix.
    #[default]
    Greedy,
    /// Highest `(1 - u) * age / 2u`, where `u` is the live fraction: the cost-benefit rule of LFS
    /// (Rosenblum and Ousterhout, 1992). Wins when hot and cold pages mix.
    CostBenefit,
    /// Highest `(1 - u) * age / (u * e)`, where `e` is how often the block was erased: the
    /// cost-age-times rule (Chiang, Lee, Chang, 1999). As cost-benefit, but worn blocks wait longer.
    CostAgeTimes,
}

/// How a space is laid out and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceOptions {
    /// Physical pages of a logical page, 1 to 8.
    pub parts: u8,
    /// Log pages that may be in use at a time.
    pub log_pages: u32,
    /// Blocks of the anchor ring: even, at least four.
    pub ring_blocks: u8,
    /// Victim choice of garbage collection.
    pub gc_policy: GcPolicy,
    /// Static wear levelling, which moves pages that stay to worn blocks: levelling may move one page for so
    /// many that blocks were erased for; none turns it off.
    pub static_wear: Option<u32>,
    /// The device grows ([`flagstone_nand::Nand::extend`]): the log takes a quarter of the existing blocks,
    /// up to half where it fills half of its own, up to `log_pages`.
    pub grows: bool,
}

impl Default for SpaceOptions {
    fn default() -> Self {
        Self {
            parts: 1,
            log_pages: 64,
            ring_blocks: 4,
            gc_policy: GcPolicy::Greedy,
            static_wear: None,
            grows: false,
        }
    }
}
