//! Messages about the transactions of one process, and the numbers that may be found after it.
//!
//! - **L1** Every transaction acknowledged as durable is there.
//! - **L2** A transaction acknowledged in any way is there if a later transaction or chore is there, or was durable
//!   when it returned: commits are there in their order.
//! - **L3** Only transactions that had begun are there, each as a whole: [`Model`] compares every byte.

use anyhow::{Context as _, ensure};

use super::plan::Plan;
use super::said::Said;
use super::script::{Appetite, Contents, Model, numbers};

/// Numbers of last transactions, one of each thread.
pub(crate) type Numbers = Vec<u64>;

/// A transaction that began.
#[derive(Clone)]
struct Begun {
    appetite: Appetite,
    /// Transactions acknowledged by then.
    acked_before: Numbers,
}

/// Transactions since a known state.
#[derive(Clone)]
pub(crate) struct Ledger {
    /// Rows of that state.
    base: Model,
    begun: Vec<Vec<Begun>>,
    acked: Numbers,
    /// Numbers that must be there at least (L1, L2).
    durable: Numbers,
    /// Numbers that must be there once the present chore has returned.
    chore_floor: Option<Numbers>,
}

/// Bounds of the numbers that a snapshot shows.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) least: Numbers,
    pub(crate) most: Numbers,
}

impl Ledger {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self::after(Model::new(plan))
    }

    fn after(base: Model) -> Self {
        let numbers = base.numbers.clone();
        let begun = numbers.iter().map(|_| Vec::new()).collect();
        Self { base, begun, acked: numbers.clone(), durable: numbers, chore_floor: None }
    }

    /// Takes in a message about transactions and chores.
    ///
    /// # Errors
    /// A number that does not come next.
    pub(crate) fn hear(&mut self, said: &Said) -> anyhow::Result<()> {
        match said {
            Said::Begun { thread, number, appetite } => {
                let index = usize::from(*thread);
                let acked_before = self.acked.clone();
                let begun = &mut self.begun[index];
                let next = self.base.numbers[index] + begun.len() as u64 + 1;
                if number + 1 == next {
                    begun.pop();
                }
                ensure!(number + 1 == next || *number == next, "{said}, while {next} comes next");
                begun.push(Begun { appetite: *appetite, acked_before });
            }
            Said::Done { thread, is_durable } => self.done(usize::from(*thread), *is_durable)?,
            Said::Chore(chore) => {
                self.chore_floor = chore.is_barrier().then(|| self.acked.clone());
            }
            Said::ChoreDone => {
                if let Some(floor) = self.chore_floor.take() {
                    raise(&mut self.durable, &floor);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn done(&mut self, index: usize, is_durable: bool) -> anyhow::Result<()> {
        let begun = self.begun[index].last().context("done before it began")?;
        self.acked[index] = self.base.numbers[index] + self.begun[index].len() as u64;
        if is_durable {
            raise(&mut self.durable, &begun.acked_before);
            self.durable[index] = self.acked[index];
        }
        Ok(())
    }

    /// From all acknowledged transactions to all that have begun.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { least: self.acked.clone(), most: self.begun_numbers() }
    }

    /// From all durable transactions to all that have begun.
    pub(crate) fn bounds_of_durable(&self) -> Bounds {
        Bounds { least: self.durable.clone(), most: self.begun_numbers() }
    }

    pub(crate) fn begun_numbers(&self) -> Numbers {
        let known = self.base.numbers.iter().zip(&self.begun);
        known.map(|(base, begun)| base + begun.len() as u64).collect()
    }

    /// The state that `contents` show, if it is an allowed one.
    ///
    /// # Errors
    /// The promise that is broken.
    pub(crate) fn judge(
        &self,
        plan: &Plan,
        contents: &Contents,
        bounds: &Bounds,
    ) -> anyhow::Result<Model> {
        let found = numbers(plan, contents)?;
        let facts = || format!("found {found:?} within {bounds:?}, acknowledged {:?}", self.acked);
        let is_within = (0..found.len())
            .all(|thread| (bounds.least[thread]..=bounds.most[thread]).contains(&found[thread]));
        ensure!(is_within, "a transaction is lost, or one is there that never began: {}", facts());
        for (thread, number) in found.iter().enumerate() {
            let since = number.checked_sub(self.base.numbers[thread]);
            let since = since.with_context(|| format!("older than what was seen: {}", facts()))?;
            let Some(last) = since.checked_sub(1) else { continue };
            let before = &self.begun[thread][last as usize].acked_before;
            ensure!(
                found.iter().zip(before).all(|(found, before)| found >= before),
                "transaction {number} of thread {thread} is there, and one is not that had been \
                 acknowledged before it began: {}",
                facts()
            );
        }
        let model = self.model_at(plan, &found);
        model.require(plan, contents).with_context(facts)?;
        Ok(model)
    }

    fn model_at(&self, plan: &Plan, numbers: &Numbers) -> Model {
        let mut model = self.base.clone();
        for (thread, begun) in (0_u8..).zip(&self.begun) {
            let count = numbers[usize::from(thread)] - self.base.numbers[usize::from(thread)];
            for begun in begun.iter().take(count as usize) {
                model.advance(plan, thread, begun.appetite);
            }
        }
        model
    }

    /// Begins anew from a state seen in a database open for writing: this state stays.
    pub(crate) fn settle(&mut self, model: Model) {
        *self = Self::after(model);
    }
}

fn raise(numbers: &mut Numbers, least: &Numbers) {
    for (number, least) in numbers.iter_mut().zip(least) {
        *number = (*number).max(*least);
    }
}
