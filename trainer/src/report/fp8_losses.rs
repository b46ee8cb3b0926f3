//! The losses of 8-bit copies: in a step's numbers, and as warnings about single tensors.

use engine::fp8::{Fp8Losses, Losses, TensorCounts, TensorKind};

/// The shares by name, for TensorBoard and Weights & Biases.
pub(crate) fn scalars(losses: &Fp8Losses) -> [(&'static str, f64); 6] {
    let Fp8Losses { input, weight, grad_output } = losses;
    [
        ("fp8/input_saturated", input.saturated),
        ("fp8/input_underflowed", input.underflowed),
        ("fp8/weight_saturated", weight.saturated),
        ("fp8/weight_underflowed", weight.underflowed),
        ("fp8/grad_output_saturated", grad_output.saturated),
        ("fp8/grad_output_underflowed", grad_output.underflowed),
    ]
}

/// The shares, for a line on the console.
pub(crate) fn words(losses: &Fp8Losses) -> String {
    let shares = |of: fn(Losses) -> f64| losses.by_kind().map(|(_, losses)| percent(of(losses))).join(" ");
    let (saturated, underflowed) = (shares(|of| of.saturated), shares(|of| of.underflowed));
    format!("8 bits (input weight grad): saturated {saturated}, underflowed {underflowed}")
}

/// A share in percent. A share above 0 does not look like 0.
fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".into(),
        percent if percent < 0.001 => "<0.001 %".into(),
        percent => format!("{percent:.3} %"),
    }
}

/// A tensor is reported when so many measured steps in a row show the same.
const STEPS: usize = 3;
/// A tensor with a larger share of saturated values is reported.
const MOST_SATURATED: f64 = 0.01;

/// Looks for tensors that 8 bits do not suit, and tells of each once.
pub(crate) struct Fp8Watch {
    /// Scales follow from earlier steps.
    delayed: bool,
    /// For each tensor, the measured steps in a row with each trouble: all values are 0 and the scale stays as it was;
    /// a value is not finite and the scale stays; too many values are beyond the largest number.
    seen: Vec<[usize; 3]>,
}

impl Fp8Watch {
    /// The watch for a recipe. Its scales are `delayed`, or made from the values that they scale.
    pub(crate) fn new(delayed: bool) -> Fp8Watch {
        Fp8Watch { delayed, seen: Vec::new() }
    }

    /// Warnings about the counts of a step. Every step has the same tensors.
    pub(crate) fn look(&mut self, counts: &[TensorCounts]) -> Vec<String> {
        let mut warnings = Vec::new();
        self.seen.resize(counts.len(), [0; 3]);
        for (TensorCounts { weight, kind, counts }, seen) in counts.iter().zip(&mut self.seen) {
            // A weight's scale is made from the weight's current values.
            let stays = self.delayed && *kind != TensorKind::Weight;
            let saturated = counts.saturated as f64 / counts.values.max(1) as f64;
            let tensor = match kind {
                TensorKind::Input => format!("the input of {weight}"),
                TensorKind::Weight => weight.clone(),
                TensorKind::GradOutput => format!("the gradient of the output of {weight}"),
            };
            let troubles = [
                (stays && counts.zeros == counts.values, "is all zeros: its 8-bit scale is stuck".into()),
                (
                    stays && counts.not_finite > 0,
                    format!("has {} values that are not finite: its 8-bit scale is stuck", counts.not_finite),
                ),
                (
                    saturated > MOST_SATURATED,
                    format!("saturates in 8 bits: {} of its values are beyond the largest number", percent(saturated)),
                ),
            ];
            for ((is_there, what), seen) in troubles.into_iter().zip(seen) {
                match is_there {
                    // It was told.
                    _ if *seen >= STEPS => continue,
                    true => *seen += 1,
                    false => *seen = 0,
                }
                if *seen == STEPS {
                    warnings.push(format!("{tensor} {what}, in {STEPS} measured steps in a row"));
                }
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use device::ops::QuantizeCounts;

    use super::*;

    fn tensor(kind: TensorKind, counts: QuantizeCounts) -> TensorCounts {
        TensorCounts { weight: "h.0.mlp.c_fc.weight".into(), kind, counts }
    }

    const FINE: QuantizeCounts =
        QuantizeCounts { values: 1000, zeros: 10, not_finite: 0, saturated: 3, underflowed: 400 };

    #[test]
    fn a_tensor_is_told_of_once_after_some_steps_in_a_row() {
        let zeros = tensor(TensorKind::GradOutput, QuantizeCounts { zeros: 1000, ..FINE });
        let infinite = tensor(TensorKind::Input, QuantizeCounts { not_finite: 2, ..FINE });
        let saturated = tensor(TensorKind::Input, QuantizeCounts { saturated: 20, ..FINE });
        for (trouble, text) in [(zeros, "stuck"), (infinite, "not finite"), (saturated, "2.000 %")] {
            let mut watch = Fp8Watch::new(true);
            let fine = TensorCounts { counts: FINE, ..trouble.clone() };
            let mut told = Vec::new();
            for step in [&trouble, &trouble, &fine, &trouble, &trouble, &trouble, &trouble, &fine, &trouble] {
                told.push(watch.look(std::slice::from_ref(step)));
            }
            let when: Vec<usize> = told.iter().map(Vec::len).collect();
            assert_eq!(when, [0, 0, 0, 0, 0, 1, 0, 0, 0], "{told:?}");
            assert!(told[5][0].contains(text) && told[5][0].contains("h.0.mlp.c_fc.weight"), "{told:?}");
        }
    }

    #[test]
    fn scales_that_follow_from_the_tensor_itself_are_never_stuck() {
        let zeros = QuantizeCounts { zeros: 1000, ..FINE };
        for (delayed, kind) in [(false, TensorKind::Input), (true, TensorKind::Weight)] {
            let mut watch = Fp8Watch::new(delayed);
            let told = (0..5).flat_map(|_| watch.look(&[tensor(kind, zeros)])).count();
            assert_eq!(told, 0, "{delayed} {kind}");
        }
    }

    #[test]
    fn a_small_share_does_not_look_like_none() {
        assert_eq!([0.0, 1e-7, 0.0123].map(percent), ["0 %", "<0.001 %", "1.230 %"]);
    }
}
