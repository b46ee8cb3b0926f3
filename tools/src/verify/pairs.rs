//! Every layout trains as one rank does, whichever features meet in it: every pair of them meets in some case. And every
//! number format does, in layouts of two and three axes.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use trainer::config::{ConfigSources, ParallelConfig, RunConfig};

use super::layouts::sizes;
use super::{Trial, Verdict, trials};

/// What a case has one of, as settings. The first has the ranks that share the batch.
const FEATURES: &[&[&str]] = &[
    &["data 1", "data 2", "data 3"],
    &["parallel.tensor=1", "parallel.tensor=2", "parallel.tensor=4"],
    &["parallel.context=1", "parallel.context=2", "parallel.context=4 parallel.context_transfers=ring"],
    &[
        "parallel.pipeline=1",
        "parallel.pipeline=2",
        "parallel.pipeline=3",
        "parallel.pipeline=2 parallel.virtual_pipeline=2",
        "parallel.pipeline=2 parallel.pipeline_schedule=zero_bubble",
    ],
    &[
        "model.preset=tiny",
        "model.preset=qwen2.5-1.5b",
        "model.preset=tiny-llama model.lora_rank=4",
        "model.preset=tiny-llama optimizer.freeze=[\"h.0.*\",\"h.1.attn.c_attn.weight\",\"wte.weight\"]",
        "model.preset=tiny-llama model.kv_heads=1 model.experts=4 model.experts_per_token=2 \
         train.balance_loss_multiplier=0.01 train.router_z_loss_multiplier=0.001",
        "model.preset=tiny-llama model.experts=4 model.experts_per_token=2 model.expert_pattern=[0,1] \
         model.shared_expert_ffn=64 model.router_score=sigmoid model.router_bias=true train.router_bias_update_rate=0.01 \
         model.expert_capacity_factor=0.75 model.token_drop_policy=position train.balance_loss_over=sequence \
         train.balance_loss_multiplier=0.01",
        "model.preset=tiny-llama model.experts=4 model.experts_per_token=2 model.shared_expert_ffn=64 \
         parallel.expert=2 parallel.expert_tensor=1 model.router_bias=true train.router_bias_update_rate=0.01 \
         train.balance_loss_over=sequence train.balance_loss_multiplier=0.01",
        "model.preset=olmo2-1b",
        "model.preset=moonlight-16b-a3b model.experts=4 model.experts_per_token=2 model.expert_groups=2 \
         model.query_latent=6 model.mtp_layers=1",
        "model.preset=gpt-oss-20b model.experts=4 model.experts_per_token=2 model.sliding_window=4",
        "model.preset=gemma2-2b model.sliding_window=4 model.window_pattern=[1,0]",
        "model.preset=gemma3-1b model.sliding_window=4 model.window_pattern=[1,0]",
    ],
    &["model.tie_embeddings=true", "model.tie_embeddings=false"],
    &[
        "optimizer.kind=adamw",
        "optimizer.kind=adamw offload.optimizer=true offload.optimizer_fraction=0.5",
        "optimizer.kind=sgd",
        "optimizer.kind=muon",
    ],
    &["optimizer.clip=1", "optimizer.clip=0"],
    &[
        "parallel.distributed_optimizer=true",
        "parallel.distributed_optimizer=false",
        "parallel.data_parallel_sharding=optim_grads",
        "parallel.data_parallel_sharding=optim_grads_params",
    ],
    &["parallel.sequence_parallel=true", "parallel.sequence_parallel=false"],
    &[
        "recompute.granularity=none",
        "recompute.granularity=selective",
        "recompute.granularity=full",
        "recompute.granularity=full recompute.keep_attention=true recompute.blocks=1",
        "recompute.granularity=full offload.activation_layers=9",
    ],
    &[
        "cuda_graph.enable=false",
        "cuda_graph.enable=true cuda_graph.scope=per_layer",
        "cuda_graph.enable=true cuda_graph.scope=per_chunk",
        "cuda_graph.enable=true cuda_graph.scope=full_iteration",
        "cuda_graph.enable=true cuda_graph.overlap_microbatches=true",
    ],
    &["cuda_graph.mempool=per_microbatch", "cuda_graph.mempool=single"],
    &[
        "data.sft=false",
        "data.sft=true data.seq_length_buckets=[64,128] model.seq_length=128",
        "data.sft=true data.sft_packing=4",
        "data.dpo=true data.sft_packing=2",
        "data.reset_attention_mask=true",
    ],
    &[
        "model.hidden_dropout=0",
        "model.hidden_dropout=0.1 model.attention_dropout=0.1",
        "model.hidden_dropout=0.1 train.z_loss_multiplier=0.01 model.loss_pieces=2",
    ],
];

/// A value of every feature, by its number.
type Case = Vec<usize>;

/// The pairs of values in a case: two features, each with its value.
fn pairs(case: &Case) -> Vec<[(usize, usize); 2]> {
    let with_later = |first: usize| (first + 1..case.len()).map(move |second| [first, second]);
    let places = (0..case.len()).flat_map(with_later);
    places.map(|places| places.map(|feature| (feature, case[feature]))).collect()
}

fn settings(case: &Case) -> Vec<&'static str> {
    case.iter().zip(FEATURES).map(|(value, values)| values[*value]).collect()
}

fn config(case: &Case) -> RunConfig {
    let mut sources = ConfigSources::default();
    let common = ["model.layers=4", "train.global_batch_size=48", "train.micro_batch_size=2", "precision.compute=f32"];
    for pair in settings(case)[1..].iter().chain(&common).flat_map(|settings| settings.split_whitespace()) {
        let (key, value) = pair.split_once('=').unwrap();
        sources.set(key, value, "test").unwrap();
    }
    sources.resolve()
}

/// The layout of a case. `None` if it has more than 16 ranks, or breaks a rule.
fn trial(case: &Case) -> Option<Trial> {
    let config = config(case);
    let ParallelConfig { tensor, context, pipeline, .. } = config.parallel;
    let ranks = tensor * context * pipeline * (case[0] + 1);
    let trials = (ranks <= 16).then(|| trials(&config, ranks).ok()).flatten();
    trials.and_then(|trials| trials.into_iter().next())
}

/// Cases in which all pairs meet, each with as many new ones as drawn ones have; and the pairs that never can.
fn cases() -> (Vec<Case>, Vec<String>) {
    const DRAWN: u64 = 48;
    const TRIED: usize = 24;
    let count = |feature: usize| FEATURES[feature].len();
    let all = |first: usize, second: usize| {
        (0..count(first)).flat_map(move |a| (0..count(second)).map(move |b| [(first, a), (second, b)]))
    };
    let features = 0..FEATURES.len();
    let places = features.clone().flat_map(|first| (first + 1..FEATURES.len()).map(move |second| (first, second)));
    let mut missing: BTreeSet<_> = places.flat_map(|(first, second)| all(first, second)).collect();
    let (mut cases, mut never): (Vec<Case>, Vec<String>) = (Vec::new(), Vec::new());
    while let Some(&pair) = missing.first() {
        let drawn = |number: u64| {
            let value = |feature: usize| {
                let stream = cases.len() as u64 * DRAWN + number;
                (device::random::uniform(stream, feature as u64) * count(feature) as f32) as usize
            };
            let mut case: Case = features.clone().map(value).collect();
            pair.iter().for_each(|&(feature, value)| case[feature] = value);
            case
        };
        let new = |case: &Case| pairs(case).iter().filter(|pair| missing.contains(*pair)).count();
        let mut drawn: Vec<Case> = (0..DRAWN).map(drawn).collect();
        drawn.sort_by_cached_key(|case| Reverse(new(case)));
        // The last have the first value of every other feature, with one or two ranks that share the batch.
        let simple = [0, 1].map(|data| {
            let mut case: Case = vec![0; FEATURES.len()];
            case[0] = data;
            pair.iter().for_each(|&(feature, value)| case[feature] = value);
            case
        });
        let others = drawn.split_off(TRIED);
        match drawn.into_iter().chain(simple).chain(others).find(|case| trial(case).is_some()) {
            Some(case) => {
                let met = pairs(&case);
                missing.retain(|pair| !met.contains(pair));
                cases.push(case);
            }
            None => {
                missing.remove(&pair);
                never.push(pair.map(|(feature, value)| FEATURES[feature][value]).join(" with "));
            }
        }
    }
    (cases, never)
}

/// Verifies a fourth of the cases.
fn assert_same(fourth: usize) {
    let (cases, _) = cases();
    for case in cases.iter().skip(fourth).step_by(4) {
        let verdict = trial(case).unwrap().verdict();
        match verdict.unwrap_or_else(|error| panic!("{:?}: {error}", settings(case))) {
            Verdict::Same(_) => {}
            Verdict::Differs(found) => panic!("{:?}: {found}", settings(case)),
        }
    }
}

#[test]
fn all_pairs_meet_but_those_that_a_rule_excludes() {
    let (cases, never) = cases();
    let axes = |case: &Case| trial(case).map(|trial| sizes(trial.mesh));
    let layouts: BTreeSet<_> = cases.iter().filter_map(axes).collect();
    for sizes in [[2, 1, 1, 2, 2], [1, 1, 1, 3, 2], [2, 1, 2, 3, 2], [4, 2, 1, 2, 1]] {
        assert!(layouts.contains(&sizes), "{sizes:?} is not in {layouts:?}");
    }
    let excluded = [
        ["parallel.pipeline_schedule=zero_bubble", "cuda_graph.overlap_microbatches=true"],
        ["model.expert_capacity_factor=0.75", "data.seq_length_buckets=[64,128]"],
        ["data.dpo=true", "train.z_loss_multiplier=0.01"],
        ["data.dpo=true", "model.mtp_layers=1"],
        ["parallel.context=", "model.attention_dropout=0.1"],
        ["parallel.pipeline_schedule=zero_bubble", "parallel.data_parallel_sharding="],
        ["cuda_graph.overlap_microbatches=true", "parallel.data_parallel_sharding="],
    ];
    let is = |pair: &String, words: &[&str; 2]| words.iter().all(|word| pair.contains(word));
    assert!(never.iter().all(|pair| excluded.iter().any(|words| is(pair, words))), "{} cases, {never:?}", cases.len());
    assert!(excluded.iter().all(|words| never.iter().any(|pair| is(pair, words))), "{} cases, {never:?}", cases.len());
}

#[test]
fn layouts_have_the_numbers_of_one_rank_1() {
    assert_same(0);
}

#[test]
fn layouts_have_the_numbers_of_one_rank_2() {
    assert_same(1);
}

#[test]
fn layouts_have_the_numbers_of_one_rank_3() {
    assert_same(2);
}

#[test]
fn layouts_have_the_numbers_of_one_rank_4() {
    assert_same(3);
}

/// Number formats, each with the features that are about them: what they cut, sum, gather and scale.
const FORMATS: &[(usize, &str)] = &[
    (
        8,
        "model.preset=tiny-llama parallel.tensor=2 parallel.pipeline=2 parallel.sequence_parallel=true \
         parallel.data_parallel_sharding=optim_grads_params parallel.grad_reduce=bf16 optimizer.exp_avg_dtype=bf16 \
         optimizer.exp_avg_sq_dtype=bf16",
    ),
    (
        4,
        "model.preset=tiny-llama model.kv_heads=1 model.experts=4 model.experts_per_token=2 parallel.tensor=2 \
         optimizer.kind=muon train.balance_loss_multiplier=0.01 model.expert_capacity_factor=0.9",
    ),
    (
        4,
        "model.preset=tiny parallel.tensor=2 parallel.distributed_optimizer=true precision.fp8=hybrid \
         precision.fp8_recipe=delayed precision.fp8_param_gather=true",
    ),
    (
        4,
        "model.preset=tiny-llama model.ffn=192 parallel.pipeline=2 parallel.pipeline_schedule=zero_bubble \
         parallel.distributed_optimizer=true precision.fp8=hybrid precision.fp8_recipe=delayed",
    ),
    (
        4,
        "model.preset=tiny-llama model.ffn=192 model.experts=4 model.experts_per_token=2 parallel.tensor=2 \
         precision.fp8=e4m3 precision.fp8_recipe=tensorwise",
    ),
    (
        4,
        "model.preset=tiny-llama model.ffn=192 model.kv_heads=1 model.experts=4 model.experts_per_token=2 \
         parallel.pipeline=2 parallel.distributed_optimizer=true precision.fp8=hybrid precision.fp8_recipe=delayed",
    ),
    (
        4,
        "model.preset=tiny-llama model.ffn=192 model.experts=4 model.experts_per_token=2 parallel.expert=2 \
         parallel.data_parallel_sharding=optim_grads_params precision.fp8=hybrid precision.fp8_recipe=delayed",
    ),
    (
        4,
        "model.preset=tiny-llama model.ffn=192 model.experts=4 model.experts_per_token=2 parallel.expert=2 \
         parallel.expert_tensor=1 parallel.tensor=2 parallel.sequence_parallel=true precision.fp8=e4m3 \
         precision.fp8_recipe=tensorwise",
    ),
    (
        4,
        "model.preset=tiny parallel.tensor=2 parallel.pipeline=2 parallel.sequence_parallel=true precision.fp8=e4m3 \
         precision.fp8_recipe=rowwise data.kto=true data.sft_packing=2",
    ),
    (
        2,
        "model.preset=tiny-llama model.layers=2 model.ffn=192 parallel.tensor=2 parallel.sequence_parallel=true \
         precision.fp8=e4m3 precision.fp8_recipe=blockwise data.sft=true data.seq_length_buckets=[32,64]",
    ),
    (
        8,
        "model.preset=tiny-llama parallel.context=2 parallel.tensor=2 parallel.sequence_parallel=true \
         parallel.data_parallel_sharding=optim_grads_params parallel.optimizer_instances=2 parallel.grad_reduce=bf16",
    ),
    (
        4,
        "model.preset=tiny-llama model.ffn=192 parallel.context=2 parallel.data_parallel_sharding=optim_grads_params \
         precision.fp8=hybrid precision.fp8_recipe=delayed precision.fp8_param_gather=true",
    ),
    (
        4,
        "model.preset=tiny-llama model.ffn=192 parallel.context=2 parallel.pipeline=2 precision.fp8=e4m3 \
         precision.fp8_recipe=rowwise",
    ),
    (
        4,
        "model.preset=moonlight-16b-a3b model.experts=4 model.experts_per_token=2 model.query_latent=16 model.lora_rank=4 \
         parallel.tensor=2 parallel.sequence_parallel=true precision.fp8=hybrid precision.fp8_recipe=tensorwise",
    ),
    (
        4,
        "model.preset=tiny-llama model.ffn=192 model.lora_rank=4 parallel.tensor=2 parallel.sequence_parallel=true \
         parallel.data_parallel_sharding=optim_grads_params precision.fp8=e4m3 precision.fp8_recipe=rowwise",
    ),
    (
        4,
        "model.preset=tiny-llama model.ffn=192 model.lora_rank=4 parallel.pipeline=2 precision.frozen_weights=nf4 \
         parallel.data_parallel_sharding=optim_grads_params recompute.granularity=full",
    ),
    (
        4,
        "model.preset=tiny-llama model.experts=4 model.experts_per_token=2 parallel.context=4 \
         parallel.context_transfers=ring train.force_expert_balance=true train.balance_loss_multiplier=0.01",
    ),
];

/// Fails unless a layout has the numbers of one rank. Returns what was compared.
fn verified(ranks: usize, settings: &str) -> Vec<String> {
    let sources = ConfigSources::of_pairs(settings).unwrap();
    let [trial] = trials(&sources.resolve(), ranks).unwrap().try_into().ok().unwrap();
    match trial.verdict().unwrap() {
        Verdict::Same(lines) => lines,
        Verdict::Differs(found) => panic!("{settings}: {found}"),
    }
}

#[test]
fn number_formats_have_the_numbers_of_one_rank() {
    for (ranks, settings) in FORMATS {
        let common = "model.layers=4 train.global_batch_size=8 train.micro_batch_size=2 precision.compute=bf16";
        let lines = verified(*ranks, &format!("{common} {settings}"));
        assert!(lines.len() == 4, "{settings}: {lines:?}");
    }
}

#[test]
fn eight_ranks_divide_sequences_with_windows_and_documents() {
    let common = "model.layers=4 train.global_batch_size=8 train.micro_batch_size=2 precision.compute=f32";
    let windows = "model.preset=gemma3-1b model.sliding_window=4 model.window_pattern=[1,0]";
    for more in
        ["", "data.reset_attention_mask=true", "data.sft=true data.seq_length_buckets=[64,128] model.seq_length=128"]
    {
        verified(8, &format!("{common} {windows} parallel.context=8 {more}"));
    }
}

/// Layouts of up to 8 ranks in which some divide the experts, with what meets there.
const DIVIDED_EXPERTS: &[(usize, &str)] = &[
    (
        4,
        "parallel.expert=2 parallel.data_parallel_sharding=optim_grads_params model.experts=6 \
         model.experts_per_token=3 optimizer.kind=muon",
    ),
    (4, "parallel.expert=4 model.expert_capacity_factor=0.75 train.router_z_loss_multiplier=0.001"),
    (
        8,
        "parallel.expert=2 parallel.tensor=2 parallel.sequence_parallel=true recompute.granularity=full \
         model.bias=true model.activation=clamped_swiglu",
    ),
    (
        8,
        "parallel.expert=2 parallel.pipeline=2 parallel.virtual_pipeline=2 parallel.data_parallel_sharding=optim_grads \
         model.bias=true",
    ),
    // The first stage has no experts.
    (
        8,
        "parallel.expert=4 parallel.pipeline=2 parallel.pipeline_schedule=zero_bubble model.shared_expert_ffn=64 \
         model.expert_pattern=[0,0,1,1]",
    ),
    (
        8,
        "parallel.expert=4 parallel.tensor=2 parallel.data_parallel_sharding=optim_grads_params \
         parallel.optimizer_instances=2 cuda_graph.enable=true parallel.expert_row_budget=1 optimizer.kind=muon",
    ),
    // Whole experts: over some of the ranks that share a layer, over more than these, and over none.
    (
        8,
        "parallel.expert=2 parallel.expert_tensor=1 parallel.tensor=4 parallel.sequence_parallel=true \
         parallel.distributed_optimizer=true model.expert_capacity_factor=0.75 optimizer.kind=muon",
    ),
    (
        8,
        "parallel.expert=4 parallel.expert_tensor=1 parallel.tensor=2 parallel.context=2 model.shared_expert_ffn=64 \
         parallel.expert_row_budget=1 recompute.granularity=full cuda_graph.enable=true \
         cuda_graph.overlap_microbatches=true",
    ),
    (4, "parallel.expert_tensor=1 parallel.tensor=2 parallel.distributed_optimizer=true model.bias=true"),
    // Adapters of experts, with those of attention or alone.
    (
        4,
        "parallel.expert=2 parallel.expert_tensor=1 parallel.tensor=2 model.lora_rank=4 model.hidden=128 model.ffn=128 \
         parallel.distributed_optimizer=true recompute.granularity=full precision.frozen_weights=nf4",
    ),
    (
        8,
        "parallel.expert=2 parallel.tensor=2 parallel.data_parallel_sharding=optim_grads_params model.lora_rank=4 \
         model.lora_target_modules=[\"w1\",\"w2\",\"w3\"]",
    ),
    (
        4,
        "parallel.expert=2 parallel.data_parallel_sharding=optim_grads_params model.lora_rank=4 model.ffn=128 \
         precision.frozen_weights=int8 cuda_graph.enable=true",
    ),
    (
        8,
        "parallel.expert=2 parallel.pipeline=2 parallel.pipeline_schedule=zero_bubble model.lora_rank=4 model.ffn=128 \
         precision.frozen_weights=int8 cuda_graph.enable=true model.lora_target_modules=[\"k_proj\",\"w2\"]",
    ),
];

#[test]
fn ranks_that_divide_experts_have_the_numbers_of_one_rank() {
    for (ranks, settings) in DIVIDED_EXPERTS {
        let common = "model.preset=tiny-llama model.experts=8 model.experts_per_token=2 model.layers=4 \
                      train.global_batch_size=48 train.micro_batch_size=2 precision.compute=f32 \
                      train.balance_loss_multiplier=0.01 train.balance_loss_over=sequence";
        let lines = verified(*ranks, &format!("{common} {settings}"));
        assert!(lines.len() == 2, "{settings}: {lines:?}");
    }
}

#[test]
fn ranks_that_pass_keys_round_have_the_numbers_of_one() {
    let common = "model.layers=4 train.global_batch_size=8 train.micro_batch_size=2 parallel.context_transfers=ring";
    for (ranks, settings) in [
        (8, "model.preset=tiny parallel.context=8 precision.compute=f32 model.hidden_dropout=0.1"),
        (
            8,
            "model.preset=tiny-llama model.kv_heads=2 parallel.context=2 parallel.tensor=2 precision.compute=f32 \
             model.attention_sinks=true parallel.sequence_parallel=true recompute.granularity=full \
             recompute.keep_attention=true cuda_graph.enable=true cuda_graph.scope=full_iteration",
        ),
        (
            8,
            "model.preset=gemma3-1b model.sliding_window=4 model.window_pattern=[1,0] parallel.context=4 \
             parallel.pipeline=2 precision.compute=bf16",
        ),
    ] {
        verified(ranks, &format!("{common} {settings}"));
    }
}

/// What is about whole samples, of which ranks have some tokens: pairs of answers, and experts' capacity, padding and loads of
/// documents.
#[test]
fn ranks_that_divide_samples_have_what_depends_on_all_of_their_tokens() {
    let common = "model.preset=tiny-llama model.layers=2 train.global_batch_size=8 train.micro_batch_size=2 \
                  precision.compute=f32 parallel.context=2";
    let experts = "model.experts=4 model.experts_per_token=2 train.balance_loss_multiplier=0.01";
    for (ranks, settings) in [
        (4, "data.dpo=true data.sft_packing=2".into()),
        (4, "data.kto=true data.sft_packing=2".into()),
        (4, "data.dpo=true dpo.loss_type=ipo parallel.tensor=2 model.loss_pieces=2".into()),
        (2, format!("{experts} model.expert_capacity_factor=0.75 train.router_bias_update_rate=0.01")),
        (2, format!("{experts} model.expert_capacity_factor=0.75 model.token_drop_policy=position data.sft=true")),
        (4, format!("{experts} data.sft=true train.balance_loss_over=sequence train.router_z_loss_multiplier=0.001")),
        (4, format!("{experts} data.reset_attention_mask=true train.balance_loss_over=sequence")),
        (2, format!("{experts} data.sft=true train.balance_loss_over=global_batch")),
    ] {
        verified(ranks, &format!("{common} {settings}"));
    }
}

#[test]
fn ranks_that_exchange_heads_have_the_numbers_of_one() {
    let common = "model.layers=4 train.global_batch_size=8 train.micro_batch_size=2 parallel.context_transfers=heads";
    for (ranks, settings) in [
        (4, "model.preset=tiny parallel.context=4 precision.compute=f32 model.hidden_dropout=0.1"),
        (
            8,
            "model.preset=tiny-llama model.kv_heads=4 parallel.context=2 parallel.tensor=2 precision.compute=f32 \
             model.attention_sinks=true parallel.sequence_parallel=true data.reset_attention_mask=true \
             recompute.granularity=full recompute.keep_attention=true",
        ),
        (
            4,
            "model.preset=gemma3-1b model.kv_heads=2 model.sliding_window=4 model.window_pattern=[1,0] \
             parallel.context=2 parallel.pipeline=2 precision.compute=bf16 data.sft=true data.sft_packing=4",
        ),
    ] {
        verified(ranks, &format!("{common} {settings}"));
    }
}

/// Data-parallel ranks divide no state of such a stage, but each of its weights is saved once.
#[test]
fn a_stage_whose_parameters_are_all_frozen_is_saved_once() {
    let lines = verified(
        4,
        "model.preset=tiny-llama model.layers=4 model.tie_embeddings=false parallel.pipeline=2 \
         parallel.pipeline_layers=[2,2] parallel.distributed_optimizer=true precision.compute=f32 \
         train.global_batch_size=8 train.micro_batch_size=2 optimizer.freeze=[\"wte.weight\",\"h.0.*\",\"h.1.*\"]",
    );
    assert!(lines.iter().any(|line| line.starts_with("checkpoint")), "{lines:?}");
}
