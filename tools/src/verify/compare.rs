//! The numbers of a layout beside the numbers of one rank.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use common::format::counted;

use super::difference::{Difference, constant_factor};
use super::numbers::{Numbers, RankNumbers, StepNumbers};
use super::values::{Shard, Values};

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

/// One rank in the run's number format is off that rank's f32 numbers by some error. Ranks round at other places, so they
/// are off by an error of the same size and another direction: the two are at most twice the error apart, and the error
/// of a shard of a parameter is no more than a few times that of the whole.
const ERRORS: f32 = 3.0;

/// Sums of gradients are rounded to bf16 between ranks, and on one rank nothing is: 8 bits, with room for a sum that is
/// smaller than its terms.
const OF_VALUES: f32 = 1.0 / 64.0;

/// What a constant factor may leave, as a share of the values: of f32 ones, and of ones in such a format.
const LEFT: f64 = 0.02;
const LEFT_BY_ROUNDING: f64 = 0.3;

/// How far numbers of several ranks may be from the numbers of one rank.
#[derive(Clone, Copy)]
pub(super) enum Bounds<'n> {
    /// All are f32. Sums are in another order.
    Sums,
    /// The run's own format. These are one rank's numbers in f32, by which one rank's rounding is known.
    Rounding(&'n RankNumbers),
}

/// Numbers that are the same.
#[derive(Default)]
pub(crate) struct Compared {
    parameters: BTreeSet<String>,
    /// By kind of values: the largest difference, relative to the largest value of its parameter; or, of rounded ones,
    /// the largest root mean square of differences, relative to that of the values.
    largest: BTreeMap<Values, f32>,
    loss: f64,
    norm: f64,
    /// Tensors that one rank has loaded from the checkpoint of several.
    loaded: Option<usize>,
}

impl Compared {
    /// What was compared, in lines.
    pub(super) fn lines(&self) -> Vec<String> {
        let loaded = self.loaded.map(|tensors| {
            let tensors = counted(tensors, "tensor");
            format!("checkpoint: {tensors} with the same bits after one rank has loaded them")
        });
        [format!("differences: {self}")].into_iter().chain(loaded).collect()
    }
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

/// Compares the numbers of all ranks with one rank's, step by step, then what one rank loads of the ranks' checkpoint.
///
/// # Errors
/// The first number that differs.
pub(super) fn compare(alone: &RankNumbers, numbers: &Numbers, bounds: Bounds<'_>) -> Result<Compared, Box<Difference>> {
    let ranks = &numbers.ranks;
    let exact = match bounds {
        Bounds::Sums => None,
        Bounds::Rounding(exact) => Some(exact),
    };
    let mut compared = Compared::default();
    for (step, alone) in alone.steps.iter().enumerate() {
        let ranks: Vec<&StepNumbers> = ranks.iter().map(|rank| &rank.steps[step]).collect();
        compare_step(alone, &ranks, exact.map(|exact| &exact.steps[step]), &mut compared)
            .map_err(|found| Box::new(Difference { step: Some(step), ..*found }))?;
    }
    // Frozen weights have no update, and selection biases have no gradient.
    let shards: Vec<&[Shard]> = ranks.iter().map(|rank| &rank.kept[..]).collect();
    let exact = exact.map(|exact| &exact.kept[..]);
    let last = alone.steps.len() - 1;
    compare_shards(&alone.kept, &shards, exact, |values| values == Values::Weight, &mut compared)
        .map_err(|found| Box::new(Difference { step: Some(last), ..*found }))?;
    compared.loaded = numbers.loaded.as_deref().map(|loaded| compare_checkpoint(loaded, &shards)).transpose()?;
    Ok(compared)
}

fn compare_step(
    alone: &StepNumbers,
    ranks: &[&StepNumbers],
    exact: Option<&StepNumbers>,
    compared: &mut Compared,
) -> Result<(), Box<Difference>> {
    compare_loads(alone, ranks)?;
    let allowed = |in_f32: f64, here: f64, exact: Option<f64>| match exact {
        Some(exact) => f64::from(ERRORS) * (here / exact - 1.0).abs() + f64::from(OF_VALUES),
        None => in_f32,
    };
    for (at, &(name, loss)) in alone.losses.iter().enumerate() {
        let allowed = allowed(LOSS, loss, exact.map(|exact| exact.losses[at].1));
        let largest = compare_number(name, allowed, loss, ranks.iter().map(|rank| rank.losses[at].1))?;
        compared.loss = compared.loss.max(largest);
    }
    let shards: Vec<&[Shard]> = ranks.iter().map(|rank| &rank.shards[..]).collect();
    let exact_shards = exact.map(|exact| &exact.shards[..]);
    compare_shards(&alone.shards, &shards, exact_shards, |values| values == Values::Gradient, compared)?;
    let (norm, exact) = (alone.grad_norm.into(), exact.map(|exact| exact.grad_norm.into()));
    let norms = ranks.iter().map(|rank| rank.grad_norm.into());
    compared.norm = compared.norm.max(compare_number("gradient norm", allowed(NORM, norm, exact), norm, norms)?);
    compare_shards(&alone.shards, &shards, exact_shards, |values| values != Values::Gradient, compared)
}

/// Compares what one rank loads from a checkpoint with what all ranks have. Returns the number of tensors.
///
/// # Errors
/// The first value with other bits; a tensor that one rank does not load.
fn compare_checkpoint(loaded: &[Shard], ranks: &[&[Shard]]) -> Result<usize, Box<Difference>> {
    let mut here = by_parameter(ranks);
    let mut wholes = wholes(loaded, None, &|_| true);
    wholes.values_mut().for_each(|whole| whole.allowed = Allowed::Each(0.0));
    let tensors = wholes.len();
    for shard in loaded {
        let key = (shard.values, shard.name.as_str());
        let Some(mut whole) = wholes.remove(&key) else { continue };
        differences(&mut whole, key, &here.remove(&key).unwrap_or_default())?;
    }
    match here.into_iter().min_by_key(|(key, _)| *key) {
        None => Ok(tensors),
        Some(((values, name), shards)) => Err(Box::new(Difference {
            what: format!("{values} of {name}, which one rank does not load,"),
            ranks: shards.iter().map(|(rank, _)| *rank).collect::<BTreeSet<_>>().into_iter().collect(),
            values: (shards[0].1.here.first().copied().unwrap_or(f32::NAN).into(), f64::NAN),
            ..Difference::default()
        })),
    }
}

/// The largest relative difference of a number that every rank has.
fn compare_number(
    what: &str,
    allowed: f64,
    alone: f64,
    ranks: impl Iterator<Item = f64>,
) -> Result<f64, Box<Difference>> {
    let all: Vec<f64> = ranks.collect();
    let relative = |here: &f64| if *here == alone { 0.0 } else { (here / alone - 1.0).abs() };
    // A number that is none is not within it, either.
    let is_same = |rank: &usize| relative(&all[*rank]) <= allowed;
    let others: Vec<usize> = (0..all.len()).filter(|rank| !is_same(rank)).collect();
    let Some(&first) = others.first() else { return Ok(all.iter().map(relative).fold(0.0, f64::max)) };
    let factor = all[first] / alone;
    let same = others.iter().all(|rank| (all[*rank] / alone / factor - 1.0).abs() < allowed);
    let (what, values, factor) = (what.into(), (all[first], alone), Some(factor).filter(|_| same));
    Err(Box::new(Difference { what, values, factor, ranks: others, ..Difference::default() }))
}

/// Tokens pass the same experts. Otherwise no gradient could be the same.
fn compare_loads(alone: &StepNumbers, ranks: &[&StepNumbers]) -> Result<(), Box<Difference>> {
    let tokens =
        |numbers: &StepNumbers| numbers.loads.iter().flat_map(|block| block.tokens.clone()).collect::<Vec<_>>();
    let theirs = tokens(alone);
    let others: Vec<usize> = (0..ranks.len()).filter(|&rank| tokens(ranks[rank]) != theirs).collect();
    let Some(&first) = others.first() else { return Ok(()) };
    let ours = tokens(ranks[first]);
    let more: f32 = ours.iter().zip(&theirs).map(|(here, alone)| (here - alone).max(0.0)).sum();
    let fewer: f32 = ours.iter().zip(&theirs).map(|(here, alone)| (alone - here).max(0.0)).sum();
    let all: f32 = theirs.iter().sum();
    Err(Box::new(Difference {
        what: "load of experts".into(),
        ranks: others,
        values: (ours.iter().sum::<f32>().into(), all.into()),
        choices: Some((more.max(fewer) as usize, all as usize)),
        ..Difference::default()
    }))
}

/// Values of a whole parameter.
struct Whole {
    values: Vec<f32>,
    largest: f32,
    largest_weight: f32,
    allowed: Allowed,
    /// By element: some rank has it.
    is_there: Vec<bool>,
}

impl Whole {
    fn new(shard: &Shard) -> Whole {
        let elements = shard.whole.iter().product();
        let (values, is_there) = (vec![0.0; elements], vec![false; elements]);
        Whole { values, largest: 0.0, largest_weight: 0.0, allowed: Allowed::Each(0.0), is_there }
    }

    fn add(&mut self, shard: &Shard) {
        for (place, value) in places(shard).zip(&shard.here) {
            self.values[place] = *value;
            self.largest = self.largest.max(value.abs());
        }
        self.largest_weight = self.largest_weight.max(shard.largest_weight);
    }
}

/// How far values may be from one rank's.
enum Allowed {
    /// The same bound for each value.
    Each(f32),
    /// The root mean square over what a rank has, by the error of each of one rank's values.
    ByErrors(Vec<f32>),
}

/// Root mean square.
fn rms(values: impl Iterator<Item = f32>) -> f32 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + f64::from(value).powi(2), count + 1));
    (sum / f64::from(count.max(1))).sqrt() as f32
}

type ByParameter<'p, T> = HashMap<(Values, &'p str), T>;

/// The shards that ranks have, rank by rank.
fn by_parameter<'p>(ranks: &[&'p [Shard]]) -> ByParameter<'p, Vec<(usize, &'p Shard)>> {
    let mut here: ByParameter<'p, Vec<(usize, &Shard)>> = HashMap::new();
    for (rank, shards) in ranks.iter().enumerate() {
        for shard in *shards {
            here.entry((shard.values, &shard.name)).or_default().push((rank, shard));
        }
    }
    here
}

/// Compares every rank's shards of some values with one rank's, parameter by parameter.
fn compare_shards(
    alone: &[Shard],
    ranks: &[&[Shard]],
    exact: Option<&[Shard]>,
    chosen: impl Fn(Values) -> bool,
    compared: &mut Compared,
) -> Result<(), Box<Difference>> {
    let mut wholes = wholes(alone, exact, &chosen);
    let here = by_parameter(ranks);
    for shard in alone {
        let key = (shard.values, shard.name.as_str());
        // A parameter of several shards is compared at the first one.
        let Some(mut whole) = wholes.remove(&key) else { continue };
        let largest = differences(&mut whole, key, here.get(&key).map_or(&[], Vec::as_slice))?;
        let (relative, says) = match &whole.allowed {
            Allowed::Each(allowed) => (largest / whole.largest, whole.largest * OF_PARAMETER > allowed / 2.0),
            Allowed::ByErrors(errors) => {
                let values = rms(whole.values.iter().copied());
                (largest / values, values > rms(errors.iter().copied()))
            }
        };
        // The largest of a parameter whose values are 0 but for rounding says nothing.
        if says {
            let of_values = compared.largest.entry(shard.values).or_default();
            *of_values = of_values.max(relative);
        }
        compared.parameters.insert(shard.name.clone());
    }
    Ok(())
}

/// One rank's values of every parameter. `exact` are the same in f32, if these are rounded.
fn wholes<'a>(alone: &'a [Shard], exact: Option<&[Shard]>, chosen: &impl Fn(Values) -> bool) -> ByParameter<'a, Whole> {
    let mut wholes: ByParameter<'a, Whole> = HashMap::new();
    let mut largest_of_all: HashMap<Values, f32> = HashMap::new();
    for shard in alone.iter().filter(|shard| chosen(shard.values)) {
        let whole = wholes.entry((shard.values, &shard.name)).or_insert_with(|| Whole::new(shard));
        whole.add(shard);
        let of_all = largest_of_all.entry(shard.values).or_default();
        *of_all = of_all.max(whole.largest);
    }
    let exact = exact.map(|exact| self::wholes(exact, None, chosen));
    for ((values, name), whole) in &mut wholes {
        let of_all = OF_ALL * largest_of_all.get(values).copied().unwrap_or_default();
        let each = OF_PARAMETER * whole.largest + of_all + OF_WEIGHT * whole.largest_weight;
        whole.allowed = match exact.as_ref().and_then(|exact| exact.get(&(*values, *name))) {
            Some(exact) => {
                let errors = whole.values.iter().zip(&exact.values).map(|(rounded, exact)| rounded - exact);
                Allowed::ByErrors(errors.collect())
            }
            None => Allowed::Each(each),
        };
    }
    wholes
}

/// The largest difference between the shards that ranks have and the whole.
fn differences(
    whole: &mut Whole,
    (values, name): (Values, &str),
    shards: &[(usize, &Shard)],
) -> Result<f32, Box<Difference>> {
    let (mut largest, mut others, mut all) = (0.0, BTreeSet::new(), 0);
    let mut different: Vec<(f32, f32)> = Vec::new();
    for of_rank in shards.chunk_by(|one, other| one.0 == other.0) {
        let at: Vec<usize> = of_rank.iter().flat_map(|(_, shard)| places(shard)).collect();
        let here = of_rank.iter().flat_map(|(_, shard)| &shard.here);
        let pairs: Vec<(f32, f32)> = here.copied().zip(at.iter().map(|&place| whole.values[place])).collect();
        at.iter().for_each(|&place| whole.is_there[place] = true);
        let before = different.len();
        largest = f32::max(largest, add_different(whole, &at, &pairs, &mut different));
        if different.len() > before {
            others.insert(of_rank[0].0);
            all += pairs.len();
        }
    }
    let found = |what: String, values: (f32, f32), elements, factor| {
        let ranks = others.iter().copied().collect();
        let values = (values.0.into(), values.1.into());
        let elements = Some(elements);
        Err(Box::new(Difference { what, ranks, elements, values, factor, ..Difference::default() }))
    };
    if let Some(&first) = different.first() {
        let spread = if matches!(whole.allowed, Allowed::Each(_)) { LEFT } else { LEFT_BY_ROUNDING };
        let factor = constant_factor(&different, spread);
        return found(format!("{values} of {name}"), first, (different.len(), all), factor);
    }
    let missing = whole.is_there.iter().filter(|is_there| !**is_there).count();
    match whole.is_there.iter().position(|is_there| !is_there) {
        Some(at) => {
            let what = format!("{values} of {name}, which no rank has whole,");
            found(what, (f32::NAN, whole.values[at]), (missing, whole.values.len()), None)
        }
        None => Ok(largest),
    }
}

/// Adds the pairs of a rank, ours and one rank's at the given places, that are further apart than allowed. Returns the
/// difference of the others.
fn add_different(whole: &Whole, at: &[usize], pairs: &[(f32, f32)], different: &mut Vec<(f32, f32)>) -> f32 {
    let by = |pair: &(f32, f32)| (pair.0 - pair.1).abs();
    match &whole.allowed {
        Allowed::Each(most) => {
            // A value that is no number is not within it, either.
            let (same, others): (Vec<_>, Vec<_>) = pairs.iter().partition(|pair| by(pair) <= *most);
            different.extend(others);
            same.iter().map(by).fold(0.0, f32::max)
        }
        Allowed::ByErrors(errors) => {
            let error = rms(at.iter().map(|&place| errors[place])) + rms(errors.iter().copied());
            let allowed = ERRORS / 2.0 * error + OF_VALUES * rms(pairs.iter().map(|pair| pair.1));
            let apart = rms(pairs.iter().map(by));
            match apart <= allowed {
                true => apart,
                false => {
                    different.extend(pairs.iter().filter(|pair| pair.0 != pair.1));
                    0.0
                }
            }
        }
    }
}

/// The places of a shard's values in the whole parameter: row by row, as most of them lie side by side.
fn places(shard: &Shard) -> impl Iterator<Item = usize> + '_ {
    let (sizes, offset) = (&shard.slab.sizes, &shard.slab.offset);
    let last = sizes.len() - 1;
    (0..shard.here.len() / sizes[last].max(1)).flat_map(move |row| {
        let (mut rest, mut first, mut stride) = (row, offset[last], shard.whole[last]);
        for axis in (0..last).rev() {
            first += (offset[axis] + rest % sizes[axis]) * stride;
            rest /= sizes[axis];
            stride *= shard.whole[axis];
        }
        first..first + sizes[last]
    })
}
