//! A node as the tree sees it, and the units that change it.

/// Number of a node. The root's never changes.
pub(super) type NodeId = u32;

/// The root.
pub(super) const ROOT: NodeId = 0;

/// One change of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// An entry is there with this pointer.
    Put { key: u64, pointer: u32 },
    /// An entry goes.
    Delete { key: u64 },
    /// Entries from a key on go: they are in another node.
    Cut { key: u64 },
}

/// Entries in order of keys. Above the leaves a pointer is a child and its key the lowest below it;
/// the first child also takes lower keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    /// Levels below.
    pub(super) level: u8,
    pub(super) entries: Vec<(u64, u32)>,
}

impl Node {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn place_of(&self, key: u64) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&key, |(key, _)| *key)
    }

    pub(super) fn get(&self, key: u64) -> Option<u32> {
        let place = self.place_of(key).ok()?;
        self.entries.get(place).map(|(_, pointer)| *pointer)
    }

    /// Place of the child whose range holds `key`.
    pub(super) fn child_place(&self, key: u64) -> usize {
        self.place_of(key).unwrap_or_else(|place| place.saturating_sub(1))
    }

    /// Entries from `key` on.
    pub(super) fn from(&self, key: u64) -> &[(u64, u32)] {
        let place = self.place_of(key).unwrap_or_else(|place| place);
        self.entries.get(place..).unwrap_or_default()
    }

    pub(super) fn apply(&mut self, unit: Unit) {
        match unit {
            Unit::Put { key, pointer } => match self.place_of(key) {
                Ok(place) => self.entries[place].1 = pointer,
                Err(place) => self.entries.insert(place, (key, pointer)),
            },
            Unit::Delete { key } => {
                if let Ok(place) = self.place_of(key) {
                    self.entries.remove(place);
                }
            }
            Unit::Cut { key } => {
                let place = self.place_of(key).unwrap_or_else(|place| place);
                self.entries.truncate(place);
            }
        }
    }
}

/// Units that make a node of these entries.
pub(super) fn units_of(entries: &[(u64, u32)]) -> Vec<Unit> {
    entries.iter().map(|(key, pointer)| Unit::Put { key: *key, pointer: *pointer }).collect()
}
