//! The trial of an operation: on the host, on the device, and captured on the device.
//!
//! An operation must read and write as it declares, because the order of all work follows from that. It runs among
//! poison: eagerly among one kind, captured among the other. No byte may change that it does not declare to write. It
//! must write the same values both times.

use super::case::Case;
use super::guard::Poison;
use super::workbench::{Poisons, Workbench, Written, distance, left_alone, same};
use crate::{DType, Device, HostOptions, Op, Result, Stream};

/// The largest relative L2 distance between two devices. They add in different orders, and bf16 rounds the sum to 8 bits.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 1e-2,
        // Products have outputs in bf16. A value beside the middle of two 8-bit numbers may go to either.
        DType::F8E4M3 | DType::F8E5M2 => 1e-2,
        _ => 1e-5,
    }
}

/// The result of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the operation is right.
    pub right: bool,
    /// The relative error, or the fault, in words.
    pub text: String,
}

/// Runs an operation on the host, on the stream's device, and captured on the stream, from the same inputs. Each further
/// stream of a device makes its waits longer, so all trials have one.
pub fn run(case: &Case, stream: &Stream) -> Outcome {
    let (text, right) = compared(case, stream).unwrap_or_else(|error| (error.to_string(), false));
    Outcome { right, text }
}

/// The finding, and whether all is right.
fn compared(case: &Case, stream: &Stream) -> Result<(String, bool)> {
    let host = Device::host(HostOptions { threads: 1, check: true, dry: false })?.stream("doctor");
    let poison = Poisons::all(Poison::NotANumber);
    let (theirs, _) = eager(case, &host, poison)?;
    let (ours, undeclared) = eager(case, stream, poison)?;
    let replayed = captured(case, stream, Poisons::all(Poison::Large))?;
    let agree = |other: &Written| {
        same(other, &ours) || may_differ(case, stream.device()) && distance(other, &ours) <= tolerance(case.dtype)
    };
    if !agree(&replayed) {
        // Finds the poison that makes the difference.
        for (number, name) in undeclared {
            let (other, _) = eager(case, stream, Poisons { other: Some((number, Poison::Large)), ..poison })?;
            if !agree(&other) {
                return Ok((format!("reads what it does not declare to read: {name}"), false));
            }
        }
    }
    if let Some(tensor) = left_alone(&ours, &replayed) {
        return Ok((format!("leaves elements alone of {}, which it writes", tensor.name), false));
    }
    let error = distance(&ours, &theirs);
    let ok = error <= tolerance(case.dtype) && agree(&replayed);
    let replay = if same(&replayed, &ours) { "the same bits replayed" } else { "other bits replayed" };
    Ok((format!("relative error {error:.1e}, {replay}"), ok))
}

/// Whether the operation may give other bits each time. cuDNN's default backward attention adds dQ in no fixed order:
/// each block adds its part when it finishes.
fn may_differ(case: &Case, device: &Device) -> bool {
    device.gpu().is_some() && case.name.starts_with("attention backward")
}

/// The results of an operation, and the tensors with bytes that it does not declare to read.
fn eager(case: &Case, stream: &Stream, poisons: Poisons) -> Result<(Written, Vec<(usize, String)>)> {
    let mut bench = Workbench::poisoned(stream, poisons);
    let op = (case.make)(&mut bench)?;
    bench.prepare(&op)?;
    bench.among_poison(&op, || bench.stream.submit(op.clone()))?;
    Ok((bench.written(&op)?, bench.undeclared(&op)))
}

fn captured(case: &Case, stream: &Stream, poisons: Poisons) -> Result<Written> {
    let mut bench = Workbench::poisoned(stream, poisons);
    let op: Op = (case.make)(&mut bench)?;
    bench.prepare(&op)?;
    bench.device.synchronize()?;
    bench.stream.begin_capture()?;
    let submitted = bench.stream.submit(op.clone());
    if submitted.is_err() {
        bench.stream.abandon_capture();
    }
    submitted?;
    let graph = bench.stream.end_capture(&case.name)?;
    bench.among_poison(&op, || graph.launch(&bench.stream))?;
    bench.written(&op)
}

#[cfg(test)]
mod tests {
    use crate::ops::{Copy, CustomOp, Fill};
    use crate::{Accesses, HostTensors, Shape, Tensor};

    use super::*;

    /// An operation that declares to write its output, and does something else with it.
    #[derive(Debug)]
    struct Wrong {
        input: Tensor,
        output: Tensor,
        /// Adds to the output, although it declares only to write it, not to read it. Else it writes all but the last
        /// element.
        adds: bool,
    }

    impl CustomOp for Wrong {
        fn name(&self) -> &'static str {
            "wrong"
        }

        fn accesses(&self) -> Accesses {
            Accesses::new([self.input], [self.output])
        }

        fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
            let (input, output) = (tensors.read::<i32>(&self.input)?, tensors.write::<i32>(&self.output)?);
            match self.adds {
                true => output.iter_mut().zip(input).for_each(|(to, x)| *to = to.wrapping_add(*x)),
                false => output.iter_mut().zip(&input[1..]).for_each(|(to, x)| *to = *x),
            }
            Ok(())
        }
    }

    /// Without the checker: it finds such mistakes itself.
    fn host() -> Device {
        Device::host(HostOptions { check: false, ..HostOptions::default() }).unwrap()
    }

    /// The outcome of a trial of [`Wrong`].
    fn outcome(adds: bool, in_part: bool) -> Outcome {
        let make = move |b: &mut Workbench| {
            b.input([3], DType::F32)?;
            let input = b.integers([4], &[1, 2, 3, 4])?;
            let output = if in_part { b.output_in_part([4], DType::I32)? } else { b.output([4], DType::I32)? };
            Ok(Wrong { input, output, adds }.into())
        };
        run(&Case { name: "wrong".into(), dtype: DType::I32, make: Box::new(make) }, &host().stream("trial"))
    }

    #[test]
    fn an_operation_that_reads_what_it_only_declares_to_write_fails_its_trial() {
        let found = outcome(true, false);
        assert!(!found.right);
        assert_eq!(found.text, "reads what it does not declare to read: tensor 2, (4) of i32");
    }

    #[test]
    fn an_operation_leaves_elements_alone_only_where_its_trial_says_so() {
        let found = outcome(false, false);
        assert!(!found.right);
        assert_eq!(found.text, "leaves elements alone of tensor 2, (4) of i32, which it writes");
        // The checker of the host that it is compared with has other values there.
        let found = outcome(false, true).text;
        assert!(found.starts_with("relative error") && found.ends_with("the same bits replayed"), "{found}");
    }

    #[test]
    fn an_operation_that_changes_what_it_does_not_declare_to_write_fails_its_trial() {
        let mut bench = Workbench::new(&host());
        let [input, output, other] = [(); 3].map(|()| bench.input([3], DType::F32).unwrap());
        let declared: Op = Copy { input, output }.into();
        let error = |does: Op| bench.among_poison(&declared, || bench.stream.submit(does)).unwrap_err().to_string();
        let what = "copy: writes what it does not declare to write: ";
        assert_eq!(
            error(Copy { input: output, output: input }.into()),
            format!("{what}byte 0 of tensor 0, (3) of f32")
        );
        assert_eq!(error(Copy { input, output: other }.into()), format!("{what}byte 0 of tensor 2, (3) of f32"));
        let beyond = Tensor { shape: Shape::new(&[4]), ..output };
        let filled = error(Fill { output: beyond, value: 1.0 }.into());
        assert_eq!(filled, format!("{what}1 bytes behind tensor 1, (3) of f32"));
        let before = Tensor { address: output.address - 4, ..output };
        let filled = error(Fill { output: before, value: 1.0 }.into());
        assert_eq!(filled, format!("{what}4 bytes before tensor 1, (3) of f32"));
        assert_eq!(bench.among_poison(&declared, || bench.stream.submit(declared.clone())), Ok(()));
    }
}
