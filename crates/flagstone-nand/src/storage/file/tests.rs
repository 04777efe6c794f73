use super::super::names::require_missing;
use super::*;

/// Goal (O2): a process that closes a file may open it again at once. Method: a copy of the open
/// descriptor, such as a process that is being started has.
#[test]
fn a_closed_file_is_free_whoever_has_a_copy_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let storage = FileStorage::create(&path).unwrap();
    let copy = storage.synced().try_clone().unwrap();
    assert_eq!(FileStorage::open(&path).unwrap_err(), OpenDeviceError::Locked);
    drop(storage);
    drop(FileStorage::open(&path).unwrap());
    drop(copy);
}

/// Goal: bytes that a failed sync leaves in the page cache are not read again. Method: a read that must
/// not wait for the disk, before and after; a file system that has no disk, or does not tell, shows
/// nothing.
#[cfg(target_os = "linux")]
#[test]
fn a_failed_sync_leaves_nothing_in_the_page_cache() {
    use std::io::IoSliceMut;

    use rustix::io::{Errno, ReadWriteFlags};

    // Where the tests are built there is a disk, mostly; where temporary files are, mostly not.
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let directory = tempfile::tempdir_in(beside).unwrap();
    let path = directory.path().join("cached");
    fs::write(&path, [7; 4096]).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_data().unwrap();
    let at_once = || {
        let mut target = [0; 4096];
        let mut slices = [IoSliceMut::new(&mut target)];
        rustix::io::preadv2(&file, &mut slices, 0, ReadWriteFlags::NOWAIT)
    };
    let before = at_once();
    // The kernel passes over a page that something else of it holds just then, as its accounts of used memory do.
    let forgotten = || {
        forget_written(&file);
        at_once()
    };
    let after = (0..1_000).map(|_| forgotten()).find(Result::is_err).unwrap_or_else(forgotten);
    match (before, after) {
        (Ok(4096), Err(Errno::AGAIN)) | (Err(Errno::OPNOTSUPP), _) => {}
        (_, after) => {
            let disk = rustix::fs::fstatfs(&file).unwrap().f_type;
            assert!(is_memory(disk), "{after:?} on a file system of type {disk:#x}");
        }
    }
    assert_eq!(fs::read(&path).unwrap(), [7; 4096]);
}

/// `tmpfs`, `ramfs` and `overlayfs`: the last passes advice on as it likes.
#[cfg(target_os = "linux")]
fn is_memory(kind: rustix::fs::FsWord) -> bool {
    [0x0102_1994, 0x8584_58F6, 0x794C_7630].contains(&(kind as u64))
}

/// Goal: new room of a file is written once where much is written at a time, and is ready for small
/// writes soon where little is. Method: one segment of each; the file system is asked which extents were
/// written. One that reserves no room has zeros from the start, and shows nothing.
#[cfg(target_os = "linux")]
#[test]
fn room_is_filled_where_little_is_written_at_a_time() {
    const SEGMENT: u64 = 64 * 4096;
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let directory = tempfile::tempdir_in(beside).unwrap();
    let mut storage = FileStorage::create(&directory.path().join("grown")).unwrap();
    storage.expect_segments(4096, SEGMENT);
    storage.extend(0, 4096 + 3 * SEGMENT).unwrap();
    storage.sync().unwrap();
    let is_fresh = has_room_alone(&storage.file, 4096);
    for page in 0..32 {
        storage.write_at(4096 + page * 4096, &[1; 4096]).unwrap();
    }
    storage.sync().unwrap();
    for sector in 0..8 {
        storage.write_at(4096 + SEGMENT + sector * 512, &[2; 512]).unwrap();
        storage.sync().unwrap();
    }
    let ends = [1, 2, 3].map(|segments| 4096 + segments * SEGMENT - 4096);
    let is_left = ends.map(|end| has_room_alone(&storage.file, end));
    assert_eq!(is_left, [is_fresh, false, is_fresh]);
    let mut content = vec![0; 3 * SEGMENT as usize];
    storage.read_at(4096, &mut content).unwrap();
    let (first, others) = content.split_at(SEGMENT as usize);
    assert!(first[..32 * 4096].iter().all(|byte| *byte == 1));
    assert!(others[..8 * 512].iter().all(|byte| *byte == 2));
    assert!(first[32 * 4096..].iter().chain(&others[8 * 512..]).all(|byte| *byte == 0));
}

/// Goal: nothing but zeros is ever filled, for any answer of the file system about a place
/// (F1).
#[test]
fn content_is_never_filled() {
    let directory = tempfile::tempdir().unwrap();
    let mut storage = FileStorage::create(&directory.path().join("file")).unwrap();
    storage.fill(8 * 4096, 0).unwrap();
    storage.write_at(3 * 4096, &[3]).unwrap();
    storage.write_at(6 * 4096 - 1, &[6]).unwrap();
    storage.fill_empty(100..9 * 4096).unwrap();
    let mut content = vec![1; 8 * 4096];
    storage.read_at(0, &mut content).unwrap();
    let held: Vec<_> = content.iter().enumerate().filter(|(_, byte)| **byte != 0).collect();
    assert_eq!(held, [(3 * 4096, &3), (6 * 4096 - 1, &6)]);
    assert_eq!(storage.size(), Ok(8 * 4096));
}

#[test]
fn a_file_that_cannot_be_written_is_named_read_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, [0; 10]).unwrap();
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    assert_eq!(FileStorage::open(&path).unwrap_err(), OpenDeviceError::ReadOnly);
    let mut storage = FileStorage::open_read_only(&path).unwrap();
    storage.read_at(9, &mut [0]).unwrap();
    assert!(storage.write_at(0, &[1]).is_err());
}

#[test]
fn whoever_reads_shares_a_file_and_keeps_out_who_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, [0; 10]).unwrap();
    let readers = [(); 2].map(|()| FileStorage::open_read_only(&path).unwrap());
    assert_eq!(FileStorage::open(&path).unwrap_err(), OpenDeviceError::Locked);
    drop(readers);
    let _writer = FileStorage::open(&path).unwrap();
    assert_eq!(FileStorage::open_read_only(&path).unwrap_err(), OpenDeviceError::Locked);
}

/// Goal: a process that waited for a file does not get one that has lost its name meanwhile. Method: the
/// file is replaced between its opening and the look at its name.
#[test]
fn a_file_that_was_replaced_is_not_the_one_of_that_name() {
    let directory = tempfile::tempdir().unwrap();
    let (path, other) = (directory.path().join("file"), directory.path().join("other"));
    let storage = FileStorage::create(&path).unwrap();
    assert_eq!(storage.has_name(&path), Ok(true));
    fs::write(&other, [0; 10]).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(storage.has_name(&path), Ok(false));
}

/// Goal: a process that makes or opens a file has the file of that name. Method: a file that another user
/// removes before it is locked, and a file that another one replaces.
#[test]
fn a_file_that_was_removed_before_it_was_locked_is_not_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let make = || OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    let locked =
        |file| FileStorage::locked_at(file, &path, Access::Write, FileLock::Required).map(drop);
    let file = make();
    fs::remove_file(&path).unwrap();
    assert_eq!(locked(file.try_clone().unwrap()), Err(OpenDeviceError::Locked));
    let other = make();
    assert_eq!(locked(file), Err(OpenDeviceError::Locked));
    assert_eq!(locked(other), Ok(()));
}

/// Goal: a child of a fork neither writes nor reads, nor takes anything from its parent when it ends. Method: the
/// storage of another process, the side file of an image included.
#[test]
fn a_child_of_a_fork_reads_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mut storage = FileStorage::create(&path).unwrap();
    storage.fill(8192, 7).unwrap();
    let child = |storage: &mut FileStorage| {
        Arc::get_mut(&mut storage.file).unwrap().process = Some(Process::of(1));
    };
    child(&mut storage);
    let refused = Err(StorageError::OtherProcess);
    assert_eq!(storage.read_at(0, &mut [0; 8]), refused);
    assert_eq!(storage.write_at(0, &[1; 8]), refused);
    assert_eq!(storage.sync(), refused);
    let refused = Err(StorageError::OtherProcess);
    assert_eq!(storage.preallocate(4096), refused);
    assert_eq!(storage.extend(8192, 16384), refused);
    assert_eq!(storage.discard(0, 4096), refused);
    assert_eq!(storage.reserve(0, 4096), refused);
    storage.begin_write(0, 8);
    let shared = storage.shared().unwrap();
    assert_eq!(shared.write_at(0, &[1; 8]), refused);
    assert_eq!(shared.sync(), refused);
    drop((shared, storage));
    assert_eq!(fs::read(&path).unwrap(), [7; 8192]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

/// Goal: a file that cannot be looked at is not taken for missing, nor for another. Method: a path
/// through a file.
#[test]
fn a_failed_look_is_no_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let storage = FileStorage::create(&path).unwrap();
    let beyond = path.join("beyond");
    let failed = OpenDeviceError::Io { errno: 20 };
    assert_eq!(require_missing(&beyond), Err(failed.clone()));
    assert_eq!(kind_of(&beyond), Err(failed.clone()));
    assert_eq!(storage.has_name(&beyond), Err(failed.clone()));
    assert_eq!(look_at(&beyond, |_| ()), Err(failed.clone()));
    assert_eq!(FileStorage::create(&beyond).unwrap_err(), failed);
    assert_eq!(crate::ImageNand::is_at(&beyond), Err(failed));
}

#[test]
fn reads_beyond_the_end_and_second_creations_fail() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mut storage = FileStorage::create(&path).unwrap();
    storage.fill(3_000_000, 7).unwrap();
    assert_eq!(storage.size(), Ok(3_000_000));
    assert_eq!(storage.read_at(2_999_999, &mut [0; 2]), Err(StorageError::BeyondEnd));
    storage.write_at(5, &[1, 2]).unwrap();
    storage.sync().unwrap();
    let mut found = [0; 4];
    storage.read_at(4, &mut found).unwrap();
    assert_eq!(found, [7, 1, 2, 7]);
    let exists = OpenDeviceError::Io { errno: 17 };
    assert_eq!(FileStorage::create(&path).unwrap_err(), exists);
}

/// Runs `test` with the node of a loop device over a file of such bytes, where this user may make one,
/// and gives the content of the file afterwards.
#[cfg(target_os = "linux")]
fn with_disk(bytes: &[u8], test: impl FnOnce(&Path)) -> Option<Vec<u8>> {
    use std::process::Command;

    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    fs::write(&disk, bytes).unwrap();
    let losetup = |arguments: &[&str]| -> Option<String> {
        let output = Command::new("losetup").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().into())
    };
    let name = losetup(&["--find", "--show", &disk.to_string_lossy()])?;
    let run = std::panic::AssertUnwindSafe(|| test(Path::new(&name)));
    let result = std::panic::catch_unwind(run);
    losetup(&["-d", &name]);
    assert!(result.is_ok());
    Some(fs::read(&disk).unwrap())
}

/// Goal: a block device on which a device does not fit keeps what it holds, a device of ours too. Method: loop
/// devices, where this user may make them.
#[test]
#[cfg(target_os = "linux")]
fn a_block_device_that_is_too_small_keeps_what_it_holds() {
    use crate::{Extent, OpenDeviceError, Profile, SegmentFile};

    let profile = Profile::named("segment-file").unwrap().with_capacity(8 << 20).unwrap();
    let full = OpenDeviceError::Io { errno: ENOSPC };
    let foreign = vec![7; 1 << 20];
    let mut ours = foreign.clone();
    ours[..8].copy_from_slice(b"FLAGSEG\0");
    for bytes in [foreign, ours] {
        let found = with_disk(&bytes, |path| {
            let made = SegmentFile::create_file(path, &profile, Extent::Fixed);
            assert_eq!(made.unwrap_err(), full);
            let made = SegmentFile::create(FileStorage::open(path).unwrap(), &profile);
            assert_eq!(made.unwrap_err(), full);
        });
        assert!(found.is_none_or(|found| found == bytes));
    }
}

/// Goal: an empty segment is discarded on a block device. Method: a loop device, over a file that gets a
/// hole.
#[test]
#[cfg(target_os = "linux")]
fn segments_of_a_block_device_are_discarded() {
    use crate::{Extent, Nand as _, ProgramPart, SegmentFile};

    let profile = crate::Profile::named("segment-file").unwrap().with_capacity(8 << 20).unwrap();
    let mut page = None;
    let found = with_disk(&vec![7; 12 << 20], |path| {
        let mut nand = SegmentFile::create_file(path, &profile, Extent::Fixed).unwrap();
        let first = nand.geometry().page(crate::BlockIndex(1), 0).unwrap();
        let part = ProgramPart { data_offset: 0, data: &[0x5A; 4096], spare_offset: 0, spare: &[] };
        nand.program(first, part).unwrap();
        nand.sync().unwrap();
        nand.trim(first, nand.geometry().pages_per_block);
        page = (nand.counters().bytes_discarded > 0).then_some([0x5A; 4096]);
        nand.sync().unwrap();
    });
    if let (Some(found), Some(page)) = (found, page) {
        assert!(!found.chunks(4096).any(|chunk| chunk == page), "the page is still there");
    }
}

/// Goal: a whole block device is a device, and is neither taken twice nor overwritten. Method: a
/// loop device, where this user may make one; elsewhere there is nothing to test.
#[test]
#[cfg(target_os = "linux")]
fn a_block_device_is_taken_as_a_whole() {
    use crate::{Nand as _, ProgramPart, SegmentFile};

    with_disk(&vec![7; 12 << 20], |path| {
        let profile = crate::Profile::named("segment-file").unwrap();
        let profile = profile.with_capacity(8 << 20).unwrap();
        let storage = FileStorage::create(path).unwrap();
        assert!(storage.size().unwrap() >= 12 << 20);
        assert_eq!(FileStorage::open(path).unwrap_err(), OpenDeviceError::Locked);
        let mut nand = SegmentFile::create(storage, &profile).unwrap();
        let page = nand.geometry().page(crate::BlockIndex(0), 0).unwrap();
        let part = ProgramPart { data_offset: 512, data: &[3; 512], spare_offset: 0, spare: &[] };
        nand.program(page, part).unwrap();
        nand.sync().unwrap();
        drop(nand);
        let taken = OpenDeviceError::Io { errno: EEXIST };
        assert_eq!(FileStorage::create(path).unwrap_err(), taken);
        SegmentFile::open(FileStorage::open(path).unwrap()).unwrap();
    });
}
