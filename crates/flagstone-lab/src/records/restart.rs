//! Restart: which transactions committed, which records pages lack, and which pages are written
//! again.
//!
//! Owns the order above the store's ([`flagstone_opponents::shadow::records`], R5): records of
//! committed transactions and changes of shape are repeated, page by page, in the order of the log,
//! each page from where its newest version leaves off (H2). The restart counts once the store has
//! given its verdict.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_engine::node::{self as node_format, NodeView, ValueRef};
use flagstone_engine::{EngineError, RecoveryReport, Xid};
use flagstone_nand::Nand;
use flagstone_opponents::shadow::records::{Batch, RecordStore};
use flagstone_space::{GroupId, LogicalPage, Lsn};

use super::log::{self, Edit, Part, Record};
use super::page;
use super::resolve::{self, Wanted};
use crate::classic::page::with_children;
use crate::pages::of_store;

/// Bits of a log record's number that count within a mount.
pub(super) const LSN_SHIFT: u32 = 32;

/// A page that is brought up to date.
#[derive(Debug)]
struct Redo {
    lsn: Lsn,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// Not there yet.
    None,
    /// Entries of a leaf, as many as there may be on the way.
    Leaf(Leaf),
    Inner(Vec<u8>),
}

#[derive(Debug)]
struct Leaf {
    tree: u32,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Leaf {
    fn of(image: &[u8]) -> Self {
        let node = NodeView::trusted(image);
        let mut entries = BTreeMap::new();
        for index in 0..node.count() {
            let mut key = Vec::new();
            node.key_into(index, &mut key);
            let value = node.value(index).map(|cell| cell.bytes().to_vec()).unwrap_or_default();
            entries.insert(key, value);
        }
        let (low, high) = (node.low().to_vec(), node.high().map(<[u8]>::to_vec));
        Self { tree: node.tree(), low, high, entries }
    }

    fn image(&self, size: usize) -> Option<Vec<u8>> {
        let entries =
            self.entries.iter().map(|(key, value)| (key.as_slice(), ValueRef::Inline(value)));
        node_format::leaf(self.tree, (&self.low, self.high.as_deref()), entries, size)
    }
}

impl Body {
    fn of(image: Vec<u8>) -> Self {
        let level = NodeView::trusted(&image).level();
        if level == 0 { Self::Leaf(Leaf::of(&image)) } else { Self::Inner(image) }
    }
}

/// A restart under way.
struct Restart<'s, D: Nand> {
    store: &'s mut RecordStore<D>,
    node_size: usize,
    pages: BTreeMap<LogicalPage, Redo>,
}

/// Brings a store up to date; gives the store and the report of the restart.
pub(super) fn restart<D: Nand>(
    mut store: RecordStore<D>,
    batches: &[Batch],
) -> Result<(RecordStore<D>, RecoveryReport), EngineError> {
    let issued_ns = store.device().now_ns();
    let records: Vec<(Lsn, Record)> =
        batches.iter().flat_map(|batch| log::decode(&batch.payload)).collect();
    let recorded = log::committed(&records);
    store.judge(&recorded.iter().map(|xid| GroupId(xid.0)).collect()).map_err(of_store)?;
    let node_size = store.image_size() - page::section_size(store.image_size());
    let mut restart = Restart { store: &mut store, node_size, pages: BTreeMap::new() };
    restart.repeat(&records, &recorded)?;
    restart.settle()?;
    store.finish_restart().map_err(of_store)?;
    let report = *store.restart_report();
    let recovery = RecoveryReport {
        pages_read: report.page_reads + report.spare_reads,
        commits: recorded.len() as u64,
        time_ns: report.device_ns.max(store.device().now_ns().saturating_sub(issued_ns)),
        ..RecoveryReport::default()
    };
    Ok((store, recovery))
}

impl<D: Nand> Restart<'_, D> {
    fn repeat(
        &mut self,
        records: &[(Lsn, Record)],
        recorded: &BTreeSet<Xid>,
    ) -> Result<(), EngineError> {
        for (lsn, record) in records {
            match record {
                Record::Change { xid, page, key, edit } if recorded.contains(xid) => {
                    self.change(*lsn, *page, key, edit)?;
                }
                Record::Shape { parts } => {
                    parts.iter().try_for_each(|part| self.reshape(*lsn, part))?;
                }
                Record::Change { .. } | Record::Commit { .. } => {}
            }
        }
        Ok(())
    }

    /// The page as its newest version has it.
    fn load(&mut self, page: LogicalPage) -> Result<&mut Redo, EngineError> {
        if !self.pages.contains_key(&page) {
            let found = resolve::resolved(self.store, page, Wanted::Committed)?;
            let redo = match found {
                Some(found) => Redo { lsn: found.lsn, body: Body::of(found.node) },
                None if page == super::engine::CATALOG_ROOT => {
                    let leaf = node_format::empty_leaf(super::engine::CATALOG, self.node_size);
                    Redo { lsn: Lsn::ZERO, body: Body::of(leaf) }
                }
                None => Redo { lsn: Lsn::ZERO, body: Body::None },
            };
            self.pages.insert(page, redo);
        }
        let check = "redo has no page";
        self.pages.get_mut(&page).ok_or(EngineError::Corrupt { page, check })
    }

    fn change(
        &mut self,
        lsn: Lsn,
        page: LogicalPage,
        key: &[u8],
        edit: &Edit,
    ) -> Result<(), EngineError> {
        let redo = self.load(page)?;
        if redo.lsn >= lsn {
            return Ok(());
        }
        redo.lsn = lsn;
        let Body::Leaf(leaf) = &mut redo.body else {
            // It was a leaf when the change was made, and moved its entries since.
            return Ok(());
        };
        let value = edit.apply(leaf.entries.remove(key));
        if let Some(value) = value {
            leaf.entries.insert(key.to_vec(), value);
        }
        Ok(())
    }

    fn reshape(&mut self, lsn: Lsn, part: &Part) -> Result<(), EngineError> {
        let page = part.page();
        let node_size = self.node_size;
        let redo = self.load(page)?;
        if redo.lsn >= lsn {
            return Ok(());
        }
        redo.lsn = lsn;
        let check = "redo of a split finds another page";
        let mismatch = EngineError::Corrupt { page, check };
        match (part, &mut redo.body) {
            (Part::Image { image, .. }, body) => {
                let mut whole = image.clone();
                whole.resize(node_size, 0xFF);
                NodeView::parse(&whole).map_err(|_| mismatch)?;
                *body = Body::of(whole);
            }
            (Part::Below { high, .. }, Body::Leaf(leaf)) => {
                leaf.entries.split_off(high);
                leaf.high = Some(high.clone());
            }
            (Part::Children { puts, .. }, Body::Inner(image)) => {
                let mut built = with_children(image, &[], puts).ok_or(mismatch.clone())?;
                *image = built.pop().filter(|_| built.is_empty()).ok_or(mismatch)?.1;
            }
            _ => return Err(mismatch),
        }
        Ok(())
    }

    /// Writes a page whose versions may have been in flight as it is, where no record has to be
    /// merged into it: it may be a cold page.
    fn settle_restless(&mut self, page: LogicalPage) -> Result<(), EngineError> {
        let read = self.store.read(page).map_err(of_store)?;
        match read.filter(|read| read.members.is_empty() && !self.pages.contains_key(&page)) {
            Some(read) => self.store.rebuild(page, &read.image, read.lsn).map_err(of_store),
            None => self.load(page).map(drop),
        }
    }

    /// Writes the pages that lacked records, and the pages whose versions may have been in flight.
    fn settle(&mut self) -> Result<(), EngineError> {
        let restless = self.store.restless_pages();
        for page in &restless {
            self.settle_restless(*page)?;
        }
        for (page, redo) in std::mem::take(&mut self.pages) {
            let is_behind = match self.store.read(page).map_err(of_store)? {
                Some(read) => read.lsn < redo.lsn,
                None => true,
            };
            if !is_behind && !restless.contains(&page) {
                continue;
            }
            let check = "redo makes a page that does not fit";
            let node = match redo.body {
                Body::None => continue,
                Body::Leaf(leaf) => leaf.image(self.node_size),
                Body::Inner(image) => Some(image),
            };
            let node = node.ok_or(EngineError::Corrupt { page, check })?;
            let content = page::content(&node, &[], self.store.image_size());
            let content = content.ok_or(EngineError::Corrupt { page, check })?;
            self.store.rebuild(page, &content, redo.lsn).map_err(of_store)?;
        }
        Ok(())
    }
}
