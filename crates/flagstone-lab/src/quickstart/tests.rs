use super::*;

/// Goal: the demonstration survives its power cut with both presets, loses no acknowledged commit,
/// and reports both halves. Method: a small run in a temporary directory; the checks are within.
#[test]
fn the_demonstration_survives_its_power_cut() {
    let directory = tempfile::tempdir().expect("a directory");
    let profile = Profile::named("slc-2k").expect("the profile exists");
    let options = ["traditional", "flagstone"].map(|name| Options::preset(name).expect("exists"));
    let config = QuickstartConfig {
        txns: 1_000,
        ..QuickstartConfig::new(directory.path().to_path_buf(), profile, options.to_vec())
    };
    let mut stages = Vec::new();
    let lives = quickstart(&config, &mut |progress| {
        if stages.last() != Some(&progress.stage) {
            stages.push(progress.stage);
        }
    })
    .expect("the demonstration succeeds");
    for life in &lives {
        assert!(life.cut.acknowledged >= 500, "the cut comes after the first half");
        let under_way = life.cut.found - life.cut.acknowledged;
        assert!(under_way <= u64::from(config.clients), "at most one commit a client");
        assert_eq!(life.run.commits, 1_000);
    }
    let course = [Stage::Load, Stage::BeforeCut, Stage::Recovery, Stage::AfterCut, Stage::Verify];
    assert_eq!(stages, [course, course].concat());
}
