//! The server as a browser meets it: real connections, small runs.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::runs::Runs;
use super::server::Server;

/// Time after which a run that has not come to where it must be has failed.
const PATIENCE: Duration = Duration::from_secs(120);

struct Page {
    server: Server,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Page {
    fn open() -> Self {
        Self { server: Server::start(0, Runs::default()).unwrap() }
    }

    fn raw(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn ask(&self, method: &str, path: &str) -> Answer {
        let host = self.server.address();
        self.raw(&format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"))
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        let (host, size) = (self.server.address(), body.len());
        self.raw(&format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\
             Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n{body}"
        ))
    }

    fn start(&self, side: &str, changes: &Value) -> Answer {
        self.post(&format!("/api/runs/{side}"), &form(changes).to_string())
    }

    /// The state of a side once `is_there` holds.
    fn wait(&self, side: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let state = self.ask("GET", "/api/state").json()[side].clone();
            if is_there(&state) {
                return state;
            }
            assert!(started.elapsed() < PATIENCE, "{state}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_for_end(&self, side: &str) -> Value {
        self.wait(side, |state| state["state"] != "running" && state["state"] != "ending")
    }
}

/// A small run, changed in some fields.
fn form(changes: &Value) -> Value {
    let mut form = json!({
        "benchmark": "tpcb", "scale": "1", "txns": "400", "clients": "2", "warmup": "none",
        "fill": "40", "seed": "1", "profile": "slc-2k", "preset": "flagstone",
    });
    for (field, value) in changes.as_object().unwrap() {
        form[field] = value.clone();
    }
    form
}

/// Fields of a line of a CSV file.
fn field_count(line: &str) -> usize {
    let outside = line.split('"').step_by(2);
    1 + outside.map(|part| part.matches(',').count()).sum::<usize>()
}

/// Fields that the server finds wrong, each with a sentence.
fn faults(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 422, "{}", answer.body);
    let body = answer.json();
    let faults = body["faults"].as_array().unwrap().iter();
    let check = |fault: &Value| {
        let message = fault["message"].as_str().unwrap();
        assert!(
            message.ends_with(['.', '?']) && !message.starts_with(char::is_lowercase),
            "{message}"
        );
        fault["field"].as_str().unwrap().to_owned()
    };
    faults.map(check).collect()
}

/// Goal: the whole course of two runs side by side. Method: both are started, a third is refused,
/// both are watched to their end, the table and its file are read.
#[test]
fn two_runs_go_side_by_side_to_one_table() {
    let page = Page::open();
    assert_eq!(page.start("a", &json!({ "preset": "traditional" })).status, 201);
    assert_eq!(page.start("b", &json!({})).status, 201);
    let third = page.start("a", &json!({}));
    assert_eq!(third.status, 409, "one run a side");
    assert!(third.json()["message"].as_str().unwrap().contains("cancel"));
    for side in ["a", "b"] {
        let state = page.wait_for_end(side);
        assert_eq!(state["state"], "done", "{state}");
        let seen = &state["seen"];
        assert_eq!(seen["window"]["commits"], 400);
        assert!(seen["samples"].as_array().unwrap().len() > 10, "a history");
        let blocks = seen["chip"]["blocks"].as_array().unwrap();
        assert!(blocks.iter().any(|block| block[0] == 2 && block[1].as_u64() > Some(0)));
        assert!(state["command"].as_str().unwrap().starts_with("flagstone bench tpcb --"));
    }
    let table = page.ask("GET", "/api/results").json();
    let runs = table["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0]["label"], "A1: traditional", "in the order in which they began");
    let transactions = &table["groups"][0]["rows"][0];
    assert_eq!(transactions["name"], "Transactions");
    assert_eq!(transactions["cells"][0][0], "400");
    let csv = page.ask("GET", "/results.csv");
    assert!(csv.head.contains("text/csv") && csv.head.contains("attachment"));
    let lines: Vec<&str> = csv.body.split("\r\n").filter(|line| !line.is_empty()).collect();
    assert_eq!(lines[1], "Transactions,Transactions,,400,,1,400,,1");
    assert!(lines.len() > 25 && lines.iter().all(|line| field_count(line) == 9), "{}", csv.body);
    assert_eq!(page.ask("DELETE", "/api/results").status, 200);
    assert_eq!(page.ask("GET", "/api/results").json()["runs"], json!([]));
}

#[test]
fn a_run_can_be_cancelled_and_its_side_used_again() {
    let page = Page::open();
    assert_eq!(page.ask("DELETE", "/api/runs/a").status, 409, "nothing to cancel");
    assert_eq!(page.start("a", &json!({ "txns": "5000000", "seconds": "60" })).status, 201);
    page.wait("a", |state| !state["seen"]["phase"].is_null());
    assert_eq!(page.ask("DELETE", "/api/runs/a").status, 202);
    assert_eq!(page.wait_for_end("a")["state"], "cancelled");
    assert_eq!(page.ask("GET", "/api/results").json()["runs"], json!([]));
    assert_eq!(page.start("a", &json!({})).status, 201);
    assert_eq!(page.wait_for_end("a")["state"], "done");
}

/// Goal: a refusal by an engine is a readable sentence. Method: commit flags on a chip that carries none.
#[test]
fn what_the_engine_refuses_is_a_sentence() {
    let page = Page::open();
    assert_eq!(page.start("b", &json!({ "preset": "cfc", "profile": "spi-nand" })).status, 201);
    let state = page.wait_for_end("b");
    assert_eq!(state["state"], "failed", "{state}");
    let message = state["message"].as_str().unwrap();
    assert!(message.ends_with('.') && message.starts_with(char::is_uppercase), "{message}");
}

#[test]
fn every_wrong_field_is_named() {
    let page = Page::open();
    for (field, value) in [
        ("benchmark", "tpcz"),
        ("dialect", "welsh"),
        ("scale", "0"),
        ("scale", "1000000"),
        ("txns", "-1"),
        ("txns", "many"),
        ("seconds", "0"),
        ("seconds", "NaN"),
        ("clients", "1.5"),
        ("memory", "lots"),
        ("memory", "1TB"),
        ("fill", "101"),
        ("warmup", "sauna"),
        ("seed", "-3"),
        ("profile", "/etc/passwd"),
        ("profile", "segment-file"),
        ("preset", "flagstone,traditional"),
        ("append_scheme", "2by4"),
        ("append_scheme", "2x"),
    ] {
        assert_eq!(faults(&page.start("a", &json!({ field: value }))), [field], "{value}");
    }
    let both = json!({ "txns": "x", "preset": "x", "clients": "2", "benchmark": "index" });
    assert_eq!(faults(&page.start("a", &both)), ["preset", "clients", "txns"], "all at once");
    for body in ["", "{", "[1]", "{\"benchmark\":1}", "{\"depth\":\"1\"}"] {
        assert_eq!(page.post("/api/runs/a", body).status, 400, "{body}");
    }
    assert_eq!(page.ask("GET", "/api/state").json()["a"], Value::Null, "nothing began");
}

#[test]
fn paths_and_methods_have_their_codes() {
    let page = Page::open();
    for path in ["/", "/style.css", "/demo.js", "/charts.js", "/api/choices", "/api/state"] {
        let answer = page.ask("GET", path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.head.contains("Content-Security-Policy: default-src 'none'"), "{path}");
        assert_eq!(page.ask("HEAD", path).body, "", "{path}");
        assert_eq!(page.ask("DELETE", path).status, 405, "{path}");
    }
    for path in ["/x", "/api/runs/c", "/../Cargo.toml", "//", "/api/runs/"] {
        assert_eq!(page.ask("GET", path).status, 404, "{path}");
    }
    let wrong = page.ask("GET", "/api/runs/a");
    assert_eq!(wrong.status, 405);
    assert!(wrong.head.contains("Allow: POST, DELETE"));
    assert_eq!(page.raw("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 421);
    assert_eq!(page.raw("\u{0}\u{1}\r\n\r\n").status, 400);
}

/// Goal: a refused body does not take its answer with it. Method: more bytes than are read.
#[test]
fn a_long_body_is_answered() {
    let page = Page::open();
    assert_eq!(page.post("/api/runs/a", &"x".repeat(200_000)).status, 413);
}

#[test]
fn nothing_in_the_page_comes_from_elsewhere() {
    let page = Page::open();
    for path in ["/", "/style.css", "/demo.js", "/charts.js"] {
        let body = page.ask("GET", path).body.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http:", "https:", "//cdn", "@import", "style=\"", "innerHTML", "eval("] {
            assert!(!body.contains(foreign), "{path} has {foreign}");
        }
    }
}

#[test]
fn the_page_offers_every_preset_and_every_chip() {
    let choices = Page::open().ask("GET", "/api/choices").json();
    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|row| row[0].as_str().unwrap().to_owned()).collect()
    };
    let presets: Vec<String> =
        flagstone_lab::preset::all().map(|one| one.name.to_owned()).collect();
    assert_eq!(names(&choices["presets"]), presets);
    let profiles = names(&choices["profiles"]);
    assert!(profiles.contains(&choices["profile"].as_str().unwrap().to_owned()));
    assert!(!profiles.contains(&String::from("segment-file")));
    for side in choices["sides"].as_array().unwrap() {
        assert!(presets.contains(&side.as_str().unwrap().to_owned()), "{side}");
    }
}
