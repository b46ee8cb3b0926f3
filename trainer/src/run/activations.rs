//! Prints outputs of layers and modules: a few numbers of each.

use device::{DType, Float, Stream, Tensor, bf16};
use engine::hooks::{Hook, HookCall, HookPlace, Hooks};
use graph_manager::Result;

use crate::config::plan::RunPlan;
use crate::process_group::ProcessGroup;
use crate::told::say_and_log;

/// The hooks that print the outputs in `logging.print_activations`. Of ranks with the same layers the first prints, on
/// its own samples and its own part of them.
pub(super) fn hooks(plan: &RunPlan, group: &ProcessGroup) -> Hooks {
    let prints = group.ranks.place(group.ranks.of_stage()).is_first();
    let hook = |(name, place): &(String, HookPlace)| {
        let name = name.clone();
        let print = move |stream: &Stream, call: &HookCall| match prints && call.mode.trains() {
            true => print(&name, stream, call),
            false => Ok(()),
        };
        (*place, Hook::reads("the host waits for what it prints", print))
    };
    Hooks::new(plan.printed.0.iter().map(hook))
}

fn print(name: &str, stream: &Stream, HookCall { microbatch, value, .. }: &HookCall) -> Result<()> {
    let mut values = read(stream, &value.x)?;
    if let Some(delta) = value.delta {
        values.iter_mut().zip(read(stream, &delta)?).for_each(|(value, delta)| *value += delta);
    }
    say_and_log(&format!("{name}, microbatch {microbatch}: {}", Numbers::of(&values)));
    Ok(())
}

fn read(stream: &Stream, tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(match tensor.dtype {
        DType::Bf16 => stream.read::<bf16>(tensor)?.wait()?.into_iter().map(Float::to_f32).collect(),
        _ => stream.read::<f32>(tensor)?.wait()?,
    })
}

/// The numbers that are printed of an output.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Numbers {
    mean: f64,
    /// Root mean square.
    rms: f64,
    /// The largest magnitude.
    largest: f32,
    /// Values that are infinite or no number. The other numbers are those of all others.
    not_finite: usize,
}

impl Numbers {
    fn of(values: &[f32]) -> Numbers {
        let finite = || values.iter().filter(|value| value.is_finite());
        let count = finite().count();
        let mean = |sum: f64| sum / count.max(1) as f64;
        Numbers {
            mean: mean(finite().map(|value| f64::from(*value)).sum()),
            rms: mean(finite().map(|value| f64::from(*value).powi(2)).sum()).sqrt(),
            largest: finite().fold(0.0, |largest, value| value.abs().max(largest)),
            not_finite: values.len() - count,
        }
    }
}

impl std::fmt::Display for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Numbers { mean, rms, largest, not_finite } = *self;
        write!(f, "mean {mean:.3e}, rms {rms:.3e}, largest {largest:.3e}")?;
        if not_finite > 0 {
            write!(f, ", {not_finite} not finite")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Numbers;

    #[test]
    fn values_that_are_not_finite_are_counted_and_left_out() {
        let numbers = Numbers::of(&[1.0, -3.0, f32::NAN, 2.0, f32::INFINITY]);
        assert_eq!(numbers.to_string(), "mean 0.000e0, rms 2.160e0, largest 3.000e0, 2 not finite");
        assert_eq!(Numbers::of(&[-0.5]).to_string(), "mean -5.000e-1, rms 5.000e-1, largest 5.000e-1");
    }
}
