//! What the kernel says of an MTD device under `/sys`.
//!
//! Owns the paths and their parsing. Never opens the device.

use std::fs;
use std::path::{Path, PathBuf};

/// Directory of a device's attributes.
#[derive(Debug)]
pub(super) struct Sysfs {
    number: u32,
    root: PathBuf,
}

impl Sysfs {
    /// Attributes of the device node at `path`; none when its name is not `mtdN`.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let number = name.strip_prefix("mtd")?.trim_end_matches("ro").parse().ok()?;
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

    /// The UBI device that is attached to it, if any.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_by_the_name_of_the_node() {
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
        assert!(Sysfs::of(Path::new("/dev/mtdblock3")).is_none());
        assert_eq!(Sysfs::of(Path::new("/dev/mtd12")).map(|sysfs| sysfs.number), Some(12));
    }
}
