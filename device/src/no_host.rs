//! The stand-in for the host device in a build without the feature `host`. Its types have no values, so the code that
//! uses them compiles and is never reached.

#![allow(dead_code, unused_variables, reason = "nothing can call it")]

use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Range;

use crate::ops::{Collective, RowsOfRanks};
use crate::timeline::OpenSpan;
use crate::uncallable::uncallable;
use crate::{Element, Error, Op, Request, Result, Tensor};

/// The threads of a host device.
pub struct Pool(Infallible);

/// The tensors of a custom operation, as slices of host memory.
pub struct HostTensors<'a> {
    none: Infallible,
    tensors: PhantomData<&'a ()>,
}

pub(crate) struct HostDevice {
    pub(crate) pool: Pool,
}

pub(crate) struct HostStream(Infallible);

impl HostDevice {
    pub(crate) fn new(threads: usize, check: bool) -> Result<HostDevice> {
        let fix = "build it with the feature `host` of the crates graph-manager and graph-manager-device";
        Err(Error::operation("device", format!("this program was built without the host device. Fix: {fix}")))
    }
}

uncallable! {
    Pool {
        /// Number of threads.
        pub fn threads(&self) -> usize;
        /// Calls `work(i, chunk)` for each chunk of `size` elements of `data`.
        pub fn for_each_chunk<T: Send>(
            &self, data: &mut [T], size: usize, work: impl Fn(usize, &mut [T]) + Send + Sync
        );
        /// Calls `work(i)` for every `i` below `count`, and returns the results in order.
        pub fn map<R: Send>(&self, count: usize, work: impl Fn(usize) -> R + Send + Sync) -> Vec<R>;
        /// As [`Pool::for_each_chunk`] over two slices at once.
        pub fn for_each_chunk_pair<A: Send, B: Send>(
            &self, a: (&mut [A], usize), b: (&mut [B], usize), work: impl Fn(usize, &mut [A], &mut [B]) + Send + Sync
        );
    }

    HostTensors<'a> {
        /// The device's threads.
        pub fn pool(&self) -> &'a Pool;
        /// The elements of a tensor that the operation declared to read.
        ///
        /// # Errors
        /// None: there is no host device.
        pub fn read<T: Element>(&mut self, tensor: &Tensor) -> Result<&'a [T]>;
        /// The elements of a tensor that the operation declared to write.
        ///
        /// # Errors
        /// None: there is no host device.
        pub fn write<T: Element>(&mut self, tensor: &Tensor) -> Result<&'a mut [T]>;
    }

    HostStream {
        pub(crate) fn started(&self) -> u64;
        pub(crate) fn run(&mut self, op: &Op, device: &HostDevice, span: Option<OpenSpan>) -> Result<()>;
        pub(crate) fn write<T: Element>(&mut self, tensor: &Tensor, data: &[T]) -> Result<()>;
        pub(crate) fn read<T: Element>(&mut self, tensor: &Tensor) -> Result<Vec<T>>;
        pub(crate) fn copy_out(&mut self, part: &Tensor, to: &mut [u8]) -> Result<()>;
        pub(crate) fn transfers_in(&self, range: &Range<u64>) -> bool;
        pub(crate) fn finish_up_to(&mut self, last: u64) -> Result<()>;
        pub(crate) fn finish(&mut self) -> Result<()>;
    }
}

impl Default for HostStream {
    fn default() -> HostStream {
        unreachable!("a stream is of its device's kind")
    }
}

pub(crate) fn start_rows(op: &Collective, rows: &RowsOfRanks) -> Result<Box<dyn Request>> {
    unreachable!("the ranks of a host device exchange them")
}

pub(crate) fn run(op: &Op, device: &HostDevice) -> Result<()> {
    match device.pool.0 {}
}

/// Any operation: no device asks it.
pub(crate) trait HostOperation {
    fn scratch_bytes(&self, pool: &Pool) -> usize {
        match pool.0 {}
    }
}

impl<T> HostOperation for T {}

pub(crate) mod view {
    //! Memory of a host device as slices.

    use crate::{Element, Tensor};

    pub(crate) fn read<'a, T: Element>(tensor: &Tensor) -> &'a [T] {
        unreachable!("a tensor is in its device's memory")
    }

    pub(crate) fn write<'a, T: Element>(tensor: &Tensor) -> &'a mut [T] {
        unreachable!("a tensor is in its device's memory")
    }

    pub(crate) fn zero(tensor: &Tensor) {
        unreachable!("a tensor is in its device's memory")
    }
}
