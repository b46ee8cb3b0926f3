//! Muon: the matrices of the momentum are made orthogonal.
//!
//! An update needs whole matrices:
//!
//! 1. The momentum is updated, and its direction written over the gradient.
//! 2. A matrix is made orthogonal, after its shards on tensor-parallel ranks were gathered. These ranks all do the same
//!    work.
//! 3. The weights are updated.
//!
//! With a distributed optimizer each parameter belongs to one rank of those that divide the state
//! ([`Division::Parameters`](crate::params::Division)): that rank has its gradient, momentum and master weights, and
//! does all three. Else each of the ranks with other tokens has all of these. Then the work of step 2 is divided alike,
//! and each rank sends the directions that it made.
//!
//! Of an expert's matrix, these ranks are those that have it.

use std::rc::Rc;

use device::ops::{
    Collective, CollectiveKind, Corner, DecayedStep, DecayedTensors, Fill, MomentumTensors, NesterovMomentum,
    RuleState, ScaleBlock, StateValues,
};
use device::{Communicator, DType, Tensor};
use graph_manager::Result;
use parallel::{Axis, Ranks};

use super::group::{MeanOfGradients, ParamUpdate, StepControl, Update, UpdateRule};
use super::newton_schulz::orthogonalize;
use super::parts::parts;
use crate::params::{Belonging, ParamSpec, Params, owners};
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

    fn mean_of_gradients(&self) -> Option<MeanOfGradients> {
        Some(MeanOfGradients { state: "momentum_buffer", decay: self.momentum })
    }

    fn overwrites_gradients(&self) -> bool {
        true
    }

    fn updates_whole_parameters(&self) -> bool {
        true
    }

    fn update(&self, updates: Vec<ParamUpdate>, control: StepControl, params: &Params) -> Box<Update> {
        let ranks = params.ranks();
        let StepControl { control, status } = control;
        let parts = parts(updates.iter());
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
        let sent = sent(&updates, ranks);
        let ours = updates.iter().zip(&sent).filter(|(_, sent)| sent.as_ref().is_none_or(Sent::is_ours));
        let matrices: Vec<Matrix> = ours.flat_map(|(update, _)| matrices(update, ranks)).collect();
        let (muon, tensor_parallel) = (*self, ranks.along(Axis::Tensor).cloned());
        Box::new(move |cx| {
            momenta.iter().try_for_each(|momentum| cx.run(momentum.clone()))?;
            matrices.iter().try_for_each(|matrix| muon.orthogonalize(cx, matrix, tensor_parallel.as_ref()))?;
            sent.iter().flatten().try_for_each(|sent| cx.run(sent.0.clone()))?;
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

/// A matrix that is made orthogonal alone, not with others.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    /// The stored part of the matrix's gradient, f32 `(rows, columns)`.
    stored: Tensor,
    /// Rows of the whole.
    rows: usize,
    /// Columns of the whole.
    columns: usize,
    /// The first stored row.
    row: usize,
    /// The first stored column.
    column: usize,
    /// Whether tensor-parallel ranks store parts of the matrix.
    is_divided: bool,
    /// Whether no earlier tensor-parallel rank stores the same part of the matrix.
    is_first_copy: bool,
}

/// The matrices that are packed in a parameter.
fn matrices(update: &ParamUpdate, ranks: &Ranks) -> Vec<Matrix> {
    let (spec, width) = (&update.spec, update.spec.shape.last());
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
                stored: update.grad.view(before * width, [here.len(), width]),
                rows,
                columns,
                row: here.start,
                column,
                is_divided,
                is_first_copy: ranks.place(copies).is_first(),
            });
            before += here.len();
        }
    }
    matrices
}

/// The directions of a parameter, which one rank made and all get.
struct Sent(Collective);

impl Sent {
    /// Whether this rank makes the directions.
    fn is_ours(&self) -> bool {
        self.0.kind == CollectiveKind::Broadcast { from: self.0.communicator.rank() }
    }
}

/// For each parameter the directions that ranks send; `None` if ranks divide the parameter's state, or no rank has
/// other tokens.
fn sent(updates: &[ParamUpdate], ranks: &Ranks) -> Vec<Option<Sent>> {
    let belonging = |update: &ParamUpdate| {
        let over = update.spec.spread.sums(ranks);
        Belonging { elements: update.grad.elements(), over }
    };
    let makers = owners(&updates.iter().map(belonging).collect::<Vec<_>>(), ranks);
    let sent = |(update, from): (&ParamUpdate, usize)| {
        let spread = &update.spec.spread;
        let group = if ranks.place(spread.rest).has_others() { None } else { ranks.over(spread.sums(ranks)) };
        let kind = CollectiveKind::Broadcast { from };
        group.map(|group| Sent(Collective::in_place(kind, group.clone(), update.grad)))
    };
    updates.iter().zip(makers).map(sent).collect()
}
