//! Figures 9 and 11: the order of the tree, and super groups, under the engine.
//!
//! A node of the engine fills a page, so the order is set by the size of the pages. The counts of
//! the paper's own structure stand beside.

use flagstone_engine::SuperGroup;

use super::super::super::ReproduceError;
use super::super::super::figure::{Axis, Drawing, Figure, Panel, Series};
use super::super::super::rule::{Claim, change};
use super::counted::{self, Counted};
use super::{BIGGEST, Bench, COST, ORDER, READS, Setup, WORKLOADS, WRITES};
use crate::lazy_index::Together;
use crate::workload::index::Dialect;

/// Orders of figure 9.
const ORDERS: [usize; 4] = [32, 50, 68, ORDER];

const DIALECT: Dialect = Dialect::WQueryMix;

fn of_order(order: usize, policy: &'static str) -> Setup {
    Setup { order, ..Setup::new(DIALECT, policy) }
}

fn counted_of_order(order: usize, policy: &'static str) -> Counted {
    Counted { order, ..Counted::new(DIALECT, policy) }
}

/// Figure 9.
pub(super) fn order(bench: &Bench) -> Result<Figure, ReproduceError> {
    let mut cells = Vec::new();
    for order in ORDERS {
        for policy in [BIGGEST, COST] {
            cells.push(bench.cell(of_order(order, policy))?);
            cells.push(counted::cell(bench, counted_of_order(order, policy)));
        }
    }
    Ok(Figure::new("9-order", "Figure 9: order of the tree", cells, |outcomes| {
        let mut drawing = Drawing::default();
        for (title, value) in [("Page writes", WRITES), ("Page reads", READS)] {
            let mut series = Vec::new();
            for policy in [BIGGEST, COST] {
                let ours =
                    ORDERS.map(|order| outcomes.value(&of_order(order, policy).name(), value));
                let counted = ORDERS
                    .map(|order| outcomes.value(&counted_of_order(order, policy).name(), value));
                for (name, values) in [("", ours), (", counted", counted)] {
                    let values = values.into_iter().collect::<Result<_, _>>()?;
                    series.push(Series { name: format!("{policy}{name}"), values });
                }
            }
            let axis = Axis::Numbers(ORDERS.map(|order| order as f64).to_vec());
            let (title, y, x) =
                (title.to_owned(), String::from("pages"), String::from("order of the tree"));
            drawing.panel(Panel { title, y, x, axis, series });
        }
        for (order, claimed) in [(32, -0.085), (ORDER, -0.043)] {
            let item = format!("writes, cost against biggest, order {order}");
            let ours = [BIGGEST, COST]
                .map(|policy| outcomes.value(&of_order(order, policy).name(), WRITES));
            let counted = [BIGGEST, COST]
                .map(|policy| outcomes.value(&counted_of_order(order, policy).name(), WRITES));
            for (end, [biggest, cost]) in [("", ours), (", counted", counted)] {
                let values = [change(biggest?, cost?)];
                drawing.claim(format!("{item}{end}"), &Claim::Change(claimed), &values);
            }
        }
        Ok(drawing)
    }))
}

/// The approaches of figure 11, none first.
const APPROACHES: [(&str, SuperGroup, Together); 3] = [
    ("none", SuperGroup::Off, Together::Off),
    ("approach 1", SuperGroup::Victim, Together::Victim),
    ("approach 2", SuperGroup::All, Together::All),
];

fn with_super_group(dialect: Dialect, super_group: SuperGroup) -> Setup {
    Setup { super_group, ..Setup::new(dialect, COST) }
}

fn counted_with(dialect: Dialect, together: Together) -> Counted {
    Counted { together, ..Counted::new(dialect, COST) }
}

/// Figure 11.
pub(super) fn super_groups(bench: &Bench) -> Result<Figure, ReproduceError> {
    let mut cells = Vec::new();
    for (_, _, dialect) in WORKLOADS {
        for (_, super_group, together) in APPROACHES {
            cells.push(bench.cell(with_super_group(dialect, super_group))?);
            cells.push(counted::cell(bench, counted_with(dialect, together)));
        }
    }
    Ok(Figure::new("11-super-group", "Figure 11: super groups", cells, |outcomes| {
        let mut drawing = Drawing::default();
        for (title, value) in [("Page writes", WRITES), ("Page reads", READS)] {
            let mut series = Vec::new();
            for (name, super_group, together) in APPROACHES {
                let ours = WORKLOADS.map(|(_, _, dialect)| {
                    outcomes.value(&with_super_group(dialect, super_group).name(), value)
                });
                let counted = WORKLOADS.map(|(_, _, dialect)| {
                    outcomes.value(&counted_with(dialect, together).name(), value)
                });
                for (end, values) in [("", ours), (", counted", counted)] {
                    let values = values.into_iter().collect::<Result<Vec<f64>, _>>()?;
                    series.push(Series { name: format!("{name}{end}"), values });
                }
            }
            // None, as measured and counted, stands before each approach.
            for (place, approach) in [(2, 1), (4, 2)] {
                for (end, kind) in [("", 0), (", counted", 1)] {
                    let (base, ours) = (&series[kind].values, &series[place + kind].values);
                    let pairs = base.iter().zip(ours);
                    let changes: Vec<f64> =
                        pairs.map(|(base, ours)| change(*base, *ours)).collect();
                    let (item, claim) = match (value, approach) {
                        (WRITES, 1) => ("writes", Claim::ChangeBetween(-0.025, -0.104)),
                        (WRITES, _) => ("writes", Claim::ChangeBetween(-0.068, -0.127)),
                        (_, 1) => ("reads", Claim::NoChange),
                        _ => ("reads", Claim::ChangeBetween(0.11, 0.48)),
                    };
                    drawing.claim(format!("{item}, approach {approach}{end}"), &claim, &changes);
                }
            }
            drawing.panel(Panel {
                title: title.to_owned(),
                y: String::from("pages"),
                x: String::from("workload"),
                axis: Axis::Names(WORKLOADS.map(|(_, _, dialect)| dialect.to_string()).to_vec()),
                series,
            });
        }
        Ok(drawing)
    }))
}
