//! Parts of a file that have room on the host, as far as one session knows (G7).
//!
//! Owns the knowledge alone. Never asks the host for room.

/// Parts of a file that have room on the host for writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Rooms {
    /// Whether each existing segment has room.
    segments: Vec<bool>,
    /// Number of segments without room.
    pub(super) lacking: usize,
    /// Whether the head, in front of the segments, has room.
    pub(super) head: bool,
}

impl Rooms {
    pub(super) fn has(&self, segment: usize) -> bool {
        self.segments.get(segment).copied().unwrap_or(true)
    }

    pub(super) fn set(&mut self, segment: usize, has_room: bool) {
        if let Some(known) = self.segments.get_mut(segment) {
            self.lacking = self.lacking + usize::from(*known) - usize::from(has_room);
            *known = has_room;
        }
    }

    /// So many segments are there; new ones have room.
    pub(super) fn resize(&mut self, count: usize) {
        self.segments.resize(count, true);
        self.lacking = self.segments.iter().filter(|has_room| !**has_room).count();
    }

    pub(super) fn set_all(&mut self, has_room: bool) {
        self.head = has_room;
        self.segments.fill(has_room);
        self.lacking = if has_room { 0 } else { self.segments.len() };
    }
}
