//! The header of a node, and the places of everything behind it.

/// Format byte: `F`, version 1.
pub(super) const MAGIC: u8 = 0xF1;
/// Bytes of the header.
pub(super) const HEADER_SIZE: usize = 20;
/// Offset of the layout's fields in the header.
pub(super) const LAYOUT_OFFSET: usize = 16;
/// Bytes of a child's number.
pub(super) const CHILD_SIZE: usize = 4;
/// Bytes of a slot.
pub(super) const SLOT_SIZE: usize = 2;

const FLAG_INNER: u8 = 1;
const FLAG_SLOTTED: u8 = 2;
const FLAG_NO_HIGH: u8 = 4;
const FLAGS_KNOWN: u8 = FLAG_INNER | FLAG_SLOTTED | FLAG_NO_HIGH;

/// Layout of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Suffix and value of one size each, one behind the other.
    Fixed {
        /// Bytes of each suffix.
        suffix_size: u16,
        /// Bytes of each value; of a child in an inner node.
        value_size: u16,
    },
    /// Offsets, then records.
    Slotted {
        /// End of the last record.
        end: u16,
    },
}

/// First bytes of a node, little-endian.
///
/// ```text
/// 0 magic  1 flags  2 level  3 zero  4 tree[4]  8 count[2]  10 prefix_size[2]
/// 12 low_size[2]  14 high_size[2]  16 suffix_size | end [2]  18 value_size | zero [2]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) is_inner: bool,
    pub(super) has_high: bool,
    pub(super) level: u8,
    pub(super) tree: u32,
    pub(super) count: u16,
    pub(super) prefix_size: u16,
    pub(super) low_size: u16,
    pub(super) high_size: u16,
    pub(super) layout: Layout,
}

impl Header {
    /// The header of an empty leaf: the view of bytes that hold no node.
    pub(super) const NOTHING: Self = Self {
        is_inner: false,
        has_high: false,
        level: 0,
        tree: 0,
        count: 0,
        prefix_size: 0,
        low_size: 0,
        high_size: 0,
        layout: Layout::Slotted { end: 0 },
    };

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let inner = if self.is_inner { FLAG_INNER } else { 0 };
        let no_high = if self.has_high { 0 } else { FLAG_NO_HIGH };
        let (slotted, first, second) = match self.layout {
            Layout::Fixed { suffix_size, value_size } => (0, suffix_size, value_size),
            Layout::Slotted { end } => (FLAG_SLOTTED, end, 0),
        };
        out.extend([MAGIC, inner | slotted | no_high, self.level, 0]);
        out.extend(self.tree.to_le_bytes());
        let sizes = [self.count, self.prefix_size, self.low_size, self.high_size, first, second];
        out.extend(sizes.into_iter().flat_map(u16::to_le_bytes));
    }

    /// Reads a header; `None` when the bytes are too few. Nothing is checked.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let raw = bytes.first_chunk::<HEADER_SIZE>()?;
        let half = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
        let flags = raw[1];
        let layout = if flags & FLAG_SLOTTED == 0 {
            Layout::Fixed { suffix_size: half(LAYOUT_OFFSET), value_size: half(LAYOUT_OFFSET + 2) }
        } else {
            Layout::Slotted { end: half(LAYOUT_OFFSET) }
        };
        Some(Self {
            is_inner: flags & FLAG_INNER != 0,
            has_high: flags & FLAG_NO_HIGH == 0,
            level: raw[2],
            tree: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
            count: half(8),
            prefix_size: half(10),
            low_size: half(12),
            high_size: half(14),
            layout,
        })
    }

    /// Start of the entries.
    #[inline]
    pub(super) fn entries_start(&self) -> usize {
        HEADER_SIZE + usize::from(self.low_size) + usize::from(self.high_size)
    }

    /// End of the entries.
    pub(super) fn entries_end(&self) -> usize {
        match self.layout {
            Layout::Fixed { suffix_size, value_size } => {
                let stride = usize::from(suffix_size) + usize::from(value_size);
                self.entries_start() + usize::from(self.count) * stride
            }
            Layout::Slotted { end } => usize::from(end),
        }
    }
}

/// Whether flag and reserved bytes are all known.
pub(super) fn flags_are_known(bytes: &[u8]) -> bool {
    matches!(bytes, [_, flags, _, 0, ..] if flags & !FLAGS_KNOWN == 0)
}

/// Number of leading bytes that two keys have in common.
#[inline]
pub(super) fn common_size(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}
