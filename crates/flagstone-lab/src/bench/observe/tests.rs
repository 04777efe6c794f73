use std::time::Duration;

use flagstone_nand::Profile;

use super::*;
use crate::bench::{BenchConfig, Warmup, run, run_observed};

fn small(preset: &str) -> BenchConfig {
    let profile = Profile::named("slc-2k").expect("the profile exists");
    let mut options = crate::preset::options(preset).expect("the preset exists");
    // Pages that transactions share are larger, so that their sections find room.
    options.parts = if preset.ends_with("-ex") { 4 } else { options.parts };
    let warmup = Warmup::Txns(200);
    BenchConfig { clients: 3, txns: 1_000, warmup, ..BenchConfig::tpcb(profile, vec![options]) }
}

/// Looks at everything there is, and gives up at a moment of its choice.
struct Looking<'a> {
    gives_up: &'a dyn Fn(&Progress) -> bool,
    phases: Vec<Phase>,
    last: Option<(u64, u64)>,
    is_live: bool,
}

impl<'a> Looking<'a> {
    fn until(gives_up: &'a dyn Fn(&Progress) -> bool) -> Self {
        Self { gives_up, phases: Vec::new(), last: None, is_live: false }
    }
}

impl Observer for Looking<'_> {
    fn observe(&mut self, moment: &Moment<'_>) -> Course {
        let phase = moment.progress.phase;
        if self.phases.last() != Some(&phase) {
            self.phases.push(phase);
        }
        assert_eq!(moment.scene.is_some(), phase != Phase::Verify, "there is something to see");
        if let Some(scene) = moment.scene {
            let erases = scene.erase_counts();
            assert!(scene.totals().programs() > 0);
            if let Some(blocks) = scene.blocks() {
                assert_eq!(blocks.len(), erases.len(), "a block each");
                self.is_live |= blocks.iter().any(|block| block.live > 0);
            }
        }
        if phase == Phase::Measure {
            let now = (moment.commits, moment.now_ns);
            assert!(self.last.is_none_or(|last| last.0 <= now.0 && last.1 <= now.1));
            self.last = Some(now);
        }
        if (self.gives_up)(&moment.progress) { Course::GiveUp } else { Course::GoOn }
    }
}

/// Goal: rule O1. Method: the hash over every operation on the device, and the whole run object.
#[test]
fn a_run_that_is_watched_is_the_same_run() {
    for preset in ["flagstone", "berkeley-original", "cfc", "cfc-ex"] {
        let config = small(preset);
        let options = &config.options[0];
        let mut alone = run(&config, options, &mut |_| ()).expect("it runs");
        let mut looking = Looking::until(&|_| false);
        let watched = run_observed(&config, options, &mut looking).expect("it runs");
        (alone.wall_s, alone.cpu_s) = (watched.wall_s, watched.cpu_s);
        assert_eq!(alone, watched, "{preset}");
        let course = [Phase::Load, Phase::WarmUp, Phase::Measure, Phase::Verify];
        assert_eq!(looking.phases, course, "{preset}");
        assert!(looking.is_live, "{preset}: blocks are shown");
        assert_eq!(looking.last.map(|(commits, _)| commits), Some(1_200), "{preset}");
    }
}

#[test]
fn a_run_can_be_given_up_in_every_phase() {
    for phase in [Phase::Load, Phase::WarmUp, Phase::Measure, Phase::Verify] {
        let config = small("flagstone");
        let here = |progress: &Progress| progress.phase == phase && progress.done > 0;
        let mut looking = Looking::until(&here);
        let result = run_observed(&config, &config.options[0], &mut looking);
        assert!(matches!(result, Err(BenchError::GivenUp)), "{phase:?}");
        assert_eq!(looking.phases.last(), Some(&phase), "it ends where it is given up");
    }
}

/// Goal: rule B1 with a time. Method: a time far too short for the transactions, and one far longer.
#[test]
fn a_window_ends_with_its_time_or_its_transactions() {
    let short = Duration::from_millis(200);
    for (time_max, is_ended) in [(short, true), (Duration::from_secs(3_600), false)] {
        let config = BenchConfig { time_max: Some(time_max), ..small("flagstone") };
        let run = run(&config, &config.options[0], &mut |_| ()).expect("it runs");
        assert_eq!(run.commits < 1_000, is_ended, "{}", run.commits);
        if is_ended {
            let over_s = run.elapsed_s - short.as_secs_f64();
            assert!((0.0..0.2).contains(&over_s), "an event more, not {over_s} s");
        } else {
            assert_eq!(run.commits, 1_000);
        }
    }
}
