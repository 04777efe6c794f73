//! States as real files: the differences of a state are written, and taken back afterwards.
//!
//! Files that have no part in a state stand in a directory beside it, as the record has made them durable. So a
//! state costs its changes, a rename for each of its files, and one comparison of what the database wrote meanwhile.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::disk::{Disk, Image, Overlay, SECTOR, State};
use super::record::FileNumber;

/// Bytes compared at a time.
const CHUNK: usize = 128 << 10;

/// A directory for states, and one for files that wait.
pub(super) struct Stage {
    pub(super) directory: PathBuf,
    store: PathBuf,
    /// Files of the store that are unchanged since they were last put there.
    known: HashSet<FileNumber>,
}

impl Stage {
    /// Makes both directories in `home`.
    ///
    /// # Errors
    /// Errors of the host.
    pub(super) fn new(home: &Path) -> io::Result<Self> {
        let (directory, store) = (home.join("state"), home.join("store"));
        fs::create_dir_all(&directory)?;
        fs::create_dir_all(&store)?;
        Ok(Self { directory, store, known: HashSet::new() })
    }

    /// Durable bytes of these files have changed: they are written anew before they are used.
    pub(super) fn forget(&mut self, files: impl IntoIterator<Item = FileNumber>) {
        for file in files {
            self.known.remove(&file);
        }
    }

    fn stored(&self, file: FileNumber) -> PathBuf {
        self.store.join(file.to_string())
    }

    /// Puts the files of a state under their names.
    ///
    /// # Errors
    /// Errors of the host.
    pub(super) fn put(&mut self, disk: &Disk, state: &State) -> io::Result<()> {
        for (name, number) in &state.names {
            let stored = self.stored(*number);
            let empty = Image::default();
            let image = disk.files.get(number).unwrap_or(&empty);
            if self.known.insert(*number) {
                rewrite(&stored, image)?;
            }
            let path = self.directory.join(name);
            fs::rename(&stored, &path)?;
            let Some(overlay) = state.overlays.get(number) else { continue };
            let file = OpenOptions::new().write(true).open(&path)?;
            for (at, bytes) in runs(overlay) {
                file.write_all_at(&bytes, at)?;
            }
            file.set_len(overlay.size)?;
        }
        Ok(())
    }

    /// Takes the files of a state back to their durable content, and removes all others.
    ///
    /// # Errors
    /// Errors of the host.
    pub(super) fn take_back(&mut self, disk: &Disk, state: &State) -> io::Result<()> {
        let empty = Image::default();
        for (name, number) in &state.names {
            let path = self.directory.join(name);
            let image = disk.files.get(number).unwrap_or(&empty);
            match fs::rename(&path, self.stored(*number)) {
                Ok(()) => rewrite(&self.stored(*number), image)?,
                Err(_) => drop(self.known.remove(number)),
            }
        }
        for entry in fs::read_dir(&self.directory)? {
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }
}

/// Neighbouring sectors of an overlay, as far as the file reaches: an offset, and bytes to write there.
fn runs(overlay: &Overlay) -> Vec<(u64, Vec<u8>)> {
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for (index, sector) in &overlay.sectors {
        let at = index * SECTOR as u64;
        let size = overlay.size.saturating_sub(at).min(SECTOR as u64) as usize;
        let bytes = &sector.bytes()[..size];
        match runs.last_mut().filter(|(start, run)| start + run.len() as u64 == at) {
            Some((_, run)) => run.extend_from_slice(bytes),
            None if size > 0 => runs.push((at, bytes.to_vec())),
            None => {}
        }
    }
    runs
}

/// Makes a file equal to an image; writes only where the two differ, which is cheaper than to write everything.
fn rewrite(path: &Path, image: &Image) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let found = file.metadata()?.len();
    file.set_len(image.size)?;
    let mut buffer = vec![0; CHUNK];
    let bytes = &image.bytes[..usize::try_from(image.size).unwrap_or(0)];
    for (index, chunk) in bytes.chunks(CHUNK).enumerate() {
        let at = (index * CHUNK) as u64;
        let is_there = at + chunk.len() as u64 <= found && is_same(&file, at, chunk, &mut buffer)?;
        if !is_there {
            file.write_all_at(chunk, at)?;
        }
    }
    Ok(())
}

fn is_same(file: &File, at: u64, chunk: &[u8], buffer: &mut [u8]) -> io::Result<bool> {
    let buffer = &mut buffer[..chunk.len()];
    file.read_exact_at(buffer, at)?;
    Ok(buffer == chunk)
}
