//! Bytes of pages: groups of units, each group of one node.
//!
//! The space floor checks the pages it reads; a page that does not decode here is refused all the
//! same.

use super::node::{NodeId, Unit};

const PAGE_HEAD: usize = 2;
const GROUP_HEAD: usize = 8;
const POINTER_SIZE: usize = 4;

const PUT: u8 = b'i';
const DELETE: u8 = b'd';
const CUT: u8 = b'c';

/// Bytes of a unit.
pub(super) const fn unit_size(key_size: usize) -> usize {
    1 + key_size + POINTER_SIZE
}

/// Units of one node that lie in one page, or wait for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) node: NodeId,
    /// Level of the node.
    pub(super) level: u8,
    /// The units are the whole node: units written before count no more (B2).
    pub(super) is_base: bool,
    pub(super) units: Vec<Unit>,
}

/// Sizes that pages follow from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) key_size: usize,
    pub(super) page_size: usize,
}

impl Form {
    const fn unit_size(&self) -> usize {
        unit_size(self.key_size)
    }

    /// Units of one node that fit a page.
    pub(super) const fn units_max(&self) -> usize {
        self.page_size.saturating_sub(PAGE_HEAD + GROUP_HEAD) / self.unit_size()
    }

    const fn size_of(&self, group: &Group) -> usize {
        GROUP_HEAD + group.units.len() * self.unit_size()
    }

    /// Packs groups into pages: each goes to the first page with room for the whole group.
    pub(super) fn pack(&self, groups: Vec<Group>) -> Vec<Vec<Group>> {
        let mut pages: Vec<(usize, Vec<Group>)> = Vec::new();
        for group in groups {
            let size = self.size_of(&group);
            match pages.iter_mut().find(|(used, _)| used + size <= self.page_size) {
                Some((used, page)) => {
                    *used += size;
                    page.push(group);
                }
                None => pages.push((PAGE_HEAD + size, vec![group])),
            }
        }
        pages.into_iter().map(|(_, page)| page).collect()
    }

    pub(super) fn encode(&self, groups: &[Group]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.page_size);
        bytes.extend((groups.len() as u16).to_le_bytes());
        for group in groups {
            bytes.extend(group.node.to_le_bytes());
            bytes.extend([group.level, u8::from(group.is_base)]);
            bytes.extend((group.units.len() as u16).to_le_bytes());
            for unit in &group.units {
                let (operation, key, pointer) = match *unit {
                    Unit::Put { key, pointer } => (PUT, key, pointer),
                    Unit::Delete { key } => (DELETE, key, 0),
                    Unit::Cut { key } => (CUT, key, 0),
                };
                bytes.push(operation);
                bytes.extend(&key.to_le_bytes()[..self.key_size]);
                bytes.extend(pointer.to_le_bytes());
            }
        }
        bytes
    }

    /// The groups of a page; none when it is no page of units.
    pub(super) fn decode(&self, mut bytes: &[u8]) -> Option<Vec<Group>> {
        let source = &mut bytes;
        let count = take(source, PAGE_HEAD)?;
        let groups = (0..count).map(|_| self.decode_group(source));
        groups.collect()
    }

    fn decode_group(&self, source: &mut &[u8]) -> Option<Group> {
        let node = take(source, 4)? as NodeId;
        let (level, is_base) = (take(source, 1)? as u8, take(source, 1)? != 0);
        let count = take(source, 2)? as usize;
        let units = (0..count).map(|_| self.decode_unit(source));
        Some(Group { node, level, is_base, units: units.collect::<Option<_>>()? })
    }

    fn decode_unit(&self, source: &mut &[u8]) -> Option<Unit> {
        let operation = take(source, 1)? as u8;
        let key = take(source, self.key_size)?;
        let pointer = take(source, POINTER_SIZE)? as u32;
        match operation {
            PUT => Some(Unit::Put { key, pointer }),
            DELETE => Some(Unit::Delete { key }),
            CUT => Some(Unit::Cut { key }),
            _ => None,
        }
    }
}

/// Takes `width` bytes as a number.
fn take(source: &mut &[u8], width: usize) -> Option<u64> {
    let (first, rest) = source.split_at_checked(width)?;
    *source = rest;
    Some(first.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form = Form { key_size: 4, page_size: 100 };

    fn group(node: NodeId, count: u64) -> Group {
        let units = (0..count).map(|key| Unit::Put { key, pointer: key as u32 });
        Group { node, level: 0, is_base: false, units: units.collect() }
    }

    #[test]
    fn a_group_goes_to_the_first_page_with_room() {
        // Pages of 98 bytes for groups of 8 + 9n: 7 units leave 27 bytes, 2 more fit there.
        let pages = FORM.pack(vec![group(1, 7), group(2, 5), group(3, 2), group(4, 3)]);
        let nodes: Vec<Vec<NodeId>> =
            pages.iter().map(|page| page.iter().map(|group| group.node).collect()).collect();
        assert_eq!(nodes, [vec![1, 3], vec![2, 4]]);
        assert!(pages.iter().all(|page| FORM.encode(page).len() <= FORM.page_size));
    }

    #[test]
    fn what_is_encoded_decodes_and_anything_else_is_refused_or_decodes() {
        let units =
            vec![Unit::Put { key: 7, pointer: 9 }, Unit::Delete { key: 1 }, Unit::Cut { key: 3 }];
        let groups = vec![Group { node: 5, level: 2, is_base: true, units }, group(6, 2)];
        let bytes = FORM.encode(&groups);
        assert_eq!(FORM.decode(&bytes), Some(groups));
        assert_eq!(FORM.decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(FORM.decode(&[0xFF; 100]), None);
    }

    #[test]
    fn a_full_node_fills_a_page_and_no_more() {
        let count = FORM.units_max() as u64;
        assert!(FORM.encode(&[group(1, count)]).len() <= FORM.page_size);
        assert!(FORM.encode(&[group(1, count + 1)]).len() > FORM.page_size);
    }
}
