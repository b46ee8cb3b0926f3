//! The lengths that the samples of a step may have, for less padding.

use common::{Mistakes, UserError};
use data::DataConfig;

use crate::config::checks::require;
use crate::config::plan::model::{ModelPlan, model_plan};
use crate::config::plan::ranks::layout;
use crate::config::{ModelConfig, RunConfig};

/// The lengths below that of the model. All samples fit that one.
#[derive(Clone, Debug, Default)]
pub struct BucketPlan {
    /// Ascending.
    shorter: Vec<usize>,
}

impl BucketPlan {
    /// The plan of a configuration with this model. Each length has to do for all that the model's has to do for.
    ///
    /// # Errors
    /// The rules that are broken.
    pub fn new(config: &RunConfig, model: &ModelPlan) -> Result<BucketPlan, UserError> {
        let mut mistakes = Mistakes::default();
        if config.data.group_by_length {
            check_order(config, &mut mistakes);
        }
        let (Some(longest), ModelPlan::Gpt(_)) = (config.data.seq_length_buckets.last(), model) else {
            return mistakes.end().map(|()| BucketPlan::default());
        };
        mistakes.keep(check_list(&config.data, config.model.seq_length));
        check_goes_with(config, &mut mistakes);
        mistakes.end()?;
        let shorter: Vec<usize> =
            config.data.seq_length_buckets.iter().copied().filter(|length| length != longest).collect();
        let mut mistakes = Mistakes::default();
        shorter.iter().for_each(|length| {
            mistakes.keep(check_length(config, *length));
        });
        mistakes.end().map(|()| BucketPlan { shorter })
    }

    /// The lengths below that of the model, ascending.
    pub fn shorter(&self) -> &[usize] {
        &self.shorter
    }

    /// The length for samples of up to `longest` inputs: the smallest that holds them. `None`: the model's, also if the
    /// samples have no padding.
    pub fn length_for(&self, longest: Option<usize>) -> Option<usize> {
        let longest = longest?;
        self.shorter.iter().copied().find(|length| *length >= longest)
    }
}

/// Fails unless lengths ascend from above 0 to that of the model.
fn check_list(data: &DataConfig, seq_length: usize) -> Result<(), UserError> {
    let lengths = &data.seq_length_buckets;
    let ascends = lengths.windows(2).all(|pair| pair[0] < pair[1]);
    require(lengths[0] > 0 && ascends && lengths.last() == Some(&seq_length), || {
        let mut right: Vec<usize> = lengths.iter().copied().filter(|length| (1..seq_length).contains(length)).collect();
        right.sort_unstable();
        right.dedup();
        right.push(seq_length);
        UserError::new(
            format!("data.seq_length_buckets = {lengths:?} with model.seq_length = {seq_length}"),
            "lengths are above 0 and ascend, and the last is model.seq_length, which holds every sample",
            format!("set data.seq_length_buckets = {right:?}, or another model.seq_length"),
        )
    })
}

/// The mistake of a setting about lengths, for data without different lengths.
fn without_conversations(data: &DataConfig, key: &str) -> UserError {
    match data.kind().is_judged() {
        true => UserError::new(
            format!("{key} with data.{}", data.kind().option()),
            "samples of pairs and of answers with a label are packed, so none is shorter than model.seq_length",
            "leave it out; --sft-packing has several of them in a sample",
        ),
        false => UserError::new(
            format!("{key} without data.sft"),
            "only conversations have different lengths: text fills its samples",
            "add --sft to train on conversations, or leave it out",
        ),
    }
}

/// Keeps the settings that lengths do not go with.
fn check_goes_with(config: &RunConfig, mistakes: &mut Mistakes) {
    let (data, model): (&DataConfig, &ModelConfig) = (&config.data, &config.model);
    mistakes.keep(require(data.sft || data.path.is_none(), || without_conversations(data, "data.seq_length_buckets")));
    mistakes.keep(require(data.sft_packing == 1, || {
        UserError::new(
            format!("data.seq_length_buckets with data.sft_packing = {}", data.sft_packing),
            "packed samples are full, so none is shorter than model.seq_length",
            "leave out one of them: packing has the least padding, lengths keep one conversation in a sample",
        )
    }));
    mistakes.keep(require(model.experts == 0 || model.expert_capacity_factor.is_none(), || {
        UserError::new(
            "data.seq_length_buckets with model.expert_capacity_factor",
            "a capacity follows from the tokens of a microbatch, its padding too: with other lengths other choices would be dropped",
            "leave one of them out",
        )
    }));
}

/// Keeps the settings that an order by length does not go with.
fn check_order(config: &RunConfig, mistakes: &mut Mistakes) {
    let (data, ramp) = (&config.data, &config.train.rampup_batch_size);
    mistakes.keep(require(data.sft || data.path.is_none(), || without_conversations(data, "data.group_by_length")));
    mistakes.keep(require(data.sft_packing == 1, || {
        UserError::new(
            format!("data.group_by_length with data.sft_packing = {}", data.sft_packing),
            "packed samples are full, so they have the same length",
            "leave one of them out",
        )
    }));
    mistakes.keep(require(ramp.is_empty(), || {
        UserError::new(
            format!("data.group_by_length with train.rampup_batch_size = {ramp:?}"),
            "conversations of like length are put together for batches of one size",
            "leave one of them out",
        )
    }));
    let blends = data.path.as_ref().is_some_and(|paths| paths.datasets("data.path").is_ok_and(|all| all.len() > 1));
    mistakes.keep(require(!blends, || {
        UserError::new(
            "data.group_by_length with several weights in data.path",
            "a batch of a blend has samples of several data sets, each in an order of its own",
            "name one data set, which may have several files, or leave it out",
        )
    }));
}

/// Fails unless a length passes the checks that the model's own passed.
fn check_length(config: &RunConfig, length: usize) -> Result<(), UserError> {
    let mut shorter = config.clone();
    shorter.model.seq_length = length;
    let checked = model_plan(&shorter).and_then(|model| match model {
        ModelPlan::Gpt(shape) => layout::check_shape(&shorter, &shape),
        ModelPlan::Mlp(_) => unreachable!("the same kind of model"),
    });
    checked.map_err(|error| UserError {
        what: format!("data.seq_length_buckets has {length}: {}", error.what),
        fix: match error.fix.contains("model.seq_length =") {
            true => format!("change that length: {}", error.fix.replace("model.seq_length =", "it to")),
            false => format!("change or leave out that length. For the setting: {}", error.fix),
        },
        ..error
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    fn plan(settings: &str) -> Result<BucketPlan, String> {
        let conversations = "data.path=chats.jsonl data.sft=true model.seq_length=64";
        let config = ConfigSources::of_pairs(&format!("{conversations} {settings}")).unwrap().resolve();
        BucketPlan::new(&config, &model_plan(&config).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_step_has_the_smallest_length_that_holds_its_longest_sample() {
        let plan = plan("data.seq_length_buckets=16,32,64").unwrap();
        let lengths = [1, 16, 17, 32, 33, 64].map(|longest| plan.length_for(Some(longest)));
        assert_eq!(lengths, [Some(16), Some(16), Some(32), Some(32), None, None]);
        assert_eq!(plan.length_for(None), None, "samples without padding");
        assert_eq!(BucketPlan::default().length_for(Some(3)), None);
    }

    #[test]
    fn lists_and_settings_that_do_not_go_together_are_refused() {
        for (settings, texts) in [
            (
                "data.seq_length_buckets=32,16,64",
                ["= [32, 16, 64] with model.seq_length = 64", "set data.seq_length_buckets = [16, 32, 64]"],
            ),
            ("data.seq_length_buckets=16,16,64", ["[16, 16, 64]", "[16, 64]"]),
            ("data.seq_length_buckets=0,64", ["[0, 64]", "set data.seq_length_buckets = [64]"]),
            ("data.seq_length_buckets=16,128", ["the last is model.seq_length", "[16, 64]"]),
            ("data.seq_length_buckets=16,32", ["the last is model.seq_length", "[16, 32, 64]"]),
            ("data.seq_length_buckets=16,64 data.sft_packing=4", ["data.sft_packing = 4", "packed samples are full"]),
            ("data.seq_length_buckets=16,64 data.sft=false", ["without data.sft", "text fills its samples"]),
            (
                "data.seq_length_buckets=16,64 model.experts=4 model.activation=swiglu model.bias=false model.expert_capacity_factor=1.5",
                ["model.expert_capacity_factor", "leave one of them out"],
            ),
            (
                "data.seq_length_buckets=15,64 parallel.tensor=2 parallel.sequence_parallel=true train.micro_batch_size=1",
                ["has 15: train.micro_batch_size x model.seq_length = 15", "change that length: set it to 16"],
            ),
            (
                "data.seq_length_buckets=12,64 precision.fp8=hybrid precision.compute=bf16 train.micro_batch_size=1",
                ["has 12: precision.fp8 = \"hybrid\" with tokens of a microbatch = 12", "leave out that length"],
            ),
            (
                "data.seq_length_buckets=12,64 model.loss_pieces=8 train.micro_batch_size=1",
                ["has 12: model.loss_pieces = 8 with 12 tokens", "leave out that length"],
            ),
        ] {
            let error = plan(settings).unwrap_err();
            assert!(texts.iter().all(|text| error.contains(text)), "{settings}: {error}");
        }
        for (settings, text) in [
            ("data.group_by_length=true data.sft=false", "data.group_by_length without data.sft"),
            ("data.group_by_length=true data.sft_packing=2", "data.group_by_length with data.sft_packing = 2"),
            ("data.group_by_length=true train.rampup_batch_size=4,4,100", "train.rampup_batch_size = [4, 4, 100]"),
            ("data.group_by_length=true data.path=[0.5,\"a\",0.5,\"b\"]", "several weights in data.path"),
        ] {
            let error = plan(settings).unwrap_err();
            assert!(error.contains(text), "{settings}: {error}");
        }
        // Both are told.
        let error = plan("data.seq_length_buckets=64,16 data.sft_packing=4").unwrap_err();
        assert!(error.contains("ascend") && error.contains("packed samples"), "{error}");
    }
}
