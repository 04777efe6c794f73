//! Page traces taken from the engine while it runs ([`crate::ipl::Trace`]).
//!
//! Owns which records, reads and writes become events. Does nothing where no trace is recorded.

use flagstone_engine::Xid;
use flagstone_space::{LogicalPage, Lsn, PageInfo};

use super::engine::Engine;
use super::record::{Edit, Part, Place, Record};
use crate::ipl::{CHANGED_MAX, Event};

impl Engine {
    /// Keeps every event from now on.
    pub fn record_events(&mut self) {
        self.events = Some(Vec::new());
    }

    /// The events so far, in their order; none is kept any more.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.take().unwrap_or_default()
    }

    /// Changed bytes of a frame that are noted for the trace.
    pub(super) fn recorded_bytes(&self) -> usize {
        if self.events.is_some() { CHANGED_MAX } else { 0 }
    }

    /// A record goes into the log.
    pub(super) fn note_record(&mut self, record: &Record) {
        let Some(events) = &mut self.events else { return };
        match record {
            Record::Update { xid, place, change, .. } => {
                let size = redo_size(record, place, change.redo());
                events.push(Event::Change { page: place.page.0, xid: xid.0, size, is_undo: false });
            }
            Record::Clr { xid, place, edit, .. } => {
                let size = redo_size(record, place, edit.clone());
                events.push(Event::Change { page: place.page.0, xid: xid.0, size, is_undo: true });
            }
            Record::Shape { parts } => events.extend(parts.iter().map(shape_event)),
            Record::Abort { xid, .. } => events.push(Event::Abort(xid.0)),
            _ => {}
        }
    }

    /// A transaction commits, whether it has a record or not.
    pub(super) fn note_commit(&mut self, xid: Xid) {
        self.events.iter_mut().for_each(|events| events.push(Event::Commit(xid.0)));
    }

    /// A page was read.
    pub(super) fn note_read(&mut self, page: LogicalPage) {
        self.events.iter_mut().for_each(|events| events.push(Event::Read(page.0)));
    }

    /// A page was written, as `info` says.
    pub(super) fn note_write(&mut self, page: LogicalPage, info: &PageInfo) {
        let Some(events) = &mut self.events else { return };
        let changes = self.pool.peek(page).and_then(|frame| frame.changes.ranges());
        let changed = changes.map(|ranges| {
            ranges.iter().map(|range| (range.start as u16, range.len() as u16)).collect()
        });
        events.push(Event::Write { page: page.0, changed, slots: info.append_slots });
    }
}

/// Bytes of the redo part of a change, without the links of a log.
fn redo_size(record: &Record, place: &Place, edit: Edit) -> u32 {
    let xid = record.chain().map(|(xid, _)| xid).unwrap_or_default();
    let (previous, undo_next) = (Lsn::ZERO, Lsn::ZERO);
    let redo = Record::Clr { xid, previous, undo_next, place: place.clone(), edit };
    redo.encode().len() as u32
}

fn shape_event(part: &Part) -> Event {
    if let Part::Free { page } = part {
        return Event::Free(page.0);
    }
    let size = Record::Shape { parts: vec![part.clone()] }.encode().len() as u32;
    Event::Change { page: part.page().0, xid: 0, size, is_undo: false }
}
