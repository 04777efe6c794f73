//! Page traces: reads, changes and writes of a buffer while transactions run.
//!
//! Owns the events and how they are recorded from the classic engine: clients on the virtual clock,
//! after load and settling. The replay of a trace decides the cost of an event.

use flagstone_engine::{EngineError, Options};

use crate::bench::observe::Listener;
use crate::bench::{BenchError, prepare};
use crate::event_loop::{EventLoop, Manners};
use crate::medium::Medium;
use crate::store::{ClassicStore, Drivable as _, Store as _};
use crate::timed::Timed;
use crate::workload::Workload;

/// Changed bytes of a written page that are told one by one.
pub const CHANGED_MAX: usize = 1024;

/// Event of a page or a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The page is read: it is not in memory.
    Read(u32),
    /// A log record changes the page.
    Change {
        /// Page.
        page: u32,
        /// Transaction; 0 for a change of the tree's shape, which no abort takes back.
        xid: u64,
        /// Bytes of the record's redo part.
        size: u32,
        /// Whether the change takes back another one of an aborted transaction.
        is_undo: bool,
    },
    /// The page is written.
    Write {
        /// Page.
        page: u32,
        /// Differences from the version that was read or written last, as offsets and sizes in
        /// ascending order; none for more than [`CHANGED_MAX`] bytes, or where no version was.
        changed: Option<Box<[(u16, u16)]>>,
        /// Appends that a page of its table is reserved for.
        slots: u8,
    },
    /// The page is given up.
    Free(u32),
    /// The transaction commits.
    Commit(u64),
    /// The transaction aborts; its undo follows.
    Abort(u64),
}

/// A page trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Pages on flash when it begins, with the appends that each is reserved for.
    pub pages: Vec<(u32, u8)>,
    /// Bytes of a page.
    pub page_size: usize,
    /// The events.
    pub events: Vec<Event>,
}

/// How a trace is recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Options of the classic engine, memory among them.
    pub options: Options,
    /// Clients.
    pub clients: u32,
    /// Commits.
    pub commits: u64,
    /// Seed of chip and clients.
    pub seed: u64,
}

impl Trace {
    /// Records `commits` transactions of `workload` on `medium`, right after the load.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub fn record<W: Workload>(
        recording: &Recording,
        workload: &W,
        medium: Medium,
        on_share: &mut dyn FnMut(f64),
    ) -> Result<Self, BenchError> {
        let Recording { options, clients, commits, seed } = recording;
        let store = ClassicStore::create(Timed::new(medium), options)?;
        let tables = prepare::load(&store, workload, &mut Listener(&mut |_| ()))?;
        store.settle()?;
        let mut trace = Self::of_pages(&store)?;
        store.with_device(Timed::come_to_rest);
        store.machine().engine().record_events();
        let manners = Manners { abort_ratio: 0.0, backoff_ns: 0, seed: *seed };
        let durability = options.durability;
        let engine = store.engine();
        let mut loops = EventLoop::new(engine, workload, tables, *clients, durability, manners)?;
        const STEP: u64 = 500;
        while loops.commits() < *commits {
            loops.run_until((loops.commits() + STEP).min(*commits))?;
            on_share(loops.commits() as f64 / *commits as f64);
        }
        drop(loops);
        trace.events = store.machine().engine().take_events();
        Ok(trace)
    }

    /// The pages on flash.
    fn of_pages(store: &ClassicStore<Timed<Medium>>) -> Result<Self, BenchError> {
        let mut space = store.machine().space();
        let mapped: Vec<_> = space.mapped_pages().collect();
        let mut pages = Vec::with_capacity(mapped.len());
        let mut image = Vec::new();
        for page in mapped {
            let info = space.read(page, &mut image).map_err(EngineError::from)?;
            pages.push((page.0, info.append_slots));
        }
        Ok(Self { pages, page_size: space.payload_size(), events: Vec::new() })
    }

    /// Largest number of pages that exist at a time.
    #[must_use]
    pub fn page_count_max(&self) -> usize {
        let mut pages: std::collections::HashSet<u32> =
            self.pages.iter().map(|(page, _)| *page).collect();
        let mut most = pages.len();
        for event in &self.events {
            match event {
                Event::Change { page, .. } | Event::Write { page, .. } => {
                    pages.insert(*page);
                    most = most.max(pages.len());
                }
                Event::Free(page) => {
                    pages.remove(page);
                }
                _ => {}
            }
        }
        most
    }
}
