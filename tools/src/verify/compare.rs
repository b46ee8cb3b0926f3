//! The numbers of a layout beside those of one rank.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use common::format::counted;

use super::numbers::{Part, RankNumbers, StepNumbers, Values};

/// A loss is a mean of some hundred losses, each of two f32 sums. In another order they differ by a few 1e-7.
const LOSS: f64 = 3e-6;

/// A norm is of many f32 gradients. It differs less than the largest difference among them.
const NORM: f64 = 1e-5;

/// Gradients and states are f32 sums over some hundred tokens, through all layers. In another order they differ by some
/// 1e-6 of the parameter's largest. The smallest fault, a missing term, is far above.
const OF_PARAMETER: f32 = 1e-4;

/// The gradient of keys' biases is 0 but for rounding, and rounding is about as large in all parameters.
const OF_ALL: f32 = 1e-6;

/// An update is a difference of two weights, which are rounded to 24 bits.
const OF_WEIGHT: f32 = 4.0 / (1 << 24) as f32;

/// Numbers that are the same.
pub(crate) struct Compared {
    parameters: BTreeSet<String>,
    /// By kind of values: the largest difference, relative to the largest value of its parameter.
    largest: BTreeMap<Values, f32>,
    loss: f64,
    norm: f64,
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_values = self.largest.iter().map(|(values, largest)| format!("{values} {largest:.0e}"));
        let of_values = of_values.collect::<Vec<_>>().join(", ");
        let parameters = counted(self.parameters.len(), "parameter");
        let (loss, norm) = (self.loss, self.norm);
        write!(f, "loss {loss:.0e}, gradient norm {norm:.0e}, and of {parameters}: {of_values}")
    }
}

/// The first number that differs.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// The step, counted from 0.
    step: usize,
    /// The number in words.
    what: String,
    /// The ranks that have another.
    ranks: Vec<usize>,
    /// Values that differ, of those that these ranks have together.
    elements: Option<(usize, usize)>,
    /// Of the first value: here, and on one rank.
    values: (f64, f64),
    /// Ours over one rank's, if all values that differ have the same.
    pub(super) factor: Option<f64>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { step, what, ranks, elements, values: (here, alone), factor } = self;
        let numbers = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let ranks = if ranks.len() > 1 { "ranks" } else { "rank" };
        write!(f, "step {}: the {what} on {ranks} {numbers} ", step + 1)?;
        match factor {
            Some(factor) => write!(f, "is {} that of one rank", times(*factor))?,
            None => f.write_str("differs from that of one rank by no constant factor")?,
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

/// Compares the numbers of all ranks with those of one, step by step.
///
/// # Errors
/// The first number that differs.
pub(super) fn compare(alone: &RankNumbers, ranks: &[RankNumbers]) -> Result<Compared, Difference> {
    let mut compared = Compared { parameters: BTreeSet::new(), largest: BTreeMap::new(), loss: 0.0, norm: 0.0 };
    for (step, alone) in alone.iter().enumerate() {
        let ranks: Vec<&StepNumbers> = ranks.iter().map(|rank| &rank[step]).collect();
        let at_step = |found: Difference| Difference { step, ..found };
        for (at, &(name, loss)) in alone.losses.iter().enumerate() {
            let found = compare_number(name, LOSS, loss, ranks.iter().map(|rank| rank.losses[at].1));
            compared.loss = compared.loss.max(found.map_err(at_step)?);
        }
        compare_loads(alone, &ranks).map_err(at_step)?;
        compare_parts(alone, &ranks, |values| values == Values::Gradient, &mut compared).map_err(at_step)?;
        let norms = ranks.iter().map(|rank| rank.grad_norm.into());
        let norm = compare_number("gradient norm", NORM, alone.grad_norm.into(), norms);
        compared.norm = compared.norm.max(norm.map_err(at_step)?);
        compare_parts(alone, &ranks, |values| values != Values::Gradient, &mut compared).map_err(at_step)?;
    }
    Ok(compared)
}

/// The largest relative difference of a number that every rank has.
fn compare_number(what: &str, allowed: f64, alone: f64, ranks: impl Iterator<Item = f64>) -> Result<f64, Difference> {
    let all: Vec<f64> = ranks.collect();
    let relative = |here: &f64| if *here == alone { 0.0 } else { (here / alone - 1.0).abs() };
    // A number that is none is not within it, either.
    let is_same = |rank: &usize| relative(&all[*rank]) <= allowed;
    let others: Vec<usize> = (0..all.len()).filter(|rank| !is_same(rank)).collect();
    let Some(&first) = others.first() else { return Ok(all.iter().map(relative).fold(0.0, f64::max)) };
    let factor = all[first] / alone;
    let same = others.iter().all(|rank| (all[*rank] / alone / factor - 1.0).abs() < allowed);
    Err(Difference {
        step: 0,
        what: what.into(),
        values: (all[first], alone),
        elements: None,
        factor: Some(factor).filter(|_| same),
        ranks: others,
    })
}

/// Tokens pass the same experts. Otherwise no gradient could be the same.
fn compare_loads(alone: &StepNumbers, ranks: &[&StepNumbers]) -> Result<(), Difference> {
    let tokens =
        |numbers: &StepNumbers| numbers.loads.iter().flat_map(|block| block.tokens.clone()).collect::<Vec<_>>();
    let theirs = tokens(alone);
    let others: Vec<usize> = (0..ranks.len()).filter(|&rank| tokens(ranks[rank]) != theirs).collect();
    let Some(&first) = others.first() else { return Ok(()) };
    let ours = tokens(ranks[first]);
    let at = ours.iter().zip(&theirs).position(|(a, b)| a != b).unwrap_or(0);
    let value = |all: &[f32]| all.get(at).copied().unwrap_or_default().into();
    let values = (value(&ours), value(&theirs));
    Err(Difference { step: 0, what: "load of experts".into(), ranks: others, elements: None, values, factor: None })
}

/// Values of a whole parameter.
struct Whole {
    values: Vec<f32>,
    largest: f32,
    largest_weight: f32,
    allowed: f32,
    /// By element: some rank has it.
    is_there: Vec<bool>,
}

/// Compares every rank's parts of some values with one rank's, parameter by parameter.
fn compare_parts(
    alone: &StepNumbers,
    ranks: &[&StepNumbers],
    chosen: impl Fn(Values) -> bool,
    compared: &mut Compared,
) -> Result<(), Difference> {
    let mut wholes = wholes(alone, &chosen);
    let mut here: HashMap<(Values, &str), Vec<(usize, &Part)>> = HashMap::new();
    for (rank, numbers) in ranks.iter().enumerate() {
        for part in &numbers.parts {
            here.entry((part.values, &part.name)).or_default().push((rank, part));
        }
    }
    for part in &alone.parts {
        let key = (part.values, part.name.as_str());
        // A parameter of several parts is compared at the first one.
        let Some(mut whole) = wholes.remove(&key) else { continue };
        let largest = differences(&mut whole, key, here.get(&key).map_or(&[], Vec::as_slice))?;
        let relative = if whole.largest > 0.0 { largest / whole.largest } else { 0.0 };
        // The largest of a parameter whose values are 0 but for rounding says nothing.
        if whole.largest * OF_PARAMETER > whole.allowed / 2.0 {
            let of_values = compared.largest.entry(part.values).or_default();
            *of_values = of_values.max(relative);
        }
        compared.parameters.insert(part.name.clone());
    }
    Ok(())
}

/// One rank's values of every parameter.
fn wholes<'a>(alone: &'a StepNumbers, chosen: &impl Fn(Values) -> bool) -> HashMap<(Values, &'a str), Whole> {
    let mut wholes: HashMap<(Values, &str), Whole> = HashMap::new();
    let mut largest_of_all: HashMap<Values, f32> = HashMap::new();
    for part in alone.parts.iter().filter(|part| chosen(part.values)) {
        let elements = part.whole.iter().product();
        let whole = wholes.entry((part.values, &part.name)).or_insert_with(|| Whole {
            values: vec![0.0; elements],
            largest: 0.0,
            largest_weight: 0.0,
            allowed: 0.0,
            is_there: vec![false; elements],
        });
        for (place, value) in places(part).zip(&part.here) {
            whole.values[place] = *value;
            whole.largest = whole.largest.max(value.abs());
        }
        let of_all = largest_of_all.entry(part.values).or_default();
        *of_all = of_all.max(whole.largest);
        whole.largest_weight = whole.largest_weight.max(part.largest_weight);
    }
    for ((values, _), whole) in &mut wholes {
        let of_all = OF_ALL * largest_of_all.get(values).copied().unwrap_or_default();
        whole.allowed = OF_PARAMETER * whole.largest + of_all + OF_WEIGHT * whole.largest_weight;
    }
    wholes
}

/// The largest difference between the parts that ranks have and the whole.
fn differences(whole: &mut Whole, (values, name): (Values, &str), parts: &[(usize, &Part)]) -> Result<f32, Difference> {
    let (mut largest, mut others, mut all) = (0.0, BTreeSet::new(), 0);
    let mut different: Vec<(f32, f32)> = Vec::new();
    for (rank, part) in parts {
        let before = different.len();
        for (place, &here) in places(part).zip(&part.here) {
            let alone = whole.values[place];
            whole.is_there[place] = true;
            let by = (here - alone).abs();
            match by <= whole.allowed {
                true => largest = f32::max(largest, by),
                false => different.push((here, alone)),
            }
        }
        if different.len() > before {
            others.insert(*rank);
            all += part.here.len();
        }
    }
    let found = |what: String, values: (f32, f32), elements, factor| Difference {
        step: 0,
        what,
        ranks: others.iter().copied().collect(),
        elements: Some(elements),
        values: (values.0.into(), values.1.into()),
        factor,
    };
    if let Some(&first) = different.first() {
        let factor = constant_factor(&different, whole.largest);
        return Err(found(format!("{values} of {name}"), first, (different.len(), all), factor));
    }
    let missing = whole.is_there.iter().filter(|is_there| !**is_there).count();
    match whole.is_there.iter().position(|is_there| !is_there) {
        Some(at) => {
            let what = format!("{values} of {name}, which no rank has whole,");
            Err(found(what, (f32::NAN, whole.values[at]), (missing, whole.values.len()), None))
        }
        None => Ok(largest),
    }
}

/// Ours over one rank's, if all pairs have about the same. Values that are small beside the parameter's largest have
/// too few exact digits.
fn constant_factor(pairs: &[(f32, f32)], largest: f32) -> Option<f64> {
    let exact = pairs.iter().filter(|(_, alone)| alone.abs() > 0.02 * largest);
    let mut factors: Vec<f64> = exact.map(|(here, alone)| f64::from(*here) / f64::from(*alone)).collect();
    factors.sort_by(f64::total_cmp);
    let middle = *factors.get(factors.len() / 2)?;
    factors.iter().all(|factor| (factor / middle - 1.0).abs() < 0.02).then_some(middle)
}

/// The places of a part's values in the whole parameter.
fn places(part: &Part) -> impl Iterator<Item = usize> + '_ {
    let (sizes, offset) = (&part.slab.sizes, &part.slab.offset);
    (0..part.here.len()).map(move |at| {
        let (mut rest, mut place, mut stride) = (at, 0, 1);
        for axis in (0..sizes.len()).rev() {
            place += (offset[axis] + rest % sizes[axis]) * stride;
            rest /= sizes[axis];
            stride *= part.whole[axis];
        }
        place
    })
}
