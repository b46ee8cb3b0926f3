//! CUPTI's records, read from its buffers.
//!
//! New versions of CUPTI add fields at the end of a record; the others keep their offsets. So only fields that CUDA 12
//! has too are read.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::CStr;
use std::ptr::addr_of;
use std::sync::Mutex;

use cudarc::driver::sys::CUcontext;

use super::library::{activity, call, sys};
use crate::Result;

/// Something that CUPTI recorded. Times are in CUPTI's nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// The GPU did something.
    Work { what: Work, start: u64, end: u64, stream: u32, correlation: u32, node: u64 },
    /// The host called the driver, or the runtime.
    Call { driver: bool, id: u32, start: u64, end: u64, thread: u32, correlation: u32 },
    /// A call was made for the submitted work with this id.
    Correlation { id: u64, correlation: u32 },
}

/// A piece of work of the GPU.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    Kernel {
        symbol: String,
        grid: [i32; 3],
        block: [i32; 3],
    },
    /// `way` says which one if an end lies in the host's memory.
    Copy {
        bytes: u64,
        way: Option<&'static str>,
    },
    Set {
        bytes: u64,
    },
}

/// Bytes of a buffer, and its alignment.
const BUFFER: usize = 8 << 20;
const ALIGNMENT: usize = 8;

/// The records so far, and how many CUPTI dropped for lack of room.
static RECORDS: Mutex<(Vec<Record>, usize)> = Mutex::new((Vec::new(), 0));

/// Makes CUPTI take its buffers from here.
pub(super) fn register() -> Result<()> {
    call("cuptiActivityRegisterCallbacks", activity::register_callbacks(Some(buffer_requested), Some(buffer_completed)))
}

/// Takes all records, and the number of those that were lost.
pub(super) fn take() -> (Vec<Record>, usize) {
    std::mem::take(&mut *RECORDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn layout() -> Layout {
    // SAFETY: a power of two, and a size far from the largest.
    unsafe { Layout::from_size_align_unchecked(BUFFER, ALIGNMENT) }
}

/// # Safety
/// CUPTI calls the function with three places to write to.
unsafe extern "C" fn buffer_requested(buffer: *mut *mut u8, size: *mut usize, most_records: *mut usize) {
    // SAFETY: the layout has a size; the buffer is freed in `buffer_completed`. Without memory CUPTI drops records.
    unsafe {
        let memory = alloc(layout());
        buffer.write(memory);
        size.write(if memory.is_null() { 0 } else { BUFFER });
        most_records.write(0); // as many as fit
    }
}

/// # Safety
/// CUPTI calls the function with a buffer from `buffer_requested`. Its first `valid` bytes hold records.
unsafe extern "C" fn buffer_completed(context: CUcontext, stream: u32, buffer: *mut u8, _: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    let mut records = Vec::new();
    let (mut next, mut lost) = (std::ptr::null_mut(), 0);
    // SAFETY: the buffer is ours again and holds records that CUPTI finds; it is freed as it was allocated.
    unsafe {
        while valid > 0 && activity::get_next_record(buffer, valid, &mut next).is_ok() {
            records.extend(read(next));
        }
        let _ = activity::get_num_dropped_records(context, stream, &mut lost);
        dealloc(buffer, layout());
    }
    let mut all = RECORDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.0.append(&mut records);
    all.1 += lost;
}

/// The way of a copy that has an end in the host's memory.
fn way(kind: u8) -> Option<&'static str> {
    use sys::CUpti_ActivityMemcpyKind as Kind;
    match u32::from(kind) {
        kind if kind == Kind::CUPTI_ACTIVITY_MEMCPY_KIND_HTOD as u32 => Some("from the host"),
        kind if kind == Kind::CUPTI_ACTIVITY_MEMCPY_KIND_DTOH as u32 => Some("to the host"),
        _ => None,
    }
}

/// A record. `None` if it is of another kind than those asked for.
///
/// # Safety
/// `record` points to a record of CUPTI's.
unsafe fn read(record: *const sys::CUpti_Activity) -> Option<Record> {
    use sys::CUpti_ActivityKind as ActivityKind;
    const KERNEL: u32 = ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL as u32;
    const COPY: u32 = ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY as u32;
    const SET: u32 = ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET as u32;
    const DRIVER: u32 = ActivityKind::CUPTI_ACTIVITY_KIND_DRIVER as u32;
    const RUNTIME: u32 = ActivityKind::CUPTI_ACTIVITY_KIND_RUNTIME as u32;
    const CORRELATION: u32 = ActivityKind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION as u32;
    /// Reads a field in place; records are packed, and enums may have values our bindings do not know.
    macro_rules! field {
        ($record:ident.$field:ident) => {
            addr_of!((*$record).$field).read_unaligned()
        };
    }
    /// A record of work, from a CUPTI struct with the fields of work.
    macro_rules! work {
        ($record:ident, $what:expr) => {
            Record::Work {
                what: $what,
                start: field!($record.start),
                end: field!($record.end),
                stream: field!($record.streamId),
                correlation: field!($record.correlationId),
                node: field!($record.graphNodeId),
            }
        };
    }
    // SAFETY: the kind comes first in all records and tells the struct.
    unsafe {
        Some(match record.cast::<u32>().read_unaligned() {
            KERNEL => {
                let kernel = record.cast::<sys::CUpti_ActivityKernel9>();
                let name = field!(kernel.name);
                let symbol =
                    if name.is_null() { "kernel".into() } else { CStr::from_ptr(name).to_string_lossy().into_owned() };
                let grid = [field!(kernel.gridX), field!(kernel.gridY), field!(kernel.gridZ)];
                let block = [field!(kernel.blockX), field!(kernel.blockY), field!(kernel.blockZ)];
                work!(kernel, Work::Kernel { symbol, grid, block })
            }
            COPY => {
                let copy = record.cast::<sys::CUpti_ActivityMemcpy5>();
                work!(copy, Work::Copy { bytes: field!(copy.bytes), way: way(field!(copy.copyKind)) })
            }
            SET => {
                let set = record.cast::<sys::CUpti_ActivityMemset4>();
                work!(set, Work::Set { bytes: field!(set.bytes) })
            }
            kind @ (DRIVER | RUNTIME) => {
                let api = record.cast::<sys::CUpti_ActivityAPI>();
                Record::Call {
                    driver: kind == DRIVER,
                    id: field!(api.cbid),
                    start: field!(api.start),
                    end: field!(api.end),
                    thread: field!(api.threadId),
                    correlation: field!(api.correlationId),
                }
            }
            CORRELATION => {
                let external = record.cast::<sys::CUpti_ActivityExternalCorrelation>();
                Record::Correlation { id: field!(external.externalId), correlation: field!(external.correlationId) }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_fields_read_lie_where_newer_versions_of_the_records_have_them() {
        macro_rules! same {
            ($old:ident, $new:ident: $($field:ident)*) => {
                $(assert_eq!(offset_of!(sys::$old, $field), offset_of!(sys::$new, $field), stringify!($field));)*
            };
        }
        same!(CUpti_ActivityKernel9, CUpti_ActivityKernel10: kind name gridX gridY gridZ blockX blockY blockZ start end
            streamId correlationId graphNodeId);
        same!(CUpti_ActivityMemcpy5, CUpti_ActivityMemcpy6: kind copyKind bytes start end streamId correlationId graphNodeId);
    }

    #[test]
    fn a_record_is_read_as_its_kind_says_and_unknown_kinds_are_left_out() {
        let mut words = [0u64; 64];
        let at = |offset: usize| offset / 4;
        let record = bytemuck::cast_slice_mut::<u64, u32>(&mut words);
        record[0] = sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET as u32;
        record[at(offset_of!(sys::CUpti_ActivityMemset4, bytes))] = 512;
        record[at(offset_of!(sys::CUpti_ActivityMemset4, start))] = 7;
        record[at(offset_of!(sys::CUpti_ActivityMemset4, end))] = 9;
        record[at(offset_of!(sys::CUpti_ActivityMemset4, streamId))] = 3;
        record[at(offset_of!(sys::CUpti_ActivityMemset4, graphNodeId))] = 41;
        let what = Work::Set { bytes: 512 };
        let expected = Record::Work { what, start: 7, end: 9, stream: 3, correlation: 0, node: 41 };
        // SAFETY: a record's first field is its kind, and this one is larger than any.
        assert_eq!(unsafe { read(words.as_ptr().cast()) }, Some(expected));
        bytemuck::cast_slice_mut::<u64, u32>(&mut words)[0] = 60_000;
        // SAFETY: as above.
        assert_eq!(unsafe { read(words.as_ptr().cast()) }, None);
    }
}
