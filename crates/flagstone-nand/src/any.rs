//! A device whose kind is known at run time.

use alloc::boxed::Box;
use core::any::Any;
use core::fmt;

use crate::Nand;

/// A device that may be of any kind, and knows its kind.
pub(crate) trait Device: Nand + Send + Any {}

impl<D: Nand + Send + Any> Device for D {}

/// A device whose kind is known at run time: the one behind a path, or one that a program makes itself.
/// Costs one dynamic call for each call of the device.
///
/// ```
/// use flagstone_nand::{AnyNand, Nand as _, Profile, SimNand, SimSsd};
///
/// let profile = Profile::named("slc-2k")?;
/// let device = AnyNand::new(SimNand::new(&profile, 1));
/// assert_eq!(device.geometry(), profile.geometry);
/// assert!(device.downcast_ref::<SimSsd>().is_none());
/// let chip: SimNand = device.downcast().map_err(|_| "another kind")?;
/// assert_eq!(chip.counters().page_programs, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AnyNand(pub(crate) Box<dyn Device>);

impl fmt::Debug for AnyNand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyNand").field("geometry", &self.0.geometry()).finish_non_exhaustive()
    }
}

impl AnyNand {
    /// A device of any kind. An `AnyNand` stays as it is.
    #[must_use]
    pub fn new(device: impl Nand + Send + 'static) -> Self {
        let boxed = Self(Box::new(device));
        boxed.downcast().unwrap_or_else(|boxed| boxed)
    }

    /// The device itself, where it is a `D`.
    ///
    /// # Errors
    ///
    /// The device as it was, where it is of another kind.
    pub fn downcast<D: Nand + 'static>(self) -> Result<D, Self> {
        if self.downcast_ref::<D>().is_none() {
            return Err(self);
        }
        let device: Box<dyn Any> = self.0;
        match device.downcast() {
            Ok(device) => Ok(*device),
            Err(_) => unreachable!("the kind was compared"),
        }
    }

    /// The device itself, where it is a `D`.
    #[must_use]
    pub fn downcast_ref<D: Nand + 'static>(&self) -> Option<&D> {
        let device: &dyn Any = &*self.0;
        device.downcast_ref()
    }

    /// As [`AnyNand::downcast_ref`], for changes.
    #[must_use]
    pub fn downcast_mut<D: Nand + 'static>(&mut self) -> Option<&mut D> {
        let device: &mut dyn Any = &mut *self.0;
        device.downcast_mut()
    }
}
