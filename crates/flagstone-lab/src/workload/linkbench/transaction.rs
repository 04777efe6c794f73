//! The ten operations, each a transaction, as state machines (rule W2).
//!
//! ```text
//! add-link, update-link   Link → PutLink → DropEntry → PutEntry → Count → PutCount
//! delete-link             Link → PutLink (hidden) → DropEntry → PutEntry → Count → PutCount
//! count-link              Count
//! get-link                Link, for each
//! get-link-list           List
//! add-node                        PutNode → PutPiece, for each
//! update-node             Node  → PutNode → PutPiece, for each → DropPiece, for each
//! delete-node             Node  → DropNode → DropPiece, for each
//! get-node                Node  → Piece, for each
//! ```

use flagstone_engine::{Direction, ScanRange, Table};

use super::input::{Class, Inputs};
use super::load::node_head;
use super::rows::{
    Count, HIDDEN, Link, LinkKey, NodeHead, VISIBILITY, VISIBLE, list_prefix, piece_key, pieces,
};
use super::{Bounds, Tables};
use crate::workload::{Intent, Operations, Outcome, Scan};

/// Version of nodes that were updated.
const UPDATED_VERSION: u64 = 2;
/// Version of nodes that were added.
const ADDED_VERSION: u64 = 1;

#[derive(Clone, Debug)]
enum Step {
    Begin,
    /// Reads the link at this place of a multiget.
    Links(usize),
    Link,
    PutLink,
    DropEntry,
    PutEntry,
    Count,
    PutCount,
    List(Scan),
    Node,
    PutNode,
    PutPiece(u32),
    DropNode,
    DropPiece(u32),
    Piece(u32),
    Done,
}

/// The oldest link of a list that was cut off, from which another list goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) id1: u64,
    pub(super) kind: u64,
    pub(super) time: u64,
}

/// One operation under way.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) inputs: Inputs,
    /// Where a list goes on.
    tail: Option<Tail>,
    list_max: usize,
    step: Step,
    /// The link before and after.
    before: Option<Link>,
    after: Option<Link>,
    /// Pieces of the node before.
    old_pieces: u32,
    /// How the count changes.
    change: i8,
    count: Option<Count>,
    /// Links or rows found.
    pub(super) found: usize,
    /// The oldest of a list that was cut off.
    pub(super) cut_off: Option<Tail>,
    row: Vec<u8>,
}

impl Transaction {
    pub(super) fn new(inputs: Inputs, tail: Option<Tail>, bounds: &Bounds) -> Self {
        Self {
            inputs,
            tail,
            list_max: bounds.list_max,
            step: Step::Begin,
            before: None,
            after: None,
            old_pieces: 0,
            change: 0,
            count: None,
            found: 0,
            cut_off: None,
            row: Vec::new(),
        }
    }

    pub(super) fn restart(&mut self) {
        let bounds = Bounds { degree_max: 0, list_max: self.list_max };
        *self = Self::new(self.inputs.clone(), self.tail, &bounds);
    }

    /// Where the list goes on that this one is.
    pub(super) fn tail(&self) -> Option<Tail> {
        self.tail
    }

    pub(super) fn advance<O: Operations>(
        &mut self,
        tables: &Tables,
        engine: &mut O,
    ) -> Result<Outcome, O::Stop> {
        loop {
            self.step = match self.step {
                Step::Begin => self.begin(),
                Step::Links(place) => self.links(tables.link, engine, place)?,
                Step::Link => self.link(tables.link, engine)?,
                Step::PutLink => self.put_link(tables.link, engine)?,
                Step::DropEntry => self.drop_entry(tables.index, engine)?,
                Step::PutEntry => self.put_entry(tables.index, engine)?,
                Step::Count => self.count(tables.count, engine)?,
                Step::PutCount => self.put_count(tables.count, engine)?,
                Step::List(_) => self.list(tables.index, engine)?,
                Step::Node => self.node(tables.node, engine)?,
                Step::PutNode => self.put_node(tables.node, engine)?,
                Step::PutPiece(piece) => self.put_piece(tables.text, engine, piece)?,
                Step::DropNode => {
                    engine.delete(tables.node, &self.inputs.id.to_be_bytes())?;
                    Step::DropPiece(0)
                }
                Step::DropPiece(piece) => self.drop_piece(tables.text, engine, piece)?,
                Step::Piece(piece) => self.piece(tables.text, engine, piece)?,
                Step::Done => return Ok(Outcome::Commit),
            };
        }
    }

    fn begin(&mut self) -> Step {
        let Inputs { id, kind, .. } = self.inputs;
        match self.inputs.class {
            Class::AddLink | Class::DeleteLink | Class::UpdateLink => Step::Link,
            Class::CountLink => Step::Count,
            Class::GetLink => Step::Links(0),
            Class::GetLinkList => {
                let (id, kind) = self.tail.map_or((id, kind), |tail| (tail.id1, tail.kind));
                let prefix = list_prefix(id, kind, VISIBLE);
                let mut range = ScanRange::prefix(&prefix);
                // Up to the time of the last link seen, which is skipped.
                if let Some(until) = self.tail.and_then(|tail| tail.time.checked_add(1)) {
                    range.high = Some([&prefix[..], &until.to_be_bytes()].concat());
                }
                let skipped = usize::from(self.tail.is_some());
                Step::List(Scan::new(range, Direction::Backward, self.list_max + skipped))
            }
            Class::AddNode => Step::PutNode,
            Class::UpdateNode | Class::DeleteNode | Class::GetNode => Step::Node,
        }
    }

    /// The link to `id2s[place]`.
    fn key(&self, place: usize) -> LinkKey {
        let Inputs { id: id1, kind, .. } = self.inputs;
        LinkKey { kind, id1, id2: self.inputs.id2s.get(place).copied().unwrap_or(id1) }
    }

    fn links<O: Operations>(
        &mut self,
        table: Table,
        engine: &mut O,
        place: usize,
    ) -> Result<Step, O::Stop> {
        if place == self.inputs.id2s.len() {
            return Ok(Step::Done);
        }
        let key = self.key(place).encode();
        let is_there = engine.get(table, &key, Intent::Read, &mut self.row)?;
        self.found += usize::from(is_there);
        Ok(Step::Links(place + 1))
    }

    fn link<O: Operations>(&mut self, table: Table, engine: &mut O) -> Result<Step, O::Stop> {
        let is_there = engine.get(table, &self.key(0).encode(), Intent::Change, &mut self.row)?;
        let before = if is_there { Link::decode(&self.row) } else { None };
        let is_visible = before.as_ref().is_some_and(|link| link.visibility == VISIBLE);
        let after = match (&before, self.inputs.class) {
            (Some(link), Class::DeleteLink) if is_visible => {
                self.change = -1;
                Link { visibility: HIDDEN, ..link.clone() }
            }
            // Not there, or hidden: nothing to do.
            (_, Class::DeleteLink) => return Ok(Step::Done),
            _ => {
                self.change = i8::from(!is_visible);
                let Inputs { time, data, .. } = &self.inputs;
                Link { visibility: VISIBLE, version: 0, time: *time, data: data.clone() }
            }
        };
        (self.before, self.after) = (before, Some(after));
        Ok(Step::PutLink)
    }

    fn put_link<O: Operations>(&mut self, table: Table, engine: &mut O) -> Result<Step, O::Stop> {
        let key = self.key(0).encode();
        match (&self.after, self.inputs.class) {
            (Some(after), Class::DeleteLink) => {
                engine.patch(table, &key, VISIBILITY, &[after.visibility])?;
            }
            (Some(after), _) => engine.put(table, &key, &after.encode())?,
            (None, _) => {}
        }
        Ok(Step::DropEntry)
    }

    fn drop_entry<O: Operations>(&mut self, table: Table, engine: &mut O) -> Result<Step, O::Stop> {
        if let Some(before) = &self.before {
            let key = self.key(0).index(before.visibility, before.time);
            engine.delete(table, &key)?;
        }
        Ok(Step::PutEntry)
    }

    fn put_entry<O: Operations>(&mut self, table: Table, engine: &mut O) -> Result<Step, O::Stop> {
        if let Some(after) = &self.after {
            let key = self.key(0).index(after.visibility, after.time);
            engine.put(table, &key, &after.covered())?;
        }
        Ok(if self.change == 0 { Step::Done } else { Step::Count })
    }

    fn count<O: Operations>(&mut self, table: Table, engine: &mut O) -> Result<Step, O::Stop> {
        let key = self.key(0).count();
        let is_read = self.inputs.class == Class::CountLink;
        let intent = if is_read { Intent::Read } else { Intent::Change };
        let is_there = engine.get(table, &key, intent, &mut self.row)?;
        self.count = if is_there { Count::decode(&self.row) } else { None };
        if is_read {
            self.found = self.count.map_or(0, |count| count.count as usize);
            return Ok(Step::Done);
        }
        Ok(Step::PutCount)
    }

    fn put_count<O: Operations>(&mut self, table: Table, engine: &mut O) -> Result<Step, O::Stop> {
        let key = self.key(0).count();
        let time = self.inputs.time;
        match self.count {
            Some(Count { count, version, .. }) => {
                let count = count.saturating_add_signed(i32::from(self.change));
                let row = Count { count, time, version: version + 1 };
                engine.patch(table, &key, 0, &row.encode())?;
            }
            None => {
                let count = u32::from(self.change > 0);
                engine.put(table, &key, &Count { count, time, version: 0 }.encode())?;
            }
        }
        Ok(Step::Done)
    }

    fn list<O: Operations>(&mut self, table: Table, engine: &mut O) -> Result<Step, O::Stop> {
        let Step::List(scan) = &mut self.step else { return Ok(Step::Done) };
        engine.scan(table, scan)?;
        let skipped = usize::from(self.tail.is_some());
        self.found = scan.rows().len().saturating_sub(skipped);
        // A list that may be cut off is remembered.
        if self.found >= self.list_max
            && let Some(oldest) = scan.rows().last()
            && let Some((key, _, time)) = LinkKey::decode_index(&oldest.key)
        {
            self.cut_off = Some(Tail { id1: key.id1, kind: key.kind, time });
        }
        Ok(Step::Done)
    }

    fn node<O: Operations>(&mut self, table: Table, engine: &mut O) -> Result<Step, O::Stop> {
        let is_read = self.inputs.class == Class::GetNode;
        let intent = if is_read { Intent::Read } else { Intent::Change };
        let is_there = engine.get(table, &self.inputs.id.to_be_bytes(), intent, &mut self.row)?;
        let head = NodeHead::decode(&self.row).map(|(head, _)| head);
        let Some(head) = head.filter(|head| is_there && head.kind == super::rows::NODE_TYPE) else {
            return Ok(Step::Done);
        };
        (self.old_pieces, self.found) = (head.piece_count(), 1);
        Ok(match self.inputs.class {
            Class::GetNode => Step::Piece(0),
            Class::DeleteNode => Step::DropNode,
            _ => Step::PutNode,
        })
    }

    fn put_node<O: Operations>(&mut self, table: Table, engine: &mut O) -> Result<Step, O::Stop> {
        let is_new = self.inputs.class == Class::AddNode;
        let version = if is_new { ADDED_VERSION } else { UPDATED_VERSION };
        let data = &self.inputs.data;
        let head = node_head(version, self.inputs.node_time(), data);
        engine.put(table, &self.inputs.id.to_be_bytes(), &head.encode(data))?;
        Ok(Step::PutPiece(0))
    }

    fn put_piece<O: Operations>(
        &mut self,
        table: Table,
        engine: &mut O,
        piece: u32,
    ) -> Result<Step, O::Stop> {
        let Some(bytes) = pieces(&self.inputs.data).nth(piece as usize) else {
            return Ok(Step::DropPiece(piece));
        };
        engine.put(table, &piece_key(self.inputs.id, piece), bytes)?;
        Ok(Step::PutPiece(piece + 1))
    }

    /// Pieces of the node before that it has no longer.
    fn drop_piece<O: Operations>(
        &mut self,
        table: Table,
        engine: &mut O,
        piece: u32,
    ) -> Result<Step, O::Stop> {
        if piece >= self.old_pieces {
            return Ok(Step::Done);
        }
        engine.delete(table, &piece_key(self.inputs.id, piece))?;
        Ok(Step::DropPiece(piece + 1))
    }

    fn piece<O: Operations>(
        &mut self,
        table: Table,
        engine: &mut O,
        piece: u32,
    ) -> Result<Step, O::Stop> {
        if piece == self.old_pieces {
            return Ok(Step::Done);
        }
        engine.get(table, &piece_key(self.inputs.id, piece), Intent::Read, &mut self.row)?;
        Ok(Step::Piece(piece + 1))
    }
}
