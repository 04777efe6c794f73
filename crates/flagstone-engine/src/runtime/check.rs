//! A structural check of the whole database: every node, every large value, every page.

use std::collections::BTreeSet;

use flagstone_nand::Nand;
use flagstone_space::{Fault, LogicalPage};
use thiserror::Error;

use super::Runtime;
use crate::engine::{CATALOG, Descriptor, Direction, NodeOutline, RowValue, ScanRange, Table};
use crate::error::EngineError;

/// A contradiction in the database.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CheckFault {
    /// A page could not be read, or its content does not match its place.
    #[error("page {}: {check}", page.0)]
    Page {
        /// Page concerned.
        page: LogicalPage,
        /// The check that fired.
        check: String,
    },
    /// The space floor found mapping and pages at odds.
    #[error(transparent)]
    Space(#[from] Fault),
    /// The rows of a table are not in key order.
    #[error("tree {tree}: rows are out of order")]
    Order {
        /// Number of the tree.
        tree: u32,
    },
}

/// Counts and findings of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Tables; the catalog that names them is checked but not counted.
    pub tables: u64,
    /// Rows of these tables as a reader sees them: leaves with their pending changes.
    pub rows: u64,
    /// Leaves of all trees, the catalog's included.
    pub leaves: u64,
    /// Nodes above leaves.
    pub inner_nodes: u64,
    /// Entries of leaves as they stand on the device.
    pub leaf_entries: u64,
    /// Changes that wait in memory and in the log for the next write of their leaf.
    pub pending: u64,
    /// Large values.
    pub values: u64,
    /// Named snapshots: their rows are read as well.
    pub snapshots: u64,
    /// Mapped pages without a reference: lost space, never lost data.
    pub leaked_pages: u64,
    /// Contradictions.
    pub faults: Vec<CheckFault>,
}

impl CheckReport {
    /// Whether nothing contradicts itself.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    fn fault(&mut self, page: LogicalPage, check: impl Into<String>) {
        self.faults.push(CheckFault::Page { page, check: check.into() });
    }

    /// Notes an unreadable page on the way to `page`; a failure of the device is an error.
    fn unreadable(&mut self, page: LogicalPage, error: EngineError) -> Result<(), EngineError> {
        let at = match &error {
            EngineError::Corrupt { page, .. } => *page,
            EngineError::Space(_) => page,
            _ => return Err(error),
        };
        if !self.has_fault_of(at) {
            self.fault(at, error.to_string());
        }
        Ok(())
    }

    /// Whether a fault of `page` is known already.
    fn has_fault_of(&self, page: LogicalPage) -> bool {
        let is_of = |fault: &CheckFault| matches!(fault, CheckFault::Page { page: known, .. } if *known == page);
        self.faults.iter().any(is_of)
    }
}

/// Referenced pages. Nodes and values are kept apart: a leaf on the device may name a value that a
/// durable change has replaced, and whose pages belong to another owner by now. Whether the pages
/// of a current value are its own is checked when the value is read.
#[derive(Default)]
struct Reached {
    nodes: BTreeSet<LogicalPage>,
    others: BTreeSet<LogicalPage>,
}

impl Reached {
    fn contains(&self, page: LogicalPage) -> bool {
        self.nodes.contains(&page) || self.others.contains(&page)
    }
}

/// A node to be visited, with its parent's statements about it.
struct Visit {
    page: LogicalPage,
    tree: u32,
    level: Option<u8>,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

impl<D: Nand> Runtime<D> {
    /// Checks every node, large value and page. Background work stands still meanwhile.
    ///
    /// # Errors
    ///
    /// The device failed; contradictions are not errors but part of the report.
    pub fn check(&self) -> Result<CheckReport, EngineError> {
        let _still = self.working.lock();
        let mut report = CheckReport::default();
        let mut reached = Reached::default();
        let roots = self.engine().roots();
        for (tree, root) in roots {
            if self.engine().is_dropped(Table::of(tree)) {
                self.reach_dropped(tree, root, &mut reached)?;
                continue;
            }
            self.check_tree(tree, root, &mut reached, &mut report)?;
            let rows = self.check_rows(tree, root, &mut report)?;
            if tree != CATALOG.id {
                report.tables += 1;
                report.rows += rows;
            }
        }
        report.pending = self.engine().stats().deltas;
        let named = self.space().frozen();
        for (id, _) in named {
            report.snapshots += 1;
            self.check_named(id, |page, error| match error {
                // The snapshot was dropped meanwhile.
                EngineError::NoSnapshot => Ok(()),
                error => report.unreadable(page, error),
            })?;
        }
        let (values, pages) = self.engine().pending_references();
        for value in values {
            self.reach_value(&value, &mut reached);
        }
        reached.others.extend(pages);
        let mut space = self.space();
        let leaked = space.mapped_pages().filter(|page| !reached.contains(*page)).count();
        report.leaked_pages = leaked as u64;
        for fault in space.verify()? {
            if !matches!(fault, Fault::Page { page, .. } if report.has_fault_of(page)) {
                report.faults.push(fault.into());
            }
        }
        Ok(report)
    }

    /// Reads a tree with its large values like a reader, counts the rows and compares neighbouring
    /// keys.
    fn check_rows(
        &self,
        tree: u32,
        root: LogicalPage,
        report: &mut CheckReport,
    ) -> Result<u64, EngineError> {
        let (mut count, mut last): (u64, Option<Vec<u8>>) = (0, None);
        let mut rest = Some(ScanRange { low: Vec::new(), high: None });
        while let Some(range) = rest {
            let mut rows = Vec::new();
            let read = self.run(|engine| {
                rows.clear();
                engine.scan_committed(Table::of(tree), &range, Direction::Forward, &mut rows)
            });
            rest = match read {
                Ok(rest) => rest,
                Err(error) => {
                    report.unreadable(root, error)?;
                    None
                }
            };
            count += rows.len() as u64;
            for row in rows {
                if last.as_ref().is_some_and(|last| *last >= row.key) {
                    report.faults.push(CheckFault::Order { tree });
                }
                last = Some(row.key);
                let RowValue::Large(descriptor) = row.value else { continue };
                report.values += 1;
                if let Err(error) = self.load_value(&descriptor) {
                    report.unreadable(root, error)?;
                }
            }
        }
        Ok(count)
    }

    fn check_tree(
        &self,
        tree: u32,
        root: LogicalPage,
        reached: &mut Reached,
        report: &mut CheckReport,
    ) -> Result<(), EngineError> {
        let mut open = vec![Visit { page: root, tree, level: None, low: Vec::new(), high: None }];
        while let Some(visit) = open.pop() {
            if !reached.nodes.insert(visit.page) {
                report.fault(visit.page, "node has two parents");
                continue;
            }
            let outline = match self.run(|engine| engine.outline_of(visit.page)) {
                Ok(outline) => outline,
                Err(error) => {
                    report.unreadable(visit.page, error)?;
                    continue;
                }
            };
            if outline.level == 0 {
                report.leaves += 1;
            } else {
                report.inner_nodes += 1;
            }
            report.leaf_entries += outline.entry_count as u64;
            self.check_node(&visit, &outline, reached, report);
            open.extend(children(&visit, &outline));
        }
        Ok(())
    }

    /// Marks the remaining pages of a table that is being freed. Its nodes still name freed nodes,
    /// and pages that have other owners by now.
    fn reach_dropped(
        &self,
        tree: u32,
        root: LogicalPage,
        reached: &mut Reached,
    ) -> Result<(), EngineError> {
        let mut open = vec![root];
        while let Some(page) = open.pop() {
            let outline = match self.run(|engine| engine.outline_of(page)) {
                Err(error @ EngineError::Device(_)) => return Err(error),
                Ok(outline) if outline.tree == tree && reached.nodes.insert(page) => outline,
                Ok(_) | Err(_) => continue,
            };
            outline.values.iter().for_each(|value| self.reach_value(value, reached));
            open.extend(outline.children.into_iter().map(|(_, child)| child));
        }
        Ok(())
    }

    fn check_node(
        &self,
        visit: &Visit,
        outline: &NodeOutline,
        reached: &mut Reached,
        report: &mut CheckReport,
    ) {
        if outline.tree != visit.tree {
            report.fault(visit.page, "node belongs to another tree");
        }
        if visit.level.is_some_and(|level| level != outline.level) {
            report.fault(visit.page, "node is on another level than its parent says");
        }
        if outline.low != visit.low || outline.high != visit.high {
            report.fault(visit.page, "fences differ from the parent's separators");
        }
        for value in &outline.values {
            self.reach_value(value, reached);
        }
    }

    fn reach_value(&self, value: &[u8], reached: &mut Reached) {
        let Ok(descriptor) = Descriptor::decode(value) else { return };
        reached.others.extend(descriptor.pages());
        if let Ok(chunks) = self.chunks_of(&descriptor) {
            reached.others.extend(chunks);
        }
    }
}

fn children<'a>(visit: &'a Visit, outline: &'a NodeOutline) -> impl Iterator<Item = Visit> + 'a {
    let bounds = outline.children.iter().skip(1).map(|(low, _)| Some(low.clone()));
    let highs = bounds.chain([outline.high.clone()]);
    outline.children.iter().zip(highs).map(|((low, page), high)| Visit {
        page: *page,
        tree: visit.tree,
        level: outline.level.checked_sub(1),
        low: low.clone(),
        high,
    })
}
