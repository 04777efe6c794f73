//! Leaves, large values and runs of an unmounted device: the content of each image, and the image
//! that counts for each key.
//!
//! Owns the index of the units' content. Never reads the log.
//!
//! - **SP1** For each key the image written last counts, among the valid images that cover the key.
//!   Any image replaced by it is older, and only an unreadable image can be newer.
//! - **SP2** A page of a value or of a run counts only under the group that wrote it (rule D12).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use flagstone_nand::{Nand, NandError};
use flagstone_space::{GroupId, LogicalPage, Lsn, Proof, Survey, SurveyUnit};

use crate::engine::Descriptor;
use crate::node::NodeView;

/// First bytes of pages that are not nodes.
const VALUE_MAGIC: u8 = b'V';
const RUN_MAGIC: u8 = b'R';

/// Logical page and its writer's group.
type Grouped = (LogicalPage, GroupId);

/// A leaf that may count.
#[derive(Debug)]
struct Leaf {
    tree: u32,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    unit: SurveyUnit,
}

/// A key range and the image that counts for it.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// First key behind the range; `None`: to the end.
    pub(super) high: Option<Vec<u8>>,
    /// LSN up to which the image is complete.
    pub(super) lsn: Lsn,
    pub(super) unit: SurveyUnit,
}

/// Pieces of a tree by their first keys.
pub(super) type Pieces = BTreeMap<Vec<u8>, Piece>;

/// Content of the units of a device.
#[derive(Debug, Default)]
pub(super) struct SalvagedPages {
    leaves: Vec<Leaf>,
    grouped: HashMap<Grouped, SurveyUnit>,
    /// For each tree, the image that counts for each key.
    pub(super) trees: BTreeMap<u32, Pieces>,
}

impl SalvagedPages {
    /// Reads every unit once.
    pub(super) fn find<D: Nand>(survey: &mut Survey<D>) -> Result<Self, NandError> {
        let mut pages = Self::default();
        let mut image = Vec::new();
        let mut seen = HashSet::new();
        for unit in survey.units().to_vec() {
            // A moved page has two copies: both read whole.
            if !seen.insert((unit.page, unit.info.version)) || !survey.read(&unit, &mut image)? {
                continue;
            }
            image.resize(survey.payload_size(), 0xFF);
            match image.first() {
                Some(&(VALUE_MAGIC | RUN_MAGIC)) => {
                    let place = pages.grouped.entry((unit.page, unit.info.group)).or_insert(unit);
                    if place.info.version < unit.info.version {
                        *place = unit;
                    }
                }
                _ => pages.take_node(unit, &image),
            }
        }
        Ok(pages)
    }

    fn take_node(&mut self, unit: SurveyUnit, image: &[u8]) {
        let Ok(view) = NodeView::parse(image) else { return };
        if view.is_leaf() {
            let (tree, low) = (view.tree(), view.low().to_vec());
            let high = view.high().map(<[u8]>::to_vec);
            self.leaves.push(Leaf { tree, low, high, unit });
        }
    }

    /// Decides which image counts for which keys, once the groups with a record are known (SP1).
    pub(super) fn settle(&mut self, committed: &HashSet<GroupId>) {
        let mut leaves = std::mem::take(&mut self.leaves);
        leaves.retain(|leaf| match leaf.unit.proof {
            Proof::Valid | Proof::Unknown => true,
            Proof::NeedsRecord => committed.contains(&leaf.unit.info.group),
        });
        leaves.sort_by_key(|leaf| std::cmp::Reverse(leaf.unit.info.version));
        for leaf in leaves {
            cover(self.trees.entry(leaf.tree).or_default(), leaf);
        }
    }

    /// LSN up to which the image that counts for a key is complete.
    pub(super) fn lsn_at(&self, tree: u32, key: &[u8]) -> Option<Lsn> {
        piece_at(self.trees.get(&tree)?, key).map(|piece| piece.lsn)
    }

    /// The page of a run or of a value.
    pub(super) fn grouped(&self, group: GroupId, page: LogicalPage) -> Option<SurveyUnit> {
        self.grouped.get(&(page, group)).copied()
    }

    /// Reads a large value; `None` where a part of it is unreadable.
    pub(super) fn value<D: Nand>(
        &self,
        survey: &mut Survey<D>,
        descriptor: &[u8],
    ) -> Result<Option<Vec<u8>>, NandError> {
        let Ok(descriptor) = Descriptor::decode(descriptor) else { return Ok(None) };
        let Some(content) = self.content(survey, &descriptor, descriptor.pages())? else {
            return Ok(None);
        };
        if !descriptor.is_indirect() {
            return Ok(of_size(content, descriptor.size()));
        }
        let count = descriptor.size().div_ceil(survey.payload_size().saturating_sub(4).max(1));
        let numbers = content.as_chunks::<4>().0.iter().take(count);
        let chunks: Vec<_> =
            numbers.map(|number| LogicalPage(u32::from_le_bytes(*number))).collect();
        let content = self.content(survey, &descriptor, &chunks)?;
        Ok(content.and_then(|content| of_size(content, descriptor.size())))
    }

    /// Content of a value's pages, concatenated.
    fn content<D: Nand>(
        &self,
        survey: &mut Survey<D>,
        descriptor: &Descriptor,
        pages: &[LogicalPage],
    ) -> Result<Option<Vec<u8>>, NandError> {
        let (mut content, mut image) = (Vec::new(), Vec::new());
        for page in pages {
            let Some(unit) = self.grouped(descriptor.group(), *page) else { return Ok(None) };
            if !survey.read(&unit, &mut image)? {
                return Ok(None);
            }
            let Some(chunk) = crate::engine::value_page_content(&image) else { return Ok(None) };
            content.extend_from_slice(chunk);
        }
        Ok(Some(content))
    }
}

/// The first `size` bytes of a value's padded pages.
fn of_size(mut content: Vec<u8>, size: usize) -> Option<Vec<u8>> {
    (content.len() >= size).then(|| {
        content.truncate(size);
        content
    })
}

/// The piece that contains a key.
pub(super) fn piece_at<'a>(pieces: &'a Pieces, key: &[u8]) -> Option<&'a Piece> {
    let (_, piece) =
        pieces.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
    piece.high.as_deref().is_none_or(|high| key < high).then_some(piece)
}

/// Gives a leaf the keys of its range that no later leaf covers.
fn cover(pieces: &mut Pieces, leaf: Leaf) {
    let Leaf { mut low, high, unit, .. } = leaf;
    // A piece that begins before the range may reach into it.
    if let Some(before) = piece_at(pieces, &low) {
        match &before.high {
            None => return,
            Some(end) => low.clone_from(end),
        }
    }
    let piece = |high| Piece { high, lsn: unit.info.lsn, unit };
    loop {
        if high.as_ref().is_some_and(|high| low >= *high) {
            return;
        }
        let from = (Bound::Included(low.as_slice()), Bound::Unbounded);
        let next = pieces.range::<[u8], _>(from).next();
        let next = next.map(|(next, piece)| (next.clone(), piece.high.clone()));
        match next.filter(|(next, _)| high.as_ref().is_none_or(|high| next < high)) {
            None => {
                pieces.insert(low, piece(high));
                return;
            }
            Some((next, end)) => {
                if low < next {
                    pieces.insert(low, piece(Some(next)));
                }
                match end {
                    None => return,
                    Some(end) => low = end,
                }
            }
        }
    }
}
