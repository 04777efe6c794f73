//! Reading and writing large values, chunk by chunk.

use flagstone_nand::Nand;
use flagstone_space::{Cause, FrozenId, LogicalPage, SpaceError};

use super::{REGION_VALUES, Runtime, tag_of};
use crate::engine::{Descriptor, ValuePlan, value_page, value_page_content};
use crate::error::EngineError;
use crate::lock::Xid;

impl<D: Nand> Runtime<D> {
    /// Writes a large value under its transaction's group; the descriptor is then put in its leaf. One sync makes
    /// the pages of all its values durable, before its commit.
    pub(crate) fn store_value(
        &self,
        xid: Xid,
        plan: &ValuePlan,
        value: &[u8],
    ) -> Result<(), EngineError> {
        let chunks = value.chunks(plan.chunk_size).map(value_page);
        let per_list = plan.chunk_size / 4;
        let lists = plan.chunks.chunks(per_list).map(|pages| {
            let bytes: Vec<u8> = pages.iter().flat_map(|page| page.0.to_le_bytes()).collect();
            value_page(&bytes)
        });
        let pages = plan.pages();
        let mut images = chunks.chain(lists);
        let part_pages = self.engine_shared().value_part_pages();
        for part in pages.chunks(part_pages) {
            self.run_for(Some(xid), |engine| engine.begin_part(xid, part.len()))?;
            let written = self.write_part(plan, part, &mut images);
            self.observe(&self.space());
            self.engine().end_part(xid, part.len());
            written?;
        }
        Ok(())
    }

    fn write_part(
        &self,
        plan: &ValuePlan,
        part: &[LogicalPage],
        images: &mut impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), EngineError> {
        let lsn = self.engine().durable();
        let tag = tag_of(lsn, REGION_VALUES, Cause::Data);
        for (page, image) in part.iter().zip(images) {
            self.write_group(plan.descriptor.group(), [(*page, &image)].into_iter(), tag)?;
        }
        Ok(())
    }

    /// Reads a large value. A lock or a snapshot of the reader keeps its pages.
    pub(crate) fn load_value(&self, descriptor: &Descriptor) -> Result<Vec<u8>, EngineError> {
        self.load_value_of(None, descriptor)
    }

    /// As [`Runtime::load_value`]; from a named snapshot, if `named` names one.
    pub(crate) fn load_value_of(
        &self,
        named: Option<FrozenId>,
        descriptor: &Descriptor,
    ) -> Result<Vec<u8>, EngineError> {
        let mut value = Vec::with_capacity(descriptor.size().min(LOAD_RESERVE_MAX));
        let mut image = Vec::new();
        for page in self.chunks_in(named, descriptor)? {
            let content = self.value_content(named, descriptor, page, &mut image)?;
            let rest = descriptor.size() - value.len();
            value.extend_from_slice(&content[..content.len().min(rest)]);
        }
        if value.len() != descriptor.size() {
            return Err(EngineError::Corrupt {
                page: descriptor.pages().first().copied().unwrap_or(LogicalPage(u32::MAX)),
                check: "large value is shorter than its descriptor says",
            });
        }
        Ok(value)
    }

    /// Pages that hold the value's bytes, in order.
    pub(crate) fn chunks_of(
        &self,
        descriptor: &Descriptor,
    ) -> Result<Vec<LogicalPage>, EngineError> {
        self.chunks_in(None, descriptor)
    }

    fn chunks_in(
        &self,
        named: Option<FrozenId>,
        descriptor: &Descriptor,
    ) -> Result<Vec<LogicalPage>, EngineError> {
        if !descriptor.is_indirect() {
            return Ok(descriptor.pages().to_vec());
        }
        let chunk_size = self.space().payload_size() - 4;
        let count = descriptor.size().div_ceil(chunk_size);
        let mut chunks = Vec::new();
        let mut image = Vec::new();
        for page in descriptor.pages() {
            let content = self.value_content(named, descriptor, *page, &mut image)?;
            let (numbers, _) = content.as_chunks::<4>();
            let rest = count.saturating_sub(chunks.len());
            let pages = numbers.iter().take(rest);
            chunks.extend(pages.map(|number| LogicalPage(u32::from_le_bytes(*number))));
        }
        Ok(chunks)
    }

    fn value_content<'a>(
        &self,
        named: Option<FrozenId>,
        descriptor: &Descriptor,
        page: LogicalPage,
        image: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], EngineError> {
        let mut space = self.space();
        let info = match named {
            Some(id) => space.read_frozen(id, page, image)?,
            None => match space.read_in_group(descriptor.group(), page, image) {
                Err(SpaceError::NotInGroup(..)) => space.read(page, image)?,
                other => other?,
            },
        };
        let fault = EngineError::Corrupt { page, check: "page of a large value" };
        if info.group != descriptor.group() {
            return Err(fault);
        }
        value_page_content(image).ok_or(fault)
    }
}

/// Memory reserved ahead for a value whose size a damaged descriptor may overstate.
const LOAD_RESERVE_MAX: usize = 1 << 20;
