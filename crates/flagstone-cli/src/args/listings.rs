//! Arguments of the commands that print lists.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `profiles`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone profiles                     what there is
  flagstone profiles slc-2k > own.toml   a profile to change, for --profile own.toml")]
pub(crate) struct ProfilesArgs {
    /// Print this profile as the TOML file that `--profile` takes.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// Arguments of `presets`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone presets                      what there is
  flagstone presets traditional          its options, each in the form that --option takes
  flagstone bench tpcb --preset flagstone --option parts=2")]
pub(crate) struct PresetsArgs {
    /// Print this preset with all its options, in the form that `--option` takes.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  source <(flagstone completions bash)
  flagstone completions zsh > ~/.zfunc/_flagstone
  flagstone completions fish > ~/.config/fish/completions/flagstone.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell.
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone man | man -l -
  flagstone man --dir /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write the page of every command to this directory, over pages of the same names.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}
