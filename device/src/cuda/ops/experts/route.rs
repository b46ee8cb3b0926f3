//! The choice of each token's experts, and its gradient.

use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::Grid;
use crate::ops::{Route, RouteBackward, Score};

/// `Route` of `kernels/route.cu`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct RouteArgs {
    logits: u64,
    bias: u64,
    chosen: u64,
    weights: u64,
    tokens: u32,
    experts: u32,
    k: u32,
    sigmoid: u32,
    normalise: u32,
    forces_balance: u32,
    scale: f32,
    reserved: u32,
}

/// `RouteBackward` of `kernels/route.cu`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct RouteBackwardArgs {
    logits: u64,
    chosen: u64,
    grad_weights: u64,
    load: u64,
    balance_losses: u64,
    z_losses: u64,
    real: u64,
    position_ids: u64,
    control: u64,
    grad_logits: u64,
    tokens: u32,
    experts: u32,
    k: u32,
    groups: u32,
    sequences: u32,
    sigmoid: u32,
    normalise: u32,
    adds_gradient: u32,
    scale: f32,
    balance_multiplier: f32,
    z_multiplier: f32,
    reserved: u32,
}

/// Threads of a block: a warp takes a token.
const THREADS: usize = 256;

fn grid(tokens: usize) -> Grid {
    Grid::line(tokens.div_ceil(THREADS / 32), THREADS as u32)
}

/// The kernel whose threads have enough experts each, a power of two.
fn kernel(name: &str, experts: usize) -> String {
    format!("{name}_{}", experts.div_ceil(32).next_power_of_two())
}

/// See [`Route`].
pub(in crate::cuda::ops) fn route(op: &Route, queue: &Queue<'_>) -> Result<()> {
    let (tokens, experts) = (op.logits.shape.rows(), op.logits.shape.last());
    let block = RouteArgs {
        logits: op.logits.address,
        bias: op.bias.map_or(0, |bias| bias.address),
        chosen: op.chosen.address,
        weights: op.weights.address,
        tokens: tokens as u32,
        experts: experts as u32,
        k: op.chosen.shape.last() as u32,
        sigmoid: (op.router.score == Score::Sigmoid).into(),
        normalise: op.router.normalise.into(),
        forces_balance: op.router.forces_balance.into(),
        scale: op.router.scale,
        reserved: 0,
    };
    queue.launch_block(&kernel("route", experts), grid(tokens), &block)
}

/// See [`RouteBackward`].
pub(in crate::cuda::ops) fn route_backward(op: &RouteBackward, queue: &Queue<'_>) -> Result<()> {
    let (tokens, experts) = (op.logits.shape.rows(), op.logits.shape.last());
    let k = op.chosen.shape.last();
    let block = RouteBackwardArgs {
        logits: op.logits.address,
        chosen: op.chosen.address,
        grad_weights: op.grad_weights.address,
        load: op.balance.map_or(0, |balance| balance.load.address),
        balance_losses: op.balance.map_or(0, |balance| balance.losses.address),
        z_losses: op.z_loss.map_or(0, |z_loss| z_loss.losses.address),
        real: op.real.map_or(0, |real| real.address),
        position_ids: op.balance.and_then(|balance| balance.position_ids).map_or(0, |ids| ids.address),
        control: op.control.address,
        grad_logits: op.grad_logits.address,
        tokens: tokens as u32,
        experts: experts as u32,
        k: k as u32,
        groups: op.balance.map_or(1, |balance| balance.load.shape.rows() as u32),
        sequences: op.real.map_or(1, |real| real.elements() as u32),
        sigmoid: (op.router.score == Score::Sigmoid).into(),
        normalise: op.router.normalise.into(),
        adds_gradient: op.adds_gradient.into(),
        scale: op.router.scale,
        balance_multiplier: op.balance.map_or(0.0, |balance| balance.multiplier),
        z_multiplier: op.z_loss.map_or(0.0, |z_loss| z_loss.multiplier),
        reserved: 0,
    };
    queue.launch_block(&kernel("route_backward", experts), grid(tokens), &block)
}
