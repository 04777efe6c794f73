//! Which pages of a block share cells, and how fast each is: the page types of multi-level chips.
//!
//! Owns the pairing rule; never touches a device.
//!
//! - **P1** A page has at most one partner, and the relation is symmetric.
//! - **P2** The LSB page of a pair has the lower number, so it is programmed first.

use crate::{Capabilities, CellMode};

/// Place of a page in its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellRole {
    /// The page has its cells to itself, as far as its users can tell.
    Alone,
    /// First page of a pair: a later program of its partner may harm it when power fails.
    Lsb {
        /// Position of the MSB page within the block.
        partner: u32,
    },
    /// Second page of a pair: slower, and a cut in its program may take the LSB page along.
    Msb {
        /// Position of the LSB page within the block.
        partner: u32,
    },
}

/// Pages of a word line of three bits a cell.
const TLC_TYPES: [PageType; 3] = [PageType::Lower, PageType::Center, PageType::Upper];

/// Pages of a word line of four bits a cell.
const QLC_TYPES: [PageType; 4] =
    [PageType::Lower, PageType::Center, PageType::UpperCenter, PageType::Upper];

/// Which of the bits of its cells a page is. Later ones take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageType {
    /// The only bit, or the first (LSB).
    Lower,
    /// The second of three or four (CSB).
    Center,
    /// The third of four.
    UpperCenter,
    /// The last of several (MSB).
    Upper,
}

impl Capabilities {
    /// Type of page `index` of a block.
    ///
    /// Pages that one shot programs, three or four of a word line, lie side by side.
    #[must_use]
    pub fn page_type(&self, index: u32, pages_per_block: u32) -> PageType {
        match self.cell_mode {
            CellMode::Tlc => TLC_TYPES[index as usize % TLC_TYPES.len()],
            CellMode::Qlc => QLC_TYPES[index as usize % QLC_TYPES.len()],
            _ => match self.cell_role(index, pages_per_block) {
                CellRole::Msb { .. } => PageType::Upper,
                CellRole::Alone | CellRole::Lsb { .. } => PageType::Lower,
            },
        }
    }

    /// Place in its cells of page `index` of a block (rule D9).
    ///
    /// With an odd distance `d` the MSB pages are the even pages from `d - 1` on and the last page
    /// of the block, the layout of the Jasmine board's Samsung chips: for `d = 3` the pairs are
    /// (0, 2), (1, 4), (3, 6) and so on. With an even distance `d`, runs of `d` LSB pages and of
    /// `d` MSB pages alternate.
    #[must_use]
    pub fn cell_role(&self, index: u32, pages_per_block: u32) -> CellRole {
        let (CellMode::Mlc { distance } | CellMode::OddMlc { distance }) = self.cell_mode else {
            return CellRole::Alone;
        };
        if distance == 0 || index >= pages_per_block {
            return CellRole::Alone;
        }
        if let Some(partner) = lsb_partner(index, distance, pages_per_block) {
            return CellRole::Msb { partner };
        }
        let far = index.saturating_add(distance);
        let candidates = [far, far.saturating_sub(1)];
        let is_partner = |page: &u32| lsb_partner(*page, distance, pages_per_block) == Some(index);
        candidates
            .into_iter()
            .find(is_partner)
            .map_or(CellRole::Alone, |partner| CellRole::Lsb { partner })
    }

    /// Programs of the data area that page `index` of a block allows: MSB pages allow one.
    #[must_use]
    pub fn programs_data_of(&self, index: u32, pages_per_block: u32) -> u32 {
        match self.cell_role(index, pages_per_block) {
            CellRole::Msb { .. } => self.programs_data.min(1),
            CellRole::Alone | CellRole::Lsb { .. } => self.programs_data,
        }
    }
}

/// The LSB page that MSB page `index` shares its cells with; `None` when `index` is an LSB page.
fn lsb_partner(index: u32, distance: u32, pages_per_block: u32) -> Option<u32> {
    if index == 0 || index >= pages_per_block {
        return None;
    }
    if distance.is_multiple_of(2) {
        return (index % (2 * distance) >= distance).then(|| index - distance);
    }
    // The ends of a block are closer together: the first MSB page and the last.
    let last = pages_per_block - 1;
    if index == last && index % 2 == 1 && distance > 1 {
        return index.checked_sub(distance - 1);
    }
    if distance == 1 {
        return (index % 2 == 1).then(|| index - 1);
    }
    let is_msb = index.is_multiple_of(2) && index + 1 >= distance;
    is_msb.then(|| index.saturating_sub(distance))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CodeWord, PartialCut, ProgramOrder, SpareRange};

    fn chip(distance: u32) -> Capabilities {
        Capabilities {
            programs_data: 4,
            programs_spare: 4,
            first_program_order: ProgramOrder::Ascending,
            reprogram_order: ProgramOrder::Ascending,
            cell_mode: CellMode::OddMlc { distance },
            code_word: CodeWord { data_size: 512, strength: 4 },
            spare_raw: SpareRange { offset: 0, size: 0 },
            spare_covered: SpareRange { offset: 0, size: 0 },
            partial_cut: PartialCut::Isolated,
            endurance: 3000,
            rewrite_tail: false,
            needs_sync: false,
        }
    }

    /// Goal: P1 and P2 for every distance a chip may have. Method: all pages of two block sizes.
    #[test]
    fn pairs_are_symmetric_and_ascending() {
        for (distance, page_count) in
            (1..8).flat_map(|distance| [(distance, 8), (distance, 64), (distance, 128)])
        {
            let chip = chip(distance);
            for index in 0..page_count {
                let back = match chip.cell_role(index, page_count) {
                    CellRole::Alone => continue,
                    CellRole::Lsb { partner } => {
                        assert!(partner > index, "LSB {index} after MSB {partner}");
                        chip.cell_role(partner, page_count)
                    }
                    CellRole::Msb { partner } => {
                        assert!(partner < index, "MSB {index} before LSB {partner}");
                        chip.cell_role(partner, page_count)
                    }
                };
                let (CellRole::Lsb { partner } | CellRole::Msb { partner }) = back else {
                    panic!("distance {distance}: page {index} has a one-sided pair");
                };
                assert_eq!(partner, index, "distance {distance}, {page_count} pages");
            }
        }
    }

    #[test]
    fn pages_of_a_word_line_lie_side_by_side_where_one_shot_programs_them() {
        use PageType::{Center, Lower, Upper, UpperCenter};
        let types = |cell_mode| {
            let chip = Capabilities { cell_mode, ..chip(1) };
            [0, 1, 2, 3, 4, 5].map(|index| chip.page_type(index, 64))
        };
        assert_eq!(types(CellMode::Slc), [Lower; 6]);
        assert_eq!(
            types(CellMode::Mlc { distance: 1 }),
            [Lower, Upper, Lower, Upper, Lower, Upper]
        );
        assert_eq!(types(CellMode::Tlc), [Lower, Center, Upper, Lower, Center, Upper]);
        assert_eq!(types(CellMode::Qlc), [Lower, Center, UpperCenter, Upper, Lower, Center]);
    }

    #[test]
    fn distance_three_is_the_layout_of_the_jasmine_chips() {
        let chip = chip(3);
        assert_eq!(chip.cell_role(0, 128), CellRole::Lsb { partner: 2 });
        assert_eq!(chip.cell_role(4, 128), CellRole::Msb { partner: 1 });
        assert_eq!(chip.cell_role(127, 128), CellRole::Msb { partner: 125 });
        assert_eq!(chip.programs_data_of(4, 128), 1);
        assert_eq!(chip.programs_data_of(3, 128), 4);
    }
}
