//! Tables that come and go, and snapshots that are kept, beside the numbered transactions.
//!
//! One thread does chores, one after the other. So a killed process leaves at most its last chore in doubt, whose
//! effect is there as a whole or not at all. Only a load may be there in part.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use anyhow::{Context as _, ensure};

use super::draw::Draw;
use super::ledger::{Bounds, Ledger, Numbers};
use super::plan::Plan;
use super::said::{Chore, LIVE, Said};
use super::script::{BANK, Contents, Rows, same};

/// Tables of chores begin like this.
pub(crate) const SCRATCH: &str = "scratch";

/// Contents of a database: its own, and of each kept snapshot.
pub(crate) type Found = BTreeMap<String, Contents>;

/// Contents that a snapshot or backup has to show.
#[derive(Clone, Debug)]
enum Moment {
    /// Some state between two moments of the ledger's transactions, and these tables.
    Open { bounds: Bounds, scratch: Contents },
    /// A state that was looked at before.
    Known(u64),
}

/// Tables and snapshots that have to be there.
#[derive(Clone, Debug, Default)]
struct State {
    kept: BTreeMap<String, Moment>,
    scratch: Contents,
}

/// Effects of the chores, and the chore in doubt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras {
    state: State,
    doubt: Option<(Chore, Bounds)>,
    /// Backups since the last look, the one in doubt among them.
    backups: Vec<Backup>,
}

/// The file of a backup.
#[derive(Clone, Debug)]
pub(crate) struct Backup {
    pub(crate) name: String,
    /// Whether it was written to its end.
    pub(crate) is_whole: bool,
    moment: Moment,
}

/// Rows that a chore puts in a table; a rename does not change them.
pub(crate) fn scratch_rows(plan: &Plan, name: &str) -> Rows {
    let number = name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    let mut draw = Draw::of(&[plan.seed, plan.life, 5, number]);
    let count = draw.pick(&[3, 50, 400]);
    let size = draw.pick(&[10, 200]);
    (0..count).map(|row: u64| (row.to_be_bytes().to_vec(), draw.bytes(size))).collect()
}

impl State {
    /// The state after a complete chore.
    fn after(&self, plan: &Plan, chore: &Chore, bounds: &Bounds) -> Self {
        let mut state = self.clone();
        match chore {
            Chore::Keep(name) => {
                let moment = Moment::Open { bounds: bounds.clone(), scratch: self.scratch.clone() };
                state.kept.insert(name.clone(), moment);
            }
            Chore::Forget(name) => drop(state.kept.remove(name)),
            Chore::Make(name) => drop(state.scratch.insert(name.clone(), Rows::new())),
            Chore::Fill(name) | Chore::Load(name) => {
                state.scratch.insert(name.clone(), scratch_rows(plan, name));
            }
            Chore::Rename(from, to) => {
                let rows = state.scratch.remove(from).unwrap_or_default();
                state.scratch.insert(to.clone(), rows);
            }
            Chore::Drop(name) => drop(state.scratch.remove(name)),
            Chore::Flush | Chore::Merge | Chore::Close | Chore::Compact | Chore::Backup(_) => {}
        }
        state
    }

    /// Requires that the tables and snapshots found are these.
    fn require(&self, found: &Found) -> anyhow::Result<()> {
        let names: Vec<_> = found.keys().filter(|name| *name != LIVE).collect();
        let kept: Vec<_> = self.kept.keys().collect();
        ensure!(names == kept, "kept snapshots {names:?} instead of {kept:?}");
        let contents = found.get(LIVE).context("the database itself")?;
        same_tables(&self.scratch, contents)
    }
}

/// Requires that the tables of chores are these.
fn same_tables(expected: &Contents, contents: &Contents) -> anyhow::Result<()> {
    let found: Vec<_> = contents.keys().filter(|name| name.starts_with(SCRATCH)).collect();
    let names: Vec<_> = expected.keys().collect();
    ensure!(found == names, "tables {found:?} instead of {names:?}");
    for (name, rows) in expected {
        same(rows, &contents[name]).with_context(|| format!("table {name}"))?;
    }
    let other =
        |name: &&String| !name.starts_with(SCRATCH) && !name.starts_with("rows-") && *name != BANK;
    ensure!(!contents.keys().any(|name| other(&name)), "a table that nobody made");
    Ok(())
}

impl Extras {
    /// Takes in a message about chores; the ledger has heard it already.
    pub(crate) fn hear(&mut self, plan: &Plan, said: &Said, ledger: &Ledger) {
        match said {
            // A compaction changes no rows, and comes before the doubt that the last process left is resolved.
            Said::Chore(Chore::Compact) => {}
            Said::Chore(chore) => {
                let mut bounds = ledger.bounds();
                if let Chore::Backup(name) = chore {
                    // A backup has the commits that were durable when it began.
                    bounds = ledger.bounds_of_durable();
                    let scratch = self.state.scratch.clone();
                    let moment = Moment::Open { bounds: bounds.clone(), scratch };
                    self.backups.push(Backup { name: name.clone(), is_whole: false, moment });
                }
                self.doubt = Some((chore.clone(), bounds));
            }
            Said::ChoreDone => self.done(plan, ledger),
            _ => {}
        }
    }

    fn done(&mut self, plan: &Plan, ledger: &Ledger) {
        let Some((chore, mut bounds)) = self.doubt.take() else { return };
        bounds.most = ledger.begun_numbers();
        self.state = self.state.after(plan, &chore, &bounds);
        if let (Chore::Backup(_), Some(backup)) = (chore, self.backups.last_mut()) {
            backup.is_whole = true;
            if let Moment::Open { bounds: of_backup, .. } = &mut backup.moment {
                of_backup.most = bounds.most;
            }
        }
    }

    pub(crate) fn take_backups(&mut self) -> Vec<Backup> {
        std::mem::take(&mut self.backups)
    }

    /// Requires that a database shows the effects of the chores: its tables, and each snapshot. Gives the state with
    /// the doubt resolved.
    ///
    /// # Errors
    /// The promise that is broken.
    pub(crate) fn judge(
        &self,
        plan: &Plan,
        found: &Found,
        numbers: &Numbers,
        ledger: &Ledger,
    ) -> anyhow::Result<Self> {
        let mut state = self.state.clone();
        match (state.require(found), &self.doubt) {
            (Ok(()), _) => {}
            (Err(error), None) => return Err(error),
            (Err(_), Some((chore, bounds))) => {
                let bounds = Bounds { most: ledger.begun_numbers(), ..bounds.clone() };
                state = state.after(plan, chore, &bounds);
                if let Chore::Load(name) = chore {
                    let rows = found.get(LIVE).and_then(|contents| contents.get(name));
                    shorten(&mut state, name, rows.map_or(0, Rows::len));
                }
                let doubt = || format!("after `{chore}`, which was in doubt");
                state.require(found).with_context(doubt)?;
                let is_ordered =
                    numbers.iter().zip(&bounds.least).all(|(found, least)| found >= least);
                ensure!(
                    is_ordered || !chore.is_barrier(),
                    "`{chore}` is there, and commits are not that were acknowledged before it began: \
                     {numbers:?} instead of {:?} at least",
                    bounds.least
                );
            }
        }
        for (name, moment) in &mut state.kept {
            let contents = found.get(name).context("the snapshot")?;
            *moment = judge_moment(plan, moment, contents, ledger)
                .with_context(|| format!("snapshot {name}"))?;
        }
        Ok(Self { state, doubt: None, backups: Vec::new() })
    }
}

/// A load in doubt is there up to some row.
fn shorten(state: &mut State, name: &str, count: usize) {
    if let Some(rows) = state.scratch.get_mut(name)
        && let Some(end) = rows.keys().nth(count).cloned()
    {
        rows.split_off(&end);
    }
}

fn judge_moment(
    plan: &Plan,
    moment: &Moment,
    contents: &Contents,
    ledger: &Ledger,
) -> anyhow::Result<Moment> {
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    let hash = hasher.finish();
    match moment {
        Moment::Known(known) => ensure!(*known == hash, "it shows something else than before"),
        Moment::Open { bounds, scratch } => {
            ledger.judge(plan, contents, bounds)?;
            same_tables(scratch, contents)?;
        }
    }
    Ok(Moment::Known(hash))
}

impl Backup {
    /// Requires that `contents`, restored from this backup, are the contents of its moment.
    ///
    /// # Errors
    /// The promise that is broken.
    pub(crate) fn judge(
        &self,
        plan: &Plan,
        contents: &Contents,
        ledger: &Ledger,
    ) -> anyhow::Result<()> {
        judge_moment(plan, &self.moment, contents, ledger).map(drop)
    }
}
