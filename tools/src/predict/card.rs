//! The facts about a kind of GPU: its memory, and the rates that the trainer achieves on it.

use std::path::Path;

use common::{UserError, files::read_text, nearest};
use serde::Deserialize;

/// The largest file that is read, in bytes.
const LARGEST: u64 = 1 << 20;
const GIB: f64 = (1u64 << 30) as f64;

/// The GPUs of `configs/gpus`, by name.
const CARDS: &[(&str, &str)] = &[
    ("h200", include_str!("../../../configs/gpus/h200.toml")),
    ("h100-80", include_str!("../../../configs/gpus/h100-80.toml")),
    ("a100-80", include_str!("../../../configs/gpus/a100-80.toml")),
    ("b200", include_str!("../../../configs/gpus/b200.toml")),
];

/// A kind of GPU. The files in `configs/gpus` give the source of each number.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// The GPU's name.
    pub name: String,
    /// Whether the card's rates were measured. Otherwise they follow from the data sheet and another card's efficiency.
    pub measured: bool,
    /// All of the card's memory.
    pub memory_gib: f64,
    /// The data sheet's dense peak. MFU is a share of it.
    pub peak_bf16_tflops: f64,
    /// Matrix products.
    pub products: Products,
    /// Attention.
    pub attention: AttentionRates,
    /// Everything that only reads and writes.
    pub memory: MemoryRate,
    /// Every kernel.
    pub kernel: Kernel,
    /// Transfers inside a node.
    pub node: NodeRates,
    /// Transfers between nodes.
    pub network: NetworkRates,
    /// Transfers beside kernels.
    pub overlap: Overlap,
    /// The times that the host of a GPU takes to submit work.
    pub host: HostTimes,
    /// Memory that libraries take.
    pub libraries: Libraries,
}

/// TFLOP/s of large matrix products, by the type of the factors.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Products {
    /// bf16.
    pub bf16_tflops: f64,
    /// f32 rounded to TF32.
    pub tf32_tflops: f64,
    /// f32.
    pub f32_tflops: f64,
    /// 8 bits.
    pub fp8_tflops: f64,
}

/// TFLOP/s of causal attention by channels of a head, of samples of up to [`SHORT`] tokens. The masked half is not counted.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct AttentionRates {
    /// Channels of a head, ascending.
    pub head_channels: Vec<f64>,
    /// Forward.
    pub forward_tflops: Vec<f64>,
    /// Backward.
    pub backward_tflops: Vec<f64>,
    /// Forward of samples of [`LONG`] tokens, as a multiple of `forward_tflops`; at least 1.
    #[serde(default = "long_forward_gain")]
    pub long_forward_gain: f64,
    /// Backward of the same.
    #[serde(default = "long_backward_gain")]
    pub long_backward_gain: f64,
}

/// Tokens of samples that attention's rates are of.
const SHORT: f64 = 2048.0;
/// Tokens of samples that the gains of attention are of.
const LONG: f64 = 32768.0;

/// The gain of the H200, for files that name none.
fn long_forward_gain() -> f64 {
    1.45
}

/// The same of backward.
fn long_backward_gain() -> f64 {
    1.36
}

/// A pass of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Outputs.
    Forward,
    /// Gradients.
    Backward,
}

impl AttentionRates {
    /// The gain of a pass for queries that see so many keys, in the mean. The time of a FLOP falls in proportion to what each
    /// query costs besides its keys.
    pub fn gain(&self, pass: Pass, keys: f64) -> f64 {
        let per_key = |tokens: f64| 2.0 / tokens;
        let share = (per_key(SHORT) - 1.0 / keys) / (per_key(SHORT) - per_key(LONG));
        let least = match pass {
            Pass::Forward => 1.0 / self.long_forward_gain,
            Pass::Backward => 1.0 / self.long_backward_gain,
        };
        1.0 / (1.0 - (1.0 - least) * share.max(0.0))
    }
}

/// The rate of kernels that only read and write.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MemoryRate {
    /// GB (1e9 bytes) read and written a second.
    pub gb_per_s: f64,
}

/// The cost of every kernel besides the kernel's work.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Microseconds between dependent kernels of a graph. Other kernels may run meanwhile.
    pub latency_us: f64,
    /// Microseconds that a kernel takes the GPU besides the kernel's work: while its first wave fills it, and its last
    /// drains.
    pub ramp_us: f64,
}

/// Transfers inside a node: NCCL's by the ranks of the group, and those of the trainer's own kernels.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct NodeRates {
    /// Ranks, ascending.
    pub ranks: Vec<f64>,
    /// Bus bandwidth, GB/s.
    pub bus_gb_per_s: Vec<f64>,
    /// The time of a transfer besides the transfer's bytes, microseconds.
    pub latency_us: Vec<f64>,
    /// The time of a transfer by the trainer's own kernels besides the transfer's bytes, microseconds. They transfer
    /// between ranks that share layers.
    pub kernels_latency_us: f64,
}

/// NCCL between nodes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct NetworkRates {
    /// Bandwidth of one GPU's port, GB/s.
    pub gb_per_s: f64,
    /// The time of a transfer besides the transfer's bytes, microseconds.
    pub latency_us: f64,
    /// The additional latency of each further node, microseconds.
    pub hop_us: f64,
}

/// How transfers slow down kernels that run at the same time.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Overlap {
    /// The share of the GPU that transfers take from kernels.
    pub transfer_share: f64,
}

/// Microseconds that a host is busy, and the rate of copies to the host.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct HostTimes {
    /// With an operation that is in no graph.
    pub operation_us: f64,
    /// With the launch of a graph.
    pub launch_us: f64,
    /// With the launch of a graph that has transfers by NCCL.
    pub launch_with_transfers_us: f64,
    /// GB a second between a GPU's memory and page-locked memory, each way.
    pub copy_gb_per_s: f64,
}

/// Memory that no plan counts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Libraries {
    /// The driver's context, the libraries' code and workspaces.
    pub process_gib: f64,
    /// NCCL, for each communicator of a rank.
    pub communicator_gib: f64,
}

impl Card {
    /// The GPU of that name, or of that TOML file.
    ///
    /// # Errors
    /// No such name or file, a file that does not describe a GPU.
    pub fn named(name: &str) -> Result<Card, UserError> {
        if let Some((_, text)) = CARDS.iter().find(|(known, _)| *known == name) {
            return Card::read(text, name);
        }
        let names: Vec<&str> = CARDS.iter().map(|(name, _)| *name).collect();
        let rule = format!("a GPU is {}, or a TOML file as in configs/gpus", names.join(", "));
        if !Path::new(name).exists() {
            let fix = match nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "choose one of them, or check the path".into(),
            };
            return Err(UserError::new(format!("--gpu {name}"), rule, fix));
        }
        let text = read_text(name.as_ref(), LARGEST)
            .map_err(|error| UserError::new(format!("--gpu {name}: {error}"), rule, "check the path"))?;
        Card::read(&text, name)
    }

    fn read(text: &str, name: &str) -> Result<Card, UserError> {
        let wrong = |problem: String| {
            let fix = "copy configs/gpus/h200.toml, and change its numbers";
            UserError::new(format!("--gpu {name}: {problem}"), "the file has every number of a GPU, all above 0", fix)
        };
        let card: Card = toml::from_str(text).map_err(|error| wrong(error.message().into()))?;
        let AttentionRates { head_channels, forward_tflops, backward_tflops, long_forward_gain, long_backward_gain } =
            &card.attention;
        let NodeRates { ranks, bus_gb_per_s, latency_us, kernels_latency_us } = &card.node;
        for (name, keys, lists) in [
            ("attention", head_channels, [forward_tflops, backward_tflops]),
            ("node", ranks, [bus_gb_per_s, latency_us]),
        ] {
            let alike = !keys.is_empty() && lists.iter().all(|list| list.len() == keys.len());
            if !alike || !keys.is_sorted() || lists.iter().any(|list| list.iter().any(|value| *value <= 0.0)) {
                return Err(wrong(format!("the lists of [{name}] are not of one length, ascending and above 0")));
            }
        }
        let Products { bf16_tflops, tf32_tflops, f32_tflops, fp8_tflops } = card.products;
        let rates = [bf16_tflops, tf32_tflops, f32_tflops, fp8_tflops, card.memory.gb_per_s, card.network.gb_per_s];
        let room = card.memory_gib - card.libraries.process_gib;
        let others = [room, card.peak_bf16_tflops, *kernels_latency_us];
        if rates.iter().chain(&others).any(|value| value.is_nan() || *value <= 0.0) {
            return Err(wrong("a rate, a size or a latency is 0, or process_gib is all of memory_gib".into()));
        }
        let HostTimes { operation_us, launch_us, launch_with_transfers_us, copy_gb_per_s } = card.host;
        let of_host = [operation_us, launch_us, launch_with_transfers_us, copy_gb_per_s];
        if of_host.iter().any(|value| value.is_nan() || *value <= 0.0) {
            return Err(wrong("a time or rate of [host] is 0".into()));
        }
        if ![long_forward_gain, long_backward_gain].into_iter().all(|gain| (1.0..4.0).contains(gain)) {
            return Err(wrong("a gain of long samples is from 1 to below 4".into()));
        }
        if !(0.0..1.0).contains(&card.overlap.transfer_share) {
            return Err(wrong("overlap.transfer_share is a share, from 0 to below 1".into()));
        }
        Ok(card)
    }

    /// Bytes of the card's memory.
    pub fn room(&self) -> usize {
        (self.memory_gib * GIB) as usize
    }

    /// Bytes that a recommended layout leaves free: a 32nd, since predictions are off by a
    /// few percent.
    pub fn headroom(&self) -> usize {
        self.room() / 32
    }

    /// Bytes that libraries take on a rank with so many communicators.
    pub(super) fn taken(&self, communicators: usize) -> usize {
        ((self.libraries.process_gib + communicators as f64 * self.libraries.communicator_gib) * GIB) as usize
    }
}

/// The value at `key` of a table with ascending keys: in between by a straight line, outside that of the nearest key.
pub(super) fn at(keys: &[f64], values: &[f64], key: f64) -> f64 {
    let above = keys.partition_point(|known| *known < key);
    if above == 0 || above == keys.len() {
        return values[above.min(keys.len() - 1)];
    }
    let share = (key - keys[above - 1]) / (keys[above] - keys[above - 1]);
    values[above - 1] + share * (values[above] - values[above - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_gpu_is_read_and_only_hopper_is_measured() {
        for (name, _) in CARDS {
            let card = Card::named(name).unwrap();
            assert_eq!(card.measured, ["h200", "h100-80"].contains(name), "{name}");
            // The achieved rate is below that of the data sheet.
            assert!(card.products.bf16_tflops < card.peak_bf16_tflops, "{name}");
        }
    }

    #[test]
    fn wrong_gpus_are_refused_with_what_to_do() {
        assert!(Card::named("h20O").unwrap_err().to_string().contains("did you mean `h200`?"));
        let text = include_str!("../../../configs/gpus/h200.toml");
        for (from, to, problem) in [
            ("process_gib = 0", "process_gib = 300", "process_gib is all of memory_gib"),
            ("head_channels = [64, 128]", "head_channels = [64]", "[attention]"),
            ("measured = true", "", "missing field `measured`"),
            ("transfer_share = ", "transfer_share = 1", "overlap.transfer_share"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Card::read(&text.replace(from, to), "x.toml").unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("copy configs/gpus/h200.toml"), "{error}");
        }
    }

    #[test]
    fn tables_are_lines_between_their_keys() {
        let value = |key| at(&[2.0, 8.0], &[100.0, 160.0], key);
        assert_eq!([1.0, 2.0, 5.0, 8.0, 9.0].map(value), [100.0, 100.0, 130.0, 160.0, 160.0]);
    }
}
