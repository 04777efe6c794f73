//! In-place appends: small changes of a leaf go onto the physical page that holds it.
//!
//! Owns the choice of merges that end in an append. The format of appends on flash, and the pages that
//! take them, are the space floor's.
//!
//! - **A1** A leaf is written with as many slots as fit behind its content: they cost nothing, and when
//!   a later image needs their room, that image is written as a whole page.
//! - **A2** An append gives the content that a whole page would have: the same image, complete to the
//!   same LSN, of durable deltas alone (rules D1, D2). Until a checkpoint of the mapping counts it, the
//!   log has these deltas (rule D6): its head moves with such a checkpoint only.
//! - **A3** A leaf that a snapshot may still read takes no append: the old leaf is pinned, and the new
//!   one written elsewhere (rule D15).
//! - **A4** An append is made only while it costs less than a page with its share of collection, both as
//!   measured.

use flagstone_space::{AppendRoom, LogicalPage, PageInfo, runs};

use crate::engine::merge::Merges;
use crate::engine::store::append::Append;
use crate::engine::store::pool::FrameIndex;
use crate::node::NodeView;

impl Merges {
    /// Leaves take appends from now on, as far as the options want it.
    pub(crate) fn carry_appends(&mut self, room: AppendRoom) {
        if self.options.techniques.append_scheme.records_max() > 0 {
            self.append_room = room;
        }
    }

    /// Slots for appends that fit behind a node's content (A1): only leaves have any.
    pub(crate) fn slots_behind(&self, image: &[u8]) -> u8 {
        let view = NodeView::trusted(image);
        if !view.is_leaf() {
            return 0;
        }
        self.append_room.slots_behind(view.used_bytes(), self.payload_size)
    }

    /// Collection moved a page: its frame, if that is a copy of it, is now a copy of the page at the
    /// new place.
    pub(crate) fn relocated(&mut self, page: LogicalPage, info: &PageInfo) {
        let index = self.pool.peek(page);
        if index.is_some_and(|index| self.pool.frame(index).lsn == info.lsn) {
            self.note_version(page, Some(info));
        }
    }

    /// How the version that a frame is a copy of becomes `image`; none when a page costs less, or has to
    /// be written.
    pub(crate) fn append_onto(&self, index: FrameIndex, image: &[u8]) -> Option<Append> {
        let frame = self.pool.frame(index);
        let onto = **frame.version.as_ref().filter(|_| frame.ahead.is_none())?;
        let left = onto.append_slots.saturating_sub(onto.appends).min(self.append_room.slots_max);
        let size = self.payload_size - self.append_room.size_of(onto.append_slots);
        if left == 0
            || NodeView::trusted(image).used_bytes() > size
            || !self.pool.costs.favour_appends()
        {
            return None;
        }
        let (form, size_max) = (Append::FORM, self.append_room.record_size_max);
        let mut records = runs::encode(&frame.image, image, form, left.into(), size_max)?;
        if records.is_empty() {
            // The LSN that the leaf is complete to moves on all the same.
            records.push(Vec::new());
        }
        Some(Append { onto, records })
    }
}

#[cfg(test)]
mod tests;
