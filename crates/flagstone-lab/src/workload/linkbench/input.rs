//! Inputs of the operations, drawn by one client (rule N1).

use std::sync::Arc;

use super::access::{Use, share};
use super::degree::TYPES;
use super::load::LOADED_TIMES;
use super::{Dialect, Graph, payload};
use crate::workload::Draws;
use crate::workload::numeric::ln;

/// Class of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A new link, or one that is there.
    AddLink,
    /// A link is hidden.
    DeleteLink,
    /// As a new link, but most are there.
    UpdateLink,
    /// How many links of a type.
    CountLink,
    /// Some links of a type.
    GetLink,
    /// The latest links of a type.
    GetLinkList,
    /// A new node.
    AddNode,
    /// New data of a node.
    UpdateNode,
    /// A node goes.
    DeleteNode,
    /// A node.
    GetNode,
}

impl Class {
    /// Names of the classes, in their order.
    pub const NAMES: [&'static str; 10] = [
        "add-link",
        "delete-link",
        "update-link",
        "count-link",
        "get-link",
        "get-link-list",
        "add-node",
        "update-node",
        "delete-node",
        "get-node",
    ];

    const ALL: [Self; 10] = [
        Self::AddLink,
        Self::DeleteLink,
        Self::UpdateLink,
        Self::CountLink,
        Self::GetLink,
        Self::GetLinkList,
        Self::AddNode,
        Self::UpdateNode,
        Self::DeleteNode,
        Self::GetNode,
    ];

    /// Shares of the classes in ten-millionths of a percent; the last class takes the rest to the
    /// whole.
    pub const SHARES: [u64; 10] = [
        89_886_601,
        29_907_664,
        80_122_125,
        48_863_567,
        5_261_142,
        507_119_145,
        25_732_789,
        73_664_370,
        10_115_914,
        129_326_683,
    ];

    /// The class for a number below 10^9.
    fn of_share(number: u64) -> Self {
        let mut bound = 0;
        let shares = Self::ALL.into_iter().zip(Self::SHARES);
        let mut bounds = shares.map(|(class, share)| {
            bound += share;
            (class, bound)
        });
        bounds.find(|(_, bound)| number < *bound).map_or(Self::GetNode, |(class, _)| class)
    }
}

/// All shares together.
pub(super) const SHARE_SUM: u64 = 1_000_000_000;
/// Lists of a thousand that go on from an earlier one.
const HISTORY_PER_THOUSAND: u64 = 3;
/// Chance that a multiget asks for no further link.
const GET_STOP: f64 = 0.382;
/// Most links of a multiget.
const GET_MAX: u64 = 127;

/// Inputs of one operation; fields that its class does not use are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// The operation.
    pub class: Class,
    /// To this node, or to links from it.
    pub id: u64,
    /// Type of the links, from 0.
    pub kind: u64,
    /// To these nodes; several for a multiget only.
    pub id2s: Vec<u64>,
    /// New data.
    pub data: Vec<u8>,
    /// Logical time: later than every loaded one, and no other input's (rule N2).
    pub time: u64,
    /// A list goes on from an earlier one, if there is one.
    pub is_history: bool,
}

impl Inputs {
    /// Logical time of a node.
    #[must_use]
    pub fn node_time(&self) -> u32 {
        // 0 is the time of loaded nodes.
        (self.time - LOADED_TIMES + 1) as u32
    }
}

/// Endless inputs of one client.
#[derive(Clone, Debug)]
pub struct Stream {
    graph: Arc<Graph>,
    draws: Draws,
    client: u64,
    /// Inputs drawn.
    drawn: u64,
    /// New nodes among them.
    nodes: u64,
}

impl Stream {
    /// Inputs of client `number`, from 0.
    #[must_use]
    pub(crate) fn new(graph: Arc<Graph>, number: u64) -> Self {
        let draws = Draws::new(graph.setting.seed, number);
        Self { graph, draws, client: number, drawn: 0, nodes: 0 }
    }

    /// Inputs of the next operation.
    pub fn inputs(&mut self) -> Inputs {
        let class = Class::of_share(self.draws.below(SHARE_SUM));
        let time = LOADED_TIMES + self.turn(self.drawn);
        self.drawn += 1;
        let kind = self.draws.below(TYPES);
        let (id2s, data) = (Vec::new(), Vec::new());
        let none = Inputs { class, id: 0, kind, id2s, data, time, is_history: false };
        match class {
            // A link to add is there in one of 20 draws, one to update in nine of ten.
            Class::AddLink => self.link(none, (20, 1)),
            Class::UpdateLink => self.link(none, (10, 9)),
            Class::DeleteLink => {
                let id = self.draw(Use::LinkWrite);
                let id2s = self.id2s(id, kind, 1, (10, 9));
                Inputs { id, id2s, ..none }
            }
            Class::CountLink => Inputs { id: self.draw(Use::LinkRead), ..none },
            Class::GetLink => {
                let id = self.draw(Use::LinkRead);
                let count = self.get_count();
                Inputs { id, id2s: self.id2s(id, kind, count, (2, 1)), ..none }
            }
            Class::GetLinkList => {
                let is_history = self.draws.below(1000) < HISTORY_PER_THOUSAND;
                Inputs { id: self.draw(Use::LinkRead), is_history, ..none }
            }
            Class::AddNode => {
                let id = 1 + u64::from(self.graph.setting.nodes) + self.turn(self.nodes);
                self.nodes += 1;
                Inputs { id, data: self.data(payload::NODE), ..none }
            }
            Class::UpdateNode => {
                let id = self.draw(Use::NodeUpdate);
                Inputs { id, data: self.data(payload::NODE), ..none }
            }
            Class::DeleteNode => Inputs { id: self.draw(Use::NodeDelete), ..none },
            Class::GetNode => Inputs { id: self.draw(Use::NodeRead), ..none },
        }
    }

    /// A link to write.
    fn link(&mut self, none: Inputs, inverse: (u64, u64)) -> Inputs {
        let id = self.draw(Use::LinkWrite);
        let id2s = self.id2s(id, none.kind, 1, inverse);
        Inputs { id, id2s, data: self.data(payload::LINK), ..none }
    }

    fn draw(&mut self, to: Use) -> u64 {
        self.graph.access.draw(to, &mut self.draws)
    }

    fn data(&mut self, kind: payload::Kind) -> Vec<u8> {
        self.graph.motifs.draw(kind, &mut self.draws)
    }

    /// Number of the client's turn, among the turns that all clients take in rotation.
    fn turn(&self, round: u64) -> u64 {
        round * u64::from(self.graph.setting.clients) + self.client
    }

    /// `count` different ids from `id` on, within the links that were loaded times `inverse`, the
    /// inverse of the chance that a link is there.
    fn id2s(&mut self, id: u64, kind: u64, count: u64, inverse: (u64, u64)) -> Vec<u64> {
        let links = self.graph.degrees.of_type(id, kind);
        let range = (links * inverse.0).div_ceil(inverse.1).max(1);
        if range <= count {
            return (id..id + count).collect();
        }
        let mut chosen: Vec<u64> = Vec::with_capacity(count as usize);
        while (chosen.len() as u64) < count {
            let id2 = id + self.draws.below(range);
            if !chosen.contains(&id2) {
                chosen.push(id2);
            }
        }
        chosen
    }

    /// Links of a multiget: geometric, and in the program one more.
    fn get_count(&mut self) -> u64 {
        let draws = (ln(1.0 - share(&mut self.draws)) / ln(1.0 - GET_STOP)).ceil() as u64;
        match self.graph.setting.dialect {
            Dialect::Spec => draws.clamp(1, GET_MAX),
            Dialect::Linkbench => (1 + draws).min(GET_MAX),
        }
    }
}
