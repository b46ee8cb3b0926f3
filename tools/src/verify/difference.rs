//! A number that differs, in words.

use std::fmt;

/// The first number that differs.
#[derive(Clone, Debug, Default)]
pub(super) struct Difference {
    /// The step, counted from 0; `None` of a checkpoint.
    pub(super) step: Option<usize>,
    /// The number in words.
    pub(super) what: String,
    /// The ranks that have another.
    pub(super) ranks: Vec<usize>,
    /// Values that differ, of all values that `ranks` have together.
    pub(super) elements: Option<(usize, usize)>,
    /// Of the first value: here, and on one rank.
    pub(super) values: (f64, f64),
    /// The factor of ours over one rank's, if all values that differ have the same.
    pub(super) factor: Option<f64>,
    /// Tokens chose other experts: so many choices at least, of all.
    pub(super) choices: Option<(usize, usize)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { step, what, ranks, elements, values: (here, alone), factor, choices } = self;
        let numbers = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let ranks = if ranks.len() > 1 { "ranks" } else { "rank" };
        let beside = if step.is_some() { "that of one rank" } else { "what one rank loads" };
        match step {
            Some(step) => write!(f, "step {}: ", step + 1)?,
            None => f.write_str("a checkpoint: ")?,
        }
        if let Some((others, all)) = choices {
            let chose = "tokens chose other experts than on one rank";
            return write!(
                f,
                "{chose}: at least {others} of {all} choices, by the load of experts on {ranks} {numbers}"
            );
        }
        write!(f, "the {what} on {ranks} {numbers} ")?;
        match factor {
            Some(factor) => write!(f, "is {} {beside}", times(*factor))?,
            None => write!(f, "differs from {beside} by no constant factor")?,
        }
        write!(f, " ({here:.4e} instead of {alone:.4e}")?;
        match elements {
            Some((some, all)) => write!(f, "; {some} of {all} values)"),
            None => f.write_str(")"),
        }
    }
}

/// A factor in words: `2 times`, `1/2 of`.
fn times(factor: f64) -> String {
    let whole = |factor: f64| Some(factor.round()).filter(|whole| (factor / whole - 1.0).abs() < 1e-3);
    match (whole(factor), whole(1.0 / factor)) {
        (Some(n), _) => format!("{n} times"),
        (_, Some(n)) => format!("1/{n} of"),
        _ => format!("{factor:.4} times"),
    }
}

/// The factor of ours over one rank's, if all pairs have about the same: what is left of ours without it is no more than
/// `spread`, a share of ours. A factor that may be a whole number, or one over it, is that.
pub(super) fn constant_factor(pairs: &[(f32, f32)], spread: f64) -> Option<f64> {
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        pairs.iter().map(|(here, alone)| of(f64::from(*here), f64::from(*alone))).sum()
    };
    let factor = sum(&|here, alone| here * alone) / sum(&|_, alone| alone * alone);
    let left = sum(&|here, alone| (here - factor * alone).powi(2)) / sum(&|here, _| here * here);
    let near = |whole: f64| Some(whole).filter(|whole| (factor / whole - 1.0).abs() < spread / 2.0);
    let near = near(factor.round()).or_else(|| near(1.0 / (1.0 / factor).round()));
    (left.sqrt() < spread).then_some(near.unwrap_or(factor))
}
