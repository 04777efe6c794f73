//! Loading a database through the interface of its engine.

use flagstone::{Durability, EngineError};

use super::{BenchError, OnProgress, Phase, Progress};
use crate::store::Store;
use crate::workload::{Operations as _, Workload};

/// Rows of a commit while loading: few enough to stay within a small budget's uncommitted share.
const ROWS_PER_COMMIT: u64 = 200;

/// Loads the rows in key order, many a commit; all of it is durable when this returns.
pub(crate) fn load<S: Store, W: Workload>(
    store: &S,
    workload: &W,
    on_progress: OnProgress<'_>,
) -> Result<W::Tables, BenchError> {
    let tables = open_tables(store, workload)?;
    let total = workload.row_count();
    let mut transaction = Some(store.begin());
    let mut done = 0;
    workload.load(tables, &mut |table, key, value| {
        transaction.get_or_insert_with(|| store.begin()).put(table, key, value)?;
        done += 1;
        if done % ROWS_PER_COMMIT == 0 && done < total {
            commit(store, transaction.take(), Durability::Deferred)?;
            report(on_progress, Phase::Load, done, total);
        }
        Ok(())
    })?;
    commit(store, transaction, Durability::Immediate)?;
    report(on_progress, Phase::Load, done, total);
    Ok(tables)
}

fn commit<S: Store>(
    store: &S,
    transaction: Option<S::Transaction>,
    durability: Durability,
) -> Result<(), EngineError> {
    transaction.map_or(Ok(()), |transaction| store.commit(transaction, durability))
}

/// Tells how far a stage has come.
pub(crate) fn report(on_progress: OnProgress<'_>, phase: Phase, done: u64, total: u64) {
    on_progress(Progress { phase, done, total });
}

/// Opens the tables, making those that are absent.
pub(crate) fn open_tables<S: Store, W: Workload>(
    store: &S,
    workload: &W,
) -> Result<W::Tables, EngineError> {
    workload.tables(|name| store.table(name))
}
