//! Tables, transactions, snapshots and savepoints on a plain file.
//!
//! `cargo run --release -p flagstone --example basics`

use std::ops::Bound;

use flagstone::{Database, Error, Options, Table};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("flagstone-basics-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let path = directory.join("shop.db");

    let db = Database::create(&path, &Options::default())?;
    let stock = db.table("stock")?;
    fill(&db, stock)?;
    move_stock(&db, stock, b"apples", b"pears", 5)?;
    try_and_take_back(&db, stock)?;
    db.close()?;

    // All committed rows are there again.
    let db = Database::open(&path, &Options::default())?;
    let stock = db.table("stock")?;
    let from_n: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(b"n"), Bound::Unbounded);
    let snapshot = db.snapshot()?;
    for row in snapshot.range(stock, from_n) {
        let (key, value) = row?;
        println!("{} {}", key.escape_ascii(), value.escape_ascii());
    }
    db.close()?;
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

/// Several rows, one transaction: all rows are there or none.
fn fill(db: &Database, stock: Table) -> Result<(), Error> {
    let mut txn = db.begin();
    for (fruit, count) in [("apples", 12), ("nuts", 40), ("pears", 7)] {
        txn.put(stock, fruit.as_bytes(), count.to_string().as_bytes())?;
    }
    txn.commit()?;
    Ok(())
}

/// Reads two counts, then writes new ones: serializable, so no count is ever lost. A deadlock ends one of the
/// transactions, which begins again.
fn move_stock(
    db: &Database,
    stock: Table,
    from: &[u8],
    to: &[u8],
    count: i64,
) -> Result<(), Error> {
    loop {
        match move_once(db, stock, from, to, count) {
            Err(error) if error.is_retryable() => {}
            result => return result,
        }
    }
}

fn move_once(db: &Database, stock: Table, from: &[u8], to: &[u8], count: i64) -> Result<(), Error> {
    let mut txn = db.begin();
    for (fruit, change) in [(from, -count), (to, count)] {
        let old = txn.get(stock, fruit)?.unwrap_or_default();
        let old: i64 = String::from_utf8_lossy(&old).parse().unwrap_or(0);
        txn.put(stock, fruit, (old + change).to_string().as_bytes())?;
    }
    txn.commit()?;
    Ok(())
}

/// A savepoint takes back part of a transaction; the rest commits.
fn try_and_take_back(db: &Database, stock: Table) -> Result<(), Error> {
    let mut txn = db.begin();
    txn.put(stock, b"quinces", b"3")?;
    let savepoint = txn.savepoint()?;
    txn.delete(stock, b"nuts")?;
    txn.rollback_to(savepoint)?;
    txn.commit()?;
    Ok(())
}
