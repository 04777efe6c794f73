//! Checking a page from flash before anything relies on its bytes (N4).

use super::layout::{
    CHILD_SIZE, HEADER_SIZE, Header, Layout, MAGIC, SLOT_SIZE, common_size, flags_are_known,
};
use super::{NodeFault, NodeView, PAGE_SIZE_MAX};

/// Reads the header and checks it with the fences.
pub(super) fn check_header(bytes: &[u8]) -> Result<Header, NodeFault> {
    let header = Header::decode(bytes).ok_or(NodeFault::Size)?;
    if bytes.len() > PAGE_SIZE_MAX {
        return Err(NodeFault::Size);
    }
    if bytes.first() != Some(&MAGIC) {
        return Err(NodeFault::Magic);
    }
    if !flags_are_known(bytes) || header.is_inner != (header.level > 0) {
        return Err(NodeFault::Kind);
    }
    if header.entries_start() > bytes.len() || !fences_agree(bytes, &header) {
        return Err(NodeFault::Fences);
    }
    if header.is_inner && header.count == 0 {
        return Err(NodeFault::Childless);
    }
    Ok(header)
}

/// Whether the fences are in order and share at least the prefix.
fn fences_agree(bytes: &[u8], header: &Header) -> bool {
    let (low_size, prefix_size) = (usize::from(header.low_size), usize::from(header.prefix_size));
    let fences = bytes.get(HEADER_SIZE..header.entries_start()).unwrap_or(&[]);
    let Some((low, high)) = fences.split_at_checked(low_size) else { return false };
    if header.has_high {
        low < high && prefix_size <= common_size(low, high)
    } else {
        high.is_empty() && prefix_size == 0
    }
}

/// Checks places, then order, of all entries.
pub(super) fn check_entries(view: &NodeView<'_>) -> Result<(), NodeFault> {
    let header = view.header();
    if header.entries_end() > view.bytes().len() {
        return Err(NodeFault::Bounds);
    }
    match header.layout {
        Layout::Fixed { value_size, .. } => {
            let is_child = usize::from(value_size) == CHILD_SIZE;
            if header.is_inner && !is_child {
                return Err(NodeFault::Bounds);
            }
        }
        Layout::Slotted { end } => check_records(view, end)?,
    }
    check_order(view)
}

/// Checks that records lie one behind the other after the slots, and that each fills its place.
fn check_records(view: &NodeView<'_>, end: u16) -> Result<(), NodeFault> {
    let mut expected = view.header().entries_start() + view.count() * SLOT_SIZE;
    if expected > usize::from(end) {
        return Err(NodeFault::Bounds);
    }
    for index in 0..view.count() {
        let place = view.record_range(index, end);
        let parts = view.parts(index);
        let is_filled = parts.suffix.end.max(parts.value.end) == place.end;
        if place.start != expected || place.end > usize::from(end) || !is_filled {
            return Err(NodeFault::Record { index });
        }
        expected = place.end;
    }
    if expected == usize::from(end) { Ok(()) } else { Err(NodeFault::Bounds) }
}

/// Checks that suffixes ascend and lie between the suffixes of the fences (N1, N2).
fn check_order(view: &NodeView<'_>) -> Result<(), NodeFault> {
    let prefix_size = view.prefix().len();
    let low = view.low().get(prefix_size..).unwrap_or(&[]);
    let high = view.high().map(|high| high.get(prefix_size..).unwrap_or(&[]));
    let mut before: Option<&[u8]> = None;
    for index in 0..view.count() {
        let suffix = view.suffix(index);
        let is_above = before.map_or(low <= suffix, |before| before < suffix);
        if !is_above || high.is_some_and(|high| suffix >= high) {
            return Err(NodeFault::Order { index });
        }
        before = Some(suffix);
    }
    Ok(())
}
