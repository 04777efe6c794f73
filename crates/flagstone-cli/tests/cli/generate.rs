//! Completions, man pages and pictures: made, and made from the definitions behind `--help`.

use std::fs;

use crate::command::{DEVICES, Place, flagstone};

/// Every command that `--help` lists.
fn commands() -> Vec<String> {
    let help = flagstone(&["--help"]).ok().stdout;
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = list.take_while(|line| !line.is_empty());
    let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.map(first).filter(|name| name != "help").collect()
}

#[test]
fn completions_of_every_shell_know_every_command() {
    let commands = commands();
    assert!(commands.len() > 20, "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = flagstone(&["completions", shell]).ok().stdout;
        for command in &commands {
            assert!(script.contains(command.as_str()), "{shell} lacks {command}");
        }
        let json = flagstone(&["completions", shell, "--json"]).ok().json();
        assert_eq!(json["script"].as_str(), Some(script.as_str()));
    }
    flagstone(&["completions", "sh"]).fails(2);
}

#[test]
fn every_command_has_a_man_page() {
    let place = Place::empty();
    let directory = place.path("");
    assert!(flagstone(&["man"]).ok().stdout.contains(".TH flagstone 1"));
    for _again in 0..2 {
        flagstone(&["man", "--dir", &directory]).ok();
    }
    for command in commands() {
        let page = fs::read_to_string(place.file(&format!("flagstone-{command}.1")));
        let page = page.unwrap_or_else(|error| panic!("{command}: {error}"));
        assert!(page.contains("SYNOPSIS"), "{command}");
    }
    let page = fs::read_to_string(place.file("flagstone-lab-reproduce.1")).expect("there");
    assert!(page.contains("--quick") || page.contains("\\-\\-quick"), "{page}");
    flagstone(&["man", "--dir", &place.path("absent")]).fails(19);
}

#[test]
fn a_chip_is_drawn_with_every_block() {
    for device in DEVICES {
        let place = Place::with_database(device);
        place.run("put", &["t", "a", "1"]).ok();
        let blocks = place.run("wear", &["--json"]).ok().json()["blocks"].as_array().map(Vec::len);
        place.run("wear", &["--svg", &place.path("chip.svg")]).ok();
        let picture = fs::read_to_string(place.file("chip.svg")).expect("drawn");
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert_eq!(Some(picture.matches("<title>block ").count() / 2), blocks, "{device:?}");
        assert!(place.run("wear", &["--svg", "-"]).ok().stdout.starts_with("<svg "));
        place.run("wear", &["--svg", &place.path("chip.svg")]).fails(18);
        place.run("wear", &["--svg", "-", "--json"]).fails(2);
    }
}
