//! Forward and backward as a graph each, made before the first step; loss and optimizer are submitted one by one, as
//! with `torch.cuda.make_graphed_callables` of a module.

use std::num::NonZeroUsize;

use external::{STEPS, Training, report};
use graph_manager::{Capture, Result, graph_callables};

fn eagerly() -> Result<Vec<f32>> {
    let mut training = Training::new()?;
    let Training { input, target, losses, .. } = training;
    let network = training.network.clone();
    // All runs are warm-up: it never captures.
    let mut step = Capture::new(&training.pool, "step", STEPS, NonZeroUsize::MIN, move |cx, ()| {
        network.step(cx, [input, target, losses])
    })?;
    training.run(|_, _| step.run(()).map(drop))
}

/// The losses, and the number of graphs.
fn with_graphs() -> Result<(Vec<f32>, usize)> {
    let mut training = Training::new()?;
    let mut graphed = graph_callables(&training.pool, vec![training.network.clone()], &[training.input], 3, None)?;
    let losses = training.run(|training, _| {
        let Training { pool, network, input, target, losses, grad, .. } = training;
        let prediction = graphed.forward(0, *input)?;
        pool.compute().submit(network.loss(prediction, *target, *losses, *grad))?;
        graphed.backward(0, *grad)?;
        network.update().try_for_each(|op| Ok(pool.compute().submit(op)?))
    })?;
    Ok((losses, graphed.reports().iter().map(|report| report.graphs.len()).sum()))
}

fn main() -> Result<()> {
    let (replayed, graphs) = with_graphs()?;
    assert_eq!(graphs, 2, "a forward and a backward");
    report("ahead of time", &eagerly()?, &replayed, graphs);
    Ok(())
}
