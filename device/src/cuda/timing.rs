//! Timing of candidates on the GPU, before anything is captured, to find the fastest of several methods.

use super::driver::{DeviceMemory, RawEvent, RawStream};
use super::kernels::Kernels;
use crate::cuda::{Arg, Grid};
use crate::{BufferId, DType, Result, Shape, Tensor};

/// How often each candidate is measured at most.
const ROUNDS: usize = 5;
/// Consecutive runs in one measurement at most.
const RUNS: usize = 3;
/// A candidate that has run for so many milliseconds, measured, is not measured again.
const ENOUGH_MS: f32 = 60.0;
/// Work that takes at least so many milliseconds is measured again at the settled clock. Only candidates with a short
/// measurement of at most [`CLOSE`] times the best take part, and at most [`FINALISTS`] of them.
const LONG_MS: f32 = 0.25;
const CLOSE: f32 = 1.1;
const FINALISTS: usize = 4;
/// How long a candidate runs alone until the clock counts as settled, milliseconds.
const SETTLE_MS: f32 = 40.0;
/// How long a candidate is measured after that, milliseconds.
const WINDOW_MS: f32 = 40.0;

/// Median milliseconds of a run of each candidate. `None` for candidates that fail.
///
/// Candidates take turns, so that a change of clock speeds affects all of them alike. Each turn begins with a run that
/// is not measured. Work on long samples takes a second: the first round tells which candidates are worth more.
///
/// # Errors
/// The driver's.
pub(super) fn medians(
    stream: &RawStream,
    candidates: usize,
    mut run: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Option<f32>>> {
    let usable: Vec<bool> = (0..candidates).map(|candidate| run(candidate).is_ok()).collect();
    stream.synchronize()?;
    let (start, end) = (RawEvent::timed()?, RawEvent::timed()?);
    let mut times = vec![Vec::new(); candidates];
    for _ in 0..ROUNDS {
        for candidate in contenders(&times).into_iter().filter(|candidate| usable[*candidate]) {
            let runs = times[candidate].first().map_or(1, |once| (ENOUGH_MS / once).clamp(1.0, RUNS as f32) as usize);
            run(candidate)?;
            stream.record(&start)?;
            for _ in 0..runs {
                run(candidate)?;
            }
            stream.record(&end)?;
            end.synchronize()?;
            times[candidate].push(start.elapsed_ms(&end)? / runs as f32);
        }
    }
    Ok(times.into_iter().map(median).collect())
}

/// The candidates that one more round measures, by the rounds so far. Long work that is far from the best, or that has run
/// for long, needs no more.
fn contenders(times: &[Vec<f32>]) -> Vec<usize> {
    let best = times.iter().filter_map(|times| median(times.clone())).min_by(f32::total_cmp).unwrap_or(0.0);
    let goes_on = |times: &[f32]| match median(times.to_vec()) {
        Some(time) if best >= LONG_MS => time <= best * CLOSE * CLOSE && times.iter().sum::<f32>() < ENOUGH_MS,
        _ => true,
    };
    (0..times.len()).filter(|candidate| goes_on(&times[*candidate])).collect()
}

/// Measures the best candidates of long work again, each alone for so long that the clock has settled to the power that it
/// draws. In a short measurement a GPU runs faster than it can for long, and a candidate that draws more power looks better
/// than it is. `times` are those of [`medians`]. If any are measured again, the others get `None`.
///
/// # Errors
/// The driver's.
pub(super) fn settled(
    stream: &RawStream,
    times: Vec<Option<f32>>,
    mut run: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Option<f32>>> {
    let close = finalists(&times);
    if close.len() < 2 {
        return Ok(times);
    }
    let (start, end) = (RawEvent::timed()?, RawEvent::timed()?);
    let mut again = vec![None; times.len()];
    for (candidate, short) in close {
        let runs = |milliseconds: f32| (milliseconds / short).ceil().max(3.0) as usize;
        (0..runs(SETTLE_MS)).try_for_each(|_| run(candidate))?;
        stream.record(&start)?;
        (0..runs(WINDOW_MS)).try_for_each(|_| run(candidate))?;
        stream.record(&end)?;
        end.synchronize()?;
        again[candidate] = Some(start.elapsed_ms(&end)? / runs(WINDOW_MS) as f32);
    }
    Ok(again)
}

/// The candidates that are close to the best, best first, with their times.
fn finalists(times: &[Option<f32>]) -> Vec<(usize, f32)> {
    let Some((_, best)) = fastest(times).filter(|(_, best)| *best >= LONG_MS) else { return Vec::new() };
    let measured = times.iter().enumerate().filter_map(|(candidate, time)| time.map(|time| (candidate, time)));
    let mut close: Vec<_> = measured.filter(|(_, time)| *time <= best * CLOSE).collect();
    close.sort_by(|a, b| a.1.total_cmp(&b.1));
    close.truncate(FINALISTS);
    close
}

fn median(mut times: Vec<f32>) -> Option<f32> {
    times.sort_by(f32::total_cmp);
    times.get(times.len() / 2).copied()
}

/// The candidate with the least time, and that time.
pub(super) fn fastest(times: &[Option<f32>]) -> Option<(usize, f32)> {
    let measured = times.iter().enumerate().filter_map(|(candidate, time)| time.map(|time| (candidate, time)));
    measured.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Memory for a measurement, freed when dropped.
#[derive(Default)]
pub(super) struct TimingMemory {
    blocks: Vec<DeviceMemory>,
}

impl TimingMemory {
    /// A tensor of random values. `None` if the GPU has too little memory.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn tensor(
        &mut self,
        shape: Shape,
        dtype: DType,
        kernels: &Kernels,
        stream: &RawStream,
    ) -> Result<Option<Tensor>> {
        let count = shape.elements();
        let Some(address) = self.scratch(count * dtype.size())? else { return Ok(None) };
        let kernel = match dtype {
            DType::Bf16 => "random_bf16",
            DType::F8E4M3 => "random_f8e4m3",
            DType::F8E5M2 => "random_f8e5m2",
            _ => "random_f32",
        };
        let grid = Grid::line(count.div_ceil(1024).clamp(1, 4096), 256);
        let seed = self.blocks.len() as u32;
        kernels.launch(stream, kernel, grid, &[Arg::Pointer(address), Arg::U64(count as u64), Arg::U32(seed)])?;
        Ok(Some(Tensor { address, shape, dtype, buffer: BufferId::NOTHING }))
    }

    /// A tensor of ones, f32. `None` if the GPU has too little memory.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn ones(&mut self, shape: Shape, kernels: &Kernels, stream: &RawStream) -> Result<Option<Tensor>> {
        let (count, dtype) = (shape.elements(), DType::F32);
        let Some(address) = self.scratch(count * dtype.size())? else { return Ok(None) };
        let grid = Grid::line(count.div_ceil(1024).clamp(1, 4096), 256);
        let arguments = [Arg::Pointer(address), Arg::F32(1.0), Arg::U64(count as u64)];
        kernels.launch(stream, "fill_f32_scalar", grid, &arguments)?;
        Ok(Some(Tensor { address, shape, dtype, buffer: BufferId::NOTHING }))
    }

    /// The address of memory with arbitrary values. `None` if the GPU has too little.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn scratch(&mut self, bytes: usize) -> Result<Option<u64>> {
        let Some(block) = DeviceMemory::new(bytes.max(1))? else { return Ok(None) };
        let address = block.address();
        self.blocks.push(block);
        Ok(Some(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_candidate_is_the_least_of_the_medians_and_failed_ones_do_not_count() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(Vec::new()), None);
        assert_eq!(fastest(&[Some(3.0), None, Some(1.0), Some(2.0)]), Some((2, 1.0)));
        assert_eq!(fastest(&[None]), None);
    }

    #[test]
    fn long_work_is_measured_until_it_has_run_for_long_and_while_it_is_close_to_the_best() {
        let (long, far) = (vec![ENOUGH_MS], vec![ENOUGH_MS * 2.0]);
        assert_eq!(contenders(&[vec![], vec![]]), [0, 1]);
        assert_eq!(contenders(&[long, far]), [] as [usize; 0]);
        assert_eq!(contenders(&[vec![1.0], vec![1.2], vec![1.3], vec![]]), [0, 1, 3]);
        assert_eq!(contenders(&[vec![0.01; 4], vec![0.03; 4]]), [0, 1]);
    }

    #[test]
    fn of_long_work_the_candidates_close_to_the_best_are_measured_again() {
        assert_eq!(finalists(&[Some(1.05), None, Some(1.0), Some(1.2)]), [(2, 1.0), (0, 1.05)]);
        assert_eq!(finalists(&[Some(1.0); 6]).len(), FINALISTS);
        assert_eq!(finalists(&[Some(0.01), Some(0.01)]), []);
        assert_eq!(finalists(&[None]), []);
    }
}
