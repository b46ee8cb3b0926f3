//! The rules by which optimizers update weights, and the state that each keeps. To add one: a variant here, its
//! arithmetic in `ops/trainer/updates/update/host.rs` and in `kernels/updates/optimizer.cu`, and a trial in
//! `trials/updates.rs`.

/// How an element of a parameter is updated from its gradient `g` and its state, with `lr` the learning rate of the
/// parameter and `decay` its weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// AdamW (Loshchilov and Hutter, 2019), as `torch.optim.AdamW` computes it: `w -= lr * decay * w`, then
    /// `w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)`, with `t = status.applied`. Bias corrections are f64.
    AdamW {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        eps: f32,
    },
    /// Lion (Chen et al., 2023, algorithm 2): `w -= lr * (sign(b1 * m + (1 - b1) * g) + decay * w)`, then
    /// `m = b2 * m + (1 - b2) * g`. Every weight moves by the learning rate, up or down, so the rate is 3 to 10 times
    /// smaller than AdamW's, and the weight decay as much larger.
    Lion {
        /// The moment's share in the direction of an update.
        beta1: f32,
        /// Decay of the moment.
        beta2: f32,
    },
    /// SGD, as `torch.optim.SGD` computes it: `g += decay * w`, `b = momentum * b + g`, `w -= lr * b`. The buffer starts
    /// at 0: this equals PyTorch's first step `b = g`.
    Sgd {
        /// Momentum; 0 for none. Then it keeps no state, and `w -= lr * g`.
        momentum: f32,
    },
}

/// A tensor that a rule keeps for each parameter. It has as many elements, or sizes that the engine's `UpdateRule` gives, and
/// is 0 before the first update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleState {
    /// The state's name in errors and checkpoints.
    pub name: &'static str,
    /// The state's values.
    pub values: StateValues,
}

/// The values of a rule's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateValues {
    /// Averages of gradients, f32 or bf16.
    FirstMoment,
    /// Averages of squared gradients, f32 or bf16.
    SecondMoment,
    /// Any others, f32.
    Others,
}

impl Rule {
    /// The names of all rules.
    pub(crate) const NAMES: [&'static str; 3] = ["adamw", "lion", "sgd"];

    /// The name in errors, reports and traces; also that of the kernel.
    pub fn name(&self) -> &'static str {
        let [adamw, lion, sgd] = Rule::NAMES;
        match self {
            Rule::AdamW { .. } => adamw,
            Rule::Lion { .. } => lion,
            Rule::Sgd { .. } => sgd,
        }
    }

    /// The state that the rule keeps for each parameter.
    pub fn state(&self) -> &'static [RuleState] {
        const FIRST: RuleState = RuleState { name: "exp_avg", values: StateValues::FirstMoment };
        const SECOND: RuleState = RuleState { name: "exp_avg_sq", values: StateValues::SecondMoment };
        const MOMENTUM: RuleState = RuleState { name: "momentum", values: StateValues::Others };
        match self {
            Rule::AdamW { .. } => &[FIRST, SECOND],
            Rule::Lion { .. } => &[FIRST],
            Rule::Sgd { momentum } => {
                if *momentum == 0.0 {
                    &[]
                } else {
                    &[MOMENTUM]
                }
            }
        }
    }

    /// The rule's constants: `beta1`, `beta2` and `eps` of the kernels' `Update`, 0 if it has fewer.
    pub(crate) fn constants(&self) -> [f32; 3] {
        match *self {
            Rule::AdamW { beta1, beta2, eps } => [beta1, beta2, eps],
            Rule::Lion { beta1, beta2 } => [beta1, beta2, 0.0],
            Rule::Sgd { momentum } => [momentum, 0.0, 0.0],
        }
    }
}
