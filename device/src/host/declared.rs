//! Kernels touch only tensors that their operations declare: the order of all work follows from the declarations.
//!
//! While a device that checks runs an operation, each of its threads knows the declared tensors. [`view`](super::view)
//! asks here before it makes a slice.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Pool;
use crate::{Accesses, Tensor};

struct Declared {
    op: &'static str,
    accesses: Accesses,
    /// For each tensor that is written: whether the kernel has taken it to write.
    taken: Vec<AtomicBool>,
}

impl Declared {
    /// Whether the kernel may take a slice to read: a tensor declared to read, or one that it has taken to write.
    fn reads(&self, part: &Tensor) -> bool {
        let taken = self.taken.iter().map(|taken| taken.load(Ordering::Relaxed));
        let written = self.accesses.writes.iter().zip(taken).filter_map(|(tensor, taken)| taken.then_some(tensor));
        self.accesses.reads.iter().chain(written).any(|tensor| tensor.contains(part))
    }

    /// Whether the kernel may take a slice to write.
    fn writes(&self, part: &Tensor) -> bool {
        let mut found = false;
        for (_, taken) in self.accesses.writes.iter().zip(&self.taken).filter(|(tensor, _)| tensor.contains(part)) {
            taken.store(true, Ordering::Relaxed);
            found = true;
        }
        found
    }
}

thread_local! {
    /// The declaration of the operation that runs on this thread. `None` if nothing is checked.
    static DECLARED: RefCell<Option<Arc<Declared>>> = const { RefCell::new(None) };
}

/// Ends the hold that [`hold`] began.
pub(super) struct Held<'p>(&'p Pool);

/// From now on the threads of `pool`, and this thread, take only memory that the operation declared.
pub(super) fn hold<'p>(op: &'static str, accesses: Accesses, pool: &'p Pool) -> Held<'p> {
    let taken = accesses.writes.iter().map(|_| AtomicBool::new(false)).collect();
    let declared = Arc::new(Declared { op, accesses, taken });
    pool.on_all_threads(|| DECLARED.set(Some(declared.clone())));
    Held(pool)
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.on_all_threads(|| DECLARED.set(None));
    }
}

/// A slice to read is about to be taken.
///
/// # Panics
/// If the operation that runs declared neither to read this memory, nor to write it and did so: the kernel or the declaration
/// has a bug.
pub(super) fn check_read(tensor: &Tensor) {
    check(tensor, "reads", Declared::reads);
}

/// A slice to write is about to be taken.
///
/// # Panics
/// If the operation that runs did not declare to write this memory: the kernel or the declaration has a bug.
pub(super) fn check_write(tensor: &Tensor) {
    check(tensor, "writes", Declared::writes);
}

fn check(tensor: &Tensor, verb: &str, is_declared: fn(&Declared, &Tensor) -> bool) {
    DECLARED.with_borrow(|declared| {
        let Some(declared) = declared else { return };
        let (op, Tensor { shape, dtype, buffer, .. }) = (declared.op, tensor);
        assert!(
            is_declared(declared, tensor),
            "{op} {verb} a tensor {shape:?} of {dtype} in {buffer:?} that it does not declare so. \
             Rule: an operation declares all memory that its kernel takes. Fix: Operation::accesses, or the kernel"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::view;
    use crate::{BufferId, DType};

    /// A tensor of two numbers that lie here.
    fn tensor(numbers: &mut [f32; 2]) -> Tensor {
        let address = numbers.as_mut_ptr().expose_provenance() as u64;
        Tensor { address, shape: [2].into(), dtype: DType::F32, buffer: BufferId::NOTHING }
    }

    /// Whether `kernel` is stopped, on the thread that calls it and on a thread of the pool.
    fn is_refused(declared: &Accesses, kernel: impl Fn() + Sync) -> [bool; 2] {
        [1, 2].map(|threads| {
            let pool = Pool::new(threads).unwrap();
            let run = || {
                let _held = hold("copy", declared.clone(), &pool);
                // Two tasks, so that the pool's threads run them.
                pool.map(2, |task| {
                    if task == 0 {
                        kernel()
                    }
                });
            };
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
            pool.on_all_threads(|| DECLARED.with_borrow(|declared| assert!(declared.is_none(), "still held")));
            refused
        })
    }

    #[test]
    fn a_kernel_takes_only_what_its_operation_declares_on_every_thread() {
        let (mut input, mut output, mut other) = ([1.0, 2.0], [0.0; 2], [3.0; 2]);
        let [input, output, other] = [&mut input, &mut output, &mut other].map(tensor);
        let copy = Accesses::new([input], [output]);
        let read = |tensor: &Tensor| _ = view::read::<f32>(tensor);
        let write = |tensor: &Tensor| _ = view::write::<f32>(tensor);
        assert_eq!(is_refused(&copy, || (read(&input), write(&output)).0), [false; 2]);
        assert_eq!(is_refused(&copy, || read(&input.narrow(1, 1))), [false; 2], "a part of what is declared");
        assert_eq!(is_refused(&copy, || read(&other)), [true; 2], "nothing declares it");
        assert_eq!(is_refused(&copy, || write(&other)), [true; 2], "nothing declares it");
        assert_eq!(is_refused(&copy, || write(&input)), [true; 2], "it is only read");
        assert_eq!(is_refused(&copy, || read(&output)), [true; 2], "it is only written");
        assert_eq!(is_refused(&copy, || (write(&output), read(&output)).1), [false; 2], "the kernel has written it");
        let in_place = Accesses::new([input, output], [output]);
        assert_eq!(is_refused(&in_place, || (read(&output), write(&output)).1), [false; 2]);
    }
}
