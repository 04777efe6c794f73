//! The steps that a workload had begun and done at a place of its record, and the tables after each of its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use anyhow::{Context as _, ensure};

use super::disk::mix;
use super::script::{Script, Step, Tables};

/// How far the steps of each chain had come.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    chains: Vec<Chain>,
}

#[derive(Clone, Debug, Default)]
struct Chain {
    /// Events at which its steps began, and were done.
    begun_at: Vec<usize>,
    done_at: Vec<usize>,
    /// Steps that a cut cannot take.
    durable: usize,
    /// Finished steps with a promise.
    promises: usize,
}

impl Progress {
    pub(super) fn new(script: &Script) -> Self {
        Self { chains: vec![Chain::default(); script.chain_count()] }
    }

    /// Takes a mark in.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn take(&mut self, mark: &str, at: usize, script: &Script) -> anyhow::Result<()> {
        let words: Vec<&str> = mark.split(' ').collect();
        let [what, chain, step] = words[..] else { anyhow::bail!("mark `{mark}`") };
        let (number, step): (usize, usize) = (chain.parse()?, step.parse()?);
        let chain = self.chains.get_mut(number).context("a mark of no chain")?;
        let list = if what == "begin" { &mut chain.begun_at } else { &mut chain.done_at };
        ensure!(list.len() == step, "mark `{mark}` comes out of order");
        list.push(at);
        let done = &script.chain(number)[step];
        if what == "done" && done.is_durable() {
            chain.durable = step + 1;
        }
        if what == "done" && !promises_nothing(done) {
            chain.promises += 1;
        }
        Ok(())
    }

    /// Takes in the progress of chain 0 alone, of which only steps with a promise are told.
    pub(super) fn reached(&mut self, is_done: bool, step: usize, script: &Script) {
        let steps = script.chain(0);
        let promising = |step: &Step| !promises_nothing(step);
        let next = || steps.iter().skip(step + 1).position(promising).map(|next| step + 1 + next);
        let begun = if is_done { next().unwrap_or(steps.len()) } else { step + 1 };
        let done = step + usize::from(is_done);
        let durable = steps[..done].iter().rposition(Step::is_durable);
        let durable = durable.map_or(0, |last| last + 1);
        // Steps that were not told promise nothing.
        let (begun_at, done_at) = (vec![0; begun], vec![0; done]);
        self.chains[0] = Chain { begun_at, done_at, durable, promises: done };
    }

    pub(super) fn begun(&self, chain: usize) -> usize {
        self.chains[chain].begun_at.len()
    }

    pub(super) fn done(&self, chain: usize) -> usize {
        self.chains[chain].done_at.len()
    }

    pub(super) fn durable(&self, chain: usize) -> usize {
        self.chains[chain].durable
    }

    /// Steps of `chain` that were done before step `step` of chain `other` began.
    pub(super) fn done_before(&self, chain: usize, other: usize, step: usize) -> usize {
        let Some(begun) = self.chains[other].begun_at.get(step) else { return 0 };
        self.chains[chain].done_at.partition_point(|done| done < begun)
    }

    /// A hash of the steps that must be there: it tells apart states with equal bytes and different demands.
    pub(super) fn demand(&self) -> u64 {
        self.chains.iter().fold(0, |hash, chain| mix(hash, chain.promises as u64))
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for number in 0..self.chains.len() {
            let (durable, done, begun) =
                (self.durable(number), self.done(number), self.begun(number));
            writeln!(f, "chain {number}: {durable} steps durable, {done} done, {begun} begun")?;
        }
        Ok(())
    }
}

/// Whether a power cut may undo a step.
pub(super) fn promises_nothing(step: &Step) -> bool {
    !step.is_durable() && matches!(step, Step::Commit { .. } | Step::Abort(_))
}

/// Snapshots that may be kept at a place: by name, with the step of chain 0 that kept each.
pub(super) type Kept = BTreeMap<String, usize>;

/// Tables after each step, made on demand.
#[derive(Debug)]
pub(super) struct History<'a> {
    script: &'a Script,
    chains: Vec<BTreeMap<usize, Rc<Tables>>>,
    /// Steps of chain 0 whose tables are needed for long.
    pinned: BTreeSet<usize>,
}

impl<'a> History<'a> {
    pub(super) fn new(script: &'a Script) -> Self {
        let start = || BTreeMap::from([(0, Rc::default())]);
        let pinned = script.chain(0).iter().enumerate().filter_map(|(index, step)| {
            matches!(step, Step::Keep(_) | Step::Backup(_)).then_some(index)
        });
        let pinned = pinned.collect();
        Self { script, chains: vec![start(); script.chain_count()], pinned }
    }

    /// Tables of a chain after its first `count` steps.
    ///
    /// # Errors
    /// The tables were given up.
    pub(super) fn after(&mut self, chain: usize, count: usize) -> anyhow::Result<Rc<Tables>> {
        let known = &mut self.chains[chain];
        let newest = known.range(..=count).next_back().map(|(at, tables)| (*at, Rc::clone(tables)));
        let (mut at, mut tables) = newest.context("tables that were given up")?;
        while at < count {
            let mut next = (*tables).clone();
            next.apply(chain, at, &self.script.chain(chain)[at]);
            at += 1;
            tables = Rc::new(next);
            known.insert(at, Rc::clone(&tables));
        }
        Ok(tables)
    }

    /// Gives up the tables that no state from here on can show.
    ///
    /// # Errors
    /// None that can occur.
    pub(super) fn give_up(&mut self, progress: &Progress) -> anyhow::Result<()> {
        for chain in 0..self.chains.len() {
            let durable = progress.durable(chain);
            self.after(chain, durable)?;
            let pinned = |count: &usize| chain == 0 && self.pinned.contains(count);
            self.chains[chain].retain(|count, _| *count >= durable || pinned(count));
        }
        Ok(())
    }

    /// Snapshots after the first steps of chain 0.
    pub(super) fn kept_after(&self, count: usize) -> Kept {
        let mut kept = Kept::new();
        for (index, step) in self.script.chain(0)[..count].iter().enumerate() {
            match step {
                Step::Keep(name) => drop(kept.insert(name.clone(), index)),
                Step::Forget(name) => drop(kept.remove(name)),
                _ => {}
            }
        }
        kept
    }
}
