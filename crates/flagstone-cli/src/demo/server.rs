//! The server: a listener on the loopback interface, a thread a connection.
//!
//! Owns threads and their number; [`super::routes`] decides the answers.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::runs::Runs;
use super::{http, routes};

/// Connections served at a time; others are closed at once.
const CONNECTIONS_MAX: usize = 64;

/// Pause after a connection could not be accepted: a lack of file descriptors is waited out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A server that is up. Its threads end with the process.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    runs: Arc<Runs>,
}

impl Server {
    /// Listens on the loopback interface at `port`, at any free one for 0, and answers from now on.
    ///
    /// # Errors
    ///
    /// The port is taken or not allowed.
    pub(super) fn start(port: u16, runs: Runs) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let address = listener.local_addr()?;
        let runs = Arc::new(runs);
        let served = Arc::clone(&runs);
        let accept = move || accept(&listener, address.port(), &served);
        thread::Builder::new().name(String::from("demo-accept")).spawn(accept)?;
        Ok(Self { address, runs })
    }

    /// Address and port.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The runs.
    pub(super) fn runs(&self) -> &Runs {
        &self.runs
    }
}

fn accept(listener: &TcpListener, port: u16, runs: &Arc<Runs>) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => serve(stream, port, runs, &open),
            Err(_) => thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// Serves a connection on a thread of its own.
fn serve(stream: TcpStream, port: u16, runs: &Arc<Runs>, open: &Arc<AtomicUsize>) {
    if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
        open.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let (runs, slot) = (Arc::clone(runs), Slot(Arc::clone(open)));
    let serve = move || {
        // Nobody is left to be told when the connection itself fails.
        let _ = http::serve(stream, port, |request| routes::answer(request, &runs));
        drop(slot);
    };
    // Without a thread the connection closes; the dropped closure gives its slot back.
    let _ = thread::Builder::new().name(String::from("demo-request")).spawn(serve);
}

/// One of the connections that may be open; given back when dropped.
struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
