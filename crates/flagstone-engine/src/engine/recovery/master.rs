//! The master record: the state that restart begins with.

use flagstone_space::{GroupId, Lsn};

use crate::engine::store::owner::Identity;
use crate::engine::store::room::TABLE_COUNT_SIZE;
use crate::engine::store::run::record::{Input, MasterRun};
use crate::engine::store::spans::PageSpans;
use crate::log::{Cursor, LogPosition};

/// State that restart begins with: travels in the mapping checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Master {
    pub(crate) cycle: u32,
    pub(crate) cutoff: Lsn,
    pub(crate) begin: LogPosition,
    /// Epoch of the engine that wrote the record.
    pub(crate) epoch: u32,
    /// Durable frontier: a log that ends before it is damaged.
    pub(crate) durable: Lsn,
    /// No table ever had this number or a higher one.
    pub(crate) next_table: u32,
    /// Identity of the database; none if a power cut took its first checkpoint.
    pub(crate) identity: Option<Identity>,
    /// Rows of each tree by its number, as many as [`COUNT_MAX`] at most.
    pub(crate) entry_counts: Vec<(u32, u64)>,
    pub(crate) runs: Vec<MasterRun>,
    pub(crate) values: Vec<(Lsn, Vec<u8>)>,
    /// Pages of runs that no read needs any more, once this record is durable.
    pub(crate) pages: Vec<(Lsn, GroupId, PageSpans)>,
}

const MASTER_VERSION: u8 = 6;

/// Most rows of a table that are counted: as many as six bytes say.
pub(super) const COUNT_MAX: u64 = (1 << 48) - 1;

impl Master {
    /// ```text
    /// 6 | cycle u32 | cutoff u64 | page u64 | sequence u64 | chain epoch u32 | predecessor u32
    ///   | epoch u32 | durable u64 | next table u32 | identity u64 | counts | runs | values | pages
    ///                                                                    lists: count u32, then elements
    /// count: table u32 | rows u48
    /// ```
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![MASTER_VERSION];
        out.extend(self.cycle.to_le_bytes());
        out.extend(self.cutoff.0.to_le_bytes());
        out.extend(self.begin.page.to_le_bytes());
        out.extend(self.begin.chain.next_sequence.to_le_bytes());
        out.extend(self.begin.chain.epoch.to_le_bytes());
        out.extend(self.begin.chain.predecessor.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.durable.0.to_le_bytes());
        out.extend(self.next_table.to_le_bytes());
        out.extend(self.identity.map_or(0, Identity::number).to_le_bytes());
        out.extend((self.entry_counts.len() as u32).to_le_bytes());
        for (table, count) in &self.entry_counts {
            out.extend(table.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes()[..TABLE_COUNT_SIZE - size_of::<u32>()]);
        }
        out.extend((self.runs.len() as u32).to_le_bytes());
        for run in &self.runs {
            run.encode(&mut out);
        }
        out.extend((self.values.len() as u32).to_le_bytes());
        for (lsn, value) in &self.values {
            out.extend(lsn.0.to_le_bytes());
            put_sized(&mut out, value);
        }
        out.extend((self.pages.len() as u32).to_le_bytes());
        for (lsn, group, pages) in &self.pages {
            out.extend(lsn.0.to_le_bytes());
            out.extend(group.0.to_le_bytes());
            pages.encode(&mut out);
        }
        out
    }

    /// Reads a master record; any bytes give a value or none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Input(Cursor::new(bytes));
        if input.u8()? != MASTER_VERSION {
            return None;
        }
        let mut master = Self { cycle: input.u32()?, cutoff: Lsn(input.u64()?), ..Self::default() };
        master.begin.page = input.u64()?;
        master.begin.chain.next_sequence = input.u64()?;
        master.begin.chain.epoch = input.u32()?;
        master.begin.chain.predecessor = input.u32()?;
        master.epoch = input.u32()?;
        master.durable = Lsn(input.u64()?);
        master.next_table = input.u32()?;
        master.identity = Identity::of(input.u64()?);
        for _ in 0..input.u32()? {
            let (table, [low, high]) = (input.u32()?, [input.u32()?, input.u16()?.into()]);
            master.entry_counts.push((table, u64::from(high) << 32 | u64::from(low)));
        }
        for _ in 0..input.u32()? {
            master.runs.push(MasterRun::decode(&mut input)?);
        }
        for _ in 0..input.u32()? {
            let lsn = Lsn(input.u64()?);
            master.values.push((lsn, input.sized()?.to_vec()));
        }
        for _ in 0..input.u32()? {
            let (lsn, group) = (Lsn(input.u64()?), GroupId(input.u64()?));
            master.pages.push((lsn, group, PageSpans::decode(&mut input)?));
        }
        // Copied changes were durable, even if later records were lost (C1).
        let is_sound = master.cutoff <= master.durable && input.0.is_empty();
        let mut lsns: Vec<Lsn> = master.runs.iter().map(|run| run.lsn).collect();
        lsns.sort_unstable();
        let are_apart = lsns.is_sorted_by(|one, other| one < other);
        let are_durable = lsns.last().is_none_or(|last| *last <= master.durable);
        (is_sound && are_apart && are_durable).then_some(master)
    }
}

fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use flagstone_space::LogicalPage;

    use super::*;
    use crate::engine::commit::checkpoint_size::RELEASE_SIZE;
    use crate::engine::store::room::MASTER_HEAD_SIZE;
    use crate::engine::store::run::committed::{CommittedRun, Runs};
    use crate::engine::store::run::{Run, RunPart};

    /// Goal (rule D7): the bounds of a master record are the sizes of its encoding. Method: one of each
    /// list.
    #[test]
    fn sizes_are_those_of_the_encoding() {
        let part = |first: &[u8], pages: &[u32]| RunPart {
            first: first.to_vec(),
            pages: pages.iter().copied().map(LogicalPage).collect(),
        };
        let parts = vec![part(b"first", &[7, 8, 9]), part(b"next", &[4, 12])];
        let run = Run { group: GroupId(3), parts, last: b"the last".to_vec() };
        let named = MasterRun { lsn: Lsn(9), run: run.clone(), rolled_back: vec![(1, 2), (4, 6)] };
        let mut bytes = Vec::new();
        named.encode(&mut bytes);
        assert_eq!(bytes.len(), MasterRun::size_of(&run, 2));
        assert_eq!(MasterRun::decode(&mut Input(Cursor::new(&bytes))), Some(named));
        assert_eq!(Master::default().encode().len(), MASTER_HEAD_SIZE);
        let values = vec![(Lsn(1), vec![0; 17])];
        let apart: PageSpans = [1, 3, 5].map(LogicalPage).into_iter().collect();
        let pages = vec![(Lsn(1), GroupId(2), apart.clone())];
        let entry_counts = vec![(7, 3), (1 << 30, COUNT_MAX)];
        let master = Master { values, pages, next_table: 9, entry_counts, ..Master::default() };
        let sizes = 2 * (RELEASE_SIZE + TABLE_COUNT_SIZE) + 17 + apart.encoded_size();
        assert!(master.encode().len() <= MASTER_HEAD_SIZE + sizes);
        assert_eq!(Master::decode(&master.encode()), Some(master));
    }

    /// Goal (D5): a record with a correct checksum is doubted all the same. Method: a cutoff beyond
    /// every log, from which restart would take later LSNs.
    #[test]
    fn a_cutoff_beyond_the_durable_frontier_is_refused() {
        let master = Master { cutoff: Lsn(8), durable: Lsn(7), ..Master::default() };
        assert_eq!(Master::decode(&master.encode()), None);
        let master = Master { cutoff: Lsn(7), ..master };
        assert_eq!(Master::decode(&master.encode()), Some(master.clone()));
        let named = |lsn| Master { runs: vec![MasterRun::bare(Lsn(lsn))], ..master.clone() };
        assert_eq!(Master::decode(&named(8).encode()), None);
        assert_eq!(Master::decode(&named(7).encode()), Some(named(7)));
    }

    /// Goal (R3): a run that both the master record and the log name is loaded and freed once.
    #[test]
    fn a_run_that_is_named_twice_is_taken_once() {
        let pages = PageSpans::from_iter([LogicalPage(7)]);
        let parts = vec![RunPart { first: b"first".to_vec(), pages }];
        let run = Run { group: GroupId(3), parts, last: b"the last".to_vec() };
        let mut runs = Runs::default();
        runs.restore(CommittedRun::new(Lsn(8), run.clone(), Vec::new()));
        runs.commit(Lsn(9), &[run], &[]);
        assert_eq!(runs.unfinished().count(), 1);
    }
}
