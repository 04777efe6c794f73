//! The rows of a fresh database, an id at a time (rule N1).

use std::convert::Infallible;

use super::degree::TYPES;
use super::rows::{Count, Link, LinkKey, NODE_TYPE, NodeHead, VISIBLE, piece_key, pieces};
use super::{Graph, TABLE_NAMES, payload};
use crate::sizing::Content;
use crate::workload::Draws;

/// First of the streams that draw links, one an id and type.
const LINK_STREAM: u64 = 1 << 42;
/// First of the streams that draw nodes.
const NODE_STREAM: u64 = 1 << 43;
/// Times of links that were loaded are below; inputs count on from here.
pub(super) const LOADED_TIMES: u64 = 1 << 32;
/// Version of loaded nodes.
const NODE_VERSION: u64 = 1;
/// Bytes of a leaf entry beside key and value.
const ENTRY_OVERHEAD: u32 = 4;

/// Takes a row: the place of its table, key and value.
type Put<'a, E> = &'a mut dyn FnMut(usize, &[u8], &[u8]) -> Result<(), E>;

impl Graph {
    /// Ids to begin with.
    pub(super) fn ids(&self) -> std::ops::RangeInclusive<u64> {
        1..=u64::from(self.setting.nodes)
    }

    /// Links of an id and type: the first goes to the id itself, each other to the next.
    pub(super) fn links(&self, id1: u64, kind: u64) -> Vec<Link> {
        let count = self.degrees.of_type(id1, kind);
        if count == 0 {
            return Vec::new();
        }
        let mut draws = Draws::new(self.setting.seed, LINK_STREAM + id1 * TYPES + kind);
        // Times at random, so that they do not follow the ids.
        let mut link = || Link {
            visibility: VISIBLE,
            version: 0,
            time: draws.below(LOADED_TIMES),
            data: self.motifs.draw(payload::LINK, &mut draws),
        };
        (0..count).map(|_| link()).collect()
    }

    /// Data of a node.
    pub(super) fn node(&self, id: u64) -> (NodeHead, Vec<u8>) {
        let mut draws = Draws::new(self.setting.seed, NODE_STREAM + id);
        let data = self.motifs.draw(payload::NODE, &mut draws);
        (node_head(NODE_VERSION, 0, &data), data)
    }
}

/// Head of a node with `data`.
pub(super) fn node_head(version: u64, time: u32, data: &[u8]) -> NodeHead {
    NodeHead { kind: NODE_TYPE, version, time, size: data.len() as u32 }
}

/// Hands every row to `put`, each table in key order.
pub(super) fn load<E>(graph: &Graph, put: Put<'_, E>) -> Result<(), E> {
    for kind in 0..TYPES {
        for id1 in graph.ids() {
            for (id2, link) in (id1..).zip(graph.links(id1, kind)) {
                put(0, &LinkKey { kind, id1, id2 }.encode(), &link.encode())?;
            }
        }
    }
    for id1 in graph.ids() {
        for kind in 0..TYPES {
            let mut links: Vec<(u64, Link)> = (id1..).zip(graph.links(id1, kind)).collect();
            links.sort_unstable_by_key(|(id2, link)| (link.time, *id2));
            for (id2, link) in links {
                let key = LinkKey { kind, id1, id2 }.index(VISIBLE, link.time);
                put(1, &key, &link.covered())?;
            }
        }
    }
    for id1 in graph.ids() {
        for kind in 0..TYPES {
            let links = graph.links(id1, kind);
            let Some(time) = links.iter().map(|link| link.time).max() else { continue };
            let count = Count { count: links.len() as u32, time, version: 0 };
            put(2, &super::rows::count_key(id1, kind), &count.encode())?;
        }
    }
    for id in graph.ids() {
        let (head, data) = graph.node(id);
        put(3, &id.to_be_bytes(), &head.encode(&data))?;
    }
    for id in graph.ids() {
        let (_, data) = graph.node(id);
        for (piece, bytes) in (0..).zip(pieces(&data)) {
            put(4, &piece_key(id, piece), bytes)?;
        }
    }
    Ok(())
}

/// Rows of each table of a fresh database, and the bytes of their keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Volume {
    tables: [(u64, u64); TABLE_NAMES.len()],
}

impl Volume {
    /// Counts the rows by making them.
    pub(super) fn of(graph: &Graph) -> Self {
        let mut volume = Self::default();
        let counted = load::<Infallible>(graph, &mut |place, key, value| {
            let (rows, bytes) = &mut volume.tables[place];
            *rows += 1;
            *bytes += (key.len() + value.len()) as u64;
            Ok(())
        });
        let Ok(()) = counted;
        volume
    }

    pub(super) fn row_count(&self) -> u64 {
        self.tables.iter().map(|(rows, _)| rows).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tables.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Contents of the tables after `txns` operations of the mix: nine in a hundred add a link, and
    /// one in twenty of these links exists already; eight in a hundred update a link, and one in
    /// ten of them adds it.
    pub(super) fn after(&self, txns: u64) -> Vec<Content> {
        let links = txns * 92 / 1000;
        let nodes = txns * 156 / 10_000;
        let added = [links, links, links / 4, nodes, nodes / 20];
        let content = |((rows, bytes), added): (&(u64, u64), u64)| {
            let entry_size = bytes.div_ceil((*rows).max(1)) as u32 + ENTRY_OVERHEAD;
            Content { rows: rows + added, entry_size, edges: 0 }
        };
        self.tables.iter().zip(added).map(content).collect()
    }
}
