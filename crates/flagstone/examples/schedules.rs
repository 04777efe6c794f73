//! Schedules of threads that a scheduler draws at every latch (row E3 of the scoreboard).
//!
//! ```sh
//! RUSTFLAGS="--cfg shuttle" cargo run --release --target-dir target/shuttle -p flagstone \
//!     --features seeded-bugs --example schedules -- --schedules 1000000
//! ```
//!
//! `--first N` begins with a later batch of 500, `--bug NAME` plants a bug of the engine, which must then be
//! found: exit code 1 where anything fails, or where a planted bug is not found.

#[cfg(all(shuttle, feature = "seeded-bugs"))]
#[path = "schedules/bank.rs"]
mod bank;

#[cfg(all(shuttle, feature = "seeded-bugs"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use flagstone::SeededBug;

    let words: Vec<String> = std::env::args().skip(1).collect();
    let (mut count, mut first, mut bug) = (10_000, 0, None);
    let mut threads = std::thread::available_parallelism()?.get();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--schedules" => count = value.parse::<u64>()?,
            "--first" => first = value.parse()?,
            "--threads" => threads = value.parse()?,
            "--bug" => {
                let mut all = SeededBug::ALL.into_iter();
                let named = all.find(|bug| format!("{bug:?}") == *value);
                bug = Some(named.ok_or("there is no such bug")?);
            }
            other => return Err(format!("`{other}` is not known").into()),
        }
    }
    let begun = std::time::Instant::now();
    let batches = first..first + count.div_ceil(bank::BATCH);
    let found = bank::run(batches, threads, bug)?;
    found.failures.iter().for_each(|failure| eprintln!("{failure}"));
    println!("{}", bank::line(&found, begun.elapsed().as_secs_f64()));
    match (bug, found.failures.is_empty()) {
        (None, true) | (Some(_), false) => Ok(()),
        (None, false) => Err("schedules fail".into()),
        (Some(bug), true) => Err(format!("{bug:?} was not found").into()),
    }
}

#[cfg(not(all(shuttle, feature = "seeded-bugs")))]
fn main() {
    eprintln!("build with `RUSTFLAGS=\"--cfg shuttle\"` and `--features seeded-bugs`");
}
