//! Figure 10, and figures 4 to 7 by the paper's own structure: nodes as [`crate::lazy_index`]
//! counts them.
//!
//! The engine finds groups without reading nodes, its leaves are not linked, and its inner nodes change
//! by deltas. The counts tell which part of the paper's figures comes from these differences.

use super::super::super::ReproduceError;
use super::super::super::cell::{Cell, Outcome, Outcomes};
use super::super::super::figure::{Axis, Drawing, Figure, Panel, Series};
use super::super::super::rule::{Claim, change};
use super::{
    BIGGEST, Bench, COST, FIFO, LRU, MEMORY_PAGES, ORDER, POLICIES, POOL_SHARE, READS, Sizes,
    TRADITIONAL, WORKLOADS, WRITES, memory,
};
use crate::lazy_index::{self, Config, Policy, Pruning, Together};
use crate::workload::index::{Dialect, Index};

/// One count, by the settings that differ from other counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) dialect: Dialect,
    pub(super) policy: &'static str,
    pub(super) order: usize,
    pub(super) pruning: Pruning,
    pub(super) together: Together,
}

impl Counted {
    pub(super) const fn new(dialect: Dialect, policy: &'static str) -> Self {
        let (pruning, together) = (Pruning::On, Together::Off);
        Self { dialect, policy, order: ORDER, pruning, together }
    }

    pub(super) fn name(&self) -> String {
        let mut name = format!("{} {} counted", self.dialect, self.policy);
        if self.order != ORDER {
            name += &format!(" order {}", self.order);
        }
        if self.pruning == Pruning::Off {
            name += " unpruned";
        }
        match self.together {
            Together::Off => {}
            Together::Victim => name += " approach 1",
            Together::All => name += " approach 2",
        }
        name
    }

    fn config(&self) -> Config {
        let (requests, pages) = match self.policy {
            TRADITIONAL => (0, MEMORY_PAGES),
            _ => (memory(POOL_SHARE).1, MEMORY_PAGES / 2),
        };
        Config {
            order: self.order,
            nodes: pages * ORDER / self.order,
            requests,
            policy: match self.policy {
                FIFO => Policy::Fifo,
                LRU => Policy::Lru,
                COST => Policy::Cost,
                _ => Policy::Biggest,
            },
            pruning: self.pruning,
            together: self.together,
        }
    }
}

/// A count as a cell.
pub(super) fn cell(bench: &Bench, counted: Counted) -> Cell {
    let (sizes, seed) = (bench.sizes, bench.seed);
    Cell::new(counted.name(), move |_| {
        let index = Index::new(counted.dialect, 1, seed);
        let requests = |updates| Sizes::requests(counted.dialect, updates);
        let (warmup, window) = (requests(sizes.warmup_updates), requests(sizes.updates));
        let counts = lazy_index::count(&index, counted.config(), warmup, window);
        Ok(Outcome::default()
            .with(READS, counts.reads as f64)
            .with("reads_to_choose", counts.reads_to_choose as f64)
            .with(WRITES, counts.writes as f64))
    })
}

fn values(
    outcomes: &Outcomes,
    counted: impl Fn(Dialect) -> Counted,
    value: &str,
) -> Result<Vec<f64>, ReproduceError> {
    let names = WORKLOADS.iter().map(|(_, _, dialect)| counted(*dialect).name());
    names.map(|name| outcomes.value(&name, value)).collect()
}

fn workloads() -> Axis {
    Axis::Names(WORKLOADS.map(|(_, _, dialect)| dialect.to_string()).to_vec())
}

fn changes(base: &[f64], ours: &[f64]) -> Vec<f64> {
    base.iter().zip(ours).map(|(base, ours)| change(*base, *ours)).collect()
}

/// Figure 10.
pub(super) fn pruning(bench: &Bench) -> Figure {
    let of = |dialect, policy, pruning| Counted { pruning, ..Counted::new(dialect, policy) };
    let mut cells = Vec::new();
    for (_, _, dialect) in WORKLOADS {
        for policy in [BIGGEST, COST] {
            for pruning in [Pruning::On, Pruning::Off] {
                cells.push(cell(bench, of(dialect, policy, pruning)));
            }
        }
    }
    Figure::new("10-pruning", "Figure 10: pruning (counted)", cells, move |outcomes| {
        let mut drawing = Drawing::default();
        let mut series = Vec::new();
        for (policy, least, most) in [(BIGGEST, -0.045, -0.15), (COST, -0.098, -0.33)] {
            let reads = |pruning| values(outcomes, |dialect| of(dialect, policy, pruning), READS);
            let (without, with) = (reads(Pruning::Off)?, reads(Pruning::On)?);
            let claim = Claim::ChangeBetween(least, most);
            let item = format!("reads saved by pruning, {policy}, counted");
            drawing.claim(item, &claim, &changes(&without, &with));
            series.push(Series { name: format!("{policy}, without"), values: without });
            series.push(Series { name: format!("{policy}, with"), values: with });
        }
        drawing.panel(Panel {
            title: String::from("Nodes read"),
            y: String::from("nodes"),
            x: String::from("workload"),
            axis: workloads(),
            series,
        });
        Ok(drawing)
    })
}

/// Figures 4 to 7 by the paper's structure.
pub(super) fn structure(bench: &Bench) -> Figure {
    let all = WORKLOADS
        .iter()
        .flat_map(|(_, _, dialect)| POLICIES.iter().map(|policy| Counted::new(*dialect, policy)));
    let cells = all.map(|counted| cell(bench, counted)).collect();
    Figure::new("4-7-structure", "Figures 4 to 7, counted", cells, |outcomes| {
        let mut drawing = Drawing::default();
        let of = |policy, value| values(outcomes, |dialect| Counted::new(dialect, policy), value);
        for (title, value) in [("Nodes written", WRITES), ("Nodes read", READS)] {
            let series = POLICIES.iter().map(|policy| {
                Ok(Series { name: (*policy).to_owned(), values: of(policy, value)? })
            });
            drawing.panel(Panel {
                title: title.to_owned(),
                y: String::from("nodes"),
                x: String::from("workload"),
                axis: workloads(),
                series: series.collect::<Result<_, ReproduceError>>()?,
            });
        }
        for policy in [BIGGEST, COST] {
            let against = |other, value| Ok(changes(&of(other, value)?, &of(policy, value)?));
            let item =
                |value: &str, other: &str| format!("{value}, {policy} against {other}, counted");
            let writes: Vec<f64> = against(TRADITIONAL, WRITES)?;
            // "By half" is said of all workloads: the one farthest from it is judged.
            let farthest = writes
                .iter()
                .copied()
                .max_by(|one, other| (one + 0.5).abs().total_cmp(&(other + 0.5).abs()));
            let farthest: Vec<f64> = farthest.into_iter().collect();
            drawing.claim(item("writes", TRADITIONAL), &Claim::Change(-0.5), &farthest);
            for other in [FIFO, LRU] {
                let writes: Result<_, ReproduceError> = against(other, WRITES);
                drawing.claim(item("writes", other), &Claim::ChangeBetween(-0.16, -0.20), &writes?);
                let reads: Result<_, ReproduceError> = against(other, READS);
                drawing.claim(item("reads", other), &Claim::ChangeBetween(-0.10, -0.26), &reads?);
            }
            for (place, (_, _, dialect)) in WORKLOADS.iter().enumerate() {
                let reads: Result<Vec<f64>, ReproduceError> = against(TRADITIONAL, READS);
                let (item, saved) =
                    (item(&format!("reads of {dialect}"), TRADITIONAL), reads?[place]);
                match dialect.mix().select > 500 {
                    true => drawing.claim(item, &Claim::Change(-0.16), &[saved]),
                    false => drawing.claim(item, &Claim::ShareAbove(0.33), &[-saved]),
                }
            }
        }
        Ok(drawing)
    })
}
