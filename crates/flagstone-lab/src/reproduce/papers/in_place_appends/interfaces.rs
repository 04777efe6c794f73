//! Both interfaces: appends that the host asks for, and whole pages that a drive recognises as appends.
//!
//! The paper's scenarios 2 and 3. The native interface is the space floor on the chips themselves,
//! which programs a slot of a page. The conventional one is a drive of the same chips, whose
//! translation layer gets an address and a whole page, and compares it with the page it holds
//! (`flagstone-nand`, rule H6). The drive collects by itself and keeps 7 % of its pages in reserve,
//! which come on top; the host reads a page again before it overwrites it, since its frame holds
//! only the changed version.

use flagstone_nand::Profile;

use super::super::super::ReproduceError;
use super::super::super::cell::{Cell, Outcomes};
use super::super::super::figure::{Axis, Drawing, Figure, Panel, Series};
use super::super::super::rule::{Claim, change};
use super::{Column, ODD, PSLC, SLOT_SIZE, Sizes, tpcb};

/// Variants: name, preset, and whether the device is a drive.
const WAYS: [(&str, &str, bool); 4] = [
    ("[0x0] native", "ipa-0x0", false),
    ("[2x4] native", "ipa-2x4", false),
    ("[0x0] conventional", "ipa-0x0", true),
    ("[2x4] conventional", "ipa-2x4", true),
];
const MODES: [(&str, Column); 2] = [("pSLC", PSLC), ("odd-MLC", ODD)];

/// The figure, all of it in steady state.
pub(super) fn figure(sizes: &Sizes, seed: u64) -> Result<Figure, ReproduceError> {
    let pairs = MODES.iter().flat_map(|(mode, column)| {
        WAYS.iter().map(move |(way, preset, is_drive)| (*mode, column, *way, *preset, *is_drive))
    });
    let cells = pairs.map(|(mode, column, way, preset, is_drive)| {
        let (mut config, options) = tpcb(sizes, &Column { preset, ..*column }, seed)?;
        if is_drive {
            let dies = config.profile.geometry.die_count;
            config.profile = Profile::named(&format!("{}-ssd", column.profile))?;
            config.profile.geometry.die_count = dies;
        }
        config.txns = sizes.steady_txns;
        Ok(Cell::bench(format!("{way} {mode}"), config, options))
    });
    let cells = cells.collect::<Result<_, ReproduceError>>()?;
    Ok(Figure::new("interfaces", "Native and conventional interface, steady state", cells, draw))
}

/// Costs of a transaction.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// Programs of the chips.
    programs: f64,
    /// Of these, in place.
    appends: f64,
    /// Pages moved by collection, in the host or in the drive.
    moves: f64,
    erases: f64,
    /// Pages read, by the host and in the drive.
    reads: f64,
    /// Bytes that the host sends.
    host_bytes: f64,
    tps: f64,
}

impl Costs {
    fn of(outcomes: &Outcomes, cell: &str, page_size: f64) -> Result<Self, ReproduceError> {
        let commits = outcomes.value(cell, "commits")?;
        let value = |name: &str| Ok::<_, ReproduceError>(outcomes.value(cell, name)? / commits);
        let inside = |name: &str| value(&format!("translation.{name}"));
        let is_drive = inside("host_writes").is_ok();
        let cause = |name: &str| value(&format!("programs_by_cause.{name}"));
        let whole = cause("log")? + cause("data")? + cause("metadata")?;
        let (appends, host_bytes) = match is_drive {
            true => (inside("appends")?, page_size * inside("host_writes")?),
            false => {
                let appends = cause("delta")?;
                (appends, page_size * whole + SLOT_SIZE * appends)
            }
        };
        Ok(Self {
            programs: value("page_programs")? + value("partial_programs")?,
            appends,
            moves: value("gc_migrations")? + inside("gc_programs").unwrap_or(0.0),
            erases: value("block_erases")?,
            reads: value("page_reads")?,
            host_bytes,
            tps: outcomes.value(cell, "tps")?,
        })
    }
}

/// Title, unit and value of a chart.
type Value = (&'static str, &'static str, fn(&Costs) -> f64);

const VALUES: [Value; 7] = [
    ("Programs of the chips", "a transaction", |costs| costs.programs),
    ("Programs in place", "a transaction", |costs| costs.appends),
    ("Pages moved by collection", "a transaction", |costs| costs.moves),
    ("Erases", "a thousand transactions", |costs| 1000.0 * costs.erases),
    ("Page reads", "a transaction", |costs| costs.reads),
    ("Sent by the host", "KiB a transaction", |costs| costs.host_bytes / 1024.0),
    ("Throughput", "transactions a second of device time", |costs| costs.tps),
];

fn draw(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let mut all = Vec::new();
    for (mode, column) in MODES {
        let page_size = f64::from(Profile::named(column.profile)?.geometry.page_size);
        let costs =
            WAYS.map(|(way, _, _)| Costs::of(outcomes, &format!("{way} {mode}"), page_size));
        let costs = costs.into_iter().collect::<Result<Vec<_>, _>>()?;
        let [_, native, plain, conventional] = costs[..] else { continue };
        // "Both IPA scenarios result in the same reduction of GC overhead."
        let moves = change(native.moves, conventional.moves);
        drawing.claim(format!("pages moved, {mode}, against native"), &Claim::NoChange, &[moves]);
        let erases = change(native.erases, conventional.erases);
        drawing.claim(format!("erases, {mode}, against native"), &Claim::NoChange, &[erases]);
        let sent = conventional.host_bytes / plain.host_bytes - 1.0;
        let item = format!("sent by the host, {mode}, against a drive without appends");
        drawing.claim(item, &Claim::NoChange, &[sent]);
        all.push((mode, costs));
    }
    for (title, y, value) in VALUES {
        let series = all.iter().map(|(mode, costs)| Series {
            name: (*mode).to_owned(),
            values: costs.iter().map(value).collect(),
        });
        drawing.panel(Panel {
            title: title.to_owned(),
            y: y.to_owned(),
            x: String::from("interface"),
            axis: Axis::Names(WAYS.map(|(way, _, _)| way.to_owned()).to_vec()),
            series: series.collect(),
        });
    }
    Ok(drawing)
}

#[cfg(test)]
mod tests {
    use super::super::super::super::cell::run_all;
    use super::*;

    /// Goal: a drive that sees only whole pages appends as a host does that asks for appends.
    /// Method: the figure on two branches; prints the measurements.
    #[test]
    fn both_interfaces_append_alike() {
        let sizes = Sizes { branches: 2, dies: 1, steady_txns: 3_000 };
        let figure = figure(&sizes, 1).unwrap();
        let cells: Vec<&Cell> = figure.cells.iter().collect();
        let outcomes = run_all(&cells, 2, Outcomes::default(), None, &|_, _| ()).unwrap();
        for (mode, _) in MODES {
            let costs = WAYS.map(|(way, _, _)| {
                Costs::of(&outcomes, &format!("{way} {mode}"), 16_384.0).unwrap()
            });
            for ((way, _, _), costs) in WAYS.iter().zip(&costs) {
                println!("{mode} {way}: {costs:?}");
            }
            let [whole, native, plain, conventional] = costs;
            assert_eq!(whole.appends, 0.0, "{mode}");
            assert!(conventional.appends > 0.7 * native.appends, "{mode}: {conventional:?}");
            // Sectors of the log that fill a page one after the other: a drive cannot tell them apart.
            assert!(conventional.appends > 1.5 * plain.appends, "{mode}: {plain:?}");
            assert!(conventional.moves < plain.moves, "{mode}: {conventional:?}");
            assert!(native.host_bytes < conventional.host_bytes, "{mode}: {native:?}");
        }
    }
}
