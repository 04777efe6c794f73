//! In-place appends of the classic engine: the changes of a frame, and how a page is written.
//!
//! "In-Place Appends for Real: DBMS Overwrites on Flash without Erase", section 3: the buffer notes
//! the changed bytes of a page while they fit the rest of its N x M; a page with more changes is
//! flagged and written out of place.
//!
//! Owns the noted changes and the choice. The records' form and place are the space floor's.

use std::ops::Range;

use flagstone_engine::AppendScheme;
use flagstone_engine::node::NodeView;
use flagstone_nand::Nand;
use flagstone_space::WriteTag;
use flagstone_space::runs::{self, ChangeForm};
use flagstone_space::{
    APPEND_SLOTS_MAX, LogicalPage, Lsn, NoOwner, PageInfo, RegionId, Space, SpaceError,
};

use super::Mistake;
use super::engine::Engine;
use super::pool::Frame;

/// Region of tables whose pages take appends, and of their inner nodes; of all tables where none do.
pub(super) const REGION_TABLES: RegionId = RegionId(1);
/// Region of tables whose pages take none, beside others that do.
pub(super) const REGION_WHOLE: RegionId = RegionId(2);

/// Differences between a frame and the version on flash that it was read from or written to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// The version; none when the page has to be written as a whole: there is none, or too much
    /// has changed.
    since: Option<PageInfo>,
    /// Ranges of changed bytes, in ascending order, no two of them in touch.
    ranges: Vec<Range<usize>>,
    /// Bytes in them, and how many are noted at most.
    bytes: usize,
    bytes_max: usize,
    /// Bytes of the version that are used.
    used: usize,
    /// Too much has changed: the out-of-place flag of the paper.
    is_flagged: bool,
}

/// Learns how many slots a table's pages are worth ([`AppendScheme::Auto`]), and whether it
/// appends: from the share of its writes whose changes fit one record. Rows that are added do not
/// count: the page that takes them fills, and nothing changes it any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Learned {
    /// Share of the latest writes that were small.
    small: f64,
    seen: u32,
    /// Slots that pages are written with: two, as the paper's scheme has, until more is known.
    records: u8,
    /// Whether they are used: not before a write was seen to be small.
    appends: bool,
}

/// Writes after which an earlier one counts no more; as many lie between two choices of the slots.
const WRITES_KNOWN: u32 = 128;

impl Default for Learned {
    fn default() -> Self {
        Self { small: 0.0, seen: 0, records: 2, appends: false }
    }
}

impl Learned {
    fn note(&mut self, is_small: bool, room: &Room) {
        self.seen = self.seen.wrapping_add(1);
        let weight = 1.0 / f64::from(self.seen.clamp(1, WRITES_KNOWN));
        self.small += weight * (f64::from(u8::from(is_small)) - self.small);
        let best = self.best(room);
        self.appends = best > 0;
        if self.seen.is_multiple_of(WRITES_KNOWN) {
            self.records = best;
        }
    }

    /// The slots with which a write takes least room on flash. A page is written as a whole once in
    /// `1 + small + small² + …` writes, one for each slot; and slots make its table larger: more pages
    /// are read, and more are changed.
    fn best(&self, room: &Room) -> u8 {
        let cost = |records: u8| {
            let writes: f64 = (0..=i32::from(records)).map(|slot| self.small.powi(slot)).sum();
            let growth = room.whole() as f64 / room.pages[usize::from(records)].max(1) as f64;
            growth * growth / writes
        };
        let all = 0..=AppendScheme::Auto.records_max();
        all.min_by(|one, two| cost(*one).total_cmp(&cost(*two))).unwrap_or_default()
    }
}

impl Changes {
    /// No changes since `info`, which uses so many bytes and takes `bytes_max` changed bytes more.
    pub(crate) fn since(info: PageInfo, used: usize, bytes_max: usize) -> Self {
        let since = (bytes_max > 0).then_some(info);
        Self { since, bytes_max, used, ..Self::default() }
    }

    /// The bytes `old` at `offset` become `new`, as many.
    pub(crate) fn patch(&mut self, offset: usize, old: &[u8], new: &[u8]) {
        if self.since.is_none() {
            return;
        }
        for range in runs::differences(old, new) {
            self.add(offset + range.start..offset + range.end);
        }
    }

    /// The image becomes another one.
    pub(crate) fn replace(&mut self, old: &[u8], new: &[u8]) {
        for range in runs::differences(old, new) {
            if self.since.is_none() {
                return;
            }
            self.add(range);
        }
    }

    fn add(&mut self, range: Range<usize>) {
        let first = self.ranges.partition_point(|other| other.end < range.start);
        let last = self.ranges.partition_point(|other| other.start <= range.end);
        let joined = match self.ranges.get(first..last) {
            Some([one, .., two]) => range.start.min(one.start)..range.end.max(two.end),
            Some([one]) => range.start.min(one.start)..range.end.max(one.end),
            _ => range,
        };
        let replaced: usize = self.ranges[first..last].iter().map(Range::len).sum();
        self.bytes = self.bytes - replaced + joined.len();
        self.ranges.splice(first..last, [joined]);
        if self.bytes > self.bytes_max {
            // Nothing is noted any more.
            *self = Self { is_flagged: true, ..Self::default() };
        }
    }

    /// These changes since `info`, in ascending order, no two of them in touch.
    pub(crate) fn known(info: PageInfo, ranges: Vec<Range<usize>>) -> Self {
        let bytes = ranges.iter().map(Range::len).sum();
        Self { since: Some(info), ranges, bytes, bytes_max: bytes, ..Self::default() }
    }

    /// The changed ranges; none when the page has to be written as a whole.
    pub(crate) fn ranges(&self) -> Option<&[Range<usize>]> {
        self.since.map(|_| self.ranges.as_slice())
    }

    /// Whether the changes fit one record of byte runs, and add nothing; none for a page that is new.
    fn is_small(&self, image: &[u8], size_max: usize) -> Option<bool> {
        let changed = self.ranges.iter().cloned();
        let is_small = self.since.is_some()
            && NodeView::trusted(image).used_bytes() <= self.used
            && runs::encode_ranges(changed, image, ChangeForm::Runs, 1, size_max).is_some();
        (self.since.is_some() || self.is_flagged).then_some(is_small)
    }

    /// The version to append to, and records that lead to `image`; none when it is to be written as
    /// a whole. A page whose changes were taken back gets an empty record, for its LSN.
    fn records(&self, image: &[u8], form: ChangeForm, size_max: usize) -> Option<Plan> {
        let since = self.since?;
        let left = usize::from(since.append_slots.saturating_sub(since.appends));
        let changed = self.ranges.iter().cloned();
        let mut records = runs::encode_ranges(changed, image, form, left, size_max)?;
        if records.is_empty() {
            records.push(Vec::new());
        }
        Some(Plan { since, form, records })
    }
}

/// An append that a page may take.
struct Plan {
    since: PageInfo,
    form: ChangeForm,
    records: Vec<Vec<u8>>,
}

/// Bytes that pages have for nodes, and appends for changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// Bytes of a page by its slots.
    pages: [usize; APPEND_SLOTS_MAX as usize + 1],
    /// Bytes of changes in a slot.
    append: usize,
}

impl Room {
    pub(super) fn of<D: Nand>(space: &Space<D>) -> Self {
        let pages = std::array::from_fn(|slots| space.payload_size_with(slots as u8));
        Self { pages, append: space.append_size_max() }
    }

    /// Bytes of a page without slots.
    pub(super) fn whole(&self) -> usize {
        self.pages[0]
    }

    /// Bytes of a node in a table with this scheme.
    pub(super) fn node(&self, scheme: AppendScheme) -> usize {
        self.pages.get(usize::from(scheme.records_max())).copied().unwrap_or_default()
    }

    /// Changed bytes of a version that are worth noting: as many as appends can still carry, and one
    /// record's worth where the scheme learns from them.
    fn noted(&self, scheme: AppendScheme, info: &PageInfo) -> usize {
        let left = usize::from(info.append_slots.saturating_sub(info.appends));
        match (scheme, scheme.form()) {
            (AppendScheme::Auto, _) => left.max(1) * self.append,
            (_, ChangeForm::Pairs { bytes_max }) => left * usize::from(bytes_max),
            (_, ChangeForm::Runs) => left * self.append,
        }
    }
}

/// How the pages of a table are written, and where they are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placing {
    scheme: AppendScheme,
    /// Slots of a page that is written as a whole, and whether they are used.
    records: u8,
    appends: bool,
    region: RegionId,
    /// The last record of an append is left out ([`Mistake::ChangeForgotten`]).
    forgets: bool,
}

impl Placing {
    /// Pages under `scheme`, with its slots or with fewer.
    pub(crate) const fn under(scheme: AppendScheme, records: u8) -> Self {
        Self { scheme, records, appends: true, region: REGION_TABLES, forgets: false }
    }
}

/// The part of a page that is written.
pub(crate) struct Content<'a> {
    pub(crate) image: &'a [u8],
    /// Bytes at its front that have to be written.
    pub(crate) used: usize,
    pub(crate) lsn: Lsn,
    pub(crate) changes: &'a Changes,
}

impl Engine {
    /// Scheme of a tree; none while restart has not read the catalog.
    pub(super) fn scheme_of(&self, tree: u32) -> AppendScheme {
        self.schemes.get(&tree).copied().unwrap_or_default()
    }

    /// Slots of a tree's pages.
    fn records_of(&self, tree: u32) -> u8 {
        match self.scheme_of(tree) {
            AppendScheme::Auto => self.learned.get(&tree).copied().unwrap_or_default().records,
            scheme => scheme.records_max(),
        }
    }

    /// Bytes of a node in a tree.
    pub(super) fn node_size(&self, tree: u32) -> usize {
        self.room.pages[usize::from(self.records_of(tree)).min(self.room.pages.len() - 1)]
    }

    /// Fewest bytes of a node of the tree, for any scheme that is learned.
    pub(super) fn node_size_min(&self, tree: u32) -> usize {
        self.room.node(self.scheme_of(tree))
    }

    /// Learns from a frame that is about to be written.
    pub(super) fn learn_from(&mut self, page: LogicalPage) {
        let Some(frame) = self.pool.peek(page) else { return };
        let tree = NodeView::trusted(&frame.image).tree();
        if self.scheme_of(tree) == AppendScheme::Auto
            && let Some(is_small) = frame.changes.is_small(&frame.image, self.room.append)
        {
            self.learned.entry(tree).or_default().note(is_small, &self.room);
        }
    }

    /// Whether a tree's pages take appends at present.
    fn appends(&self, tree: u32) -> bool {
        match self.scheme_of(tree) {
            AppendScheme::Auto => self.learned.get(&tree).is_some_and(|learned| learned.appends),
            scheme => scheme != AppendScheme::None,
        }
    }

    /// Region in which a tree's pages are written at present.
    pub(super) fn region_of(&self, tree: u32) -> RegionId {
        let some_append = self.config.options.append_scheme.records_max() > 0;
        if some_append && !self.appends(tree) { REGION_WHOLE } else { REGION_TABLES }
    }

    /// Tables by name with their regions.
    pub(crate) fn regions(&self) -> Vec<(String, RegionId)> {
        self.names.iter().map(|(tree, name)| (name.clone(), self.region_of(*tree))).collect()
    }

    /// How the page with this image is written.
    pub(super) fn placing_of(&self, image: &[u8]) -> Placing {
        let tree = NodeView::trusted(image).tree();
        Placing {
            scheme: self.scheme_of(tree),
            records: self.records_of(tree),
            appends: self.appends(tree),
            region: self.region_of(tree),
            forgets: self.config.makes(Mistake::ChangeForgotten),
        }
    }

    /// The image of a page in memory is that of the version `info` on flash.
    pub(super) fn track(&mut self, page: LogicalPage, info: PageInfo) {
        if let Some(frame) = self.pool.peek(page) {
            let scheme = self.placing_of(&frame.image).scheme;
            let noted = self.room.noted(scheme, &info).max(self.recorded_bytes());
            self.pool.track(page, info, noted);
        }
    }

    /// Gives an image from flash the size of its tree's nodes: bytes behind that size become
    /// erased.
    pub(super) fn fitted(&self, mut image: Vec<u8>) -> Vec<u8> {
        let node = NodeView::trusted(&image);
        let size = self.node_size(node.tree()).max(node.used_bytes());
        image.resize(size, 0xFF);
        image
    }
}

/// Writes a page: by an append where it takes one, else whole and out of place, with room for appends.
pub(super) fn write_page<D: Nand>(
    space: &mut Space<D>,
    page: LogicalPage,
    frame: &Frame,
    placing: Placing,
) -> Result<PageInfo, SpaceError> {
    let used = NodeView::trusted(&frame.image).used_bytes();
    let (image, lsn, changes) = (&frame.image, frame.lsn, &frame.changes);
    write_content(space, page, &Content { image, used, lsn, changes }, placing)
}

/// As [`write_page`], for a page without a frame.
pub(crate) fn write_content<D: Nand>(
    space: &mut Space<D>,
    page: LogicalPage,
    content: &Content<'_>,
    placing: Placing,
) -> Result<PageInfo, SpaceError> {
    let (image, lsn, scheme) = (content.image, content.lsn, placing.scheme);
    let plan = content.changes.records(image, scheme.form(), space.append_size_max());
    let mut plan = plan.filter(|_| placing.appends);
    if let Some(last) =
        plan.as_mut().and_then(|plan| plan.records.last_mut()).filter(|_| placing.forgets)
    {
        last.clear();
    }
    if let Some(mut plan) = plan {
        // The unit may have been written before the table stood there.
        plan.since.region = placing.region;
        if let Some(info) = space.append(page, &plan.since, lsn, plan.form, &plan.records)? {
            return Ok(info);
        }
    }
    space.ensure_room(1, &mut NoOwner)?;
    let fits = |slots: &u8| content.used <= space.payload_size_with(*slots);
    let append_slots = (0..=placing.records).rev().find(fits).unwrap_or(0);
    let size = image.len().min(space.payload_size_with(append_slots));
    let tag = WriteTag { append_slots, ..WriteTag::data(lsn, placing.region) };
    space.write(page, &image[..size], &tag)
}
