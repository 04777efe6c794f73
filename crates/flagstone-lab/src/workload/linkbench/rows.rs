//! The bytes of keys and rows. Keys are big-endian columns; columns of rows are little-endian.

/// Type of the first kind of links; the others follow.
pub const FIRST_TYPE: u64 = 123_456_789;
/// Type of nodes.
pub const NODE_TYPE: u32 = 2048;
/// Visibility of links that were deleted.
pub const HIDDEN: u8 = 0;
/// Visibility of the others.
pub const VISIBLE: u8 = 1;
/// Bytes of a node's data that its row holds; the rest follows in pieces of as many.
pub const PIECE_SIZE: usize = 640;
/// Where the visibility of a link stands in its row.
pub const VISIBILITY: usize = 0;

/// Bytes of a link's row before its data.
const LINK_HEAD: usize = 13;
/// Bytes of a node's row before its data.
const NODE_HEAD: usize = 20;

/// The ids that a link goes from and to, and its type: 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkKey {
    /// Type, from 0.
    pub kind: u64,
    /// From this id.
    pub id1: u64,
    /// To this id.
    pub id2: u64,
}

impl LinkKey {
    /// The key in the table of links.
    #[must_use]
    pub fn encode(self) -> [u8; 24] {
        let mut key = [0; 24];
        key[..8].copy_from_slice(&(FIRST_TYPE + self.kind).to_be_bytes());
        key[8..16].copy_from_slice(&self.id1.to_be_bytes());
        key[16..].copy_from_slice(&self.id2.to_be_bytes());
        key
    }

    /// The key in `bytes`, when they are 24.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [kind, id1, id2] = columns(bytes)?;
        Some(Self { kind: kind.wrapping_sub(FIRST_TYPE), id1, id2 })
    }

    /// The key in the index of a link with this visibility and time.
    #[must_use]
    pub fn index(self, visibility: u8, time: u64) -> [u8; 33] {
        let mut key = [0; 33];
        key[..17].copy_from_slice(&list_prefix(self.id1, self.kind, visibility));
        key[17..25].copy_from_slice(&time.to_be_bytes());
        key[25..].copy_from_slice(&self.id2.to_be_bytes());
        key
    }

    /// Link, visibility and time of an entry of the index.
    #[must_use]
    pub fn decode_index(bytes: &[u8]) -> Option<(Self, u8, u64)> {
        let (ids, rest) = bytes.split_at_checked(16)?;
        let (visibility, rest) = rest.split_first()?;
        let ([id1, kind], [time, id2]) = (columns(ids)?, columns(rest)?);
        let key = Self { kind: kind.wrapping_sub(FIRST_TYPE), id1, id2 };
        Some((key, *visibility, time))
    }

    /// The key in the table of counts.
    #[must_use]
    pub fn count(self) -> [u8; 16] {
        count_key(self.id1, self.kind)
    }
}

/// Prefix of entries of the index.
#[must_use]
pub fn list_prefix(id1: u64, kind: u64, visibility: u8) -> [u8; 17] {
    let mut key = [0; 17];
    key[..16].copy_from_slice(&count_key(id1, kind));
    key[16] = visibility;
    key
}

/// Key of a count.
#[must_use]
pub fn count_key(id: u64, kind: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key[8..].copy_from_slice(&(FIRST_TYPE + kind).to_be_bytes());
    key
}

/// Key of a piece of a node's data, from 0.
#[must_use]
pub fn piece_key(id: u64, piece: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key[8..].copy_from_slice(&piece.to_be_bytes());
    key
}

/// Columns of 8 bytes, as many as there are.
#[must_use]
pub fn columns<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let chunks = <[[u8; 8]; N]>::try_from(chunks).ok().filter(|_| rest.is_empty())?;
    Some(chunks.map(u64::from_be_bytes))
}

/// A link's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// [`VISIBLE`] or [`HIDDEN`].
    pub visibility: u8,
    /// Version.
    pub version: u32,
    /// Logical time.
    pub time: u64,
    /// Data.
    pub data: Vec<u8>,
}

impl Link {
    /// The row's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(LINK_HEAD + self.data.len());
        row.push(self.visibility);
        row.extend_from_slice(&self.version.to_le_bytes());
        row.extend_from_slice(&self.time.to_le_bytes());
        row.extend_from_slice(&self.data);
        row
    }

    /// The row in `bytes`.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (visibility, rest) = bytes.split_first()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (time, data) = rest.split_first_chunk()?;
        Some(Self {
            visibility: *visibility,
            version: u32::from_le_bytes(*version),
            time: u64::from_le_bytes(*time),
            data: data.to_vec(),
        })
    }

    /// Value of an entry of the index: version and data.
    #[must_use]
    pub fn covered(&self) -> Vec<u8> {
        let mut row = self.version.to_le_bytes().to_vec();
        row.extend_from_slice(&self.data);
        row
    }
}

/// A count's row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Visible links.
    pub count: u32,
    /// Logical time.
    pub time: u64,
    /// Version.
    pub version: u64,
}

impl Count {
    /// Bytes of the row.
    pub const SIZE: usize = 20;

    /// The row's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut row = [0; Self::SIZE];
        row[..4].copy_from_slice(&self.count.to_le_bytes());
        row[4..12].copy_from_slice(&self.time.to_le_bytes());
        row[12..].copy_from_slice(&self.version.to_le_bytes());
        row
    }

    /// The row in `bytes`.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk()?;
        let (time, rest) = rest.split_first_chunk()?;
        Some(Self {
            count: u32::from_le_bytes(*count),
            time: u64::from_le_bytes(*time),
            version: u64::from_le_bytes(*rest.first_chunk()?),
        })
    }
}

/// A node without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHead {
    /// Type.
    pub kind: u32,
    /// Version.
    pub version: u64,
    /// Logical time.
    pub time: u32,
    /// Bytes of the data.
    pub size: u32,
}

impl NodeHead {
    /// The row of a node with `data`, of which it holds the first [`PIECE_SIZE`] bytes.
    #[must_use]
    pub fn encode(&self, data: &[u8]) -> Vec<u8> {
        let mut row = Vec::with_capacity(NODE_HEAD + data.len().min(PIECE_SIZE));
        row.extend_from_slice(&self.kind.to_le_bytes());
        row.extend_from_slice(&self.version.to_le_bytes());
        row.extend_from_slice(&self.time.to_le_bytes());
        row.extend_from_slice(&self.size.to_le_bytes());
        row.extend_from_slice(&data[..data.len().min(PIECE_SIZE)]);
        row
    }

    /// The node in `bytes`, and the part of its data there.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (kind, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (time, rest) = rest.split_first_chunk()?;
        let (size, data) = rest.split_first_chunk()?;
        let head = Self {
            kind: u32::from_le_bytes(*kind),
            version: u64::from_le_bytes(*version),
            time: u32::from_le_bytes(*time),
            size: u32::from_le_bytes(*size),
        };
        Some((head, data))
    }

    /// Pieces that follow the row.
    #[must_use]
    pub fn piece_count(&self) -> u32 {
        (self.size as usize).div_ceil(PIECE_SIZE).saturating_sub(1) as u32
    }
}

/// The pieces of `data` that follow a node's row.
pub fn pieces(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.chunks(PIECE_SIZE).skip(1)
}
