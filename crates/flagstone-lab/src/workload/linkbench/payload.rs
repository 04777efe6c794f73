//! Sizes and bytes of the data of links and nodes.

use super::access::share;
use crate::workload::Draws;
use crate::workload::numeric::{exp, ln};

/// Stream of the motifs.
const MOTIF_STREAM: u64 = 1 << 41;
/// Bytes that data of either kind are copied from.
const MOTIF_SIZE: usize = 512;
/// Bytes that are drawn anew or copied together.
const CHUNK_SIZE: usize = 128;

/// Look of the data of a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Median of the sizes; their logarithms are normal with a deviation of 1.
    median: f64,
    /// Smallest size that does not occur.
    size_bound: f64,
    /// Bytes are drawn between these.
    low: u8,
    high: u8,
    /// Chunks drawn anew, of a thousand.
    unique: u64,
    place: usize,
}

/// Data of links: 8 bytes in the median, 254 at most.
pub(super) const LINK: Kind =
    Kind { median: 8.0, size_bound: 255.0, low: 32, high: 100, unique: 225, place: 0 };
/// Data of nodes: 128 bytes in the median, a MiB at most.
pub(super) const NODE: Kind =
    Kind { median: 128.0, size_bound: 1_048_576.0, low: 50, high: 220, unique: 630, place: 1 };

/// Bytes that data are copied from, of links and of nodes.
#[derive(Clone, Debug)]
pub(crate) struct Motifs([Vec<u8>; 2]);

impl Motifs {
    pub(super) fn new(seed: u64) -> Self {
        let mut draws = Draws::new(seed, MOTIF_STREAM);
        Self([LINK, NODE].map(|kind| (0..MOTIF_SIZE).map(|_| kind.byte(&mut draws)).collect()))
    }

    /// Data of a kind.
    pub(super) fn draw(&self, kind: Kind, draws: &mut Draws) -> Vec<u8> {
        let size = kind.size(draws);
        let mut data = Vec::with_capacity(size);
        let motifs = &self.0[kind.place];
        while data.len() < size {
            let count = (size - data.len()).min(CHUNK_SIZE);
            if draws.below(1000) < kind.unique {
                data.extend((0..count).map(|_| kind.byte(draws)));
            } else {
                let start = draws.below((MOTIF_SIZE - count + 1) as u64) as usize;
                data.extend_from_slice(&motifs[start..start + count]);
            }
        }
        data
    }
}

impl Kind {
    fn byte(self, draws: &mut Draws) -> u8 {
        self.low + draws.below(u64::from(self.high - self.low) + 1) as u8
    }

    fn size(self, draws: &mut Draws) -> usize {
        let size = exp(gauss(draws) + ln(self.median)).round();
        size.clamp(0.0, self.size_bound - 1.0) as usize
    }
}

/// A draw of the standard normal distribution (Marsaglia's polar method).
fn gauss(draws: &mut Draws) -> f64 {
    loop {
        let (x, y) = (2.0 * share(draws) - 1.0, 2.0 * share(draws) - 1.0);
        let square = x * x + y * y;
        if square > 0.0 && square < 1.0 {
            return x * (-2.0 * ln(square) / square).sqrt();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_their_median_and_bytes_their_bounds() {
        let motifs = Motifs::new(1);
        let mut draws = Draws::new(1, 0);
        for (kind, median, size_max) in [(LINK, 8, 254), (NODE, 128, 1_048_575)] {
            let mut sizes: Vec<usize> = Vec::new();
            for _ in 0..20_000 {
                let data = motifs.draw(kind, &mut draws);
                assert!(data.iter().all(|byte| (kind.low..=kind.high).contains(byte)));
                sizes.push(data.len());
            }
            sizes.sort_unstable();
            assert!(sizes[19_999] <= size_max);
            assert!(sizes[10_000].abs_diff(median) * 20 <= median, "{}", sizes[10_000]);
            // One deviation above the median: e times as large, 15.9 % are larger.
            let above = sizes[16_827] as f64 / median as f64;
            assert!((above / std::f64::consts::E - 1.0).abs() < 0.06, "{above}");
        }
    }
}
