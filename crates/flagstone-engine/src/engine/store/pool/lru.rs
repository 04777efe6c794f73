//! The order of last use, in which frames leave memory: the least recently used one goes first.
//!
//! Owns the places of frames, by their index. Never sees an image, never evicts.
//!
//! - **O1** Every frame is in the list once; `count` frames in all.

use flagstone_space::LogicalPage;

use crate::policy::{Replacement, Urgency};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Spot {
    previous: u32,
    next: u32,
}

const NOWHERE: Spot = Spot { previous: NONE, next: NONE };

/// Frames by last use: a list through an array.
#[derive(Debug)]
pub struct Lru {
    spots: Vec<Spot>,
    /// Most recently used.
    head: u32,
    /// Least recently used.
    tail: u32,
    count: usize,
}

impl Default for Lru {
    fn default() -> Self {
        Self { spots: Vec::new(), head: NONE, tail: NONE, count: 0 }
    }
}

impl Lru {
    fn unlink(&mut self, index: u32) {
        let Spot { previous, next } = self.spots[index as usize];
        match previous {
            NONE => self.head = next,
            _ => self.spots[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            _ => self.spots[next as usize].previous = previous,
        }
    }

    fn link(&mut self, index: u32) {
        let head = std::mem::replace(&mut self.head, index);
        self.spots[index as usize] = Spot { previous: NONE, next: head };
        match head {
            NONE => self.tail = index,
            _ => self.spots[head as usize].previous = index,
        }
    }
}

impl Replacement for Lru {
    fn count(&self) -> usize {
        self.count
    }

    fn insert(&mut self, index: u32, _page: LogicalPage, _size: usize) {
        let at = index as usize;
        if self.spots.len() <= at {
            self.spots.resize(at + 1, NOWHERE);
        }
        self.count += 1;
        self.link(index);
    }

    fn touch(&mut self, index: u32) {
        if self.head != index {
            self.unlink(index);
            self.link(index);
        }
    }

    fn remove(&mut self, index: u32) {
        self.unlink(index);
        self.spots[index as usize] = NOWHERE;
        self.count -= 1;
    }

    fn victim(&mut self, _urgency: Urgency) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    fn allows_late_touch(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the victim is the frame whose last use is oldest. Method: a list of frames by use beside
    /// the order, over uses, arrivals and departures.
    #[test]
    fn the_victim_is_the_least_recently_used_frame() {
        let (mut lru, mut model) = (Lru::default(), Vec::new());
        let mut state = 7u32;
        for _ in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let frame = (state >> 8) % 40;
            let known = model.iter().position(|other| *other == frame);
            match known {
                Some(at) if state >> 8 & 7 == 0 => {
                    model.remove(at);
                    lru.remove(frame);
                }
                Some(at) => {
                    model.remove(at);
                    model.push(frame);
                    lru.touch(frame);
                }
                None => {
                    model.push(frame);
                    lru.insert(frame, LogicalPage(frame), 1);
                }
            }
            assert_eq!(lru.count(), model.len(), "O1");
            assert_eq!(lru.victim(Urgency::Now), model.first().copied());
        }
    }
}
