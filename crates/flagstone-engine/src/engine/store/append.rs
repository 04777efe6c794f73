//! Appends to a page on flash, as far as the store knows them: the room that pages have for them.

use flagstone_space::runs::ChangeForm;
use flagstone_space::{LogicalPage, PageInfo};

use crate::engine::store::Store;

/// Changes that make another image of a version on flash.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) onto: PageInfo,
    pub(crate) records: Vec<Vec<u8>>,
}

impl Append {
    /// How changes are written down.
    pub(crate) const FORM: ChangeForm = ChangeForm::Runs;
}

impl Store {
    /// Gives an image the size of a page: where it has slots for appends, its version ends before them.
    pub(crate) fn widen(&self, image: &mut Vec<u8>) {
        if image.len() < self.payload_size {
            // Memory is charged by the allocated size.
            image.reserve_exact(self.payload_size - image.len());
            image.resize(self.payload_size, 0xFF);
        }
    }

    /// The frame of `page` is a copy of this version.
    pub(crate) fn note_version(&mut self, page: LogicalPage, info: Option<&PageInfo>) {
        if let (Some(index), Some(info)) = (self.pool.peek(page), info) {
            self.pool.set_version(index, info);
        }
    }
}
