use flagstone_engine::policy::{LEAVES_MIN, Lru, Urgency};
use flagstone_space::LogicalPage;

use super::*;

/// Memory of a frame.
const SIZE: usize = 200;

/// Frames of leaves that are named by their page, as the pool of the engine uses an order.
struct Frames {
    order: Box<dyn Replacement>,
    here: Vec<u32>,
    ahead: Vec<u32>,
}

impl Frames {
    fn new(options: &PolicyOptions, memory: usize) -> Self {
        let guests = options.guests(PolicySizes { memory, payload_size: 100 });
        let order = guests.replacement.unwrap_or_else(|| Box::<Lru>::default());
        Self { order, here: Vec::new(), ahead: Vec::new() }
    }

    fn bytes(&self) -> usize {
        self.here.len() * SIZE
    }

    fn insert(&mut self, page: u32) {
        self.order.keep_only(&[]);
        self.order.insert(page, LogicalPage(page), SIZE);
        self.here.push(page);
    }

    fn mark_ahead(&mut self, page: u32) {
        self.order.set_dirty(page, true);
        self.ahead.push(page);
    }

    /// Evicts frames until at most `bytes_max` remain or the next victim is ahead of flash, which is
    /// then returned.
    fn shrink(&mut self, bytes_max: usize) -> Option<u32> {
        while self.bytes() + self.order.slack() > bytes_max {
            let is_full = self.bytes() > bytes_max;
            if !is_full && self.order.count() <= LEAVES_MIN {
                return None;
            }
            let victim = self.order.victim(if is_full { Urgency::Now } else { Urgency::Soon })?;
            if self.ahead.contains(&victim) {
                return Some(victim);
            }
            self.order.remove(victim);
            self.here.retain(|page| *page != victim);
        }
        None
    }
}

fn with_rule(replacement: ReplacementRule) -> PolicyOptions {
    PolicyOptions { replacement, ..PolicyOptions::default() }
}

/// Goal: a reader uses its page before that page leaves, where all others are ahead of flash and clean
/// ones leave first. Method: a window of all frames.
#[test]
fn a_page_just_read_outlives_frames_that_are_ahead_of_flash() {
    for rule in [ReplacementRule::Cflru, ReplacementRule::CflruAdaptive, ReplacementRule::Cfdc] {
        let options = PolicyOptions { replacement_window: 1.0, ..with_rule(rule) };
        let mut frames = Frames::new(&options, 16 << 20);
        for page in 0..8 {
            frames.insert(page);
            frames.mark_ahead(page);
        }
        let bytes = frames.bytes();
        frames.insert(8);
        assert!(frames.shrink(bytes).is_some(), "{rule:?} writes one first");
        assert!(frames.here.contains(&8), "{rule:?}");
    }
}

/// Goal (rule D7): a leaf just read outlives the wish for free memory, however much memory is to be free
/// beside the frames' limit. Method: every rule and frames for a few leaves.
#[test]
fn a_page_just_read_outlives_the_wish_for_free_memory() {
    for rule in ReplacementRule::ALL {
        for memory in [1 << 10, 16 << 10, 256 << 10, 64 << 20] {
            let mut frames = Frames::new(&with_rule(rule), memory);
            for page in 0..20_u32 {
                frames.insert(page);
                assert_eq!(frames.shrink(8 * SIZE), None);
                let first = page.saturating_sub(LEAVES_MIN as u32 - 1);
                let is_there = |page: u32| frames.here.contains(&page);
                assert!((first..=page).all(is_there), "{rule:?}, {memory} bytes");
                assert!(frames.bytes() <= 8 * SIZE, "{rule:?}, {memory} bytes");
            }
        }
    }
}

/// Goal: two clients that read a page each in turns both come to use it, although all others are used
/// again and again. Method: every rule; the page before the last one is still there when the last one
/// has come.
#[test]
fn a_page_just_read_outlives_frames_that_are_used_again() {
    for rule in ReplacementRule::ALL {
        let mut frames = Frames::new(&with_rule(rule), 16 << 20);
        (0..8).for_each(|page| frames.insert(page));
        let bytes_max = frames.bytes() + frames.order.slack();
        (0..8).for_each(|page| frames.order.touch(page));
        for page in [8, 9] {
            frames.insert(page);
            assert_eq!(frames.shrink(bytes_max), None);
        }
        assert!(frames.here.contains(&8) && frames.here.contains(&9), "{rule:?}");
    }
}

/// Goal: options without guests and options whose guests do what the engine does anyway are the same.
#[test]
fn the_default_configuration_has_no_guests() {
    let options = Options::default().with_policies(|policies| policies.victim = VictimRule::Cost);
    assert_ne!(options, Options::default());
    assert_eq!(PolicyOptions::of(&options).victim, VictimRule::Cost);
    let again = options.with_policies(|policies| policies.victim = VictimRule::Window);
    assert_eq!(again, Options::default());
}
