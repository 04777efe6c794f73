//! Files that a package installs beside the command: shell completions and man pages.
//!
//! Owns their destination. Both are made from the definitions behind `--help`, so that they cannot disagree with it.

use std::io::Write as _;
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use serde_json::json;

use crate::args::RawArgs;
use crate::failure::Failure;
use crate::files::at;
use crate::output::{Form, Output, path_text};

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell, output: &mut Output) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut RawArgs::command(), "flagstone", &mut script);
    if output.form() == Form::Text {
        return Ok(output.stream().write_all(&script)?);
    }
    let script = String::from_utf8_lossy(&script).into_owned();
    Ok(output.show(&json!({ "shell": shell.to_string(), "script": script }), String::new)?)
}

/// Prints the page of the whole command, or writes a page for it and for each subcommand.
pub(crate) fn man(directory: Option<&Path>, output: &mut Output) -> Result<(), Failure> {
    // `help` repeats the other commands; it needs no page.
    let mut command = RawArgs::command().disable_help_subcommand(true);
    command.build();
    let Some(directory) = directory else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        let page = String::from_utf8_lossy(&page).into_owned();
        return Ok(output.show(&json!({ "page": page }), || page.clone())?);
    };
    let mut pages = Vec::new();
    write_pages(&command, directory, &mut pages)?;
    let count = pages.len();
    let text = || format!("wrote {count} pages to {}\n", directory.display());
    Ok(output.show(&json!({ "directory": path_text(directory), "pages": pages }), text)?)
}

fn write_pages(
    command: &Command,
    directory: &Path,
    pages: &mut Vec<String>,
) -> Result<(), Failure> {
    let page = Man::new(command.clone());
    page.generate_to(directory).map_err(at(directory))?;
    pages.push(page.get_filename());
    command.get_subcommands().try_for_each(|command| write_pages(command, directory, pages))
}
