//! Loading a database through the interface of its engine.

use flagstone_engine::{Durability, EngineError};
use flagstone_nand::Nand as _;

use super::observe::{self, Moment, Observer, Sight};
use super::{BenchError, Phase, Progress};
use crate::store::Store;
use crate::workload::{Operations as _, Workload};

/// Rows of a commit while loading: few enough to stay within a small budget's uncommitted share.
const ROWS_PER_COMMIT: u64 = 200;

/// Loads the rows in key order, many a commit; all rows are durable when this returns.
pub(crate) fn load<S: Store, W: Workload>(
    store: &S,
    workload: &W,
    observer: &mut dyn Observer,
) -> Result<W::Tables, BenchError> {
    let tables = open_tables(store, workload)?;
    let total = workload.row_count();
    let mut transaction = Some(store.begin());
    let mut done = 0;
    let mut verdict = Ok(());
    let loaded = workload.load(tables, &mut |table, key, value| {
        transaction.get_or_insert_with(|| store.begin()).put(table, key, value)?;
        done += 1;
        if done % ROWS_PER_COMMIT == 0 && done < total {
            commit(store, transaction.take(), Durability::Deferred)?;
            verdict = show(observer, store, done, total);
        }
        // Any error ends the load; the verdict is reported.
        if verdict.is_ok() { Ok(()) } else { Err(EngineError::Ended) }
    });
    verdict?;
    loaded?;
    commit(store, transaction, Durability::Immediate)?;
    show(observer, store, done, total)?;
    Ok(tables)
}

/// Shows the database while it is loaded.
fn show<S: Store>(
    observer: &mut dyn Observer,
    store: &S,
    done: u64,
    total: u64,
) -> Result<(), BenchError> {
    let progress = Progress { phase: Phase::Load, done, total };
    let now_ns = store.with_device(|device| device.now_ns());
    observe::show(observer, &Moment { progress, commits: 0, now_ns, scene: Some(&Sight(store)) })
}

fn commit<S: Store>(
    store: &S,
    transaction: Option<S::Transaction>,
    durability: Durability,
) -> Result<(), EngineError> {
    transaction.map_or(Ok(()), |transaction| store.commit(transaction, durability))
}

/// Opens the tables, making the absent ones.
pub(crate) fn open_tables<S: Store, W: Workload>(
    store: &S,
    workload: &W,
) -> Result<W::Tables, EngineError> {
    workload.tables(|name| store.table(name))
}
