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
    /// Its work.
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

/// All calls of a step, in order. Layers are divided into chunks, as in a stage of an interleaved pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOrder {
    pub(crate) calls: Vec<Call>,
    pub(crate) microbatches: usize,
}

impl CallOrder {
    /// A layer alone: its forward, then its backward.
    pub(crate) fn of_one(layer: usize) -> CallOrder {
        let calls = [Phase::Forward, Phase::Backward].map(|phase| Call { phase, layer, microbatch: 0 });
        CallOrder { calls: calls.into(), microbatches: 1 }
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
    /// assert!(error.contains("call 2 (-1) is the backward of chunk 1 that no forward comes before"));
    /// # Ok::<(), graph_manager::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for a number that is no chunk, a backward without its forward, a forward without its backward,
    /// and chunks with different numbers of microbatches.
    pub fn signed(order: &[f32], chunks: &[usize]) -> Result<CallOrder> {
        let refuse = |problem: String| Error::Usage {
            problem,
            fix: "give each forward of a chunk (k) one backward (-k) after it, and with delayed weight gradients one \
                  (-k - 0.5) after that, as often for each chunk",
        };
        let mut calls: Vec<Call> = Vec::new();
        // Calls so far, by chunk and phase.
        let mut counts = vec![[0; 3]; chunks.len()];
        for (at, &number) in order.iter().enumerate() {
            let chunk = number.abs().floor() as usize;
            let phase = match number.fract() {
                0.0 if number > 0.0 => Phase::Forward,
                0.0 => Phase::Backward,
                -0.5 => Phase::WeightGradients,
                _ => return Err(refuse(format!("call {at} ({number}) is neither k, -k nor -k - 0.5"))),
            };
            if chunk == 0 || chunk > chunks.len() {
                return Err(refuse(format!("call {at} ({number}) is of chunk {chunk}, of {} chunks", chunks.len())));
            }
            let [forwards, backwards, _] = counts[chunk - 1];
            let microbatch = counts[chunk - 1][phase as usize];
            let missing = match phase {
                Phase::Backward if microbatch == forwards => Some(Phase::Forward),
                Phase::WeightGradients if microbatch == backwards => Some(Phase::Backward),
                _ => None,
            };
            if let Some(missing) = missing {
                let problem = format!("the {phase} of chunk {chunk} that no {missing} comes before");
                return Err(refuse(format!("call {at} ({number}) is {problem}")));
            }
            counts[chunk - 1][phase as usize] += 1;
            let first: usize = chunks[..chunk - 1].iter().sum();
            let layers = first..first + chunks[chunk - 1];
            let call = |layer| Call { phase, layer, microbatch };
            match phase {
                Phase::Forward => calls.extend(layers.map(call)),
                Phase::Backward | Phase::WeightGradients => calls.extend(layers.rev().map(call)),
            }
        }
        let splits_backward = calls.iter().any(|call| call.phase == Phase::WeightGradients);
        let microbatches = counts.first().map_or(0, |[forwards, ..]| *forwards);
        for (chunk, [forwards, backwards, weight_gradients]) in (1..).zip(counts) {
            let problem = if backwards < forwards {
                format!("the order ends before the backward of a microbatch of chunk {chunk}")
            } else if splits_backward && weight_gradients < backwards {
                format!("the order ends before the weight gradients of a microbatch of chunk {chunk}")
            } else if forwards != microbatches {
                format!("chunk {chunk} has {forwards} forwards, chunk 1 has {microbatches}")
            } else {
                continue;
            };
            return Err(refuse(problem));
        }
        Ok(CallOrder { calls, microbatches })
    }
}
