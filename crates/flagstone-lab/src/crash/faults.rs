//! Campaigns with faults other than power cuts: bit errors, failing and swapped pages, full chips.
//!
//! Owns one function a campaign, named after its row of the scoreboard. Never decides which answers
//! are right: the runner and the model do.
//!
//! | campaign | fault | promise |
//! | --- | --- | --- |
//! | B1 | 1 to strength bit errors in every code word of every page | invisible |
//! | B2 | one bit error too many, page by page | right or a typed error |
//! | B4 | each program and erase fails, once and for ever | nothing lost |
//! | B5 | each block bad in one way | nothing lost, or a typed error where the chip lies |
//! | B8 | two pages swapped | right or a typed error |
//! | D3 | bytes, pages and blocks changed | right or a typed error |
//! | C1 | chip filled to the brim | deleting works, then writing works again |

mod full;

use std::sync::Arc;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use flagstone_engine::Durability;
use flagstone_nand::{
    BlockFault, BlockIndex, Crashable, FaultPlan, Geometry, Nand, PageContent, Persistence,
    PhysicalPage, SimNand,
};
use flagstone_space::Space;

pub use self::full::{churn, filled, full_then_deleted};
use super::explore::{guarded, violation_of};
use super::rig::{Capturing, Rig};
use super::run::{Damage, Runner, RunnerRig, Stop, Violation};
use super::script::{KeyIndex, Op, Script, Size};
use super::subject::{Setup, Subject};
use crate::model::{Contents, Model, SlotIndex, TableIndex};
use crate::parallel::each;

/// Findings of a campaign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Campaign {
    /// Row of the scoreboard.
    pub id: &'static str,
    /// Faults tried.
    pub cases: u64,
    /// Faults that were answered with a typed error, where that is allowed.
    pub reported: u64,
    /// Faults that no reader can tell from a power cut, and that took no more than a cut would have
    /// taken.
    pub unknowable: u64,
    /// Faults that broke the promise: which, and how.
    pub failures: Vec<(String, Violation)>,
}

impl Campaign {
    /// The one case does not count: it failed without a fault.
    pub(super) fn failed(id: &'static str, violation: Violation) -> Self {
        let failures = vec![(String::from("without a fault"), violation)];
        Self { id, cases: 1, failures, ..Self::default() }
    }

    fn add(&mut self, other: Self) {
        self.cases += other.cases;
        self.reported += other.reported;
        self.unknowable += other.unknowable;
        self.failures.extend(other.failures);
    }
}

/// A written chip, and the contents it must have.
#[derive(Clone, Debug)]
pub struct Base {
    /// The chip.
    pub chip: SimNand,
    /// Its contents.
    pub model: Model,
    /// Its contents after each change, the newest last.
    pub history: Vec<Contents>,
}

impl Base {
    /// The last page of the log.
    fn log_end(&self) -> Option<PhysicalPage> {
        let (space, report) = Space::mount(self.chip.clone()).ok()?;
        space.log_place(report.log_suspect?)
    }

    /// Reports contents that equal an older state: commits were lost unnoticed.
    fn explain<S: Subject<ChipRig>>(&self, trial: &Trial, chip: SimNand) -> Option<Violation> {
        let found = guarded(|| {
            let opened = S::open(trial.rig(chip), &trial.setup);
            Ok(opened.ok().and_then(|mut subject| subject.contents().ok()))
        });
        let found = found.ok().flatten()?;
        let age = self.history.iter().rev().position(|state| *state == found)?;
        Some(Violation::Rewound(age))
    }
}

/// How one case ended.
enum Verdict {
    Right,
    Reported,
    Unknowable,
    Wrong(Violation),
}

/// Database, script and effort of a campaign.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The chip, erased.
    pub chip: SimNand,
    /// Options of the database.
    pub setup: Setup,
    /// Operations of the script.
    pub ops: usize,
    /// Seed of the script and of every draw.
    pub seed: u64,
    /// Threads.
    pub threads: usize,
    /// Stride over the cases; 1 tries all.
    pub stride: usize,
}

type ChipRig = RunnerRig<SimNand>;
type ChipRunner<S> = Runner<S, SimNand>;

impl Trial {
    fn script(&self) -> Script {
        Script::seeded(self.seed, self.ops, &super::mix_of(&self.setup.options))
    }

    fn rig(&self, chip: SimNand) -> ChipRig {
        Rig::new(chip, Arc::new(Model::default()), Capturing::Off)
    }

    /// A chip on which the script has run to its end and was closed, with the contents it must
    /// have.
    ///
    /// # Errors
    ///
    /// A violation on the way.
    pub fn after_script<S: Subject<ChipRig>>(&self) -> Result<Base, Violation> {
        self.after_script_and::<S>(Op::Reopen)
    }

    /// A chip as a power cut leaves it after the script and a commit: its log has commits that no
    /// checkpoint covers.
    ///
    /// # Errors
    ///
    /// A violation on the way.
    pub fn cut_after_script<S: Subject<ChipRig>>(&self) -> Result<Base, Violation> {
        self.after_script_and::<S>(Op::Commit(SlotIndex(0), Durability::Immediate))
    }

    /// A chip as it stands after the script and one more step.
    fn after_script_and<S: Subject<ChipRig>>(&self, last: Op) -> Result<Base, Violation> {
        let rig = self.rig(self.chip.clone());
        let mut history = Vec::new();
        let model = guarded(|| {
            let mut runner: ChipRunner<S> = Runner::create(rig.clone(), &self.setup)?;
            for op in self.script().0 {
                runner.step(op)?;
                if history.last() != Some(runner.model().visible()) {
                    history.push(runner.model().visible().clone());
                }
            }
            if let Op::Commit(slot, _) = last {
                runner.put_value(slot, TableIndex(0), KeyIndex(1), 20)?;
            }
            runner.step(last)?;
            history.push(runner.model().visible().clone());
            Ok(runner.model().clone())
        });
        let mut model = model.map_err(violation_of)?;
        model.power_off();
        Ok(Base { chip: rig.device(), model, history })
    }

    /// The chip after one more restart that finds the required contents, and one commit.
    ///
    /// # Errors
    ///
    /// A violation on the way.
    pub fn reopened<S: Subject<ChipRig>>(&self, base: Base) -> Result<Base, Violation> {
        let rig = self.rig(base.chip);
        let model = guarded(|| {
            let mut runner: ChipRunner<S> =
                Runner::open(rig.clone(), base.model.clone(), &self.setup)?;
            runner.step(Op::Put(SlotIndex(0), TableIndex(0), KeyIndex(1), Size(9)))?;
            runner.step(Op::Commit(SlotIndex(0), Durability::Immediate))?;
            Ok(runner.model().clone())
        });
        let model = model.map_err(violation_of)?;
        Ok(Base { chip: rig.device(), model, history: base.history })
    }

    fn campaign<I: Sync>(
        &self,
        id: &'static str,
        items: &[I],
        name: impl Fn(&I) -> String,
        case: impl Fn(&I) -> Verdict + Sync,
    ) -> Campaign {
        let tried: Vec<&I> = items.iter().step_by(self.stride.max(1)).collect();
        let verdicts = each(self.threads, &tried, |item| case(item));
        let mut campaign = Campaign { id, cases: tried.len() as u64, ..Campaign::default() };
        for (item, verdict) in tried.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Right => {}
                Verdict::Reported => campaign.reported += 1,
                Verdict::Unknowable => campaign.unknowable += 1,
                Verdict::Wrong(violation) => campaign.failures.push((name(item), violation)),
            }
        }
        campaign
    }

    /// Opens a chip that was tampered with, reads everything, writes, and opens the chip again.
    fn survey<S: Subject<ChipRig>>(&self, chip: SimNand, base: &Base, damage: Damage) -> Verdict {
        let rig = self.rig(chip.clone());
        let done = guarded(|| {
            let mut runner: ChipRunner<S> =
                Runner::open_damaged(rig.clone(), base.model.clone(), &self.setup, damage)?;
            runner.verify()?;
            runner.step(Op::Put(SlotIndex(0), TableIndex(0), KeyIndex(1), Size(9)))?;
            runner.step(Op::Commit(SlotIndex(0), Durability::Immediate))?;
            runner.step(Op::Collect)?;
            runner.step(Op::Reopen)?;
            runner.verify()
        });
        match verdict_of(done, damage) {
            Verdict::Wrong(Violation::Content(difference)) => {
                let violation = base.explain::<S>(self, chip);
                Verdict::Wrong(violation.unwrap_or(Violation::Content(difference)))
            }
            verdict => verdict,
        }
    }
}

fn verdict_of(done: Result<(), Stop>, damage: Damage) -> Verdict {
    match (done, damage) {
        (Ok(()), _) => Verdict::Right,
        (Err(Stop::Violation(violation)), _) => Verdict::Wrong(violation),
        (Err(_), Damage::Injected) => Verdict::Reported,
        (Err(stop), Damage::None) => Verdict::Wrong(violation_of(stop)),
    }
}

/// Pages of a chip that hold anything.
pub(super) fn programmed_pages(chip: &SimNand) -> Vec<PhysicalPage> {
    let geometry = chip.geometry();
    let is_programmed = |page: &PhysicalPage| {
        let PageContent { data, spare } = chip.peek(*page);
        data.iter().chain(&spare).any(|byte| *byte != 0xFF)
    };
    (0..geometry.page_count())
        .filter_map(|number| geometry.page_from_number(number))
        .filter(is_programmed)
        .collect()
}

fn flip_page(chip: &mut SimNand, page: PhysicalPage, count: u32) {
    let words = chip.geometry().page_size / chip.capabilities().code_word.data_size;
    (0..words).for_each(|word| chip.flip_bits(page, word, count));
}

/// B1: as many bit errors as the ECC repairs, in every code word of every page.
#[must_use]
pub fn correctable_errors<S: Subject<ChipRig>>(trial: &Trial) -> Campaign {
    let base = match trial.after_script::<S>() {
        Ok(base) => base,
        Err(violation) => return Campaign::failed("B1", violation),
    };
    let counts: Vec<u32> = (1..=base.chip.capabilities().code_word.strength).collect();
    let case = |count: &u32| {
        let mut chip = base.chip.clone();
        for page in programmed_pages(&chip) {
            flip_page(&mut chip, page, *count);
        }
        trial.survey::<S>(chip, &base, Damage::None)
    };
    trial.campaign("B1", &counts, |count| format!("{count} bits a code word"), case)
}

/// B2: one bit error more than the ECC repairs, in each page in turn.
#[must_use]
pub fn uncorrectable_pages<S: Subject<ChipRig>>(trial: &Trial) -> Campaign {
    let base = match trial.after_script::<S>() {
        Ok(base) => base,
        Err(violation) => return Campaign::failed("B2", violation),
    };
    let case = |page: &PhysicalPage| {
        let mut chip = base.chip.clone();
        let count = chip.capabilities().code_word.strength + 1;
        flip_page(&mut chip, *page, count);
        trial.survey::<S>(chip, &base, Damage::Injected)
    };
    let pages = programmed_pages(&base.chip);
    trial.campaign("B2", &pages, |page| format!("page {} uncorrectable", page.number()), case)
}

/// B8: each two pages that hold anything, swapped.
#[must_use]
pub fn swapped_pages<S: Subject<ChipRig>>(trial: &Trial) -> Campaign {
    let base = match trial.after_script::<S>() {
        Ok(base) => base,
        Err(violation) => return Campaign::failed("B8", violation),
    };
    let pages = programmed_pages(&base.chip);
    let later = |index: usize| pages.iter().skip(index + 1);
    let pairs: Vec<_> = pages
        .iter()
        .enumerate()
        .flat_map(|(index, one)| later(index).map(move |other| (*one, *other)))
        .collect();
    let case = |(one, other): &(PhysicalPage, PhysicalPage)| {
        let mut chip = base.chip.clone();
        chip.swap_pages(*one, *other);
        trial.survey::<S>(chip, &base, Damage::Injected)
    };
    let name = |(one, other): &(PhysicalPage, PhysicalPage)| {
        format!("pages {} and {} swapped", one.number(), other.number())
    };
    trial.campaign("B8", &pairs, name, case)
}

/// One way of damaging an image that no ECC sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    DataBit(usize, u8),
    SpareBit(usize, u8),
    Erased,
    Copied,
    ZeroFrom(usize),
    ErasedFrom(usize),
    Random(u64),
    Swapped,
}

/// A page that is changed, and another one from which bytes come.
#[derive(Clone, Copy, Debug)]
struct Change {
    page: PhysicalPage,
    other: PhysicalPage,
    harm: Harm,
}

impl Change {
    /// The change that `seed` draws among `pages`.
    fn drawn(pages: &[PhysicalPage], geometry: &Geometry, seed: u64) -> Option<Self> {
        let mut generator = Pcg64Mcg::seed_from_u64(seed);
        let mut draw = |bound: usize| (generator.next_u64() % bound.max(1) as u64) as usize;
        let (page, other) = (*pages.get(draw(pages.len()))?, *pages.get(draw(pages.len()))?);
        let (first, bit) = (draw(geometry.page_size as usize), draw(8) as u8);
        let harm = match draw(8) {
            0 => Harm::DataBit(first, bit),
            1 if geometry.spare_size > 0 => {
                Harm::SpareBit(first % geometry.spare_size as usize, bit)
            }
            2 => Harm::Erased,
            3 => Harm::Copied,
            4 => Harm::ZeroFrom(first),
            5 => Harm::ErasedFrom(first),
            6 => Harm::Random(seed),
            _ => Harm::Swapped,
        };
        Some(Self { page, other, harm })
    }

    fn apply(&self, chip: &mut SimNand) {
        let PageContent { mut data, mut spare } = chip.peek(self.page);
        match self.harm {
            Harm::DataBit(index, bit) => data[index] ^= 1 << bit,
            Harm::SpareBit(index, bit) => spare[index] ^= 1 << bit,
            Harm::Erased => {
                data.fill(0xFF);
                spare.fill(0xFF);
            }
            Harm::Copied => PageContent { data, spare } = chip.peek(self.other),
            Harm::ZeroFrom(first) => data[first..].fill(0),
            Harm::ErasedFrom(first) => data[first..].fill(0xFF),
            Harm::Random(seed) => Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut data),
            Harm::Swapped => return chip.swap_pages(self.page, self.other),
        }
        chip.poke(self.page, &PageContent { data, spare });
    }

    /// Whether the page is touched: a swap touches both.
    fn touches(&self, page: PhysicalPage) -> bool {
        self.page == page || self.harm == Harm::Swapped && self.other == page
    }

    fn name(&self, geometry: &Geometry) -> String {
        let place = |page| (geometry.block_of(page).0, geometry.index_in_block(page));
        let ((block, index), other) = (place(self.page), place(self.other));
        format!("page {block}/{index} {:?}, other page {}/{}", self.harm, other.0, other.1)
    }
}

/// D3: an image changed in `count` ways, after a clean close and where power went between two
/// operations.
///
/// One loss goes unnoticed: no page refers to the last page of the log, so without it the log looks
/// as a cut before its last programs leaves it. The campaign counts these cases apart.
#[must_use]
pub fn changed_images<S: Subject<ChipRig>>(trial: &Trial, count: u64) -> Campaign {
    let mut whole = Campaign { id: "D3", ..Campaign::default() };
    for last in [Op::Reopen, Op::Commit(SLOT, Durability::Immediate)] {
        match trial.after_script_and::<S>(last) {
            Ok(base) => whole.add(changed_image::<S>(trial, &base, count)),
            Err(violation) => whole.add(Campaign::failed("D3", violation)),
        }
    }
    whole
}

/// D3 after a clean close alone: for a subject whose log does not say which pages it needs, so that
/// a page lost at the end of a block looks to the subject like one that a cut took.
#[must_use]
pub fn changed_closed_images<S: Subject<ChipRig>>(trial: &Trial, count: u64) -> Campaign {
    match trial.after_script::<S>() {
        Ok(base) => changed_image::<S>(trial, &base, count),
        Err(violation) => Campaign::failed("D3", violation),
    }
}

fn changed_image<S: Subject<ChipRig>>(trial: &Trial, base: &Base, count: u64) -> Campaign {
    let (geometry, pages) = (base.chip.geometry(), programmed_pages(&base.chip));
    let seeds = (0..count).map(|number| trial.seed ^ (number << 20));
    let changes: Vec<_> = seeds.filter_map(|seed| Change::drawn(&pages, &geometry, seed)).collect();
    let log_end = base.log_end();
    let case = |change: &Change| {
        let mut chip = base.chip.clone();
        change.apply(&mut chip);
        match trial.survey::<S>(chip, base, Damage::Injected) {
            Verdict::Wrong(Violation::Rewound(_))
                if log_end.is_some_and(|at| change.touches(at)) =>
            {
                Verdict::Unknowable
            }
            verdict => verdict,
        }
    };
    trial.campaign("D3", &changes, |change| change.name(&geometry), case)
}

/// Runs the script on a chip that fails as planned, then opens it again without the plan's cut.
fn run_with_plan<S: Subject<ChipRig>>(trial: &Trial, plan: &FaultPlan, damage: Damage) -> Verdict {
    let mut chip = trial.chip.clone();
    chip.set_plan(plan.clone());
    let rig = trial.rig(chip);
    let done = guarded(|| {
        let mut runner: ChipRunner<S> = Runner::create(rig.clone(), &trial.setup)?;
        if damage == Damage::Injected {
            runner.expect_damage();
        }
        runner.run(&trial.script())?;
        runner.verify()?;
        runner.step(Op::Reopen)?;
        runner.verify()
    });
    verdict_of(done, damage)
}

/// B4: each program and erase of the script fails, once and for ever.
#[must_use]
pub fn failing_operations<S: Subject<ChipRig>>(trial: &Trial) -> Campaign {
    let count = match trial.after_script::<S>() {
        Ok(base) => base.chip.operation_count(),
        Err(violation) => return Campaign::failed("B4", violation),
    };
    let cases: Vec<_> = (0..count)
        .flat_map(|number| [(number, Persistence::Once), (number, Persistence::ForEver)])
        .collect();
    let case = |(number, persistence): &(u64, Persistence)| {
        let plan = FaultPlan::failure(trial.seed, *number, *persistence);
        run_with_plan::<S>(trial, &plan, Damage::None)
    };
    let name = |(number, persistence): &(u64, Persistence)| {
        format!("operation {number} fails {persistence:?}")
    };
    trial.campaign("B4", &cases, name, case)
}

/// Failures that a block reports.
pub const TOLD_FAULTS: [BlockFault; 2] = [BlockFault::ProgramFails, BlockFault::EraseFails];

/// Every way in which a block may misbehave.
pub const BLOCK_FAULTS: [BlockFault; 5] = [
    BlockFault::ProgramFails,
    BlockFault::EraseFails,
    BlockFault::ReadFails,
    BlockFault::ProgramIgnored,
    BlockFault::EraseIgnored,
];

/// B5: each block misbehaves in each of these ways from the start.
///
/// A chip that reports success and does nothing, or loses stored bytes, may be answered with a
/// typed error; wrong bytes are never right.
#[must_use]
pub fn misbehaving_blocks<S: Subject<ChipRig>>(trial: &Trial, faults: &[BlockFault]) -> Campaign {
    let blocks = trial.chip.geometry().blocks();
    let cases: Vec<_> =
        blocks.flat_map(|block| faults.iter().map(move |fault| (block, *fault))).collect();
    let case = |(block, fault): &(BlockIndex, BlockFault)| {
        let plan = FaultPlan {
            seed: trial.seed,
            block_faults: vec![(*block, *fault)],
            ..FaultPlan::default()
        };
        let is_told = TOLD_FAULTS.contains(fault);
        let damage = if is_told { Damage::None } else { Damage::Injected };
        run_with_plan::<S>(trial, &plan, damage)
    };
    let name = |(block, fault): &(BlockIndex, BlockFault)| format!("block {} {fault:?}", block.0);
    trial.campaign("B5", &cases, name, case)
}

const SLOT: SlotIndex = SlotIndex(0);
