//! Whether a silent process hangs, or only has no processor: by the states of its threads, and by the processor
//! time that it was given.
//!
//! Each question means that another stretch of silence has passed.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// Stretches of silence that any process may take.
const SILENCES_MAX: u32 = 20;

/// Looks at the threads of a process, one behind the other: a thread that waits with a limit is awake for a moment now
/// and then.
const LOOKS: u32 = 10;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(23);

/// Ticks of processor time a second, as Linux counts them for `/proc`.
const TICKS: u64 = 100;

/// A process that says nothing, as it was seen last.
#[derive(Debug)]
pub(crate) struct Patience {
    pid: u32,
    /// Processor time after which it runs in circles, in ticks.
    spent_max: u64,
    /// Processor time at the beginning.
    begun: Option<u64>,
    silences: u32,
}

impl Patience {
    /// Patience with a process that may use so many seconds of processor time without a word.
    pub(crate) fn with(pid: u32, seconds: u64) -> Self {
        Self { pid, spent_max: seconds * TICKS, begun: ticks(pid), silences: 0 }
    }

    /// Whether the process hangs, now that it has been silent once more: all its threads wait, or it has
    /// used all its time. A process that could go on and was not let is slow.
    pub(crate) fn is_over(&mut self) -> bool {
        self.silences += 1;
        let (Some(spent), Some(begun)) = (ticks(self.pid), self.begun) else { return true };
        let is_waiting = || {
            (0..LOOKS).all(|_| {
                sleep(LOOK_EVERY);
                !wants_to_go_on(self.pid)
            })
        };
        spent - begun >= self.spent_max || self.silences >= SILENCES_MAX || is_waiting()
    }
}

/// Processor time of a process with all its threads; none where there is no such process, or no `/proc`.
fn ticks(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = fields_of(&text)?.skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Whether a thread of the process could run, or is held by its tracer or by a signal.
fn wants_to_go_on(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let text = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = fields_of(&text).and_then(|mut fields| fields.next().map(str::to_owned));
        state.is_some_and(|state| ["R", "T", "t", "D"].contains(&state.as_str()))
    })
}

/// Fields behind the name of a process, which may hold anything.
fn fields_of(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn run(command: &str) -> std::io::Result<Child> {
        let child = Command::new("sh").args(["-c", command]).spawn()?;
        sleep(Duration::from_millis(200));
        Ok(child)
    }

    /// Goal: a process that waits for ever hangs, and so does one that runs in circles; one that is not let go on does
    /// not. Method: one of each kind.
    #[test]
    fn only_processes_that_could_go_on_hang() {
        let mut asleep = run("exec sleep 1000").expect("a shell");
        let mut patience = Patience::with(asleep.id(), 60);
        let mut looks = (1..SILENCES_MAX).map(|_| {
            sleep(Duration::from_millis(100));
            patience.is_over()
        });
        assert!(looks.any(|over| over), "it waits");
        asleep.kill().expect("it is there");
        asleep.wait().expect("it ends");
        assert!(Patience::with(asleep.id(), 60).is_over(), "it is gone");

        let mut ticking = run("while :; do sleep 0.5; done").expect("a shell");
        let mut patience = Patience::with(ticking.id(), 60);
        let mut looks = (1..SILENCES_MAX).map(|_| patience.is_over());
        assert!(looks.any(|over| over), "it waits, and is awake for moments");
        ticking.kill().expect("it is there");
        ticking.wait().expect("it ends");

        let mut busy = run("while :; do :; done").expect("a shell");
        let mut patience = Patience::with(busy.id(), 0);
        assert!(patience.is_over(), "it has used its time");
        let mut patience = Patience::with(busy.id(), 1 << 20);
        assert!(!patience.is_over(), "it may be slow");
        let stop = Command::new("kill").args(["-STOP", &busy.id().to_string()]).status();
        assert!(stop.expect("a shell").success());
        sleep(Duration::from_millis(100));
        let mut patience = Patience::with(busy.id(), 1 << 20);
        let verdicts: Vec<bool> = (0..SILENCES_MAX).map(|_| patience.is_over()).collect();
        assert_eq!(verdicts.iter().position(|over| *over), Some(SILENCES_MAX as usize - 1));
        busy.kill().expect("it is there");
        busy.wait().expect("it ends");
    }
}
