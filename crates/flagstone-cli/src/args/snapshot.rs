//! Arguments of the commands on snapshots.

use clap::{Args, Subcommand};

use super::DatabaseArgs;

/// Commands on snapshots.
#[derive(Debug, Subcommand)]
pub(crate) enum RawSnapshot {
    /// Keep the database as it is now, durably.
    ///
    /// Every pending change is merged into its leaf for it, as by `merge`.
    #[command(after_help = "\
Examples:
  flagstone snapshot keep shop.db monday
  flagstone get shop.db users ada --snapshot monday
  flagstone backup shop.db monday.backup --snapshot monday")]
    Keep(SnapshotArgs),
    /// Print the names of the snapshots that are kept, oldest first.
    List(DatabaseArgs),
    /// Drop a snapshot, and free the pages that it alone needs.
    Drop(SnapshotArgs),
}

/// A snapshot of a database.
#[derive(Args, Debug)]
pub(crate) struct SnapshotArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Name of the snapshot.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}
