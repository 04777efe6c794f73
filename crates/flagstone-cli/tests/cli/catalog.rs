//! Listings and help: the lists to choose from.

use crate::command::{Place, flagstone};

#[test]
fn every_command_has_help() {
    let help = flagstone(&["--help"]).ok().stdout;
    for command in [
        "quickstart",
        "create",
        "put",
        "get",
        "del",
        "scan",
        "tables",
        "rename",
        "drop",
        "snapshot",
        "stats",
        "check",
        "merge",
        "salvage",
        "compact",
        "wear",
        "bench",
        "crash",
        "profiles",
        "presets",
        "exit-codes",
    ] {
        assert!(help.contains(command), "{command} is not in the help");
        assert!(flagstone(&[command, "--help"]).ok().stdout.contains("Usage:"), "{command}");
    }
    assert!(flagstone(&["help", "exit-codes"]).ok().stdout.contains("not-a-database"));
}

#[test]
fn listings_are_one_json_object_each() {
    let profiles = flagstone(&["profiles", "--json"]).ok().json();
    assert!(profiles["profiles"].as_array().is_some_and(|list| list.len() > 5));
    let presets = flagstone(&["presets", "--json"]).ok().json();
    assert_eq!(presets["presets"][0]["name"], "flagstone");
    let codes = flagstone(&["exit-codes", "--json"]).ok().json();
    assert_eq!(codes["exit_codes"][2]["name"], "usage");
}

#[test]
fn a_printed_profile_is_a_profile_file() {
    let text = flagstone(&["profiles", "tiny"]).ok().stdout;
    let place = crate::command::Place::empty();
    std::fs::write(place.file("mine.toml"), text.replace("\"tiny\"", "\"mine\"")).expect("written");
    let again = flagstone(&["profiles", &place.path("mine.toml")]).ok().stdout;
    assert!(again.contains("\"mine\""), "{again}");
}

#[test]
fn a_printed_preset_is_a_list_of_options() {
    let text = flagstone(&["presets", "traditional"]).ok().stdout;
    assert!(text.contains("frames=ahead"), "{text}");
    assert!(text.contains("group_delay=5ms"), "{text}");
}

/// Goal: nobody takes the image of a drive for a drive. Method: the message of `create` for one, as text and as JSON,
/// and for a chip.
#[test]
fn an_image_of_a_drive_is_said_to_be_of_its_chips() {
    let place = Place::empty();
    let create = |name: &str, profile: &str, more: &[&str]| {
        let path = place.path(name);
        let arguments = ["create", &path, "--profile", profile, "--capacity", "8MiB"];
        let ran = flagstone(&[&arguments[..], more].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stderr
    };
    let warning = create("drive", "otf-ssd", &[]);
    assert!(warning.contains("warning") && warning.contains("bare chips"), "{warning}");
    let warning = create("too", "otf-ssd", &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&warning).expect("one object");
    let message = json["warning"]["message"].as_str().expect("a message");
    assert!(message.contains("leave out --profile"), "{message}");
    assert_eq!(create("chip", "slc-2k", &[]), "");
}

#[test]
fn a_capacity_below_a_block_of_each_die_is_told_the_least() {
    let place = Place::empty();
    let arguments = ["create", &place.path("db"), "--profile", "femu-slc", "--capacity", "16MiB"];
    let error = flagstone(&arguments).fails(2).stderr;
    assert!(error.contains("16 dies") && error.contains("128 MiB is the least"), "{error}");
    let arguments = ["create", &place.path("db"), "--profile", "slc-2k", "--capacity", "1TiB"];
    let error = flagstone(&arguments).fails(2).stderr;
    assert!(error.contains("--capacity: the device has more than 4194304 blocks"), "{error}");
}
