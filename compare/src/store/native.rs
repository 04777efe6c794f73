//! Peers written in C, behind the function table of `peer.h`.
//!
//! All `unsafe` of this crate but opening LMDB's map. Every call passes pointers that outlive it;
//! the callee keeps none. Stores and transactions are made by `open` and `begin` and end once, in
//! `close`, `commit` or `abort`. Both peers allow calls from several threads on one store, and a
//! transaction stays on the thread that began it.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::slice;

use anyhow::{Result, bail};

use super::{Again, Each, Limits, Plan, Rows, Store, Txn};

type Row = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *const c_void, usize) -> c_int;

#[repr(C)]
struct Peer {
    open: unsafe extern "C" fn(*const c_char, c_uint, c_int, usize, usize, c_int) -> *mut c_void,
    begin: unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void,
    get: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        c_uint,
        c_int,
        *const c_void,
        usize,
        Row,
        *mut c_void,
    ) -> c_int,
    put: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        c_uint,
        *const c_void,
        usize,
        *const c_void,
        usize,
    ) -> c_int,
    del: unsafe extern "C" fn(*mut c_void, *mut c_void, c_uint, *const c_void, usize) -> c_int,
    scan: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        c_uint,
        *const c_void,
        usize,
        Row,
        *mut c_void,
    ) -> c_int,
    commit: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    abort: unsafe extern "C" fn(*mut c_void, *mut c_void),
    checkpoint: unsafe extern "C" fn(*mut c_void) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    static peer_berkeley: Peer;
    #[cfg(feature = "rocksdb")]
    static peer_rocks: Peer;
}

/// What a transaction is for: `PEER_LOAD` and so on.
#[derive(Clone, Copy)]
enum Purpose {
    Load = 0,
    Write = 1,
    Read = 2,
}

const ABSENT: c_int = 1;
const AGAIN: c_int = 2;

/// Which of them.
#[derive(Clone, Copy)]
pub enum Kind {
    Berkeley,
    #[cfg(feature = "rocksdb")]
    Rocks,
}

pub struct Native {
    peer: &'static Peer,
    store: NonNull<c_void>,
}

// SAFETY: both peers are opened for use by several threads.
unsafe impl Send for Native {}
// SAFETY: as above.
unsafe impl Sync for Native {}

impl Native {
    pub fn open(kind: Kind, plan: &Plan, path: &Path) -> Result<Self> {
        // SAFETY: constants of the glue.
        let peer = unsafe {
            match kind {
                Kind::Berkeley => &peer_berkeley,
                #[cfg(feature = "rocksdb")]
                Kind::Rocks => &peer_rocks,
            }
        };
        let path = CString::new(path.to_string_lossy().as_bytes())?;
        let (tables, is_new) = (plan.tables as c_uint, c_int::from(plan.is_new));
        let Limits { memory, held_back } = plan.limits;
        let large = c_int::from(plan.has_large_values);
        // SAFETY: a string that ends in zero and lives through the call.
        let store = unsafe { (peer.open)(path.as_ptr(), tables, is_new, memory, held_back, large) };
        let Some(store) = NonNull::new(store) else { bail!("the peer cannot be opened") };
        Ok(Self { peer, store })
    }

    fn begin(&self, purpose: Purpose) -> Result<Transaction<'_>> {
        // SAFETY: the store is open.
        let raw = unsafe { (self.peer.begin)(self.store.as_ptr(), purpose as c_int) };
        let Some(raw) = NonNull::new(raw) else { bail!("a transaction does not begin") };
        Ok(Transaction { store: self, raw: Some(raw) })
    }
}

fn judge(code: c_int) -> Result<bool> {
    match code {
        0 => Ok(true),
        ABSENT => Ok(false),
        AGAIN => Err(Again.into()),
        _ => bail!("the peer failed"),
    }
}

struct Transaction<'a> {
    store: &'a Native,
    raw: Option<NonNull<c_void>>,
}

impl Transaction<'_> {
    fn raw(&self) -> *mut c_void {
        self.raw.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    fn commit(mut self) -> Result<()> {
        let Some(raw) = self.raw.take() else { return Ok(()) };
        // SAFETY: taken, so that it ends once.
        judge(unsafe { (self.store.peer.commit)(self.store.store.as_ptr(), raw.as_ptr()) })?;
        Ok(())
    }

    fn read(&self, table: usize, key: &[u8], out: &mut Vec<u8>, lock: bool) -> Result<bool> {
        let mut copy = |_: &[u8], value: &[u8]| {
            out.clear();
            out.extend_from_slice(value);
            true
        };
        let mut each: Each<'_> = &mut copy;
        let context = (&raw mut each).cast();
        // SAFETY: `each` lives through the call, and `hand` reads it as what it is.
        judge(unsafe {
            (self.store.peer.get)(
                self.store.store.as_ptr(),
                self.raw(),
                table as c_uint,
                c_int::from(lock),
                key.as_ptr().cast(),
                key.len(),
                hand,
                context,
            )
        })
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: taken, so that it ends once.
            unsafe { (self.store.peer.abort)(self.store.store.as_ptr(), raw.as_ptr()) }
        }
    }
}

/// Hands a row to the closure behind `context`.
unsafe extern "C" fn hand(
    context: *mut c_void,
    key: *const c_void,
    key_size: usize,
    value: *const c_void,
    value_size: usize,
) -> c_int {
    // SAFETY: `context` is the `Each` of the call that this runs in; key and value are readable
    // until it returns.
    let (each, key, value) = unsafe {
        (
            &mut *context.cast::<Each<'_>>(),
            slice::from_raw_parts(key.cast::<u8>(), key_size),
            slice::from_raw_parts(value.cast::<u8>(), value_size),
        )
    };
    c_int::from(each(key, value))
}

impl Txn for Transaction<'_> {
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.read(table, key, out, false)
    }

    fn get_for_update(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.read(table, key, out, true)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        // SAFETY: slices that live through the call.
        judge(unsafe {
            (self.store.peer.put)(
                self.store.store.as_ptr(),
                self.raw(),
                table as c_uint,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            )
        })?;
        Ok(())
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<()> {
        // SAFETY: a slice that lives through the call.
        judge(unsafe {
            (self.store.peer.del)(
                self.store.store.as_ptr(),
                self.raw(),
                table as c_uint,
                key.as_ptr().cast(),
                key.len(),
            )
        })?;
        Ok(())
    }

    fn scan(&mut self, table: usize, from: &[u8], mut each: Each<'_>) -> Result<()> {
        let context = (&raw mut each).cast();
        // SAFETY: `each` lives through the call, and `hand` reads it as what it is.
        judge(unsafe {
            (self.store.peer.scan)(
                self.store.store.as_ptr(),
                self.raw(),
                table as c_uint,
                from.as_ptr().cast(),
                from.len(),
                hand,
                context,
            )
        })?;
        Ok(())
    }
}

impl Store for Native {
    fn load(&self, table: usize, rows: Rows<'_>) -> Result<()> {
        super::load_in_batches(rows, |batch| {
            let mut transaction = self.begin(Purpose::Load)?;
            for (key, value) in batch {
                transaction.put(table, key, value)?;
            }
            transaction.commit()
        })?;
        // SAFETY: the store is open.
        judge(unsafe { (self.peer.checkpoint)(self.store.as_ptr()) })?;
        Ok(())
    }

    fn write(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<bool>) -> Result<bool> {
        super::until_not_again(|| {
            let mut transaction = self.begin(Purpose::Write)?;
            let commits = body(&mut transaction)?;
            if commits {
                transaction.commit()?;
            }
            Ok(commits)
        })
    }

    fn read(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<()>) -> Result<()> {
        super::until_not_again(|| body(&mut self.begin(Purpose::Read)?))
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: `self` is gone afterwards.
        judge(unsafe { (self.peer.close)(self.store.as_ptr()) })?;
        Ok(())
    }
}
