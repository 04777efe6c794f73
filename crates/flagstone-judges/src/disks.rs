//! Disks as the kernel makes them.

/// What the judge is asked for.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// Judges, and says what was found.
///
/// # Errors
/// A promise that is broken, or a judge that could not work.
pub(crate) fn run(_arguments: &Arguments) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}
