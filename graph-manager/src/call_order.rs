//! The order in which callables are called in a step.

use std::fmt::{Display, Formatter};

use crate::error::{Error, Result};

/// The work of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Output from input.
    Forward,
    /// Gradient of the input from that of the output.
    Backward,
    /// Gradients of weights that the backward has deferred.
    WeightGradients,
}

/// One call of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The call's work.
    pub phase: Phase,
    /// The layer, counted from 0.
    pub layer: usize,
    /// The microbatch, counted from 0.
    pub microbatch: usize,
}

impl Display for Phase {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::WeightGradients => "weight gradients",
        })
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of layer {}, microbatch {}", self.phase, self.layer, self.microbatch)
    }
}

/// All calls of a step, in order. A layer has a backward for each forward, or none at all: an order for inference has
/// forwards alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOrder {
    pub(crate) calls: Vec<Call>,
    pub(crate) microbatches: usize,
}

/// The calls of a step so far: see [`CallOrder::recorded`]. The n-th forward of a layer is that of
/// microbatch n. Backwards, and weight gradients, follow in the same order of microbatches. Layers are counted from 0.
#[derive(Default)]
pub struct Calls {
    calls: Vec<Call>,
    /// Calls so far, by layer and phase.
    counts: Vec<[usize; 3]>,
    /// The first mistake.
    problem: Option<String>,
}

impl Calls {
    /// The forward of a layer for the layer's next microbatch.
    pub fn forward(&mut self, layer: usize) {
        self.add(Phase::Forward, layer);
    }

    /// The backward of a layer for the layer's next microbatch.
    pub fn backward(&mut self, layer: usize) {
        self.add(Phase::Backward, layer);
    }

    /// The weight gradients that the backward of a layer has deferred, for the layer's next microbatch.
    pub fn weight_gradients(&mut self, layer: usize) {
        self.add(Phase::WeightGradients, layer);
    }

    fn add(&mut self, phase: Phase, layer: usize) {
        if self.counts.len() <= layer {
            self.counts.resize(layer + 1, [0; 3]);
        }
        let [forwards, backwards, _] = self.counts[layer];
        let microbatch = self.counts[layer][phase as usize];
        let missing = match phase {
            Phase::Backward if microbatch == forwards => Some(Phase::Forward),
            Phase::WeightGradients if microbatch == backwards => Some(Phase::Backward),
            _ => None,
        };
        if let Some(missing) = missing {
            let at = self.calls.len();
            self.refuse(format!("call {at} is the {phase} of layer {layer}, and no {missing} comes before it"));
        }
        self.counts[layer][phase as usize] += 1;
        self.calls.push(Call { phase, layer, microbatch });
    }

    fn refuse(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    /// The whole order.
    fn end(mut self) -> Result<CallOrder> {
        let microbatches = self.counts.first().map_or(0, |[forwards, ..]| *forwards);
        if microbatches == 0 {
            self.refuse("an order of calls is not complete: it has no forward of layer 0".into());
        }
        let splits_backward = self.counts.iter().any(|[_, _, weight_gradients]| *weight_gradients > 0);
        for (layer, [forwards, backwards, weight_gradients]) in std::mem::take(&mut self.counts).into_iter().enumerate()
        {
            let ends_before = |phase, microbatch| format!("it ends before the {}", Call { phase, layer, microbatch });
            let problem = if forwards == 0 {
                format!("it has no forward of layer {layer}")
            } else if forwards != microbatches {
                format!("it has {forwards} forwards of layer {layer} and {microbatches} of layer 0")
            } else if backwards > 0 && backwards < forwards {
                ends_before(Phase::Backward, backwards)
            } else if splits_backward && weight_gradients < backwards {
                ends_before(Phase::WeightGradients, weight_gradients)
            } else {
                continue;
            };
            self.refuse(format!("an order of calls is not complete: {problem}"));
        }
        let fix = "give each layer as many forwards as the others, after each of them one backward or none in the whole \
                   order, and with delayed weight gradients one call for them after each backward";
        match self.problem {
            Some(problem) => Err(Error::usage(problem, fix)),
            None => Ok(CallOrder { calls: self.calls, microbatches }),
        }
    }
}

impl CallOrder {
    /// A layer alone: for each microbatch its forward, then its backward.
    pub(crate) fn of_one(layer: usize, microbatches: usize) -> CallOrder {
        let of_each = |microbatch| [Phase::Forward, Phase::Backward].map(|phase| Call { phase, layer, microbatch });
        CallOrder { calls: (0..microbatches).flat_map(of_each).collect(), microbatches }
    }

    /// The number of layers.
    pub(crate) fn layers(&self) -> usize {
        self.calls.iter().map(|call| call.layer + 1).max().unwrap_or(0)
    }

    /// The order in which `step` makes calls: write the loops of a step, with `calls` in place of the graphed layers.
    ///
    /// ```
    /// # use graph_manager::CallOrder;
    /// // Two layers: forwards of three microbatches, then their backwards.
    /// let order = CallOrder::recorded(|calls| {
    ///     for _microbatch in 0..3 {
    ///         calls.forward(0);
    ///         calls.forward(1);
    ///     }
    ///     for _microbatch in 0..3 {
    ///         calls.backward(1);
    ///         calls.backward(0);
    ///     }
    /// })?;
    /// // Inference has forwards alone.
    /// CallOrder::recorded(|calls| (0..2).for_each(|layer| calls.forward(layer)))?;
    /// # Ok::<(), graph_manager::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for an order that is not complete.
    pub fn recorded(step: impl FnOnce(&mut Calls)) -> Result<CallOrder> {
        let mut calls = Calls::default();
        step(&mut calls);
        calls.end()
    }

    /// The order in Transformer Engine's notation: `k` is the forward of chunk `k`, counted from 1; `-k` its backward;
    /// and `-k - 0.5` the weight gradients that this backward has deferred. The n-th forward of a chunk is that of its
    /// microbatch n; backwards, and weight gradients, follow in the same order of microbatches. `chunks` has the number
    /// of layers of each chunk.
    ///
    /// ```
    /// # use graph_manager::CallOrder;
    /// // Two chunks of one layer, three microbatches.
    /// let order = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, -2.0, -1.0, -2.0, -1.0, -2.0, -1.0];
    /// CallOrder::signed(&order, &[1, 1])?;
    /// let error = CallOrder::signed(&[1.0, -1.0, -1.0], &[1]).unwrap_err().to_string();
    /// assert!(error.contains("call 2 is the backward of layer 0, and no forward comes before it"));
    /// # Ok::<(), graph_manager::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for a number that is no chunk, and for an order that is not complete.
    pub fn signed(order: &[f32], chunks: &[usize]) -> Result<CallOrder> {
        CallOrder::recorded(|calls| {
            // A chunk that never comes has layers too.
            calls.counts = vec![[0; 3]; chunks.iter().sum()];
            for (at, &number) in order.iter().enumerate() {
                let chunk = number.abs().floor() as usize;
                let phase = match number.fract() {
                    0.0 if number > 0.0 => Phase::Forward,
                    0.0 => Phase::Backward,
                    -0.5 => Phase::WeightGradients,
                    _ => return calls.refuse(format!("number {at} ({number}) is neither k, -k nor -k - 0.5")),
                };
                if chunk == 0 || chunk > chunks.len() {
                    let problem = format!("number {at} ({number}) is of chunk {chunk}, of {} chunks", chunks.len());
                    return calls.refuse(problem);
                }
                let first: usize = chunks[..chunk - 1].iter().sum();
                let layers = first..first + chunks[chunk - 1];
                match phase {
                    Phase::Forward => layers.for_each(|layer| calls.add(phase, layer)),
                    Phase::Backward | Phase::WeightGradients => layers.rev().for_each(|layer| calls.add(phase, layer)),
                }
            }
        })
    }
}
