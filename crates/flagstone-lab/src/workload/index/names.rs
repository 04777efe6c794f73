//! Keys made of people's names, as the lazy-update B+-tree's experiment calls for.
//!
//! Owns the names and how a key follows from one. The paper draws authors from DBLP and maps each to a
//! number in [0, 1]; here surnames and forenames come from the census files in `data/`, each with its
//! frequency, and a key is the name read as a number in base 27.

use std::sync::OnceLock;

use crate::workload::Draws;

const SURNAMES: &str = include_str!("../../../data/surnames.txt");
const FORENAMES: &str = include_str!("../../../data/forenames.txt");

/// Letters of a name that its key keeps: as many digits of base 27 as 64 bits hold.
const DIGITS: u32 = 13;

/// Where the names come from.
pub const ORIGIN: &str = "surnames and forenames of the US census of 1990 with their frequencies, \
                          from the Python package `names` 0.3.0";

/// Weight of a name for each thousandth of a percent.
const WEIGHT: u64 = 13;
/// Weight of a name whose frequency is rounded to nothing: 69,960 surnames, which share 10.8 % of the
/// population by it, by the census's own sums 10.9 %.
const RARE: u64 = 2;

/// Names with the running sums of their frequencies.
struct Frequencies(Vec<(u64, &'static str)>);

impl Frequencies {
    fn read(text: &'static str) -> Self {
        let mut sum = 0;
        let mut names = Vec::new();
        for line in text.lines() {
            let mut words = line.split(' ');
            let thousandths: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            for name in words {
                sum += if thousandths == 0 { RARE } else { WEIGHT * thousandths };
                names.push((sum, name));
            }
        }
        Self(names)
    }

    fn draw(&self, draws: &mut Draws) -> &'static str {
        let total = self.0.last().map_or(0, |(sum, _)| *sum);
        let number = draws.below(total);
        let place = self.0.partition_point(|(sum, _)| *sum <= number);
        self.0.get(place).map_or("", |(_, name)| name)
    }
}

fn surnames() -> &'static Frequencies {
    static NAMES: OnceLock<Frequencies> = OnceLock::new();
    NAMES.get_or_init(|| Frequencies::read(SURNAMES))
}

fn forenames() -> &'static Frequencies {
    static NAMES: OnceLock<Frequencies> = OnceLock::new();
    NAMES.get_or_init(|| Frequencies::read(FORENAMES))
}

/// The key of a person drawn by the frequency of both names.
pub(super) fn draw(draws: &mut Draws) -> u64 {
    let surname = surnames().draw(draws);
    key(surname, forenames().draw(draws))
}

/// A name as a number: surname, blank, forename, spread over all of 64 bits in alphabetical order.
fn key(surname: &str, forename: &str) -> u64 {
    let digit = |letter: u8| u64::from(letter.saturating_sub(b'A' - 1).min(26));
    let letters = surname.bytes().chain([b' ']).chain(forename.bytes()).map(digit);
    let padded = letters.chain(std::iter::repeat(0)).take(DIGITS as usize);
    padded.fold(0, |sum, digit| sum * 27 + digit) * (u64::MAX / 27_u64.pow(DIGITS))
}

/// How far keys are from being spread evenly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Skew {
    /// Share of the keys in the fullest hundredth of the key space.
    pub fullest_hundredth: f64,
    /// Largest distance of their distribution from the even one (Kolmogorov and Smirnov).
    pub distance: f64,
}

impl Skew {
    /// Of ascending `keys` between 0 and `max`.
    #[must_use]
    pub fn of(keys: &[u64], max: u64) -> Self {
        let mut counts = [0_u64; 100];
        let mut distance = 0.0_f64;
        let total = keys.len().max(1) as f64;
        for (number, key) in keys.iter().enumerate() {
            let place = *key as f64 / max.max(1) as f64;
            counts[((place * 100.0) as usize).min(99)] += 1;
            distance = distance.max((number as f64 / total - place).abs());
        }
        let fullest = counts.into_iter().max().unwrap_or(0);
        Self { fullest_hundredth: fullest as f64 / total, distance }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_files_is_there() {
        assert_eq!(surnames().0.len(), 88_799);
        assert_eq!(forenames().0.len(), 5_163);
    }

    #[test]
    fn keys_are_in_the_order_of_the_names() {
        let names = [("AALUND", "ZOE"), ("LEE", "ANN"), ("LEE", "BO"), ("LEES", "A"), ("ZZ", "Z")];
        let keys: Vec<u64> = names.iter().map(|(last, first)| key(last, first)).collect();
        assert!(keys.is_sorted_by(|left, right| left < right), "{keys:?}");
    }

    #[test]
    fn frequent_names_are_drawn_as_often_as_the_census_says() {
        let mut draws = Draws::new(1, 0);
        let smiths = (0..100_000).filter(|_| surnames().draw(&mut draws) == "SMITH").count();
        // 1.006 % of the population, of which the file names 90.5 %.
        assert!((1000..1220).contains(&smiths), "{smiths} of 100,000");
    }

    #[test]
    fn skew_tells_even_keys_from_crowded_ones() {
        let even: Vec<u64> = (0..10_000).collect();
        let skew = Skew::of(&even, 9_999);
        assert!(skew.fullest_hundredth < 0.011 && skew.distance < 0.001, "{skew:?}");
        let crowded: Vec<u64> = (0..10_000).map(|key| key / 100).collect();
        let skew = Skew::of(&crowded, 9_999);
        assert!(skew.fullest_hundredth > 0.99 && skew.distance > 0.98, "{skew:?}");
    }
}
