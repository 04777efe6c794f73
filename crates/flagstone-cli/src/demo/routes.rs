//! The answer to each request.
//!
//! Owns the paths of the server and the page itself, which is in this program with all it loads.
//!
//! | method and path | answer |
//! | --- | --- |
//! | `GET /`, `/style.css`, `/demo.js`, `/charts.js` | the page |
//! | `GET /api/choices` | benchmarks, devices, presets, and the initial form |
//! | `GET /api/state` | both sides as they stand |
//! | `POST /api/runs/a`, `/api/runs/b` | begins a run; 409: the side is busy; 422: every fault |
//! | `DELETE /api/runs/a`, `/api/runs/b` | gives the run up; 409 when there is none |
//! | `GET /api/results`, `GET /results.csv` | the table of finished runs |
//! | `DELETE /api/results` | forgets them |

use std::sync::Arc;

use flagstone_lab::preset;
use flagstone_nand::Profile;
use serde_json::{Value, json};

use super::figures;
use super::form::{BENCHMARKS, FILL_PERCENT, Form, PROFILE, is_chip};
use super::http::{Request, Response};
use super::runs::{Busy, Runs, Side};
use crate::catalog::cell_mode;
use crate::size::format_size;

const PAGE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/demo.js");
const CHARTS: &str = include_str!("page/charts.js");

/// Answers a request.
pub(super) fn answer(request: &Request, runs: &Arc<Runs>) -> Response {
    let method = if request.method == "HEAD" { "GET" } else { request.method.as_str() };
    let side = request.path.strip_prefix("/api/runs/").and_then(Side::named);
    match (method, request.path.as_str(), side) {
        ("GET", "/", _) => Response::new(200, "text/html", PAGE),
        ("GET", "/style.css", _) => Response::new(200, "text/css", STYLE),
        ("GET", "/demo.js", _) => Response::new(200, "text/javascript", SCRIPT),
        ("GET", "/charts.js", _) => Response::new(200, "text/javascript", CHARTS),
        ("GET", "/api/choices", _) => Response::json(200, &choices()),
        ("GET", "/api/state", _) => Response::json(200, &runs.state()),
        ("POST", _, Some(side)) => start(&request.body, side, runs),
        ("DELETE", _, Some(side)) => give_up(side, runs),
        ("GET", "/api/results", _) => Response::json(200, &figures::table(&runs.finished())),
        ("DELETE", "/api/results", _) => {
            runs.forget();
            Response::json(200, &json!({}))
        }
        ("GET", "/results.csv", _) => csv(runs),
        (_, path, side) => match allowed(path, side) {
            Some(methods) => {
                Response::refusal(405, "This cannot be done here.").with("Allow", methods)
            }
            None => Response::refusal(404, "There is nothing here."),
        },
    }
}

/// Methods of a path; none for an unknown path.
fn allowed(path: &str, side: Option<Side>) -> Option<&'static str> {
    match path {
        _ if side.is_some() => Some("POST, DELETE"),
        "/api/results" => Some("GET, HEAD, DELETE"),
        "/" | "/style.css" | "/demo.js" | "/charts.js" | "/api/choices" | "/api/state"
        | "/results.csv" => Some("GET, HEAD"),
        _ => None,
    }
}

fn start(body: &[u8], side: Side, runs: &Arc<Runs>) -> Response {
    let form: Form = match serde_json::from_slice(body) {
        Ok(form) => form,
        Err(error) => {
            return Response::refusal(400, &format!("The form cannot be read: {error}."));
        }
    };
    let plan = match form.plan() {
        Ok(plan) => plan,
        Err(faults) => return Response::json(422, &json!({ "faults": faults })),
    };
    match runs.start(side, plan) {
        Ok(()) => Response::json(201, &json!({})),
        Err(Busy) => Response::refusal(409, "A run is on here; cancel it, or wait for its end."),
    }
}

fn give_up(side: Side, runs: &Runs) -> Response {
    if runs.give_up(side) {
        Response::json(202, &json!({}))
    } else {
        Response::refusal(409, "No run is on here.")
    }
}

fn csv(runs: &Runs) -> Response {
    Response::new(200, "text/csv", figures::csv(&runs.finished()))
        .with("Content-Disposition", "attachment; filename=\"flagstone-demo.csv\"")
}

/// Choices of the form.
fn choices() -> Value {
    let presets = preset::all().map(|preset| json!([preset.name, preset.summary]));
    let presets: Vec<Value> = presets.collect();
    json!({
        "benchmarks": BENCHMARKS,
        "profiles": devices(),
        "presets": presets,
        "profile": PROFILE,
        "fill": FILL_PERCENT,
        "sides": ["ipa-0x0", "ipa-2x4"],
    })
}

/// Every chip and drive that the page offers.
fn devices() -> Vec<Value> {
    let profiles = Profile::names().filter_map(|name| Profile::named(name).ok());
    profiles.filter(is_chip).map(|profile| device(&profile)).collect()
}

/// A device by its name, with its distinguishing features.
fn device(profile: &Profile) -> Value {
    let geometry = &profile.geometry;
    let kind = if profile.translation.is_some() { "drive" } else { "chip" };
    let page = format_size(geometry.page_size.into());
    let cells = cell_mode(profile.capabilities.cell_mode);
    let about = format!("{kind}, {cells}, {} pages of {page} a block", geometry.pages_per_block);
    json!([profile.name, about])
}
