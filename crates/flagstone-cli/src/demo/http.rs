//! As much of HTTP/1.1 as the page needs: one request a connection, small ones.
//!
//! Owns bytes on a connection, in both directions, and the limits of each connection. Knows no path. Heads are parsed
//! by `httparse`.
//!
//! - I1: a request is answered only where its `Host` is this machine by name or by number, so that no page of another
//!   site reaches the server under a name that it has pointed here (DNS rebinding); requests that change something
//!   are taken only from pages of this server (`Origin`).
//! - I2: any request takes at most [`HEAD_SIZE_MAX`] and [`BODY_SIZE_MAX`] bytes of memory and [`REQUEST_TIME_MAX`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of the longest request line and headers.
const HEAD_SIZE_MAX: usize = 16 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// Bytes of the longest body.
pub(super) const BODY_SIZE_MAX: usize = 16 << 10;
/// Time that a request may take to arrive.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// Time for an answer to leave, and time to wait for the rest of a refused request.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
const LINGER_TIME_MAX: Duration = Duration::from_millis(500);

/// Rights of the browser over the page: to show it, and to talk to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' \
     data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A request that may be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Method, in capitals.
    pub(super) method: String,
    /// Path, without the query.
    pub(super) path: String,
    /// Body; empty where there is none.
    pub(super) body: Vec<u8>,
}

/// A request that is not looked at any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Status of the answer.
    pub(super) status: u16,
    /// Why, as a sentence.
    pub(super) why: &'static str,
}

const fn refuse<T>(status: u16, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal { status, why })
}

/// An answer.
#[derive(Debug)]
pub(super) struct Response {
    /// Status.
    pub(super) status: u16,
    /// Media type of the body.
    pub(super) media_type: &'static str,
    /// Headers beside the common ones: names and values.
    pub(super) headers: Vec<(&'static str, String)>,
    /// Body.
    pub(super) body: Vec<u8>,
}

impl Response {
    /// A body of a media type.
    pub(super) fn new(status: u16, media_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, media_type, headers: Vec::new(), body: body.into() }
    }

    /// A JSON object.
    pub(super) fn json(status: u16, value: &serde_json::Value) -> Self {
        Self::new(status, "application/json", value.to_string())
    }

    /// A sentence with the reason of a refusal.
    pub(super) fn refusal(status: u16, why: &str) -> Self {
        Self::json(status, &serde_json::json!({ "message": why }))
    }

    /// The response with one more header.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Serves one connection: a request, its answer, the end.
///
/// # Errors
///
/// Errors of the connection; nobody is left to be told.
pub(super) fn serve(
    mut stream: TcpStream,
    port: u16,
    answer: impl FnOnce(&Request) -> Response,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
    let (response, with_body) = match receive(&mut stream, port)? {
        Ok(request) => (answer(&request), request.method != "HEAD"),
        Err(Refusal { status, why }) => (Response::refusal(status, why), true),
    };
    send(&mut stream, &response, with_body)?;
    stream.shutdown(Shutdown::Write)?;
    // Closing with bytes unread would take back the answer to a request that was refused half read.
    stream.set_read_timeout(Some(LINGER_TIME_MAX))?;
    let mut rest = [0; 4096];
    let started = Instant::now();
    while started.elapsed() < LINGER_TIME_MAX && stream.read(&mut rest).is_ok_and(|size| size > 0) {
    }
    Ok(())
}

fn send(stream: &mut impl Write, response: &Response, with_body: bool) -> io::Result<()> {
    let Response { status, media_type, headers, body } = response;
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {media_type}; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
         Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\n\
         Referrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\n{more}\r\n",
        reason(*status),
        body.len(),
    );
    stream.write_all(head.as_bytes())?;
    if with_body {
        stream.write_all(body)?;
    }
    stream.flush()
}

const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

/// Reads a request within its limits (I2).
fn receive(stream: &mut TcpStream, port: u16) -> io::Result<Result<Request, Refusal>> {
    let deadline = Instant::now() + REQUEST_TIME_MAX;
    let mut bytes = Vec::new();
    loop {
        match parse(&bytes, port) {
            Ok(Parsed::Whole(request)) => return Ok(Ok(request)),
            Err(refusal) => return Ok(Err(refusal)),
            Ok(Parsed::Partial) => {}
        }
        match read_some(stream, &mut bytes, deadline) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(refuse(408, "The request took too long to arrive."));
            }
            Err(error) => return Err(error),
        }
    }
}

fn read_some(stream: &mut TcpStream, bytes: &mut Vec<u8>, deadline: Instant) -> io::Result<usize> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    let mut piece = [0; 4096];
    let size = stream.read(&mut piece)?;
    bytes.extend_from_slice(piece.get(..size).unwrap_or_default());
    Ok(size)
}

/// Content of the bytes of a connection so far.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    /// The beginning of a request.
    Partial,
    /// A request.
    Whole(Request),
}

/// Reads a request off the bytes that have come.
fn parse(bytes: &[u8], port: u16) -> Result<Parsed, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let head_size = match head.parse(bytes) {
        Ok(httparse::Status::Complete(size)) if size <= HEAD_SIZE_MAX => size,
        Ok(httparse::Status::Partial) if bytes.len() <= HEAD_SIZE_MAX => {
            return Ok(Parsed::Partial);
        }
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return refuse(431, "The head of the request is too long.");
        }
        Err(_) => return refuse(400, "This is no HTTP request."),
    };
    let method = head.method.unwrap_or_default().to_owned();
    let target = head.path.unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default().to_owned();
    require_here(head.headers, port)?;
    let is_change = !matches!(method.as_str(), "GET" | "HEAD");
    if is_change {
        require_own_page(head.headers, port)?;
    }
    let body_size = body_size(head.headers, &method)?;
    let Some(body) = bytes.get(head_size..head_size + body_size) else {
        return Ok(Parsed::Partial);
    };
    let is_json = single(head.headers, "content-type")?.is_some_and(|value| {
        value.split(';').next().is_some_and(|kind| kind.trim() == "application/json")
    });
    if body_size > 0 && !is_json {
        return refuse(415, "A body has to be of type application/json.");
    }
    Ok(Parsed::Whole(Request { method, path, body: body.to_vec() }))
}

/// The one value of a header; none where it is not there.
fn single<'a>(headers: &'a [httparse::Header<'_>], name: &str) -> Result<Option<&'a str>, Refusal> {
    let mut found = headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
    match (found.next(), found.next()) {
        (None, _) => Ok(None),
        (Some(header), None) => match std::str::from_utf8(header.value) {
            Ok(value) => Ok(Some(value.trim())),
            Err(_) => refuse(400, "A header is no text."),
        },
        _ => refuse(400, "A header that has one value was sent twice."),
    }
}

fn body_size(headers: &[httparse::Header<'_>], method: &str) -> Result<usize, Refusal> {
    if single(headers, "transfer-encoding")?.is_some() {
        return refuse(411, "The body has to be sent with its length.");
    }
    let Some(text) = single(headers, "content-length")? else {
        return if method == "POST" { refuse(411, "The body has no length.") } else { Ok(0) };
    };
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return refuse(400, "The length of the body is no number.");
    }
    match text.parse() {
        Ok(size) if size <= BODY_SIZE_MAX => Ok(size),
        _ => refuse(413, "The body is too long."),
    }
}

/// First half of I1.
fn require_here(headers: &[httparse::Header<'_>], port: u16) -> Result<(), Refusal> {
    match single(headers, "host")? {
        None => refuse(400, "The request names no host."),
        Some(host) if is_here(host, port) => Ok(()),
        Some(_) => refuse(421, "This server answers under the address of this machine alone."),
    }
}

/// Second half of I1.
fn require_own_page(headers: &[httparse::Header<'_>], port: u16) -> Result<(), Refusal> {
    let origin = single(headers, "origin")?;
    let is_own = |origin: &str| origin.strip_prefix("http://").is_some_and(|at| is_here(at, port));
    match origin {
        Some(origin) if !is_own(origin) => {
            refuse(403, "Pages of other sites may not change anything here.")
        }
        _ => Ok(()),
    }
}

/// Whether `host` is this machine, at this port where it says one.
fn is_here(host: &str, port: u16) -> bool {
    const NAMES: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];
    let rest = NAMES.iter().find_map(|name| {
        let (start, rest) = host.split_at_checked(name.len())?;
        start.eq_ignore_ascii_case(name).then_some(rest)
    });
    rest.is_some_and(|rest| rest.is_empty() || rest == format!(":{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 8080;

    fn status(text: &str) -> u16 {
        match parse(text.as_bytes(), PORT) {
            Ok(Parsed::Whole(_)) => 200,
            Ok(Parsed::Partial) => 100,
            Err(refusal) => refusal.status,
        }
    }

    #[test]
    fn only_this_machine_is_a_host() {
        for host in ["127.0.0.1:8080", "localhost:8080", "LocalHost", "[::1]:8080"] {
            assert_eq!(status(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), 200, "{host}");
        }
        let strangers = [
            "evil.example",
            "127.0.0.1.evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1:8081",
            "127.0.0.1:8080@evil.example",
            "",
        ];
        for host in strangers {
            assert_eq!(status(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), 421, "{host}");
        }
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"), 400);
    }

    #[test]
    fn only_own_pages_change_anything() {
        let delete = |origin: &str| {
            status(&format!("DELETE / HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\r\n"))
        };
        assert_eq!(delete("http://127.0.0.1:8080"), 200);
        for origin in ["http://evil.example", "https://127.0.0.1:8080", "null"] {
            assert_eq!(delete(origin), 403, "{origin}");
        }
    }

    #[test]
    fn bodies_have_a_length_a_limit_and_a_type() {
        let post = |headers: &str, body: &str| {
            status(&format!("POST / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{body}"))
        };
        let json = "Content-Type: application/json; charset=utf-8\r\n";
        assert_eq!(post(&format!("{json}Content-Length: 2\r\n"), "{}"), 200);
        assert_eq!(post(&format!("{json}Content-Length: 3\r\n"), "{}"), 100);
        assert_eq!(post("Content-Type: text/plain\r\nContent-Length: 2\r\n", "{}"), 415);
        assert_eq!(post("Content-Length: 2\r\n", "{}"), 415);
        assert_eq!(post(json, ""), 411);
        assert_eq!(post("Transfer-Encoding: chunked\r\n", ""), 411);
        for size in ["16385", "99999999999999999999999"] {
            assert_eq!(post(&format!("{json}Content-Length: {size}\r\n"), ""), 413, "{size}");
        }
        for size in ["-1", "+2", "two", ""] {
            assert_eq!(post(&format!("{json}Content-Length: {size}\r\n"), "{}"), 400, "{size}");
        }
    }

    #[test]
    fn heads_have_a_limit() {
        assert_eq!(status("GET / HT"), 100);
        let long = "x".repeat(HEAD_SIZE_MAX);
        assert_eq!(status(&format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n")), 431);
        assert_eq!(status(&format!("GET /{long}")), 431);
        let many = "X-A: b\r\n".repeat(HEADERS_MAX + 1);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\n{many}\r\n")), 431);
        assert_eq!(status("\u{1}\r\n\r\n"), 400);
    }

    #[test]
    fn a_query_is_no_part_of_the_path() {
        let parsed = parse(b"GET /a?b=c HTTP/1.1\r\nHost: localhost\r\n\r\n", PORT);
        let request = Request { method: "GET".into(), path: "/a".into(), body: Vec::new() };
        assert_eq!(parsed, Ok(Parsed::Whole(request)));
    }
}
