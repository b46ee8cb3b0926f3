//! What other trainers call our flags: nanoGPT's `train.py`, `TrainingArguments` of Hugging Face's transformers, and
//! torchtitan's job configuration.

/// A name of other trainers, whose it is, and our flag.
pub const NAMES: &[(&str, &str, &str)] = &[
    ("batch-size", "nanoGPT", "micro-batch-size"),
    ("beta1", "nanoGPT", "betas"),
    ("beta2", "nanoGPT", "betas"),
    ("block-size", "nanoGPT", "seq-length"),
    ("checkpoint.enable", "torchtitan", "save"),
    ("checkpoint.folder", "torchtitan", "save"),
    ("checkpoint.interval", "torchtitan", "save-interval"),
    ("compile", "nanoGPT", "enable-cuda-graph"),
    ("compile.enable", "torchtitan", "enable-cuda-graph"),
    ("dropout", "nanoGPT", "hidden-dropout"),
    ("dtype", "nanoGPT", "compute"),
    ("gradient-accumulation-steps", "nanoGPT and Hugging Face", "global-batch-size"),
    ("gradient-checkpointing", "Hugging Face", "recompute-granularity"),
    ("grad-clip", "nanoGPT", "clip-grad"),
    ("learning-rate", "nanoGPT and Hugging Face", "lr"),
    ("logging-dir", "Hugging Face", "log-dir"),
    ("logging-steps", "Hugging Face", "log-interval"),
    ("lr-scheduler-type", "Hugging Face", "lr-decay-style"),
    ("lr-scheduler.warmup-steps", "torchtitan", "lr-warmup-steps"),
    ("max-grad-norm", "Hugging Face", "clip-grad"),
    ("max-iters", "nanoGPT", "steps"),
    ("max-steps", "Hugging Face", "steps"),
    ("model-name-or-path", "Hugging Face", "init-from"),
    ("model.flavor", "torchtitan", "preset"),
    ("model.name", "torchtitan", "preset"),
    ("n-embd", "nanoGPT", "hidden-size"),
    ("n-head", "nanoGPT", "num-attention-heads"),
    ("n-layer", "nanoGPT", "num-layers"),
    ("optimizer.lr", "torchtitan", "lr"),
    ("out-dir", "nanoGPT", "save"),
    ("output-dir", "Hugging Face", "save"),
    ("parallelism.pipeline-parallel-degree", "torchtitan", "pipeline-model-parallel-size"),
    ("parallelism.tensor-parallel-degree", "torchtitan", "tensor-model-parallel-size"),
    ("per-device-train-batch-size", "Hugging Face", "micro-batch-size"),
    ("resume-from-checkpoint", "Hugging Face", "resume"),
    ("save-steps", "Hugging Face", "save-interval"),
    ("training.global-batch-size", "torchtitan", "global-batch-size"),
    ("training.local-batch-size", "torchtitan", "micro-batch-size"),
    ("training.max-norm", "torchtitan", "clip-grad"),
    ("training.seq-len", "torchtitan", "seq-length"),
    ("training.steps", "torchtitan", "steps"),
    ("warmup-iters", "nanoGPT", "lr-warmup-steps"),
    ("warmup-steps", "Hugging Face", "lr-warmup-steps"),
];

/// Whose name a flag is, and our flag. Underscores are hyphens.
pub fn ours(flag: &str) -> Option<(&'static str, &'static str)> {
    let flag = flag.replace('_', "-");
    NAMES.iter().find(|(name, ..)| *name == flag).map(|(_, whose, ours)| (*whose, *ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::options::OPTIONS;

    #[test]
    fn every_name_is_not_ours_and_stands_for_a_flag_that_is() {
        let known = |flag: &str| OPTIONS.iter().any(|option| option.flag == flag || option.aliases.contains(&flag));
        for (name, _, ours) in NAMES {
            assert!(!known(name), "--{name} is known");
            assert!(known(ours), "--{ours} is unknown");
        }
        assert_eq!(ours("learning_rate"), Some(("nanoGPT and Hugging Face", "lr")));
    }
}
