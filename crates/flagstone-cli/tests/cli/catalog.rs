//! Listings and help: what there is to choose from.

use crate::command::flagstone;

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
