//! The operation of each graph node.
//!
//! CUPTI calls back on the thread that captures or instantiates, and passes no data of ours. So this state is global.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::addr_of;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::CUgraphNode;

use super::library::{node_id, sys};

/// Id of the operation being captured; 0 for none.
static CURRENT: AtomicU64 = AtomicU64::new(0);

/// Ids of operations by CUPTI's ids of nodes.
static NODES: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

/// From now on new nodes belong to this operation; 0 for none.
pub(super) fn set_current(id: u64) {
    CURRENT.store(id, Ordering::Relaxed);
}

/// Adds nodes with `add`. They belong to the operation of another node.
///
/// # Safety
/// The other node exists.
pub(crate) unsafe fn name_nodes_like<T>(other: CUgraphNode, add: impl FnOnce() -> T) -> T {
    let mut known = NODES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Without CUPTI no node is known, and CUPTI must not be called.
    let operation = known.as_mut().and_then(|nodes| {
        // SAFETY: the caller's promise.
        nodes.get(&unsafe { node_id(other) }?).copied()
    });
    drop(known);
    set_current(operation.unwrap_or(0));
    let added = add();
    set_current(0);
    added
}

/// The operations of all nodes so far.
pub(super) fn all() -> HashMap<u64, u64> {
    with_nodes(|nodes| nodes.clone())
}

fn with_nodes<T>(work: impl FnOnce(&mut HashMap<u64, u64>) -> T) -> T {
    let mut nodes = NODES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    work(nodes.get_or_insert_default())
}

/// CUPTI's callback for a node created or cloned.
///
/// # Safety
/// CUPTI calls it, with the data of the callback.
pub(super) unsafe extern "C" fn on_resource(
    _: *mut c_void,
    _: sys::CUpti_CallbackDomain,
    id: sys::CUpti_CallbackId,
    data: *const c_void,
) {
    use sys::CUpti_CallbackIdResource as Id;
    let data = data.cast::<sys::CUpti_ResourceData>();
    // SAFETY: both of the callbacks we asked for come with a resource's data. Its descriptor is a graph's data. Both
    // live during the call. Fields are read one by one, since enums may have values our bindings do not know.
    unsafe {
        let graph = addr_of!((*data).resourceDescriptor).read().cast::<sys::CUpti_GraphData>();
        let Some(node) = node_id(addr_of!((*graph).node).read()) else { return };
        if id == Id::CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED as u32 {
            let Some(original) = node_id(addr_of!((*graph).originalNode).read()) else { return };
            with_nodes(|nodes| nodes.get(&original).copied().map(|operation| nodes.insert(node, operation)));
        } else {
            let current = CURRENT.load(Ordering::Relaxed);
            if current != 0 {
                with_nodes(|nodes| nodes.insert(node, current));
            }
        }
    }
}
