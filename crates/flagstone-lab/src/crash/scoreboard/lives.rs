//! Rows of chips that are worn out.
//!
//! Owns the policies and the loads that are compared. Never wears a chip itself: [`wear`] does.

use std::fmt::Write as _;

use flagstone_engine::Collection;
use flagstone_engine::WearLevelling;
use flagstone_nand::{Nand as _, Profile, SimNand};

use super::super::CrashError;
use super::super::faults::Trial;
use super::super::script::Mix;
use super::super::wear::{self, Load};
use super::campaigns::{campaign, trial};
use super::{Engine, Outcome, config, grouped, seeds};

/// A trial on a chip whose blocks endure few erases.
fn mortal_trial(preset: &str, endurance: u32, seed: u64) -> Result<Trial, CrashError> {
    let mut trial = trial("tiny", 200)?;
    let mut profile = Profile::named("tiny")?;
    profile.capabilities.endurance = endurance;
    let profile = profile.with_block_count(trial.chip.geometry().block_count)?;
    trial.chip = SimNand::new(&profile, seed);
    trial.seed = seed << 32;
    trial.setup = config(preset, "tiny", 0, 1, seed).options(&trial.chip)?.into();
    Ok(trial)
}

pub(super) fn worn_out(_: u64) -> Result<Outcome, CrashError> {
    let trial = mortal_trial("flagstone", 30, 1)?;
    let mut outcome = campaign(&wear::worn_out::<Engine>(&trial, 2_000_000));
    if outcome.is_met {
        outcome.value = format!("read-only after {} steps, all readable", grouped(outcome.cases));
    }
    Ok(outcome)
}

/// Engines that wear a chip, and their policies.
const DEATHS: [(&str, Collection, WearLevelling); 10] = {
    use Collection::{CostAgeTimes, CostBenefit, Greedy};
    use WearLevelling::{Dynamic, Static};
    [
        ("flagstone", Greedy, Static),
        ("flagstone", CostBenefit, Static),
        ("flagstone", CostAgeTimes, Static),
        ("flagstone", Greedy, Dynamic),
        ("flagstone", CostAgeTimes, Dynamic),
        ("traditional", Greedy, Static),
        ("traditional", CostBenefit, Static),
        ("traditional", CostAgeTimes, Static),
        ("traditional", Greedy, Dynamic),
        ("traditional", CostAgeTimes, Dynamic),
    ]
};

/// Which rows they write.
#[derive(Clone, Copy)]
enum DeathKeys {
    /// All alike.
    Even,
    /// Some far more than others.
    Hot,
    /// Some alone; all others are put once and rest.
    Few,
}

impl DeathKeys {
    const ALL: [Self; 3] = [Self::Even, Self::Hot, Self::Few];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Hot => "hot",
            Self::Few => "few, others rest",
        }
    }

    fn load(self) -> Load {
        let mix = Mix::default();
        match self {
            Self::Even => Load { mix, row_size: 0 },
            Self::Hot => Load { mix: Mix { hot: 200, ..mix }, row_size: 0 },
            // Operations that fill whole tables would rewrite the resting rows, and restarts wear
            // the ring.
            Self::Few => {
                let mix = Mix { hot: 255, large: 0, upkeep: 0, pieces: 0, ..mix };
                Load { mix, row_size: 250 }
            }
        }
    }
}

/// Erases that a block endures in a run to death.
const DEATH_ENDURANCE: u32 = 100;

pub(super) fn run_to_death(effort: u64) -> Result<Outcome, CrashError> {
    let mut outcome = Outcome::default();
    outcome.details += "| preset | collection | levelling | keys | transactions until the end | most \
                        erases | mean erases | max/mean |\n\
                        | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    let mut worst = [0.0_f64; 2];
    let lives = DEATHS.iter().flat_map(|death| DeathKeys::ALL.map(|keys| (*death, keys)));
    for ((preset, collection, levelling), keys) in lives {
        let (mut commits, mut erases_max, mut erases_mean) = (0, 0, 0.0);
        for seed in seeds(effort) {
            let mut trial = mortal_trial(preset, DEATH_ENDURANCE, seed)?;
            let options = trial.setup.options.with_wear_levelling(levelling);
            trial.setup.options =
                options.with_techniques(|techniques| techniques.collection = collection);
            let lifetime = match wear::run_to_death::<Engine>(&trial, &keys.load(), 50_000_000) {
                Ok(lifetime) => lifetime,
                Err((lifetime, violation)) => {
                    let keys = keys.name();
                    eprintln!(
                        "{preset} {collection:?} {levelling:?} {keys} seed {seed}: {violation}"
                    );
                    outcome.failures += 1;
                    lifetime
                }
            };
            outcome.cases += 1;
            commits += lifetime.commits / effort;
            erases_max = erases_max.max(lifetime.erases_max);
            erases_mean += lifetime.erases_mean / effort as f64;
        }
        let ratio = f64::from(erases_max) / erases_mean;
        let _ = writeln!(
            outcome.details,
            "| `{preset}` | {collection:?} | {levelling:?} | {} | {} | {erases_max} | \
             {erases_mean:.1} | {ratio:.2} |",
            keys.name(),
            grouped(commits)
        );
        let worst = &mut worst[usize::from(levelling == WearLevelling::Dynamic)];
        *worst = worst.max(ratio);
    }
    outcome.is_met = outcome.failures == 0;
    outcome.lost = outcome.failures;
    outcome.value = format!(
        "max/mean at most {:.2}, {:.2} where what rests is left alone, at the end of {} lives, \
         {} failures",
        worst[0],
        worst[1],
        grouped(outcome.cases),
        outcome.failures
    );
    Ok(outcome)
}
