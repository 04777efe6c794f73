//! A run as a checkpoint's record names it.

use flagstone_space::{GroupId, Lsn};

use crate::engine::store::run::Run;
use crate::log::Cursor;

/// A run as the master record names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterRun {
    pub(crate) lsn: Lsn,
    pub(crate) run: Run,
    pub(crate) rolled_back: Vec<(u64, u64)>,
}

impl MasterRun {
    /// A run that has no pages any more, but whose changes stay apart from later ones.
    pub(crate) fn bare(lsn: Lsn) -> Self {
        let run = Run { group: GroupId::NONE, parts: Vec::new(), last: Vec::new() };
        Self { lsn, run, rolled_back: Vec::new() }
    }

    /// Bytes that a run takes in a master record, with so many ranges rolled back.
    pub(crate) fn size_of(run: &Run, rolled_back: usize) -> usize {
        size_of::<u64>() + run.encoded_size() + size_of::<u32>() + 16 * rolled_back
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.lsn.0.to_le_bytes());
        self.run.encode(out);
        out.extend((self.rolled_back.len() as u32).to_le_bytes());
        for (above, upto) in &self.rolled_back {
            out.extend(above.to_le_bytes());
            out.extend(upto.to_le_bytes());
        }
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Option<Self> {
        let lsn = Lsn(input.u64()?);
        let run = Run::decode(input)?;
        let mut rolled_back = Vec::new();
        for _ in 0..input.u32()? {
            rolled_back.push((input.u64()?, input.u64()?));
        }
        Some(Self { lsn, run, rolled_back })
    }
}

/// Fixed-size fields from untrusted bytes.
pub(crate) struct Input<'a>(pub(crate) Cursor<'a>);

impl<'a> Input<'a> {
    pub(in crate::engine) fn u8(&mut self) -> Option<u8> {
        self.0.byte().ok()
    }

    pub(in crate::engine) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.0.take(2).ok()?.try_into().ok()?))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.0.take(4).ok()?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.0.take(8).ok()?.try_into().ok()?))
    }

    /// A varint.
    pub(in crate::engine) fn number(&mut self) -> Option<u64> {
        self.0.varint().ok()
    }

    /// Bytes behind their number as a varint.
    pub(in crate::engine) fn key(&mut self) -> Option<&'a [u8]> {
        self.0.bytes().ok()
    }

    pub(in crate::engine) fn sized(&mut self) -> Option<&'a [u8]> {
        let size = self.u32()?;
        self.0.take(u64::from(size)).ok()
    }
}
