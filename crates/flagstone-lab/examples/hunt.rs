//! Plants each deliberate bug in turn and looks for it: the proof that the crash explorer sees.
//!
//! ```sh
//! cargo run --release -p flagstone-lab --features seeded-bugs --example hunt -- [BUG]... [--rounds N] [--in WAY]
//! ```
//!
//! Without names all bugs are hunted, and without `--in`, which takes part of a name, in every way; a
//! bug that is not found ends the program with exit code 1.

#[cfg(feature = "seeded-bugs")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use flagstone_lab::crash::hunt::{Quarry, head, hunt_in, line};

    // A panic is a finding that the harness catches and reports.
    std::panic::set_hook(Box::new(|_| ()));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (mut rounds, mut way) = (1, "");
    let mut names = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => rounds = words.next().ok_or("--rounds needs a number")?.parse()?,
            "--in" => way = words.next().ok_or("--in needs a way of looking")?,
            name if Quarry::all().iter().any(|quarry| quarry.name() == name) => names.push(name),
            name => return Err(format!("no bug is called `{name}`").into()),
        }
    }
    let is_asked = |quarry: &Quarry| names.is_empty() || names.contains(&quarry.name().as_str());
    let mut missed = 0;
    println!("{}", head());
    for quarry in Quarry::all().into_iter().filter(is_asked) {
        let found = hunt_in(way, quarry, rounds)?;
        missed += usize::from(found.by.is_none());
        println!("{}", line(&found));
    }
    if missed > 0 {
        return Err(format!("{missed} not found").into());
    }
    Ok(())
}

#[cfg(not(feature = "seeded-bugs"))]
fn main() {
    eprintln!("no bugs are planted: build with `--features seeded-bugs`");
}
