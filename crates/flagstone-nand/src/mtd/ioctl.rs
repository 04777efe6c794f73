//! The kernel's MTD calls as safe functions.
//!
//! Owns the layout of the kernel's structures (`include/uapi/mtd/mtd-abi.h`) and every pointer that
//! is handed to it. Nothing outside this file talks to the kernel about MTD.
//!
//! Each call passes one structure of exactly the size in its number, and slices that live longer
//! than the call; the guest tests run them against a real kernel.
#![expect(unsafe_code, reason = "ioctls take pointers")]

use std::ffi::c_void;
use std::fs::File;
use std::ptr;

use rustix::io::{Errno, Result};
use rustix::ioctl::{IntegerSetter, Ioctl, IoctlOutput, Opcode, ioctl, opcode};

const MTD: u8 = b'M';

/// Shape of a device, as `MEMGETINFO` fills it. `size` wraps on devices of 4 GiB and more.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Info {
    pub(super) kind: u8,
    pub(super) flags: u32,
    pub(super) size: u32,
    pub(super) erase_size: u32,
    pub(super) write_size: u32,
    pub(super) oob_size: u32,
    padding: u64,
}

/// Counters of the device's ECC.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EccStats {
    pub(super) corrected: u32,
    pub(super) failed: u32,
    pub(super) bad_blocks: u32,
    pub(super) bbt_blocks: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct OobLayout {
    ecc_size: u32,
    ecc_positions: [u32; 64],
    available: u32,
    free: [[u32; 2]; 8],
}

#[repr(C)]
struct EraseRange {
    start: u64,
    length: u64,
}

#[repr(C)]
struct OobTransfer {
    start: u64,
    padding: u32,
    length: u32,
    pointer: u64,
}

#[repr(C)]
struct Transfer {
    start: u64,
    length: u64,
    oob_length: u64,
    data: u64,
    oob: u64,
    mode: u8,
    padding: [u8; 7],
}

#[repr(C)]
struct CountedTransfer {
    transfer: Transfer,
    uncorrectable: u32,
    corrected: u32,
    corrected_max: u32,
}

const _: () = assert!(size_of::<Info>() == 32 && size_of::<EccStats>() == 16);
const _: () = assert!(size_of::<Transfer>() == 48 && size_of::<OobTransfer>() == 24);

/// Work of a kernel transfer beside moving bytes. No other value may reach it: a kernel hangs on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mode {
    /// Data go through the ECC. Spare bytes stand where they lie in the spare area; bytes at the ECC's places
    /// are ignored.
    Place = 0,
    /// Bytes as the cells hold them.
    Raw = 2,
}

/// `MTD_FILE_MODE_NORMAL` and `MTD_FILE_MODE_RAW`: the modes of plain reads.
const FILE_MODE_NORMAL: usize = 0;
const FILE_MODE_RAW: usize = 3;

const GET_INFO: Opcode = opcode::read::<Info>(MTD, 1);
const GET_BAD: Opcode = opcode::write::<i64>(MTD, 11);
const SET_BAD: Opcode = opcode::write::<i64>(MTD, 12);
const GET_LAYOUT: Opcode = opcode::read::<OobLayout>(MTD, 17);
const GET_STATS: Opcode = opcode::read::<EccStats>(MTD, 18);
const FILE_MODE: Opcode = opcode::none(MTD, 19);
const ERASE: Opcode = opcode::write::<EraseRange>(MTD, 20);
const WRITE_OOB: Opcode = opcode::read_write::<OobTransfer>(MTD, 21);
const READ_OOB: Opcode = opcode::read_write::<OobTransfer>(MTD, 22);
const WRITE: Opcode = opcode::read_write::<Transfer>(MTD, 24);
const READ: Opcode = opcode::read_write::<CountedTransfer>(MTD, 26);

/// One call: the kernel reads and writes `T`.
struct Call<'a, const OPCODE: Opcode, T>(&'a mut T);

// SAFETY: `OPCODE` names a call whose argument is a pointer to a `T`; `T` is exclusively borrowed
// for the call, has C layout, and is valid for any bytes the kernel puts there.
unsafe impl<const OPCODE: Opcode, T> Ioctl for Call<'_, OPCODE, T> {
    type Output = IoctlOutput;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> Result<Self::Output> {
        Ok(output)
    }
}

fn call<const OPCODE: Opcode, T>(file: &File, argument: &mut T) -> Result<IoctlOutput> {
    // SAFETY: see `Call`; addresses inside the argument come from slices that the callers of this
    // function hold, and their lengths stand beside them.
    unsafe { ioctl(file, Call::<OPCODE, T>(argument)) }
}

pub(super) fn info(file: &File) -> Result<Info> {
    let mut info = Info::default();
    call::<GET_INFO, _>(file, &mut info)?;
    Ok(info)
}

pub(super) fn ecc_stats(file: &File) -> Result<EccStats> {
    let mut stats = EccStats::default();
    call::<GET_STATS, _>(file, &mut stats)?;
    Ok(stats)
}

/// First run of spare bytes that the ECC leaves free: offset and size.
pub(super) fn free_spare(file: &File) -> Result<(u32, u32)> {
    let mut layout =
        OobLayout { ecc_size: 0, ecc_positions: [0; 64], available: 0, free: [[0; 2]; 8] };
    call::<GET_LAYOUT, _>(file, &mut layout)?;
    let [offset, size] = layout.free[0];
    Ok((offset, size))
}

pub(super) fn is_bad(file: &File, start: u64) -> Result<bool> {
    Ok(call::<GET_BAD, _>(file, &mut start.cast_signed())? != 0)
}

pub(super) fn mark_bad(file: &File, start: u64) -> Result<()> {
    call::<SET_BAD, _>(file, &mut start.cast_signed()).map(drop)
}

pub(super) fn erase(file: &File, start: u64, length: u64) -> Result<()> {
    call::<ERASE, _>(file, &mut EraseRange { start, length }).map(drop)
}

/// Has plain reads of the file, and [`read_oob`], go through the ECC or past it.
pub(super) fn set_file_mode(file: &File, mode: Mode) -> Result<()> {
    let number = match mode {
        Mode::Place => FILE_MODE_NORMAL,
        Mode::Raw => FILE_MODE_RAW,
    };
    // SAFETY: `FILE_MODE` names a call that takes a number in place of a pointer, and these are two of it.
    let call = unsafe { IntegerSetter::<FILE_MODE>::new_usize(number) };
    // SAFETY: the call touches no memory of ours.
    unsafe { ioctl(file, call) }
}

/// Programs data at `start`, and with it the first bytes of the page's spare area; or, without data, these
/// alone.
pub(super) fn write(file: &File, start: u64, data: &[u8], oob: &[u8], mode: Mode) -> Result<()> {
    let mut transfer =
        transfer(start, (data.as_ptr(), data.len()), (oob.as_ptr(), oob.len()), mode);
    call::<WRITE, _>(file, &mut transfer).map(drop)
}

/// Programs spare bytes alone; the low bits of `start` are the first byte's place.
pub(super) fn write_oob(file: &File, start: u64, oob: &[u8]) -> Result<()> {
    let mut transfer = oob_transfer(start, oob.as_ptr(), oob.len());
    call::<WRITE_OOB, _>(file, &mut transfer).map(drop)
}

/// Reads spare bytes alone; the low bits of `start` are the first byte's place.
pub(super) fn read_oob(file: &File, start: u64, oob: &mut [u8]) -> Result<()> {
    let mut transfer = oob_transfer(start, oob.as_mut_ptr(), oob.len());
    call::<READ_OOB, _>(file, &mut transfer).map(drop)
}

/// Reads data at `start` and the first bytes of the page's spare area; the most bits that were
/// corrected in one step. `BADMSG` when there were too many.
///
/// Linux 6.1 and later; `NOTTY` before.
pub(super) fn read(
    file: &File,
    start: u64,
    data: &mut [u8],
    oob: &mut [u8],
    mode: Mode,
) -> Result<u32> {
    let transfer =
        transfer(start, (data.as_mut_ptr(), data.len()), (oob.as_mut_ptr(), oob.len()), mode);
    let mut counted =
        CountedTransfer { transfer, uncorrectable: 0, corrected: 0, corrected_max: 0 };
    match call::<READ, _>(file, &mut counted) {
        // Corrected bits reached the threshold: the data is right.
        Ok(_) | Err(Errno::UCLEAN) => Ok(counted.corrected_max),
        Err(errno) => Err(errno),
    }
}

fn transfer(start: u64, data: (*const u8, usize), oob: (*const u8, usize), mode: Mode) -> Transfer {
    let address = |(pointer, size): (*const u8, usize)| {
        if size == 0 { 0 } else { pointer.expose_provenance() as u64 }
    };
    Transfer {
        start,
        length: data.1 as u64,
        oob_length: oob.1 as u64,
        data: address(data),
        oob: address(oob),
        mode: mode as u8,
        padding: [0; 7],
    }
}

fn oob_transfer(start: u64, oob: *const u8, size: usize) -> OobTransfer {
    let pointer = oob.expose_provenance() as u64;
    OobTransfer { start, padding: 0, length: u32::try_from(size).unwrap_or(u32::MAX), pointer }
}
