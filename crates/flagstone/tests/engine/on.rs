//! A database that knows the type of its device, for tests that look at the device or want it back.

use std::marker::PhantomData;
use std::ops::Deref;

use flagstone::{OpenError, Options};
use flagstone_nand::{AnyNand, Nand};

/// As [`flagstone::Database`], on a device of type `D`.
#[derive(Debug)]
pub(crate) struct Database<D = AnyNand> {
    database: flagstone::Database,
    device: PhantomData<fn() -> D>,
}

impl<D> Clone for Database<D> {
    fn clone(&self) -> Self {
        Self::of(self.database.clone())
    }
}

impl<D> Deref for Database<D> {
    type Target = flagstone::Database;

    fn deref(&self) -> &Self::Target {
        &self.database
    }
}

impl<D> Database<D> {
    const fn of(database: flagstone::Database) -> Self {
        Self { database, device: PhantomData }
    }

    pub(crate) fn close(self) -> Result<(), flagstone::CommitError> {
        self.database.close()
    }
}

impl<D: Nand + Send + 'static> Database<D> {
    pub(crate) fn create_on(device: D, options: &Options) -> Result<Self, OpenError> {
        flagstone::Database::create_on(device, options).map(Self::of)
    }

    pub(crate) fn open_on(device: D, options: &Options) -> Result<Self, OpenError> {
        flagstone::Database::open_on(device, options).map(Self::of)
    }

    pub(crate) fn open_read_only_on(device: D, options: &Options) -> Result<Self, OpenError> {
        flagstone::Database::open_read_only_on(device, options).map(Self::of)
    }

    /// The device, as if power had been cut.
    pub(crate) fn into_device(self) -> Option<D> {
        Some(self.database.into_device()?.downcast().unwrap())
    }

    /// Result of `look` at the device.
    pub(crate) fn at_device<T>(&self, look: impl FnOnce(&mut D) -> T) -> T {
        let mut space = self.database.runtime().space();
        look(space.device_mut().downcast_mut().unwrap())
    }
}
