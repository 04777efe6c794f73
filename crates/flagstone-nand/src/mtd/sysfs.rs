//! The kernel's attributes of an MTD device under `/sys`.
//!
//! Owns the paths and their parsing. Never opens the device.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::PathBuf;

use rustix::fs::{Dev, major, minor};

/// `MTD_CHAR_MAJOR`: every device has two nodes of this number, one of which is read-only.
const MAJOR: u32 = 90;

/// Directory of a device's attributes.
#[derive(Debug)]
pub(super) struct Sysfs {
    number: u32,
    root: PathBuf,
}

impl Sysfs {
    /// Attributes of the open device, under any name of its node; none when it is no MTD device.
    pub(super) fn of(file: &File) -> Option<Self> {
        let node = file.metadata().ok().filter(|data| data.file_type().is_char_device())?;
        let number = number_of(node.rdev())?;
        Some(Self { number, root: PathBuf::from("/sys/class") })
    }

    fn text(&self, attribute: &str) -> Option<String> {
        let path = self.root.join(format!("mtd/mtd{}/{attribute}", self.number));
        Some(fs::read_to_string(path).ok()?.trim().to_owned())
    }

    /// A number, decimal or with `0x`.
    pub(super) fn number(&self, attribute: &str) -> Option<u64> {
        let text = self.text(attribute)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// `nand`, `mlc-nand`, `nor`, ...
    pub(super) fn kind(&self) -> Option<String> {
        self.text("type")
    }

    /// The UBI device that is attached to this MTD device, if any.
    pub(super) fn ubi(&self) -> Option<String> {
        let entries = fs::read_dir(self.root.join("ubi")).ok()?;
        let is_ours = |entry: &fs::DirEntry| {
            let number = fs::read_to_string(entry.path().join("mtd_num")).ok();
            number.and_then(|text| text.trim().parse().ok()) == Some(self.number)
        };
        let found = entries.flatten().find(is_ours)?;
        Some(found.file_name().to_string_lossy().into_owned())
    }
}

/// Number of the MTD device with this number of a node.
fn number_of(node: Dev) -> Option<u32> {
    (major(node) == MAJOR).then_some(minor(node) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_by_the_number_of_the_device() {
        let directory = tempfile::tempdir().unwrap();
        let attributes = directory.path().join("mtd/mtd3");
        fs::create_dir_all(&attributes).unwrap();
        fs::write(attributes.join("writesize"), "2048\n").unwrap();
        fs::write(attributes.join("flags"), "0x400\n").unwrap();
        let ubi = directory.path().join("ubi/ubi0");
        fs::create_dir_all(&ubi).unwrap();
        fs::write(ubi.join("mtd_num"), "3\n").unwrap();
        let sysfs = Sysfs { number: 3, root: directory.path().to_path_buf() };
        assert_eq!(sysfs.number("writesize"), Some(2048));
        assert_eq!(sysfs.number("flags"), Some(0x400));
        assert_eq!(sysfs.number("oobsize"), None);
        assert_eq!(sysfs.ubi().as_deref(), Some("ubi0"));
    }

    #[test]
    fn a_device_is_known_by_its_number_whatever_its_node_is_called() {
        let node = |major, minor| number_of(rustix::fs::makedev(major, minor));
        assert_eq!([node(90, 0), node(90, 1)], [Some(0), Some(0)], "mtd0 and mtd0ro");
        assert_eq!([node(90, 24), node(31, 3)], [Some(12), None], "mtd12 and mtdblock3");
        // A file with the name of a node is no MTD device; nor is another device.
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("mtd3")).unwrap();
        assert!(Sysfs::of(&file).is_none());
        assert!(Sysfs::of(&File::open("/dev/null").unwrap()).is_none());
    }
}
