//! Goal: an image keeps bytes and rules across restarts, kills and cuts. Method: small scripts on
//! temporary files; a kill is a forgotten device, whose side file stays open.

use tempfile::TempDir;

use super::*;
use crate::storage::EEXIST;
use crate::{CodeWords, EccNand, EccOwner, Inconsistency, ProfileError, SideFault, SimNand};

fn tiny() -> Profile {
    Profile::named("tiny").unwrap()
}

fn created(profile: &Profile) -> (TempDir, PathBuf, ImageNand) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("chip.img");
    let nand = ImageNand::create(&path, profile).unwrap();
    (directory, path, nand)
}

fn page(number: u32) -> PhysicalPage {
    tiny().geometry.page_from_number(number).unwrap()
}

fn whole(data: &[u8]) -> ProgramPart<'_> {
    ProgramPart { data_offset: 0, data, spare_offset: 0, spare: &[] }
}

fn flag(offset: u32, spare: &[u8]) -> ProgramPart<'_> {
    ProgramPart { data_offset: 0, data: &[], spare_offset: offset, spare }
}

fn content(nand: &mut ImageNand, page: PhysicalPage) -> (Vec<u8>, Vec<u8>) {
    let (mut data, mut spare) = (vec![0; 512], vec![0; nand.geometry().spare_size as usize]);
    let part = ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut spare };
    nand.read(page, part).unwrap();
    (data, spare)
}

/// The process dies: nothing more is written, the lock goes.
fn kill(mut nand: ImageNand) {
    nand.closed = true;
    drop(nand);
}

fn broken(rule: FlashRule, page: PhysicalPage) -> Result<Completion, NandError> {
    Err(NandError::Rule { page, rule })
}

#[test]
fn bytes_counts_and_wear_survive_a_close() {
    let (_directory, path, mut nand) = created(&tiny());
    nand.program(page(9), ProgramPart { spare_offset: 2, spare: &[1], ..whole(&[3; 512]) })
        .unwrap();
    for offset in 3..6 {
        nand.program(page(9), flag(offset, &[0])).unwrap();
    }
    nand.erase(BlockIndex(0)).unwrap();
    nand.close().unwrap();
    let mut nand = ImageNand::open(&path).unwrap();
    let (data, spare) = content(&mut nand, page(9));
    assert_eq!((data, &spare[..7]), (vec![3; 512], &[0xFF, 0xFF, 1, 0, 0, 0, 0xFF][..]));
    assert_eq!(nand.program(page(9), flag(6, &[0])), broken(FlashRule::SparePrograms, page(9)));
    assert_eq!(nand.erase_count(BlockIndex(0)), 1);
}

#[test]
fn a_used_code_word_of_ones_is_remembered_across_a_close_only() {
    let (_directory, path, mut nand) = created(&tiny());
    nand.program(page(0), whole(&[0xFF; 512])).unwrap();
    drop(nand);
    let mut nand = ImageNand::open(&path).unwrap();
    let refused = nand.program(page(0), whole(&[1; 512]));
    assert_eq!(refused, broken(FlashRule::CodeWordReuse, page(0)));
    kill(nand);
    let mut nand = ImageNand::open(&path).unwrap();
    nand.program(page(0), whole(&[1; 512])).unwrap();
}

#[test]
fn a_kill_leaves_bytes_and_the_rules_that_they_tell() {
    let (_directory, path, mut nand) = created(&tiny());
    nand.program(page(0), whole(&[7; 256])).unwrap();
    kill(nand);
    let mut nand = ImageNand::open(&path).unwrap();
    assert_eq!(content(&mut nand, page(0)).0, [[7; 256], [0xFF; 256]].concat());
    let refused = nand.program(page(0), whole(&[1; 256]));
    assert_eq!(refused, broken(FlashRule::CodeWordReuse, page(0)));
    nand.program(page(0), ProgramPart { data_offset: 256, ..whole(&[8; 256]) }).unwrap();
    nand.erase(BlockIndex(0)).unwrap();
    nand.program(page(0), whole(&[1; 256])).unwrap();
}

#[test]
fn the_image_is_the_dump_of_a_simulated_chip() {
    let (_directory, path, mut nand) = created(&tiny());
    let mut chip = SimNand::new(&tiny(), 1);
    for number in [0, 5, 17] {
        let data = [number as u8; 512];
        let part = ProgramPart { spare_offset: 4, spare: &[1, 2], ..whole(&data) };
        nand.program(page(number), part).unwrap();
        chip.program(page(number), part).unwrap();
    }
    nand.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), chip.to_image());
}

#[test]
fn marks_survive_with_and_without_a_spare_area() {
    for name in ["tiny", "tiny-nospare"] {
        let (_directory, path, mut nand) = created(&Profile::named(name).unwrap());
        nand.mark_bad(BlockIndex(4)).unwrap();
        kill(nand);
        let mut nand = ImageNand::open(&path).unwrap();
        assert_eq!(nand.is_bad(BlockIndex(4)), Ok(true), "{name}");
        assert_eq!(nand.is_bad(BlockIndex(5)), Ok(false), "{name}");
        assert_eq!(nand.erase(BlockIndex(4)), broken(FlashRule::BadBlock, page(32)));
    }
}

/// Goal: a dump of a chip of small pages opens, whose ECC keeps parity in front of the mark. Method: one byte of
/// the spare area of the first or second page, as the kernel's Hamming code or the vendor leaves it.
#[test]
fn small_pages_are_marked_in_byte_5() {
    let profile = Profile::named("slc-512").unwrap();
    let geometry = profile.geometry;
    let stride = (geometry.page_size + geometry.spare_size) as usize;
    let block = BlockIndex(2);
    for (page, byte, value, is_bad) in
        [(0, 0, 0x5A, false), (1, 0, 0x5A, false), (0, 5, 0, true), (1, 5, 0, true)]
    {
        let (_directory, path, nand) = created(&profile);
        drop(nand);
        let mut bytes = std::fs::read(&path).unwrap();
        let first = geometry.page(block, page).unwrap().number() as usize;
        bytes[first * stride + 512 + byte] = value;
        std::fs::write(&path, &bytes).unwrap();
        let mut nand = ImageNand::open(&path).unwrap();
        assert_eq!(nand.is_bad(block), Ok(is_bad), "byte {byte} of page {page}");
    }
    let (_directory, path, mut nand) = created(&profile);
    nand.mark_bad(block).unwrap();
    drop(nand);
    let bytes = std::fs::read(&path).unwrap();
    let first = geometry.page(block, 0).unwrap().number() as usize;
    let spare = &bytes[first * stride + 512..(first + 1) * stride];
    assert_eq!(spare[..6], [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0]);
    assert_eq!(ImageNand::open(&path).unwrap().is_bad(block), Ok(true));
}

/// Goal: whose code words a dump of small pages carries is found, too. Method: other code words in front of
/// the mark.
#[test]
fn parity_in_front_of_the_mark_hides_no_label() {
    let (_directory, path, nand) = created_own();
    drop(nand);
    let mut bytes = std::fs::read(&path).unwrap();
    for number in [0, 8, 16] {
        bytes[number * (512 + 64) + 512] = 0x5A;
    }
    std::fs::write(&path, &bytes).unwrap();
    let side = ImageNand::side_path(&path);
    let silent = Profile { ecc: EccOwner::Device, ..Profile::named("tiny-own").unwrap() };
    std::fs::write(&side, silent.to_toml()).unwrap();
    assert_eq!(EccNand::open_image(&path).unwrap().device().profile().ecc, EccOwner::Own);
}

#[test]
fn a_cut_ends_the_operation_in_flight_and_the_session() {
    for (ending, expected) in [
        (Ending::Untouched, [0xFF; 512].to_vec()),
        (Ending::Complete, [4; 512].to_vec()),
        (Ending::Torn { units: 1 }, [[4; 256], [0xFF; 256]].concat()),
    ] {
        let (_directory, path, mut nand) = created(&tiny());
        nand.program(page(0), whole(&[3; 512])).unwrap();
        nand.set_plan(FaultPlan::power_cut(1, 1, ending));
        assert_eq!(nand.program(page(1), whole(&[4; 512])), Err(NandError::PowerOff));
        assert_eq!(nand.sync(), Err(NandError::PowerOff));
        drop(nand);
        let mut nand = ImageNand::open(&path).unwrap();
        assert_eq!(content(&mut nand, page(0)).0, [3; 512]);
        assert_eq!(content(&mut nand, page(1)).0, expected, "{ending}");
    }
}

#[test]
fn unusable_files_are_refused_by_kind() {
    let (directory, path, nand) = created(&tiny());
    let refused = ImageNand::open(&path).unwrap_err();
    assert_eq!(refused, OpenDeviceError::Locked);
    assert!(refused.to_string().ends_with("in another process or in this one"), "{refused}");
    drop(nand);
    let side = ImageNand::side_path(&path);
    let text = std::fs::read_to_string(&side).unwrap();
    std::fs::write(&side, text.replace("block_count = 24", "block_count = 25")).unwrap();
    assert!(matches!(ImageNand::open(&path), Err(OpenDeviceError::Size { .. })));
    std::fs::write(&side, text.replace("endurance", "endurnace")).unwrap();
    let refused = ImageNand::open(&path);
    assert!(matches!(fault(refused), SideFault::Profile(ProfileError::UnknownKey { .. })));
    std::fs::write(&side, "name = \n").unwrap();
    let refused = ImageNand::open(&path);
    assert!(matches!(fault(refused), SideFault::Profile(ProfileError::Syntax { line: 1 })));
    std::fs::write(&side, text.replace("programs = [", "programs = [\"x\",")).unwrap();
    assert_eq!(fault(ImageNand::open(&path)), SideFault::Blocks);
    std::fs::remove_file(&side).unwrap();
    let refused = ImageNand::open(&path).unwrap_err();
    assert!(refused.to_string().contains("chip.img.toml: No such file"), "{refused}");
    assert_eq!(fault(Err(refused)), SideFault::Io { errno: 2 });
    std::fs::create_dir(&side).unwrap();
    assert_eq!(fault(ImageNand::open(&path)), SideFault::Io { errno: 21 });
    let absent = directory.path().join("absent");
    assert_eq!(ImageNand::open(&absent).unwrap_err(), OpenDeviceError::Io { errno: 2 });
}

#[test]
fn a_dump_opens_with_a_bare_profile_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dump");
    let mut chip = SimNand::new(&tiny(), 1);
    chip.program(page(3), whole(&[6; 512])).unwrap();
    std::fs::write(&path, chip.to_image()).unwrap();
    std::fs::write(ImageNand::side_path(&path), tiny().to_toml()).unwrap();
    let mut nand = ImageNand::open(&path).unwrap();
    assert_eq!(content(&mut nand, page(3)).0, [6; 512]);
}

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Goal: an image and a simulated chip are the same device. Method: one random script on both;
    /// every answer and all bytes agree, across a reopening in the middle.
    #[test]
    fn an_image_answers_like_a_simulated_chip(
        script in proptest::collection::vec(
            (0..32_u32, 0..3_u32, 0..3_u32, any::<u8>(), any::<Option<u8>>()), 1..80),
        name in prop_oneof![Just("tiny"), Just("tiny-ordered"), Just("tiny-mlc")],
    ) {
        let profile = Profile::named(name).unwrap();
        let (_directory, path, mut nand) = created(&profile);
        let mut chip = SimNand::new(&profile, 1);
        for (number, (at, word, words, byte, spare)) in script.iter().enumerate() {
            if number == script.len() / 2 {
                nand.close().unwrap();
                nand = ImageNand::open(&path).unwrap();
            }
            let data = vec![*byte; (words * 256) as usize];
            let spare = spare.map(|byte| [byte]);
            let spare = spare.as_ref().map_or(&[][..], |spare| &spare[..]);
            let part = ProgramPart { data_offset: word * 256, data: &data, spare_offset: 3, spare };
            let answers = match word {
                2 => [nand.erase(BlockIndex(at / 8)), chip.erase(BlockIndex(at / 8))],
                _ => [nand.program(page(*at), part), chip.program(page(*at), part)],
            };
            let [image, chip] = answers.map(|answer| answer.map(|_| ()));
            prop_assert_eq!(image, chip);
        }
        drop(nand);
        prop_assert_eq!(std::fs::read(&path).unwrap(), chip.to_image());
    }
}

fn tiny_own() -> Profile {
    Profile::named("tiny-own").unwrap()
}

/// An image with ECC of our own, three pages of it programmed in blocks of their own.
fn created_own() -> (TempDir, PathBuf, EccNand<ImageNand>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("chip.img");
    let mut nand = EccNand::create_image(&path, &tiny_own()).unwrap();
    for number in [0, 8, 16] {
        nand.program(page(number), whole(&[number as u8; 512])).unwrap();
    }
    (directory, path, nand)
}

fn first_page(nand: &mut EccNand<ImageNand>) -> Result<(Vec<u8>, u32), NandError> {
    let mut data = vec![0; 512];
    let part = ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut [] };
    let completion = nand.read(page(8), part)?;
    Ok((data, completion.corrected_bits_max))
}

#[test]
fn flipped_bits_of_an_image_are_repaired_where_the_ecc_is_ours() {
    let (_directory, path, nand) = created_own();
    drop(nand);
    let mut bytes = std::fs::read(&path).unwrap();
    let start = 8 * (512 + 64);
    bytes[start + 5] ^= 0x10;
    bytes[start + 100] ^= 0x01;
    bytes[start + 300] ^= 0x80;
    std::fs::write(&path, &bytes).unwrap();
    let mut nand = EccNand::open_image(&path).unwrap();
    assert_eq!(first_page(&mut nand), Ok((vec![8; 512], 2)));
    drop(nand);
    bytes[start + 6] ^= 0x10;
    std::fs::write(&path, &bytes).unwrap();
    let mut nand = EccNand::open_image(&path).unwrap();
    assert_eq!(first_page(&mut nand), Err(NandError::Uncorrectable { page: page(8) }));
}

/// A dump of a chip, with a profile beside it that says nothing of the ECC.
#[test]
fn an_image_says_itself_whose_ecc_it_carries() {
    let (directory, path, nand) = created_own();
    drop(nand);
    let side = directory.path().join("chip.img.toml");
    let mut silent = tiny_own();
    silent.ecc = EccOwner::Device;
    std::fs::write(&side, silent.to_toml()).unwrap();
    let words = CodeWords::Own(tiny_own().capabilities.code_word);
    let refused = OpenDeviceError::Ecc { found: words, asked: CodeWords::Device };
    assert_eq!(ImageNand::open(&path).map(drop), Err(refused));
    let mut nand = EccNand::open_image(&path).unwrap();
    assert_eq!(first_page(&mut nand), Ok((vec![8; 512], 0)));
    assert_eq!(nand.device().profile().ecc, EccOwner::Own, "as the side file says from now on");
}

#[test]
fn other_code_words_than_the_images_are_refused() {
    let (directory, path, nand) = created_own();
    drop(nand);
    let side = directory.path().join("chip.img.toml");
    let mut other = tiny_own();
    other.capabilities.code_word.strength = 1;
    std::fs::write(&side, other.to_toml()).unwrap();
    let found = CodeWords::Own(tiny_own().capabilities.code_word);
    let asked = CodeWords::Own(other.capabilities.code_word);
    let refused = Err(OpenDeviceError::Ecc { found, asked });
    assert_eq!(EccNand::open_image(&path).map(drop), refused);

    // A chip whose ECC is its own, under a profile that says that it is ours.
    let (directory, path, mut nand) = created(&tiny());
    nand.program(page(0), whole(&[1; 512])).unwrap();
    drop(nand);
    let mut wrong = tiny();
    wrong.geometry.spare_size = 32;
    let wrong = wrong.with_own_ecc().unwrap();
    std::fs::write(directory.path().join("chip.img.toml"), wrong.to_toml()).unwrap();
    let asked = CodeWords::Own(wrong.capabilities.code_word);
    let refused = Err(OpenDeviceError::Ecc { found: CodeWords::Device, asked });
    assert_eq!(EccNand::open_image(&path).map(drop), refused);
    assert_eq!(ImageNand::create(&path, &wrong).map(drop), Err(OpenDeviceError::Unsuitable));
}

/// Goal: a creation that fails takes and leaves nothing, and a successful one takes no file of others.
/// Method: somebody's file where the side file would stand, then one with nearly its name.
#[test]
fn a_creation_that_fails_leaves_every_file_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let (path, side) = (directory.path().join("own"), directory.path().join("own.toml"));
    std::fs::write(&side, "mine").unwrap();
    let taken = OpenDeviceError::Io { errno: EEXIST };
    assert_eq!(ImageNand::create(&path, &tiny()).unwrap_err(), taken);
    assert_eq!(std::fs::read(&side).unwrap(), b"mine");
    assert!(!path.exists());

    std::fs::remove_file(&side).unwrap();
    let beside = directory.path().join("own.toml.new");
    std::fs::write(&beside, "mine").unwrap();
    ImageNand::create(&path, &tiny()).unwrap();
    assert_eq!(std::fs::read(&beside).unwrap(), b"mine");
    assert_eq!(ImageNand::create(&path, &tiny()).unwrap_err(), taken);
    assert!(path.exists() && side.exists());
}

/// Goal: a side file that could not be replaced leaves none behind that is not complete. Method: a directory in its
/// place, when the image is closed, and when it is opened to be written.
#[test]
fn a_side_file_that_cannot_be_saved_leaves_no_other() {
    let (_directory, path, nand) = created(&tiny());
    let side = ImageNand::side_path(&path);
    let text = std::fs::read(&side).unwrap();
    std::fs::remove_file(&side).unwrap();
    std::fs::create_dir_all(side.join("in the way")).unwrap();
    let count = || std::fs::read_dir(side.parent().unwrap()).unwrap().count();
    assert!(matches!(nand.close(), Err(OpenDeviceError::Side { path, .. }) if path == side));
    assert_eq!(count(), 2, "the image and the directory");
    std::fs::remove_dir_all(&side).unwrap();
    std::fs::write(&side, text).unwrap();
    ImageNand::open(&path).unwrap().close().unwrap();
    assert!(side.is_file() && count() == 2);
}

/// Goal: a side file keeps its other names, and links to it go on pointing to it: a save puts a new one in its place.
/// Method: a hard link, which is refused, and a symbolic one.
#[test]
fn a_side_file_with_other_names_is_not_parted_from_them() {
    let (directory, path, nand) = created(&tiny());
    nand.close().unwrap();
    let (side, other) = (ImageNand::side_path(&path), directory.path().join("other.toml"));
    std::fs::hard_link(&side, &other).unwrap();
    assert_eq!(ImageNand::open(&path).map(drop), Err(OpenDeviceError::Linked { count: 2 }));
    std::fs::remove_file(&side).unwrap();
    std::os::unix::fs::symlink(&other, &side).unwrap();
    ImageNand::open(&path).unwrap().close().unwrap();
    assert!(side.is_symlink() && other.is_file());
}

/// Goal: no damaged sector of a side file hides the image, and no damaged content is taken for right. Method:
/// bytes turned over here and there, and each sector.
#[test]
fn a_side_file_stands_twice() {
    let (_directory, path, mut nand) = created(&tiny());
    nand.program(page(0), whole(&[0xFF; 512])).unwrap();
    nand.erase(BlockIndex(3)).unwrap();
    nand.close().unwrap();
    let side = ImageNand::side_path(&path);
    let opens = |saved: &[u8], damaged: &[u8]| {
        std::fs::write(&side, damaged).unwrap();
        ImageNand::open(&path).unwrap().close().unwrap();
        std::fs::read(&side).unwrap() == saved
    };
    let saved = std::fs::read(&side).unwrap();
    assert!(opens(&saved, &saved));
    for size in [1, 512, 4_096] {
        for start in (0..saved.len()).step_by(size.max(97)) {
            let mut damaged = saved.clone();
            let sector = start..damaged.len().min(start + size);
            damaged[sector].iter_mut().for_each(|byte| *byte ^= 0x41);
            assert!(opens(&saved, &damaged), "{size} bytes at {start}");
        }
    }
    let text = String::from_utf8(saved).unwrap();
    let both = text.replace("block_count = 24", "block_count = 25");
    std::fs::write(&side, both).unwrap();
    assert!(ImageNand::open(&path).is_err(), "both are damaged");
}

/// Fault in the side file of an image that does not open.
fn fault(opened: Result<ImageNand, OpenDeviceError>) -> SideFault {
    match opened {
        Err(OpenDeviceError::Side { fault, .. }) => *fault,
        other => panic!("{other:?}"),
    }
}

/// Goal: a side file takes no more memory than the image has bytes. Method: a side file that lists more
/// blocks and dies than any chip has, beside an image of one byte.
#[test]
fn an_absurd_side_file_is_refused_before_memory_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("chip.img");
    std::fs::write(&path, [0xFF]).unwrap();
    let side = ImageNand::side_path(&path);
    let with = |lines: &[(&str, &str)]| {
        let text = lines.iter().fold(tiny().to_toml(), |text, (from, to)| {
            assert!(text.contains(from), "{text}");
            text.replace(from, to)
        });
        std::fs::write(&side, text).unwrap();
        ImageNand::open(&path)
    };
    let many = [
        ("pages_per_block = 8", "pages_per_block = 1"),
        ("block_count = 24", "block_count = 4294967295"),
    ];
    let broken = |fault| SideFault::Profile(ProfileError::Inconsistent(fault));
    assert_eq!(fault(with(&many)), broken(Inconsistency::Blocks));
    assert_eq!(
        fault(with(&[("die_count = 1", "die_count = 4294967295")])),
        broken(Inconsistency::Dies)
    );
    let most = [("block_count = 24", "block_count = 4194304")];
    assert!(matches!(with(&most), Err(OpenDeviceError::Size { found: 1, .. })));
}
