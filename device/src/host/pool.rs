//! The threads of a host device.

use rayon::prelude::*;

/// A thread pool of fixed size. With one thread, work runs on the caller.
///
/// Kernels split their work into chunks. The borders of chunks depend on shapes alone, never on the number of threads.
/// Partial sums are combined in chunk order. So the bits of a result do not depend on the pool.
pub struct Pool {
    threads: Option<rayon::ThreadPool>,
}

impl Pool {
    /// # Errors
    /// The operating system's, if threads cannot be started.
    pub fn new(threads: usize) -> Result<Pool, rayon::ThreadPoolBuildError> {
        if threads <= 1 {
            return Ok(Pool { threads: None });
        }
        let pool =
            rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("host-device-{i}")).build()?;
        Ok(Pool { threads: Some(pool) })
    }

    /// # Errors
    /// A device that names the number of threads and the reason.
    pub(super) fn open(threads: usize) -> crate::Result<Pool> {
        let refused = |error| crate::Error::operation("device", format!("cannot start {threads} threads: {error}"));
        Pool::new(threads).map_err(refused)
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads.as_ref().map_or(1, |pool| pool.current_num_threads())
    }

    /// Calls `work` on the calling thread, and on each thread of the pool.
    pub(super) fn on_all_threads(&self, work: impl Fn() + Sync) {
        work();
        if let Some(pool) = &self.threads {
            pool.broadcast(|_| work());
        }
    }

    /// Calls `work(i, chunk)` for each chunk of `size` elements of `data` (the last may be shorter), in parallel.
    pub fn for_each_chunk<T: Send>(&self, data: &mut [T], size: usize, work: impl Fn(usize, &mut [T]) + Send + Sync) {
        self.each_chunk(data, size, &work);
    }

    /// Calls `work(i)` for every `i` below `count`, in parallel, and returns the results in order.
    pub fn map<R: Send>(&self, count: usize, work: impl Fn(usize) -> R + Send + Sync) -> Vec<R> {
        self.map_each(count, &work)
    }

    /// As [`Pool::for_each_chunk`] over two slices at once. Each has its own chunk size; both have as many chunks.
    pub fn for_each_chunk_pair<A: Send, B: Send>(
        &self,
        (a, size_a): (&mut [A], usize),
        (b, size_b): (&mut [B], usize),
        work: impl Fn(usize, &mut [A], &mut [B]) + Send + Sync,
    ) {
        self.each_pair((a, size_a), (b, size_b), &work);
    }
}

/// Work on a chunk of one slice and a chunk of another.
type PairWork<'w, A, B> = dyn Fn(usize, &mut [A], &mut [B]) + Sync + 'w;

/// The same for any work. The code of rayon is long: it is made once for a type of data, not for each kernel.
impl Pool {
    fn each_chunk<T: Send>(&self, data: &mut [T], size: usize, work: &(dyn Fn(usize, &mut [T]) + Sync)) {
        match &self.threads {
            Some(pool) if data.len() > size => {
                pool.install(|| data.par_chunks_mut(size).enumerate().for_each(|(i, chunk)| work(i, chunk)));
            }
            _ => data.chunks_mut(size).enumerate().for_each(|(i, chunk)| work(i, chunk)),
        }
    }

    fn map_each<R: Send>(&self, count: usize, work: &(dyn Fn(usize) -> R + Sync)) -> Vec<R> {
        match &self.threads {
            Some(pool) if count > 1 => pool.install(|| (0..count).into_par_iter().map(work).collect()),
            _ => (0..count).map(work).collect(),
        }
    }

    fn each_pair<A: Send, B: Send>(
        &self,
        (a, size_a): (&mut [A], usize),
        (b, size_b): (&mut [B], usize),
        work: &PairWork<'_, A, B>,
    ) {
        match &self.threads {
            Some(pool) if a.len() > size_a => pool.install(|| {
                let pairs = a.par_chunks_mut(size_a).zip(b.par_chunks_mut(size_b)).enumerate();
                pairs.for_each(|(i, (a, b))| work(i, a, b));
            }),
            _ => {
                a.chunks_mut(size_a).zip(b.chunks_mut(size_b)).enumerate().for_each(|(i, (a, b))| work(i, a, b));
            }
        }
    }
}
