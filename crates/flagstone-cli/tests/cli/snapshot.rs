//! Snapshots that are kept under a name.

use crate::command::{DEVICES, Place, flagstone};

/// Goal: a snapshot is kept, read by every command that reads, and dropped. Method: the commands, on an image
/// and on a file.
#[test]
fn snapshots_are_kept_and_read_and_dropped() {
    for device in DEVICES {
        let place = Place::empty();
        let (db, copy, out) = (place.path("db"), place.path("copy"), place.path("out"));
        let create = [&["create", &db][..], device].concat();
        flagstone(&create).ok();
        flagstone(&["put", &db, "t", "key", "old"]).ok();
        flagstone(&["put", &db, "gone", "key", "was"]).ok();
        flagstone(&["snapshot", "keep", &db, "monday"]).ok();
        flagstone(&["put", &db, "t", "key", "new"]).ok();
        flagstone(&["put", &db, "t", "more", "rows"]).ok();
        flagstone(&["drop", &db, "gone"]).ok();
        flagstone(&["snapshot", "keep", &db, "tuesday"]).ok();
        let list = flagstone(&["snapshot", "list", &db]).ok().stdout;
        assert_eq!(list, "monday\ntuesday\n");
        let json = flagstone(&["snapshot", "list", &db, "--json"]).ok().json();
        assert_eq!(json["snapshots"][1], "tuesday");
        let monday = |arguments: &[&str]| {
            flagstone(&[arguments, &["--snapshot", "monday"]].concat()).ok().stdout
        };
        assert_eq!(monday(&["get", &db, "t", "key"]), "old\n");
        assert_eq!(monday(&["get", &db, "gone", "key"]), "was\n");
        assert_eq!(monday(&["scan", &db, "t"]), "key\told\n");
        assert_eq!(monday(&["tables", &db]), "gone\nt\n");
        assert_eq!(monday(&["export", &db]).lines().count(), 2);
        monday(&["backup", &db, &out]);
        flagstone(&["restore", &copy, &out]).ok();
        assert_eq!(flagstone(&["scan", &copy, "t"]).ok().stdout, "key\told\n");
        assert_eq!(flagstone(&["scan", &db, "t"]).ok().stdout, "key\tnew\nmore\trows\n");
        let wrong = flagstone(&["get", &db, "t", "key", "--snapshot", "mondya"]);
        assert_eq!(wrong.code, 3);
        assert!(wrong.stderr.contains("monday"), "{}", wrong.stderr);
        flagstone(&["snapshot", "keep", &db, "monday"]).fails(18);
        flagstone(&["check", &db]).ok();
        flagstone(&["snapshot", "drop", &db, "monday"]).ok();
        assert_eq!(flagstone(&["snapshot", "drop", &db, "monday"]).code, 3);
        assert_eq!(flagstone(&["snapshot", "list", &db]).ok().stdout, "tuesday\n");
    }
}
