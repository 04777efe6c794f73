//! The command `demo`: two runs side by side, to watch in a browser.
//!
//! Owns the life of the server: it is up from the line that prints its address until the process is
//! told to end, and runs that are on then are given up.
//!
//! - I1: nobody but programs of this machine is answered ([`http`]).
//! - I2: a run is a `bench` of the lab, watched; nothing is measured here ([`runs`]).
//! - I3: the page needs no network: everything that it loads is in this program ([`routes`]).

mod figures;
mod form;
mod http;
mod routes;
mod runs;
mod server;
mod watch;

#[cfg(test)]
mod tests;

use std::sync::mpsc;

use serde_json::json;

use crate::args::DemoArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use runs::Runs;
use server::Server;

/// Runs `demo` until the process is interrupted.
pub(crate) fn demo(args: &DemoArgs, output: &mut Output) -> Result<Exit, Failure> {
    let server = Server::start(args.port, Runs::default()).map_err(Failure::Listen)?;
    let (sender, interrupted) = mpsc::channel();
    // Without a handler an interrupt ends the process all the same, only less politely.
    let _ = ctrlc::set_handler(move || {
        let _ = sender.send(());
    });
    let address = format!("http://{}/", server.address());
    let text = || format!("flagstone demo: {address}\nCtrl-C ends it.\n");
    output.show(&json!({ "address": address }), text)?;
    output.finish()?;
    // A sender that is gone means that there is no handler: then nothing comes, and the process
    // ends with the signal.
    if interrupted.recv().is_err() {
        loop {
            std::thread::park();
        }
    }
    server.runs().give_up_all();
    Ok(Exit::Ok)
}
