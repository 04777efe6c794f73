//! Shape and capabilities of a device: upper floors ask for these, never for the device's type.

/// Shape of a device; constant for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Data bytes of a physical page.
    pub page_size: u32,
    /// Spare (OOB) bytes of a physical page; 0 on devices without a spare area.
    pub spare_size: u32,
    /// Pages of an erase block.
    pub pages_per_block: u32,
    /// Erase blocks of the device.
    pub block_count: u32,
    /// Dies that work in parallel; blocks are striped over them.
    pub die_count: u32,
}

impl Geometry {
    /// Physical pages of the device.
    #[must_use]
    pub const fn page_count(&self) -> u32 {
        self.pages_per_block * self.block_count
    }

    /// Data bytes of the whole device.
    #[must_use]
    pub const fn data_size(&self) -> u64 {
        self.page_size as u64 * self.page_count() as u64
    }

    /// Data bytes of a block.
    #[must_use]
    pub const fn block_size(&self) -> u64 {
        self.page_size as u64 * self.pages_per_block as u64
    }

    /// Bytes of an image of the device: data and spare, page by page.
    #[must_use]
    pub const fn image_size(&self) -> u64 {
        (self.page_size as u64 + self.spare_size as u64) * self.page_count() as u64
    }
}

/// Order that programs within a block must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramOrder {
    /// Any page at any time.
    Any,
    /// Ascending page numbers; skipping pages is allowed, going back is not.
    Ascending,
}

/// Content that a power cut inside a partial program may harm (rule D9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialCut {
    /// Only the code words that were being programmed.
    Isolated,
    /// Anything on the page. Such a device gets no flags, no appends and no packed log pages.
    PageAtRisk,
}

/// How cells store bits, and which pages share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellMode {
    /// One bit a cell.
    Slc,
    /// Two bits a cell; MSB page `p` shares cells with LSB page `p - distance`.
    Mlc {
        /// Pages between an LSB page and its MSB partner.
        distance: u32,
    },
    /// Multi-level cells of which only the LSB pages are used, at half the capacity.
    PseudoSlc,
    /// Multi-level cells at full capacity, appends on LSB pages only.
    OddMlc {
        /// Pages between an LSB page and its MSB partner.
        distance: u32,
    },
    /// Three bits a cell, programmed in one shot.
    Tlc,
    /// Four bits a cell, programmed in one shot.
    Qlc,
    /// Not a NAND chip: a file or a block device.
    File,
    /// Chips behind a translation layer of their own: pages are rewritten at will, and pages that
    /// are trimmed take no room ([`crate::Nand::trim`]).
    Translated,
}

/// The error-correcting code over the data area: code words of `data_size` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeWord {
    /// Data bytes a code word covers; divides the page size.
    pub data_size: u32,
    /// Bits a code word can correct.
    pub strength: u32,
}

impl CodeWord {
    /// Whichever repairs the larger share of its bits.
    pub(crate) const fn or_stronger(self, other: Self) -> Self {
        let ours = self.strength as u64 * other.data_size as u64;
        let theirs = other.strength as u64 * self.data_size as u64;
        if theirs > ours { other } else { self }
    }
}

/// A run of spare bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpareRange {
    /// First byte within the spare area.
    pub offset: u32,
    /// Number of bytes.
    pub size: u32,
}

/// Capabilities of a device. They come from a profile or a probe, and are never guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Programs of a page's data area between two erases (NOP); 1 = no partial programs. Behind a
    /// translation layer: more than 1 where it programs an overwrite in place that fills erased code
    /// words alone.
    pub programs_data: u32,
    /// Programs of a page's spare area between two erases; the parity of a partial program and
    /// the spare bytes that travel with it count as one.
    pub programs_spare: u32,
    /// Order of the first programs of a block's pages.
    pub first_program_order: ProgramOrder,
    /// Order of later programs (appends, flags) relative to all others.
    pub reprogram_order: ProgramOrder,
    /// Cell mode.
    pub cell_mode: CellMode,
    /// ECC over the data area.
    pub code_word: CodeWord,
    /// User spare bytes outside every code word: not corrected, may be programmed on their own.
    pub spare_raw: SpareRange,
    /// User spare bytes that the device's ECC covers together with the data.
    pub spare_covered: SpareRange,
    /// Content that a cut in a partial program may harm.
    pub partial_cut: PartialCut,
    /// Program/erase cycles a block is rated for.
    pub endurance: u32,
    /// The log's last 512-byte-sectored block may be written again as long as acknowledged sectors
    /// keep identical bytes (`SegmentFile` only).
    pub rewrite_tail: bool,
    /// Programs are durable only after `sync` (files); on NAND they are when they return.
    pub needs_sync: bool,
}

impl Capabilities {
    /// Whether part of a page may be programmed after another part, without an erase.
    #[must_use]
    pub fn has_partial_programs(&self) -> bool {
        self.programs_data > 1
    }

    /// Bytes of the smallest separately programmable piece of a page of `page_size` bytes, for a
    /// log that packs several writes into one page: rule D9 decides whether it may.
    #[must_use]
    pub fn log_slot_size(&self, page_size: u32) -> u32 {
        const SECTOR_SIZE: u32 = 512;
        if self.rewrite_tail {
            return SECTOR_SIZE.min(page_size);
        }
        let packed = self.has_partial_programs()
            && self.programs_spare > 1
            && self.partial_cut == PartialCut::Isolated;
        if !packed {
            return page_size;
        }
        // Each slot is one program: no more slots than NOP allows, each of whole code words.
        let slots_max = self.programs_data.min(self.programs_spare);
        let code_words = page_size / self.code_word.data_size;
        self.code_word.data_size * code_words.div_ceil(slots_max)
    }
}
