//! A structural check of the whole database: every node, every large value, every page.

use std::collections::BTreeSet;

use flagstone_nand::Nand;
use flagstone_space::LogicalPage;

use super::Runtime;
use crate::engine::{Descriptor, NodeOutline};
use crate::error::EngineError;

/// Something that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckFault {
    /// A page could not be read, or does not say what its place demands.
    Page {
        /// Page concerned.
        page: LogicalPage,
        /// The check that fired.
        check: String,
    },
    /// The space floor found mapping and pages at odds.
    Space(String),
}

/// What a check saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Tables, the catalog included.
    pub tables: u64,
    /// Nodes of all trees.
    pub nodes: u64,
    /// Entries in leaves.
    pub entries: u64,
    /// Large values.
    pub values: u64,
    /// Pages that are mapped but that nothing refers to: lost space, never lost data.
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
}

/// A node to be visited, and what its parent says of it.
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
        let mut reached = BTreeSet::new();
        let roots = self.engine().roots();
        for (tree, root) in roots {
            report.tables += 1;
            self.check_tree(tree, root, &mut reached, &mut report)?;
        }
        let (values, pages) = self.engine().pending_references();
        for value in values {
            self.reach_value(&value, &mut reached);
        }
        reached.extend(pages);
        let mut space = self.space();
        let mapped: Vec<LogicalPage> = space.mapped_pages().collect();
        report.leaked_pages = mapped.iter().filter(|page| !reached.contains(page)).count() as u64;
        let faults = space.verify()?;
        report.faults.extend(faults.iter().map(|fault| CheckFault::Space(format!("{fault:?}"))));
        Ok(report)
    }

    fn check_tree(
        &self,
        tree: u32,
        root: LogicalPage,
        reached: &mut BTreeSet<LogicalPage>,
        report: &mut CheckReport,
    ) -> Result<(), EngineError> {
        let mut open = vec![Visit { page: root, tree, level: None, low: Vec::new(), high: None }];
        while let Some(visit) = open.pop() {
            if !reached.insert(visit.page) {
                report.fault(visit.page, "node has two parents");
                continue;
            }
            let outline = match self.run(|engine| engine.outline_of(visit.page)) {
                Ok(outline) => outline,
                Err(error @ (EngineError::Corrupt { .. } | EngineError::Space(_))) => {
                    report.fault(visit.page, error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            report.nodes += 1;
            report.entries += outline.entry_count as u64;
            self.check_node(&visit, &outline, reached, report);
            open.extend(children(&visit, &outline));
        }
        Ok(())
    }

    fn check_node(
        &self,
        visit: &Visit,
        outline: &NodeOutline,
        reached: &mut BTreeSet<LogicalPage>,
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
            report.values += 1;
            let loaded = Descriptor::decode(value).and_then(|d| self.load_value(&d).map(|_| ()));
            if let Err(error) = loaded {
                report.fault(visit.page, format!("large value: {error}"));
            }
            self.reach_value(value, reached);
        }
        for value in &outline.superseded {
            self.reach_value(value, reached);
        }
    }

    fn reach_value(&self, value: &[u8], reached: &mut BTreeSet<LogicalPage>) {
        let Ok(descriptor) = Descriptor::decode(value) else { return };
        reached.extend(descriptor.pages());
        if let Ok(chunks) = self.chunks_of(&descriptor) {
            reached.extend(chunks);
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
