//! Exhaustive small-scope models of the four protocols, judged by the functions of this module.
//!
//! Every order of page programs, flag programs, commits, aborts, relocations, erases and power
//! cuts is walked breadth first, with two transactions at once and several pages a block. After
//! every step the recovery is compared with the contents of a correct store: each acknowledged
//! transaction whole, one whose commit is in flight whole or not at all, nothing else. The variants
//! without one of the rules E1 to E6 must fail: they prove that the models see.
//!
//! `FLAGSTONE_EFFORT=N` walks N times as far.

mod cycles;
mod flags;

use std::collections::HashSet;
use std::hash::Hash;
use std::println;
use std::string::String;

/// Result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All states were seen, and are right.
    Holds(usize),
    /// This many states were seen, and are right; there are more.
    Cut(usize),
    /// A state is wrong; the number of states before it.
    Fails(usize),
}

impl Verdict {
    fn is_sound(self) -> bool {
        !matches!(self, Self::Fails(_))
    }
}

/// A state of a model.
trait State: Clone + Eq + Hash {
    /// Whether recovery now finds the required contents.
    fn is_right(&self) -> bool;
    /// Every state one step further.
    fn next(&self) -> Vec<Self>;
    /// The step from here to the state `next`.
    fn told(&self, next: &Self) -> String;
}

pub(crate) fn effort() -> usize {
    std::env::var("FLAGSTONE_EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Walks all states from `start` on, at most `limit` states.
fn walk<S: State>(start: S, limit: usize) -> Verdict {
    let mut seen = HashSet::from([start.clone()]);
    let (mut states, mut parents) = (vec![start], vec![0]);
    let mut count = 0;
    while let Some(state) = states.get(count).cloned() {
        if !state.is_right() {
            tell(&states, &parents, count);
            return Verdict::Fails(count);
        }
        for next in state.next() {
            if !seen.contains(&next) {
                seen.insert(next.clone());
                states.push(next);
                parents.push(count);
            }
        }
        count += 1;
        if count >= limit {
            return Verdict::Cut(count);
        }
    }
    Verdict::Holds(count)
}

/// Prints the shortest way to a wrong state.
fn tell<S: State>(states: &[S], parents: &[usize], wrong: usize) {
    let mut way = vec![wrong];
    while let Some(last) = way.last().copied().filter(|last| *last != 0) {
        way.push(parents[last]);
    }
    way.reverse();
    for step in way.windows(2) {
        println!("    {}", states[step[0]].told(&states[step[1]]));
    }
}
