//! A structural check of the whole database: every node, every long value, every page.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_engine::node::NodeView;
use flagstone_engine::{EngineError, Step};
use flagstone_nand::Nand;
use flagstone_space::LogicalPage;

use super::engine::{CHUNKS, Engine};
use super::machine::Machine;
use super::value::Long;

/// Findings of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Nodes of all trees.
    pub nodes: u64,
    /// Entries in leaves, chunks included.
    pub entries: u64,
    /// Pages that are mapped but that no tree refers to: lost space, never lost data.
    pub leaked_pages: u64,
    /// Contradictions.
    pub faults: Vec<String>,
}

/// A node to be visited, with its level and bounds by its parent.
struct Visit {
    page: LogicalPage,
    tree: u32,
    level: Option<u8>,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

/// Items that a check has met so far.
#[derive(Default)]
struct Met {
    pages: BTreeSet<LogicalPage>,
    /// Chunks of each identity that leaves refer to.
    long: BTreeMap<Vec<u8>, usize>,
    /// Bytes of chunks of each identity.
    chunks: BTreeMap<Vec<u8>, usize>,
    report: CheckReport,
}

impl<D: Nand> Machine<D> {
    /// Checks every node, every long value and every page. No other operation may be at work.
    ///
    /// # Errors
    ///
    /// The device failed; contradictions are part of the report.
    pub fn check(&self) -> Result<CheckReport, EngineError> {
        let mut met = Met::default();
        let roots = self.engine().trees.clone();
        for (tree, page) in roots {
            let mut open = vec![Visit { page, tree, level: None, low: Vec::new(), high: None }];
            while let Some(visit) = open.pop() {
                if !met.pages.insert(visit.page) {
                    met.fault(visit.page, "node has two parents");
                    continue;
                }
                let image = self.run(|engine| engine.copy_of(visit.page))?;
                open.extend(met.visit(&visit, &image));
            }
        }
        if met.long != met.chunks {
            met.report.faults.push(String::from("chunks and the values they belong to differ"));
        }
        let mut space = self.space();
        let leaked = space.mapped_pages().filter(|page| !met.pages.contains(page)).count();
        met.report.leaked_pages = leaked as u64;
        let faults = space.verify()?;
        met.report.faults.extend(faults.iter().map(|fault| format!("{fault:?}")));
        Ok(met.report)
    }
}

impl Engine {
    fn copy_of(&mut self, page: LogicalPage) -> Step<Vec<u8>> {
        self.image(page).map(<[u8]>::to_vec)
    }
}

impl Met {
    fn fault(&mut self, page: LogicalPage, check: &str) {
        self.report.faults.push(format!("{page:?}: {check}"));
    }

    /// Looks at one node; its children are to be visited next.
    fn visit(&mut self, visit: &Visit, image: &[u8]) -> Vec<Visit> {
        let Ok(node) = NodeView::parse(image) else {
            self.fault(visit.page, "node does not parse");
            return Vec::new();
        };
        self.report.nodes += 1;
        if node.tree() != visit.tree {
            self.fault(visit.page, "node belongs to another tree");
        }
        if visit.level.is_some_and(|level| level != node.level()) {
            self.fault(visit.page, "node is on another level than its parent says");
        }
        if node.low() != visit.low || node.high() != visit.high.as_deref() {
            self.fault(visit.page, "fences differ from the parent's separators");
        }
        if node.level() == 0 {
            self.entries(visit, &node);
            return Vec::new();
        }
        children(visit, &node)
    }

    fn entries(&mut self, visit: &Visit, node: &NodeView<'_>) {
        for index in 0..node.count() {
            self.report.entries += 1;
            let Some(cell) = node.value(index) else { continue };
            let mut key = Vec::new();
            node.key_into(index, &mut key);
            if visit.tree == CHUNKS {
                key.truncate(key.len().saturating_sub(4));
                *self.chunks.entry(key).or_default() += cell.bytes().len();
            } else if cell.is_ref() {
                match Long::decode(cell.bytes()) {
                    Some(long) => {
                        *self.long.entry(long.identity().to_vec()).or_default() += long.size()
                    }
                    None => self.fault(visit.page, "a descriptor does not decode"),
                }
            }
        }
    }
}

fn children(visit: &Visit, node: &NodeView<'_>) -> Vec<Visit> {
    let low = |index: usize| {
        let mut key = Vec::new();
        node.key_into(index, &mut key);
        key
    };
    let child = |index: usize| {
        let is_last = index + 1 == node.count();
        Some(Visit {
            page: node.child(index)?,
            tree: visit.tree,
            level: node.level().checked_sub(1),
            low: low(index),
            high: if is_last { visit.high.clone() } else { Some(low(index + 1)) },
        })
    };
    (0..node.count()).filter_map(child).collect()
}
