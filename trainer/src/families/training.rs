//! How published models were trained.

/// The settings of a model too large for a laptop, with its peak learning rate and the rate that it decays to: those of
/// Brown et al., 2020, table 2.1, and of Llama Team, 2024, table 3, decaying to a tenth.
pub(super) const fn large(lr: &'static str, min_lr: &'static str) -> [(&'static str, &'static str); 4] {
    [
        ("precision.compute", "\"bf16\""),
        ("optimizer.warmup_steps", "700"),
        ("optimizer.lr", lr),
        ("optimizer.min_lr", min_lr),
    ]
}
