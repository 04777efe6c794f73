//! Conditions that hold in every state of the database (rules N2 and N3).
//!
//! - Counts are the numbers of visible links; the index agrees with the table of links.
//! - A node's data are whole, in its row and the pieces behind it.
//! - Links and nodes are as loaded, or as one of the inputs left them that committed or may have
//!   ([`Claims`]). A link is hidden only where a client deleted it; so is a node missing, and it
//!   stays away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thiserror::Error;

use super::input::{Class, Inputs, Stream};
use super::rows::{Count, HIDDEN, Link, LinkKey, NODE_TYPE, NodeHead, VISIBLE, columns};
use super::{Graph, Linkbench, TABLE_NAMES};
use crate::workload::claims::{Claims, Standing};
use crate::workload::{Acknowledged, GivingUp};

/// How a database contradicts LinkBench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A row that does not parse, or that no link or node has.
    #[error("{table} has a row of id {id} that nobody wrote so")]
    Row {
        /// Table.
        table: &'static str,
        /// Id.
        id: u64,
    },
    /// A count is not that of the visible links.
    #[error("id {id} has {links} visible links of type {kind}, and counts {count}")]
    Count {
        /// Id.
        id: u64,
        /// Type, from 0.
        kind: u64,
        /// The stored count.
        count: u64,
        /// Visible links found.
        links: u64,
    },
    /// The index does not hold the links.
    #[error("the index has {entries} entries for {links} links, or others")]
    Index {
        /// Entries found.
        entries: u64,
        /// Links found.
        links: u64,
    },
    /// A link that no client left so: a commit is lost.
    #[error("no client left the link {key:?} as it is")]
    Link {
        /// The link.
        key: LinkKey,
    },
    /// A node that no client left so: a commit is lost.
    #[error("no client left node {id} as it is")]
    Node {
        /// Id.
        id: u64,
    },
}

/// Time and data of a row, the latter as a hash; none where there is no row.
type Mark = Option<(u64, u64)>;

/// A node whose data follow in pieces.
#[derive(Clone, Debug)]
struct LongNode {
    head: NodeHead,
    data: Vec<u8>,
}

/// Links of one id and type as they were loaded.
#[derive(Clone, Debug)]
struct Loaded {
    id1: u64,
    kind: u64,
    links: Vec<Link>,
}

/// Everything the checks need of all rows.
#[derive(Clone, Debug)]
pub struct Audit {
    graph: Arc<Graph>,
    fault: Option<Fault>,
    loaded: Option<Loaded>,
    /// Visible links of an id and type.
    visible: BTreeMap<(u64, u64), u64>,
    /// Counts that were found.
    counted: u64,
    /// Rows and the sum of their hashes, of links and of the index.
    sums: [(u64, u64); 2],
    links: Claims<LinkKey, Mark>,
    links_found: BTreeSet<LinkKey>,
    links_deleted: BTreeSet<LinkKey>,
    nodes: Claims<u64, Mark>,
    nodes_found: BTreeSet<u64>,
    nodes_deleted: BTreeMap<u64, Standing>,
    long_nodes: BTreeMap<u64, LongNode>,
}

impl Audit {
    /// Nothing seen yet; `acknowledged` are the commits that returned.
    #[must_use]
    pub fn new(linkbench: &Linkbench, acknowledged: &Acknowledged) -> Self {
        let graph = Arc::clone(&linkbench.graph);
        let is_known = graph.setting.giving_up == GivingUp::Never;
        let mut audit = Self {
            graph,
            fault: None,
            loaded: None,
            visible: BTreeMap::new(),
            counted: 0,
            sums: [(0, 0); 2],
            links: Claims::new(),
            links_found: BTreeSet::new(),
            links_deleted: BTreeSet::new(),
            nodes: Claims::new(),
            nodes_found: BTreeSet::new(),
            nodes_deleted: BTreeMap::new(),
            long_nodes: BTreeMap::new(),
        };
        for (client, counts) in acknowledged.iter().filter(|_| is_known) {
            audit.replay(*client, counts.iter().sum());
        }
        audit
    }

    fn is_known(&self) -> bool {
        self.graph.setting.giving_up == GivingUp::Never
    }

    /// Goes through the inputs of a client: every one commits, and one may have without returning.
    fn replay(&mut self, client: u64, returned: u64) {
        let mut stream = Stream::new(Arc::clone(&self.graph), client);
        for number in 0..=returned {
            let is_open = number == returned;
            let standing = if is_open { Standing::InFlight } else { Standing::Returned };
            self.claim(client, standing, &stream.inputs());
        }
    }

    fn claim(&mut self, client: u64, standing: Standing, inputs: &Inputs) {
        let Inputs { id, kind, .. } = *inputs;
        let id2 = inputs.id2s.first().copied().unwrap_or(id);
        let key = LinkKey { kind, id1: id, id2 };
        let hash = hash(&[&inputs.data]);
        match inputs.class {
            Class::AddLink | Class::UpdateLink => {
                self.links.add(key, client, standing, Some((inputs.time, hash)));
            }
            Class::DeleteLink => drop(self.links_deleted.insert(key)),
            Class::AddNode | Class::UpdateNode => {
                let mark = Some((u64::from(inputs.node_time()), hash));
                self.nodes.add(id, client, standing, mark);
            }
            Class::DeleteNode => {
                let known = self.nodes_deleted.entry(id).or_insert(standing);
                if standing == Standing::Returned {
                    *known = standing;
                }
            }
            _ => {}
        }
    }

    /// Adds a row of the table that is number `table` in [`TABLE_NAMES`].
    pub fn add(&mut self, table: usize, key: &[u8], value: &[u8]) {
        let id = columns(key.get(..8).unwrap_or(&[])).map_or(0, |[id]| id);
        let is_right = match table {
            0 => self.link(key, value).is_some(),
            1 => self.entry(key, value).is_some(),
            2 => self.count(key, value).is_some(),
            3 => self.node(id, key, value).is_some(),
            _ => self.piece(id, key, value).is_some(),
        };
        if !is_right {
            let table = TABLE_NAMES.get(table).copied().unwrap_or_default();
            self.fault.get_or_insert(Fault::Row { table, id });
        }
    }

    fn link(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let (key, link) = (LinkKey::decode(key)?, Link::decode(value)?);
        self.sum(0, key, link.visibility, link.time, &link.covered());
        if link.visibility == VISIBLE {
            *self.visible.entry((key.id1, key.kind)).or_default() += 1;
        }
        if !self.is_known() {
            return Some(());
        }
        let found = Some((link.time, hash(&[&link.data])));
        let loaded = self.loaded_link(key);
        let is_hidden = link.visibility == HIDDEN;
        let is_explained = self.links.explains(&key, &found, &loaded)
            && (!is_hidden || self.links_deleted.contains(&key));
        if !is_explained {
            self.fault.get_or_insert(Fault::Link { key });
        }
        self.links_found.insert(key);
        Some(())
    }

    /// The mark of a link as loaded.
    fn loaded_link(&mut self, key: LinkKey) -> Mark {
        let LinkKey { kind, id1, id2 } = key;
        let loaded = match self.loaded.take() {
            Some(loaded) if (loaded.id1, loaded.kind) == (id1, kind) => loaded,
            _ if !self.graph.ids().contains(&id1) => Loaded { id1, kind, links: Vec::new() },
            _ => Loaded { id1, kind, links: self.graph.links(id1, kind) },
        };
        let place = id2.checked_sub(id1).map_or(usize::MAX, |place| place as usize);
        let mark = loaded.links.get(place).map(|link| (link.time, hash(&[&link.data])));
        self.loaded = Some(loaded);
        mark
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let (key, visibility, time) = LinkKey::decode_index(key)?;
        self.sum(1, key, visibility, time, value);
        Some(())
    }

    fn sum(&mut self, place: usize, key: LinkKey, visibility: u8, time: u64, covered: &[u8]) {
        let (rows, sum) = &mut self.sums[place];
        *rows += 1;
        *sum = sum.wrapping_add(hash(&[&key.index(visibility, time), covered]));
    }

    fn count(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let ([id, kind], row) = (columns(key)?, Count::decode(value)?);
        let kind = kind.wrapping_sub(super::rows::FIRST_TYPE);
        let links = self.visible.get(&(id, kind)).copied().unwrap_or(0);
        let count = u64::from(row.count);
        if count != links {
            self.fault.get_or_insert(Fault::Count { id, kind, count, links });
        }
        self.counted += u64::from(links > 0);
        (value.len() == Count::SIZE).then_some(())
    }

    fn node(&mut self, id: u64, key: &[u8], value: &[u8]) -> Option<()> {
        let (head, data) = NodeHead::decode(value)?;
        self.nodes_found.insert(id);
        if head.piece_count() > 0 {
            self.long_nodes.insert(id, LongNode { head, data: data.to_vec() });
        } else {
            self.explain_node(id, head, data);
        }
        let is_whole = data.len() == (head.size as usize).min(super::rows::PIECE_SIZE);
        (key.len() == 8 && head.kind == NODE_TYPE && is_whole).then_some(())
    }

    fn piece(&mut self, id: u64, key: &[u8], value: &[u8]) -> Option<()> {
        let node = self.long_nodes.get_mut(&id)?;
        let place = key.get(8..).and_then(|piece| piece.try_into().ok()).map(u32::from_be_bytes)?;
        // Pieces come in order, each but the last as long as the part in the row.
        let expected = node.data.len() / super::rows::PIECE_SIZE;
        node.data.extend_from_slice(value);
        (place as usize + 1 == expected).then_some(())
    }

    /// Notes a fault unless a client, or the load, left the node's data.
    fn explain_node(&mut self, id: u64, head: NodeHead, data: &[u8]) {
        if !self.is_known() {
            return;
        }
        let found = Some((u64::from(head.time), hash(&[data])));
        let loaded = self.graph.ids().contains(&id).then(|| {
            let (head, data) = self.graph.node(id);
            (u64::from(head.time), hash(&[&data]))
        });
        let is_gone = self.nodes_deleted.get(&id) == Some(&Standing::Returned);
        if is_gone || !self.nodes.explains(&id, &found, &loaded) {
            self.fault.get_or_insert(Fault::Node { id });
        }
    }

    /// Checks everything, and that every commit that returned is there.
    ///
    /// # Errors
    ///
    /// The first contradiction.
    pub fn verify(mut self) -> Result<(), Fault> {
        for (id, LongNode { head, data }) in std::mem::take(&mut self.long_nodes) {
            if data.len() != head.size as usize {
                self.fault.get_or_insert(Fault::Row { table: TABLE_NAMES[4], id });
            }
            self.explain_node(id, head, &data);
        }
        self.fault.map_or(Ok(()), Err)?;
        let [(links, _), (entries, _)] = self.sums;
        if self.sums[0] != self.sums[1] {
            return Err(Fault::Index { entries, links });
        }
        if self.counted != self.visible.len() as u64 {
            return Err(self.uncounted());
        }
        if self.is_known() { self.verify_absent() } else { Ok(()) }
    }

    /// Links without a count; the first id is as good as any.
    fn uncounted(&self) -> Fault {
        let (id, kind) = self.visible.keys().next().copied().unwrap_or_default();
        Fault::Count { id, kind, count: self.counted, links: self.visible.len() as u64 }
    }

    /// Checks that missing rows are rightly missing.
    fn verify_absent(&mut self) -> Result<(), Fault> {
        for kind in 0..super::degree::TYPES {
            for id1 in self.graph.ids() {
                let id2s = id1..id1 + self.graph.degrees.of_type(id1, kind);
                let mut keys = id2s.map(|id2| LinkKey { kind, id1, id2 });
                if let Some(key) = keys.find(|key| !self.links_found.contains(key)) {
                    return Err(Fault::Link { key });
                }
            }
        }
        let mut links = self.links.cells().filter(|key| !self.links_found.contains(key));
        if let Some(key) = links.find(|key| !self.links.explains(key, &None, &None)) {
            return Err(Fault::Link { key: *key });
        }
        let claimed = self.nodes.cells().copied();
        let missing = self.graph.ids().chain(claimed).filter(|id| !self.nodes_found.contains(id));
        for id in missing {
            let is_new = !self.graph.ids().contains(&id);
            let may_miss = self.nodes_deleted.contains_key(&id)
                || (is_new && self.nodes.explains(&id, &None, &None));
            if !may_miss {
                return Err(Fault::Node { id });
            }
        }
        Ok(())
    }
}

/// FNV-1a of the bytes of all parts, with their sizes.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    for part in parts {
        part.len().to_le_bytes().into_iter().for_each(&mut add);
        part.iter().copied().for_each(&mut add);
    }
    hash
}
