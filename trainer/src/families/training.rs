//! How published models were trained.

/// The settings of a model too large for a laptop, with the model's peak learning rate: those of Brown et al., 2020,
/// table 2.1, and of Llama Team, 2024, table 3.
pub(super) const fn large(lr: &'static str) -> [(&'static str, &'static str); 3] {
    [("precision.compute", "\"bf16\""), ("optimizer.warmup_steps", "700"), ("optimizer.lr", lr)]
}

/// Likewise of a model with experts. `balance` is the `router_aux_loss_coef` of its `config.json`.
pub(super) const fn large_with_experts(lr: &'static str, balance: &'static str) -> [(&'static str, &'static str); 4] {
    let [compute, warmup, lr] = large(lr);
    [compute, warmup, lr, ("train.balance_loss_multiplier", balance)]
}
