//! Muon: the matrices of the momentum are made orthogonal.
//!
//! An update needs whole matrices, and ranks have parts of them. They come together in `main_grad`, because no gradient
//! is read after the other rules have run:
//!
//! 1. Each rank updates the momentum of the elements that it owns, and writes their direction over their gradient.
//! 2. With a distributed optimizer the data-parallel ranks gather each bucket.
//! 3. Each matrix belongs to one data-parallel rank, balanced by cost. That rank makes it orthogonal, after it has gathered
//!    the shards of tensor-parallel ranks. These all do the same work. The other data-parallel ranks write zeros.
//! 4. The data-parallel ranks sum each bucket, so that each has the directions of its own elements. The other summands
//!    are zeros, so the sum is exact.
//! 5. Each rank updates the weights that it owns.
//!
//! If ranks divide gradients, steps 2 to 4 are done for two layers at a time, in the buffers for whole gradients.
//!
//! Of an expert's matrix, data-parallel ranks are those that have it.

use std::collections::HashMap;
use std::rc::Rc;

use device::ops::{
    Collective, CollectiveKind, Copy, Corner, DecayedStep, DecayedTensors, Fill, MomentumTensors, NesterovMomentum,
    RuleState, ScaleBlock, StateValues,
};
use device::{Communicator, DType, Tensor};
use graph_manager::Result;
use parallel::{Axes, Axis, Place, Ranks};

use super::group::{ParamUpdate, StepControl, Update, UpdateRule};
use super::newton_schulz::{cost, orthogonalize};
use super::parts::parts;
use crate::params::{BucketMemory, ParamSpec, Params, Sharding};
use crate::step_policy::StepContext;

/// Muon (Jordan, 2024), for the weights of linear layers in blocks. Queries, keys and values are matrices of their own, and so
/// are gate and up. An orthogonal matrix is scaled by `0.2 * sqrt(max(rows, columns))` (Liu et al., 2025), so that learning
/// rate and weight decay are those of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// Decay of the momentum (Nesterov's).
    pub momentum: f32,
    /// Newton-Schulz iterations.
    pub steps: usize,
    /// The type of the iterations' products: bf16, or f32 if the model computes in f32.
    pub products: DType,
}

impl Muon {
    /// Whether a parameter is for Muon: the weight of a linear layer in a block. Embeddings, head, norms and biases are not.
    pub fn takes(spec: &ParamSpec) -> bool {
        spec.is_block_weight
    }
}

impl UpdateRule for Muon {
    fn state(&self) -> &'static [RuleState] {
        &[RuleState { name: "momentum_buffer", values: StateValues::Others }]
    }

    fn overwrites_gradients(&self) -> bool {
        true
    }

    fn update(&self, updates: Vec<ParamUpdate>, control: StepControl, params: &Params) -> Box<Update> {
        let ranks = params.ranks();
        let StepControl { control, status } = control;
        let parts = parts(updates.iter().filter(|param| param.master.elements() > 0));
        let momentum = |part: &Vec<ParamUpdate>| {
            let momenta = part.iter().map(|param| MomentumTensors { grad: param.grad, momentum: param.state[0] });
            NesterovMomentum { tensors: momenta.collect(), beta: self.momentum, status }
        };
        let step = |part: &Vec<ParamUpdate>| {
            let steps = part.iter().map(|param| DecayedTensors {
                master: param.master,
                compute: param.weight,
                direction: param.grad,
                weight_decay: param.weight_decay,
                lr_multiplier: param.lr_multiplier,
            });
            DecayedStep { tensors: steps.collect(), control, status }
        };
        let momenta: Vec<NesterovMomentum> = parts.iter().map(momentum).collect();
        let steps: Vec<DecayedStep> = parts.iter().map(step).collect();
        let rounds = rounds(&updates, params);
        let (muon, tensor_parallel) = (*self, ranks.along(Axis::Tensor).cloned());
        Box::new(move |cx| {
            momenta.iter().try_for_each(|momentum| cx.run(momentum.clone()))?;
            for Round { exchanged, matrices } in &rounds {
                exchanged.iter().try_for_each(|bucket| bucket.gather(cx))?;
                for (matrix, is_ours) in matrices {
                    if *is_ours {
                        muon.orthogonalize(cx, matrix, tensor_parallel.as_ref())?;
                    } else {
                        cx.run(Fill { output: matrix.stored, value: 0.0 })?;
                    }
                }
                exchanged.iter().try_for_each(|bucket| bucket.sum(cx))?;
            }
            steps.iter().try_for_each(|step| cx.run(step.clone()))
        })
    }
}

impl Muon {
    /// Replaces a matrix's direction by the orthogonal one, scaled.
    fn orthogonalize(
        &self,
        cx: &mut StepContext<'_>,
        matrix: &Matrix,
        tensor_parallel: Option<&Rc<dyn Communicator>>,
    ) -> Result<()> {
        let Matrix { stored, rows, columns, row, column, .. } = *matrix;
        let (stored_rows, stored_columns) = (stored.shape.rows(), stored.shape.last());
        let block = |from, to, factor| ScaleBlock {
            from,
            to,
            rows: stored_rows,
            columns: stored_columns,
            factor,
            square_sum: None,
        };
        let whole = match tensor_parallel.filter(|_| matrix.is_divided) {
            None => stored,
            Some(group) => {
                let whole = cx.tensor("whole matrix", [rows, columns], DType::F32)?;
                cx.run(Fill { output: whole, value: 0.0 })?;
                if matrix.is_first_copy {
                    cx.run(block(Corner::first(stored), Corner { matrix: whole, row, column }, 1.0))?;
                }
                cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group.clone(), whole))?;
                whole
            }
        };
        let orthogonal = orthogonalize(cx, whole, self.steps, self.products)?;
        let scale = 0.2 * (rows.max(columns) as f32).sqrt();
        cx.run(block(Corner { matrix: orthogonal, row, column }, Corner::first(stored), scale))
    }
}

/// A matrix that is made orthogonal by itself.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    /// This rank's stored part of it in `main_grad`, f32 `(rows, columns)`.
    stored: Tensor,
    /// Rows of the whole.
    rows: usize,
    /// Columns of the whole.
    columns: usize,
    /// The first stored row.
    row: usize,
    /// The first stored column.
    column: usize,
    /// Tensor-parallel ranks store parts of it.
    is_divided: bool,
    /// No tensor-parallel rank before this one stores the same part.
    is_first_copy: bool,
    /// The ranks with the same part and other tokens: one of them makes it orthogonal.
    shared: Axes,
}

/// The matrices that are packed in a parameter.
fn matrices(update: &ParamUpdate, ranks: &Ranks) -> Vec<Matrix> {
    let (spec, width) = (&update.spec, update.spec.shape.last());
    let shared = spec.spread.sums(ranks);
    let mut before = 0;
    let mut matrices = Vec::new();
    for part in &spec.spread.parts {
        let rows = part.rows.last().copied().unwrap_or(0);
        let outer = part.rows.iter().enumerate().rev().skip(1);
        let count: usize = outer.map(|(dim, &size)| part.range(ranks, dim, size).len()).product();
        let here = part.range(ranks, part.rows.len() - 1, rows);
        let columns = spec.whole[1];
        let column = part.range(ranks, part.rows.len(), columns).start;
        let copies = ranks.axes(Axis::Tensor) - part.cut_over();
        // Ranks may also divide the matrices of a parameter, each whole.
        let within = part.cuts.iter().filter(|cut| cut.dim + 1 >= part.rows.len()).map(|cut| cut.over);
        let is_divided = within.into_iter().any(|over| ranks.place(over).has_others());
        for _ in 0..count {
            matrices.push(Matrix {
                stored: update.whole_grad.view(before * width, [here.len(), width]),
                rows,
                columns,
                row: here.start,
                column,
                is_divided,
                is_first_copy: ranks.place(copies).is_first(),
                shared,
            });
            before += here.len();
        }
    }
    matrices
}

/// For each matrix, whether this rank makes it orthogonal. Of the ranks that share matrices the one with the least work gets
/// the dearest first.
fn assigned(matrices: Vec<Matrix>, ranks: &Ranks) -> Vec<(Matrix, bool)> {
    let cost = |matrix: &Matrix| cost(matrix.rows, matrix.columns);
    let mut order: Vec<usize> = (0..matrices.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(cost(&matrices[index])));
    let mut loads: HashMap<Axes, Vec<_>> = HashMap::new();
    let mut is_ours = vec![false; matrices.len()];
    for index in order {
        let Place { index: rank, count } = ranks.place(matrices[index].shared);
        let load = loads.entry(matrices[index].shared).or_insert_with(|| vec![0; count]);
        let least = (0..count).min_by_key(|&rank| load[rank]).unwrap_or(0);
        load[least] += cost(&matrices[index]);
        is_ours[index] = least == rank;
    }
    matrices.into_iter().zip(is_ours).collect()
}

/// Buckets whose directions are whole at the same time, and their matrices, each with whether this rank makes it
/// orthogonal. There is one round, or, if ranks divide gradients, one for every two layers: these have the buffers for
/// whole gradients.
struct Round {
    exchanged: Vec<Exchanged>,
    matrices: Vec<(Matrix, bool)>,
}

fn rounds(updates: &[ParamUpdate], params: &Params) -> Vec<Round> {
    let ranks = params.ranks();
    // Each has its buckets, and the indices of updates.
    let mut all: Vec<(Vec<BucketMemory>, Vec<usize>)> = Vec::new();
    for bucket in params.buckets() {
        let members: Vec<usize> = (0..updates.len()).filter(|&index| has(&bucket, &updates[index])).collect();
        if members.is_empty() {
            continue;
        }
        let range = bucket.grads.range();
        let meets = |other: &BucketMemory| {
            let other = other.grads.range();
            range.start < other.end && other.start < range.end
        };
        match all.last_mut().filter(|(others, _)| !others.iter().any(meets)) {
            Some((buckets, indices)) => {
                buckets.push(bucket);
                indices.extend(members);
            }
            None => all.push((vec![bucket], members)),
        }
    }
    let round = |(buckets, mut indices): (Vec<BucketMemory>, Vec<usize>)| {
        indices.sort_unstable();
        let matrices = indices.into_iter().flat_map(|index| matrices(&updates[index], ranks)).collect();
        let exchanged = buckets.iter().map(|bucket| Exchanged::new(bucket, ranks)).collect();
        Round { exchanged, matrices: assigned(matrices, ranks) }
    };
    all.into_iter().map(round).collect()
}

/// Whether a parameter is in a bucket. Layers that take turns have the same memory.
fn has(bucket: &BucketMemory, update: &ParamUpdate) -> bool {
    let is_layer = bucket.sharding < Sharding::Gradients || bucket.layer == update.spec.layer;
    is_layer && bucket.grads.range().contains(&update.whole_grad.address)
}

/// A bucket that ranks with the same matrices exchange: all of its range of `main_grad`.
struct Exchanged {
    /// The ranks that divide it; `None` if each has all.
    divided: Option<Rc<dyn Communicator>>,
    /// The ranks that have the same part.
    others: Vec<Rc<dyn Communicator>>,
    whole: Tensor,
    /// This rank's part: all of it unless the optimizer is distributed.
    part: Tensor,
}

impl Exchanged {
    fn new(bucket: &BucketMemory, ranks: &Ranks) -> Exchanged {
        let divided = ranks.over(bucket.rest).cloned();
        let others = match divided {
            Some(_) => ranks.chain(bucket.sums - bucket.rest),
            None => ranks.over(bucket.sums).cloned().into_iter().collect(),
        };
        Exchanged { divided, others, whole: bucket.grads, part: bucket.owned_grads }
    }

    /// Every rank receives the directions that the others made.
    fn gather(&self, cx: &StepContext<'_>) -> Result<()> {
        let (input, output) = (self.part, self.whole);
        match self.divided.clone() {
            Some(communicator) => cx.run(Collective { kind: CollectiveKind::AllGather, communicator, input, output }),
            None if input.address != output.address => cx.run(Copy { input, output }),
            None => Ok(()),
        }
    }

    /// Every rank receives the orthogonal directions of the elements that it updates.
    fn sum(&self, cx: &StepContext<'_>) -> Result<()> {
        let (input, output) = (self.whole, self.part);
        match self.divided.clone() {
            Some(communicator) => {
                cx.run(Collective { kind: CollectiveKind::ReduceScatterSum, communicator, input, output })?;
            }
            None if input.address != output.address => cx.run(Copy { input, output })?,
            None => {}
        }
        let sum = |group: &Rc<dyn Communicator>| {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group.clone(), output))
        };
        self.others.iter().try_for_each(sum)
    }
}
