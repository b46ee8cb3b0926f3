//! The choice of each token's experts, and its gradient.

use super::{PlacesArgs, at_most};
use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::{KernelOperation, Queue};
use crate::gpu_types::GpuProperties;
use crate::ops::{CountedLoads, GroupScore, Route, RouteBackward, Score, ensure};
use crate::{Operation, Result};

kernel_struct! {
    /// `Route` of `kernels/experts/route.cu`; 0 is the null pointer.
    RouteArgs {
        u64: logits, bias, chosen, weights;
        u32: tokens, experts, k, sigmoid, normalise, forces_balance, groups, of_groups, two_highest, reserved;
        f32: scale;
        PlacesArgs: places;
    }
}

kernel_struct! {
    /// `RouteBackward` of `kernels/experts/route.cu`; 0 is the null pointer.
    RouteBackwardArgs {
        u64: logits, chosen, grad_weights, load, balance_losses, z_losses, real, position_ids, control, grad_logits;
        u32: tokens, experts, k, groups, samples, of_step;
        PlacesArgs: places;
        u32: sigmoid, normalise, adds_gradient;
        f32: scale, balance_multiplier, z_multiplier;
        u32: reserved;
    }
}

/// A warp has a thread for each.
const MOST_GROUPS: usize = 32;

/// Threads of a block: a warp takes a token.
const THREADS: usize = 256;

fn grid(tokens: usize) -> Grid {
    Grid::line(tokens.div_ceil(THREADS / 32), THREADS as u32)
}

/// The kernel whose threads have enough experts each, a power of two.
fn kernel(name: &str, experts: usize) -> String {
    format!("{name}_{}", experts.div_ceil(32).next_power_of_two())
}

impl KernelOperation for Route {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/route.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (tokens, experts) = (self.logits.shape.rows(), self.logits.shape.last());
        let block = RouteArgs {
            logits: self.logits.address,
            bias: self.bias.map_or(0, |bias| bias.address),
            chosen: self.chosen.address,
            weights: self.weights.address,
            tokens: tokens as u32,
            experts: experts as u32,
            k: self.chosen.shape.last() as u32,
            sigmoid: (self.router.score == Score::Sigmoid).into(),
            normalise: self.router.normalise.into(),
            forces_balance: self.router.forces_balance.into(),
            groups: self.router.groups.map_or(1, |groups| groups.count as u32),
            of_groups: self.router.groups.map_or(1, |groups| groups.per_token as u32),
            two_highest: self.router.groups.is_some_and(|groups| groups.score == GroupScore::TwoHighest).into(),
            reserved: 0,
            scale: self.router.scale,
            places: PlacesArgs::new(self.tokens, tokens),
        };
        queue.launch_block(&kernel("route", experts), grid(tokens), &block)
    }

    fn fits(&self, _gpu: &GpuProperties) -> Result<()> {
        let groups = self.router.groups.map_or(1, |groups| groups.count);
        ensure(Self::NAME, groups <= MOST_GROUPS, || format!("at most {MOST_GROUPS} groups of experts, not {groups}"))?;
        at_most(Self::NAME, self.logits.shape.last(), self.chosen.shape.last())
    }
}

impl KernelOperation for RouteBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/route.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (tokens, experts) = (self.logits.shape.rows(), self.logits.shape.last());
        let k = self.chosen.shape.last();
        let block = RouteBackwardArgs {
            logits: self.logits.address,
            chosen: self.chosen.address,
            grad_weights: self.grad_weights.address,
            load: self.balance.map_or(0, |balance| balance.load.address),
            balance_losses: self.balance.map_or(0, |balance| balance.losses.address),
            z_losses: self.z_loss.map_or(0, |z_loss| z_loss.losses.address),
            real: self.real.map_or(0, |real| real.address),
            position_ids: self.balance.and_then(|balance| balance.position_ids).map_or(0, |ids| ids.address),
            control: self.control.address,
            grad_logits: self.grad_logits.address,
            tokens: tokens as u32,
            experts: experts as u32,
            k: k as u32,
            groups: self.balance.map_or(1, |balance| balance.load.shape.rows() as u32),
            samples: self.tokens.samples as u32,
            of_step: self.balance.is_some_and(|balance| balance.loads == CountedLoads::OfStep).into(),
            places: PlacesArgs::new(self.tokens, tokens),
            sigmoid: (self.router.score == Score::Sigmoid).into(),
            normalise: self.router.normalise.into(),
            adds_gradient: self.adds_gradient.into(),
            scale: self.router.scale,
            balance_multiplier: self.balance.map_or(0.0, |balance| balance.multiplier),
            z_multiplier: self.z_loss.map_or(0.0, |z_loss| z_loss.multiplier),
            reserved: 0,
        };
        queue.launch_block(&kernel("route_backward", experts), grid(tokens), &block)
    }

    fn fits(&self, _gpu: &GpuProperties) -> Result<()> {
        at_most(Self::NAME, self.logits.shape.last(), self.chosen.shape.last())
    }
}
