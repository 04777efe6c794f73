//! The command `demo`: two runs side by side, to watch in a browser.
//!
//! Owns the life of the server: it is up from the line that prints its address until the process is told to end. Runs
//! under way at that time are given up.
//!
//! - I1: only programs of this machine get answers ([`http`]).
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

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::args::DemoArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use runs::Runs;
use server::Server;

/// Runs `demo` until the process is interrupted.
pub(crate) fn demo(args: &DemoArgs, output: &mut Output) -> Result<Exit, Failure> {
    let server = Server::start(args.port, Runs::default()).map_err(Failure::Listen)?;
    // Without a handler a signal ends the process all the same, only less politely.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
    let address = format!("http://{}/", server.address());
    let text = || format!("flagstone demo: {address}\nCtrl-C ends it.\n");
    output.show(&json!({ "address": address }), text)?;
    output.finish()?;
    let Some(signal) = signals.ok().and_then(|mut signals| signals.forever().next()) else {
        loop {
            std::thread::park();
        }
    };
    server.runs().give_up_all();
    // The parent process sees the signal that ended it.
    let _ = emulate_default_handler(signal);
    Ok(Exit::Ok)
}
