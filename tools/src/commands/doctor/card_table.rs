//! Measures a GPU, and writes the GPU's file, which `trainer plan` reads.
//!
//! Rates of operations are measured alone, at the clock that the GPU keeps. Then the rate of products and the latency of kernels
//! are fitted, so that the predicted steps of two models take as long as the measured ones.

use std::path::Path;

use common::terminal::say;
use device::Device;
use device::cuda::FP8_CAPABILITY;
use engine::precision::Precision;

use super::card_rates::{self, CardRates};
use crate::commands::bench::case;
use crate::predict::{Card, forecast};
use device::trials::Workbench;
use trainer::config::ConfigSources;
use trainer::config::plan::RunPlan;
use trainer::error::{RunError, file_error};
use trainer::process_group::ProcessGroup;
use trainer::report::gpu_peak::peak_tflops;
use trainer::run::random_steps::{Inputs, RandomSteps, median};

/// A case with many short kernels. Its step shows the cost of a kernel besides its work.
const SMALL: &str = "gpt2-124m-4x8";

/// The cases with large products, the best first, with the GiB of memory that each needs. Their step shows the products'
/// speed.
const LARGE: [(&str, f64); 3] = [("gpt-1.3b-8x1", 60.0), ("gpt2-350m-16x1", 24.0), (SMALL, 0.0)];

/// Timed steps of a case, and as many steps before.
const STEPS: usize = 12;

/// How often each fitted number is set again, with the present value of the other number.
const ROUNDS: usize = 3;

/// A case and the measured time of the case.
struct Measured {
    plan: RunPlan,
    /// Seconds of a step.
    step: f64,
}

/// Measures this GPU and writes the GPU's file.
///
/// # Errors
/// See [`RunError`]; a file that cannot be written.
pub(super) fn write(file: &Path, group: &ProcessGroup, device: &Device) -> Result<(), RunError> {
    let Some(gpu) = device.gpu() else { unreachable!("the command line asks for a GPU") };
    let eight_bit = gpu.capability >= FP8_CAPABILITY;
    let rates = card_rates::measure(&mut Workbench::new(device), eight_bit)?;
    let memory_gib = device.gpu_memory()?.map_or(0.0, |(_, total)| gib(total));
    let large = LARGE.iter().find(|(_, needed)| *needed < memory_gib).map_or(SMALL, |(name, _)| name);
    let small = measure(SMALL, group, device)?;
    let process_gib =
        device.gpu_memory()?.map_or(0.0, |(free, total)| gib(total - free)) - gib(device.allocated_bytes());
    let large = measure(large, group, device)?;
    let mut card = Card::named("h200")?;
    card.name = gpu.name.clone();
    card.memory_gib = memory_gib;
    card.peak_bf16_tflops = peak_tflops(&gpu.name, Precision::Bf16).unwrap_or(rates.bf16_tflops);
    card.libraries.process_gib = process_gib.max(0.01);
    rates.put_into(&mut card);
    for _ in 0..ROUNDS {
        card = fitted(&card, &large, |card, factor| card.products.bf16_tflops = rates.bf16_tflops / factor)?;
        let (latency, ramp) = (LATENCY_US, RAMP_US);
        card = fitted(&card, &small, |card, factor| {
            (card.kernel.latency_us, card.kernel.ramp_us) = (latency * factor, ramp * factor);
        })?;
    }
    let [small_ms, large_ms] = [&small, &large].map(|case| case.step * 1e3);
    for case in [&small, &large] {
        let (predicted, measured) = (forecast(&case.plan, &card, 8)?.step * 1e3, case.step * 1e3);
        let name = trainer::config::model_name::describe(&case.plan.config.model);
        say(&format!("{name}: a step takes {measured:.2} ms, and {predicted:.2} ms by the file"));
    }
    std::fs::write(file, text(&card, &rates, small_ms, large_ms))
        .map_err(file_error(format!("the GPU's file, {}", file.display())))?;
    Card::named(&file.to_string_lossy())?;
    say(&format!("{}: `trainer plan --gpu {0}` reads it", file.display()));
    Ok(())
}

/// Kernels' latency and ramp at the start of the fit, as in `configs/gpus/h200.toml`.
const LATENCY_US: f64 = 4.0;
const RAMP_US: f64 = 2.5;

fn gib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Steps of a case of `trainer bench`, as one graph.
fn measure(name: &str, group: &ProcessGroup, device: &Device) -> Result<Measured, RunError> {
    let mut sources = ConfigSources::default();
    let graphs = [("cuda_graph.enable", "true"), ("cuda_graph.scope", "full_iteration"), ("train.eval_interval", "0")];
    for (key, value) in case(name).iter().chain(&graphs) {
        sources.set(key, value, "the case")?;
    }
    let plan = RunPlan::new(sources.resolve(), 1)?;
    let mut run = RandomSteps::new(&plan, group, device)?;
    for _ in 0..plan.graphs.warmup_steps + 2 {
        run.step(Inputs::Copied)?;
    }
    run.in_a_row(STEPS)?; // until the clock has settled
    let step = median(run.in_a_row(STEPS)?.milliseconds) / 1e3;
    run.end()?;
    Ok(Measured { plan, step })
}

/// The card with a number set so that the predicted step takes as long as the measured one. `set` gets a factor from 1/8 to 8; the
/// larger, the longer the step.
fn fitted(card: &Card, case: &Measured, set: impl Fn(&mut Card, f64)) -> Result<Card, RunError> {
    let (mut low, mut high) = (-3.0_f64, 3.0_f64);
    let mut tried = card.clone();
    for _ in 0..12 {
        let middle = (low + high) / 2.0;
        set(&mut tried, middle.exp2());
        match forecast(&case.plan, &tried, 8)?.step < case.step {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(tried)
}

/// The file of a GPU.
fn text(card: &Card, alone: &CardRates, small_ms: f64, large_ms: f64) -> String {
    let Card { name, memory_gib, peak_bf16_tflops, products, attention, memory, kernel, .. } = card;
    let (node, network, host, libraries) = (&card.node, card.network, card.host, card.libraries);
    format!(
        include_str!("card.txt"),
        name = name,
        memory_gib = memory_gib,
        peak_bf16_tflops = peak_bf16_tflops,
        large_ms = large_ms,
        small_ms = small_ms,
        alone_bf16 = alone.bf16_tflops,
        bf16 = products.bf16_tflops,
        tf32 = products.tf32_tflops,
        f32 = products.f32_tflops,
        eight = if alone.fp8_tflops.is_some() { "Alone." } else { "There are none: as bf16." },
        fp8 = products.fp8_tflops,
        channels = attention.head_channels,
        forward = attention.forward_tflops,
        backward = attention.backward_tflops,
        long_forward = attention.long_forward_gain,
        long_backward = attention.long_backward_gain,
        gb_per_s = memory.gb_per_s,
        latency = kernel.latency_us,
        ramp = kernel.ramp_us,
        ranks = node.ranks,
        bus = node.bus_gb_per_s,
        node_latency = node.latency_us,
        kernels_latency = node.kernels_latency_us,
        network_rate = network.gb_per_s,
        network_latency = network.latency_us,
        hop = network.hop_us,
        share = card.overlap.transfer_share,
        operation_us = host.operation_us,
        launch_us = host.launch_us,
        with_transfers = host.launch_with_transfers_us,
        copy_gb_per_s = host.copy_gb_per_s,
        process_gib = libraries.process_gib,
        communicator_gib = libraries.communicator_gib,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of(name: &str) -> RunPlan {
        let mut sources = ConfigSources::default();
        case(name).iter().for_each(|(key, value)| sources.set(key, value, "test").unwrap());
        RunPlan::new(sources.resolve(), 1).unwrap()
    }

    #[test]
    fn a_fit_finds_the_number_that_the_steps_were_made_with() {
        let card = Card::named("h200").unwrap();
        let plan = plan_of(SMALL);
        let mut real = card.clone();
        real.kernel.latency_us = 6.0;
        let case = Measured { step: forecast(&plan, &real, 8).unwrap().step, plan };
        let found = fitted(&card, &case, |card, factor| card.kernel.latency_us = 4.0 * factor).unwrap();
        assert!((found.kernel.latency_us - 6.0).abs() < 0.05, "{}", found.kernel.latency_us);
    }

    #[test]
    fn the_written_file_is_read_with_the_same_numbers() {
        let mut card = Card::named("h200").unwrap();
        let rates = CardRates {
            bf16_tflops: 700.0,
            f32_tflops: 50.0,
            fp8_tflops: Some(1300.0),
            attention: [[300.0, 200.0], [500.0, 350.0]],
            gb_per_s: 3900.0,
        };
        rates.put_into(&mut card);
        let file = std::env::temp_dir().join(format!("card-{}.toml", std::process::id()));
        std::fs::write(&file, text(&card, &rates, 62.0, 249.0)).unwrap();
        let read = Card::named(&file.to_string_lossy());
        std::fs::remove_file(&file).unwrap();
        assert_eq!(read.unwrap(), card);
    }
}
