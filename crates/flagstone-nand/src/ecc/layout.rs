//! Places of our own code words on a page, and the label that names them.
//!
//! Owns every byte of the spare area of a chip whose ECC is ours. Never reads a device.
//!
//! ```text
//! 0        marker     label                            parity                spare size
//! ├────────┼──────────┼─────────────────────────────────┼──────────────────────┤
//! │ vendor │ 4 bytes  │ raw spare bytes for the floor    │ of word 0, word 1, … │
//! └────────┴──────────┴─ above, outside every code word ─┴──────────────────────┘
//! ```
//!
//! - **Y1** The bytes in which vendors mark bad blocks are never programmed.
//! - **Y2** The layout follows from geometry and code word alone.
//! - **Y3** Everything is stored inverted: erased bytes are a code word, and an empty label.
//! - **Y4** The label is programmed together with the first code word of a page. It has a code of its own;
//!   bytes in which more than [`LABEL_FLIPS_MAX`] bits differ from a label are no label.

use super::bch::{Bch, STRENGTH_MAX};
use crate::{CodeWord, Geometry, SpareRange};

/// Bytes of a label: one names the code, three are parity.
const LABEL_SIZE: u32 = 4;

/// Bits that the code of labels repairs: a third of the distance between two labels.
const LABEL_STRENGTH: u32 = 4;

/// Flipped bits with which a label is still believed: garbage passes less than once in a thousand times.
#[cfg(feature = "std")]
const LABEL_FLIPS_MAX: u32 = 2;

/// Format of the layout, in the upper two bits of a label.
const FORMAT: u8 = 1;

/// Data bytes of the smallest code word that a label can name.
const WORD_SIZE_MIN: u32 = 64;

/// Code words of this size unless a profile says otherwise: the step of most software ECC.
const WORD_SIZE_USUAL: u32 = 512;

/// Spare bytes that let metadata and flags stand outside the data area.
const RAW_SIZE_WANTED: u32 = 38;

/// Spare byte that is not `0xFF` on a bad block, of its first or second page: as Linux has it.
pub(crate) const fn bad_mark_offset(page_size: u32) -> u32 {
    if page_size <= 512 { 5 } else { 0 }
}

/// Bytes at the start of the spare area that vendors mark bad blocks in: up to byte 5 of small pages, else
/// bytes 0 and 1 (a word on chips of 16 bits).
const fn marker_size(page_size: u32) -> u32 {
    if page_size <= 512 { 6 } else { 2 }
}

const _: () = assert!(bad_mark_offset(512) < marker_size(512));
const _: () = assert!(bad_mark_offset(2048) < marker_size(2048));

/// Spare bytes that are ours on a chip without any ECC (Y1).
pub(crate) fn programmable(geometry: &Geometry) -> SpareRange {
    let offset = marker_size(geometry.page_size).min(geometry.spare_size);
    SpareRange { offset, size: geometry.spare_size - offset }
}

/// The layout of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(super) word: CodeWord,
    pub(super) parity_size: u32,
    pub(super) parity_offset: u32,
    pub(super) label_offset: u32,
}

impl Layout {
    /// Code words `word` on such pages; none when they do not tile the page or their parity does not fit.
    pub(crate) fn new(geometry: &Geometry, word: CodeWord) -> Option<Self> {
        let size = word.data_size;
        let is_named = size.is_power_of_two()
            && (WORD_SIZE_MIN..=WORD_SIZE_MIN << 7).contains(&size)
            && geometry.page_size.is_multiple_of(size);
        if !is_named {
            return None;
        }
        let parity_size = Bch::parity_size_of(size as usize, word.strength)? as u32;
        let label_offset = marker_size(geometry.page_size);
        let word_count = geometry.page_size / size;
        let parity_offset =
            geometry.spare_size.checked_sub(word_count.checked_mul(parity_size)?)?;
        let fits = label_offset + LABEL_SIZE <= parity_offset;
        fits.then_some(Self { word, parity_size, parity_offset, label_offset })
    }

    /// The code word of such pages by default: no weaker than `replaced`, with room for metadata and flags in
    /// the spare area where that is to be had, and as strong as then fits.
    pub(crate) fn choose(geometry: &Geometry, replaced: CodeWord) -> Option<CodeWord> {
        let data_size = WORD_SIZE_USUAL.min(geometry.page_size);
        // The same share of bits.
        let bits = u64::from(replaced.strength) * u64::from(data_size);
        let strength_min = bits.div_ceil(replaced.data_size.max(1).into()).max(1);
        let strengths = || (1..=STRENGTH_MAX).rev().filter(|bits| u64::from(*bits) >= strength_min);
        let word = |strength| CodeWord { data_size, strength };
        let raw = |strength| Self::new(geometry, word(strength)).map(|layout| layout.raw().size);
        let roomy = strengths().find(|bits| raw(*bits) >= Some(RAW_SIZE_WANTED));
        roomy.or_else(|| strengths().find(|bits| raw(*bits).is_some())).map(word)
    }

    /// Spare bytes outside every code word.
    pub(crate) const fn raw(&self) -> SpareRange {
        let offset = self.label_offset + LABEL_SIZE;
        SpareRange { offset, size: self.parity_offset - offset }
    }

    /// First byte of the parity of code word `index`.
    pub(super) const fn parity_of(&self, index: u32) -> usize {
        (self.parity_offset + index * self.parity_size) as usize
    }

    /// The label of pages with this layout, as it is stored (Y3).
    pub(super) fn label(&self) -> [u8; LABEL_SIZE as usize] {
        let exponent = self.word.data_size.trailing_zeros() - WORD_SIZE_MIN.trailing_zeros();
        let content = FORMAT << 6 | (exponent as u8) << 3 | (self.word.strength - 1) as u8;
        let mut bytes = [content, 0, 0, 0];
        if let Some(code) = label_code() {
            code.encode([content].into_iter(), &mut bytes[1..]);
        }
        bytes.map(|byte| !byte)
    }
}

#[cfg(feature = "std")]
impl Layout {
    /// The layout that the spare bytes of a page name (Y4).
    pub(crate) fn named(geometry: &Geometry, spare: &[u8], code: &Bch) -> Option<Self> {
        let start = marker_size(geometry.page_size) as usize;
        let bytes = spare.get(start..start + LABEL_SIZE as usize)?;
        let [content, parity @ ..] = <[u8; LABEL_SIZE as usize]>::try_from(bytes).ok()?;
        let (mut content, parity) = ([!content], parity.map(|byte| !byte));
        let flips = code.correct(&mut content, &parity).ok()?;
        let [content] = content;
        if flips > LABEL_FLIPS_MAX || content >> 6 != FORMAT {
            return None;
        }
        let data_size = WORD_SIZE_MIN << (content >> 3 & 7);
        let strength = u32::from(content & 7) + 1;
        Self::new(geometry, CodeWord { data_size, strength })
    }
}

/// The code of labels.
pub(super) fn label_code() -> Option<Bch> {
    let code = Bch::new(1, LABEL_STRENGTH)?;
    assert_eq!(code.parity_size() as u32 + 1, LABEL_SIZE, "a label is one byte and its parity");
    Some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(page_size: u32, spare_size: u32) -> Geometry {
        Geometry { page_size, spare_size, pages_per_block: 64, block_count: 40, die_count: 1 }
    }

    fn word(data_size: u32, strength: u32) -> CodeWord {
        CodeWord { data_size, strength }
    }

    #[test]
    fn code_words_are_no_weaker_than_those_they_replace() {
        for (page_size, spare_size, replaced, expected) in [
            // Linux's Hamming code, and its BCH code with 4 and 8 bits.
            (2048, 64, word(256, 1), word(512, 3)),
            (2048, 64, word(512, 4), word(512, 8)),
            (2048, 128, word(512, 4), word(512, 8)),
            (4096, 128, word(512, 4), word(512, 6)),
            (4096, 224, word(512, 8), word(512, 8)),
            (512, 16, word(256, 1), word(512, 3)),
        ] {
            let geometry = geometry(page_size, spare_size);
            let chosen = Layout::choose(&geometry, replaced).unwrap();
            assert_eq!(chosen, expected, "{page_size} + {spare_size}");
            let layout = Layout::new(&geometry, chosen).unwrap();
            let parity_end = layout.parity_of(page_size / chosen.data_size);
            assert_eq!(parity_end, spare_size as usize);
        }
        assert_eq!(Layout::choose(&geometry(2048, 64), word(512, 9)), None);
        assert_eq!(Layout::choose(&geometry(2048, 0), word(512, 1)), None);
        assert_eq!(Layout::choose(&geometry(2048, 12), word(512, 1)), None);
    }

    #[test]
    fn large_pages_of_64_spare_bytes_keep_room_for_metadata_and_flags() {
        let layout = Layout::new(&geometry(2048, 64), word(512, 3)).unwrap();
        assert_eq!(layout.raw(), SpareRange { offset: 6, size: 38 });
    }

    #[test]
    fn every_label_names_its_layout_with_two_flips_too() {
        let geometry = geometry(4096, 256);
        let code = label_code().unwrap();
        for data_size in (6..13).map(|exponent| 1 << exponent) {
            for layout in (1..=8).filter_map(|bits| Layout::new(&geometry, word(data_size, bits))) {
                let mut spare = [0xFF; 256];
                let start = layout.label_offset as usize;
                spare[start..start + 4].copy_from_slice(&layout.label());
                assert_eq!(Layout::named(&geometry, &spare, &code), Some(layout));
                spare[start] ^= 0x80;
                spare[start + 3] ^= 0x10;
                assert_eq!(Layout::named(&geometry, &spare, &code), Some(layout));
                spare[start + 1] ^= 0x01;
                assert_eq!(Layout::named(&geometry, &spare, &code), None, "three flips");
            }
        }
        assert_eq!(Layout::named(&geometry, &[0xFF; 256], &code), None);
        assert_eq!(Layout::named(&geometry, &[0; 256], &code), None);
        assert_eq!(Layout::named(&geometry, &[], &code), None);
    }

    /// The space floor's bytes there, on a chip whose ECC is its own: the first bytes of page metadata.
    #[test]
    fn page_metadata_are_no_label() {
        let geometry = geometry(2048, 64);
        let code = label_code().unwrap();
        let heads = (0..1_u32 << 21).filter(|head| (1..=5).contains(&(head & 7)));
        let named = heads.clone().filter(|head| {
            let bytes = [0x10 | (head & 7) as u8, (head >> 3 & 3) as u8 * 0x40];
            let [page, region, ..] = (head >> 5).to_le_bytes();
            let mut spare = [0xFF; 64];
            spare[2..6].copy_from_slice(&[bytes[0], bytes[1], region & 31, page]);
            Layout::named(&geometry, &spare, &code).is_some()
        });
        // No more than garbage would; and two blocks would have to agree.
        assert!(named.count() * 1000 < heads.count());
    }
}
