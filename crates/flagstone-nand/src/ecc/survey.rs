//! Whose code words a chip carries, found out by its labels.
//!
//! Owns the verdict and its consequences for a profile. Never programs anything.
//!
//! - **V1** A chip on which a database was made under new code words has none of the former left: they were
//!   erased first. So two labels that agree settle it, no matter what other blocks hold.
//! - **V2** Interrupted programs and erases leave first pages without a label, one a die and cut. Without
//!   any label the code words are the device's.

use super::layout::{Layout, label_code};
use crate::storage::{CodeWords, OpenDeviceError};
use crate::{BlockIndex, CodeWord, EccOwner, Geometry, Profile};

/// Whose code words a chip carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// Nothing that was programmed was found.
    Nothing,
    /// Pages without a label.
    Others,
    /// Pages with a label: our code words.
    Own(CodeWord),
}

/// Blocks without a label after which no other is looked for: an interrupted operation leaves one a die.
const UNLABELLED_MAX: u32 = 16;

/// Looks for labels. `read` gives the first page of a block as its cells hold it, data and spare bytes,
/// and whether there is one: bad blocks have none.
///
/// # Errors
///
/// The errors of `read`.
pub(crate) fn survey<E>(
    geometry: &Geometry,
    mut read: impl FnMut(BlockIndex, &mut [u8], &mut [u8]) -> Result<bool, E>,
) -> Result<Carried, E> {
    let Some(code) = label_code() else { return Ok(Carried::Others) };
    let mut data = alloc::vec![0xFF; geometry.page_size as usize];
    let mut spare = alloc::vec![0xFF; geometry.spare_size as usize];
    let (mut first, mut unlabelled) = (None, 0);
    for block in geometry.blocks() {
        let is_there = read(block, &mut data, &mut spare)?;
        if !is_there || data.iter().chain(&spare).all(|byte| *byte == 0xFF) {
            continue;
        }
        match Layout::named(geometry, &spare, &code) {
            None if first.is_none() && unlabelled + 1 >= UNLABELLED_MAX => {
                return Ok(Carried::Others);
            }
            None => unlabelled += 1,
            // A label confirmed by another is no accident.
            Some(layout) if first == Some(layout.word) => return Ok(Carried::Own(layout.word)),
            Some(layout) => first = Some(layout.word),
        }
    }
    Ok(match (first, unlabelled) {
        (Some(word), 0) => Carried::Own(word),
        (None, 0) => Carried::Nothing,
        _ => Carried::Others,
    })
}

impl Carried {
    /// The profile under which a chip is opened that carries these code words: a profile that leaves the
    /// ECC to the device gets ours where the chip has them.
    ///
    /// # Errors
    ///
    /// The profile says which code words of ours, and the chip carries others.
    pub(crate) fn settle(self, asked: Profile) -> Result<Profile, OpenDeviceError> {
        let differs = |found| {
            let asked = CodeWords::Own(asked.capabilities.code_word);
            Err(OpenDeviceError::Ecc { found, asked })
        };
        match (asked.ecc, self) {
            (EccOwner::Device, Self::Own(word)) => Ok(asked.with_own_code(word)?),
            (EccOwner::Own, Self::Others) => differs(CodeWords::Device),
            (EccOwner::Own, Self::Own(word)) if word != asked.capabilities.code_word => {
                differs(CodeWords::Own(word))
            }
            _ => Ok(asked),
        }
    }

    /// Refuses a chip with code words of ours, for callers that read it without them.
    ///
    /// # Errors
    ///
    /// `Ecc`.
    pub(crate) fn must_be_the_devices(self) -> Result<(), OpenDeviceError> {
        match self {
            Self::Nothing | Self::Others => Ok(()),
            Self::Own(word) => {
                Err(OpenDeviceError::Ecc { found: CodeWords::Own(word), asked: CodeWords::Device })
            }
        }
    }

    /// Whether a database may be made under `asked` without erasing anything first (V1).
    pub(crate) fn gives_way_to(self, asked: &Profile) -> bool {
        match (asked.ecc, self) {
            (_, Self::Nothing) | (EccOwner::Device, Self::Others) => true,
            (EccOwner::Own, Self::Own(word)) => word == asked.capabilities.code_word,
            (EccOwner::Own, Self::Others) | (EccOwner::Device, Self::Own(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        page_size: 2048,
        spare_size: 64,
        pages_per_block: 64,
        block_count: 40,
        die_count: 1,
    };

    fn surveyed(first_pages: &[Option<[u8; 64]>]) -> Carried {
        let read = |block: BlockIndex, _: &mut [u8], spare: &mut [u8]| {
            let page = first_pages.get(block.0 as usize).copied().flatten();
            spare.copy_from_slice(&page.unwrap_or([0xFF; 64]));
            Ok::<_, ()>(page.is_some())
        };
        survey(&GEOMETRY, read).unwrap()
    }

    #[test]
    fn two_labels_say_whose_code_words_a_chip_carries() {
        let layout = Layout::new(&GEOMETRY, CodeWord { data_size: 512, strength: 3 }).unwrap();
        let mut labelled = [0xFF; 64];
        labelled[2..6].copy_from_slice(&layout.label());
        let (labelled, other, erased) = (Some(labelled), Some([0x3C; 64]), Some([0xFF; 64]));
        assert_eq!(surveyed(&[None, erased]), Carried::Nothing);
        assert_eq!(surveyed(&[None, other, erased]), Carried::Others);
        assert_eq!(surveyed(&[labelled, erased]), Carried::Own(layout.word));
        assert_eq!(surveyed(&[other, other, labelled, labelled]), Carried::Own(layout.word));
        assert_eq!(surveyed(&[other, labelled]), Carried::Others);
        assert_eq!(surveyed(&[[other; 16], [labelled; 16]].concat()), Carried::Others);
    }

    #[test]
    fn a_profile_that_names_no_code_words_gets_those_of_the_chip() {
        let device = Profile::named("slc-2k").unwrap();
        let own = device.clone().with_own_ecc().unwrap();
        let word = own.capabilities.code_word;
        assert_eq!(Carried::Own(word).settle(device.clone()), Ok(own.clone()));
        assert_eq!(Carried::Own(word).settle(own.clone()), Ok(own.clone()));
        for carried in [Carried::Nothing, Carried::Others] {
            assert_eq!(carried.settle(device.clone()), Ok(device.clone()));
        }
        assert_eq!(Carried::Nothing.settle(own.clone()), Ok(own.clone()));
        let weaker = CodeWord { strength: 3, ..word };
        for (carried, found) in
            [(Carried::Others, CodeWords::Device), (Carried::Own(weaker), CodeWords::Own(weaker))]
        {
            let asked = CodeWords::Own(word);
            assert_eq!(carried.settle(own.clone()), Err(OpenDeviceError::Ecc { found, asked }));
            assert!(!carried.gives_way_to(&own));
        }
        assert!(Carried::Nothing.gives_way_to(&own) && Carried::Own(word).gives_way_to(&own));
        assert!(Carried::Others.gives_way_to(&device) && !Carried::Own(word).gives_way_to(&device));
    }
}
