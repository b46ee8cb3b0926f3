//! Forward, loss, backward and update in one graph, validation in a second one. Both read static buffers that are
//! filled before each replay, as with `torch.cuda.graph` around a whole training step.

use std::num::NonZeroUsize;

use graph_manager::device::DType;
use external::{STEPS, Training, report};
use graph_manager::{Capture, Layer, Result};

/// The losses of training and of validation, and the number of graphs. Runs up to `warm_up` are eager.
fn train(warm_up: usize) -> Result<(Vec<f32>, Vec<f32>, usize)> {
    let mut training = Training::new()?;
    let Training { input, target, losses, .. } = training;
    let network = training.network.clone();
    let mut step = Capture::new(&training.pool, "step", warm_up, NonZeroUsize::MIN, move |cx, ()| {
        network.step(cx, [input, target, losses])
    })?;
    let network = training.network.without_dropout();
    let mut validate = Capture::new(&training.pool, "validate", warm_up, NonZeroUsize::MIN, move |cx, ()| {
        let (prediction, _) = network.forward(cx, input)?;
        let losses = cx.tensor("losses", [prediction.shape.rows()], DType::F32)?;
        let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
        cx.run(network.loss(prediction, target, losses, grad))?;
        Ok(losses)
    })?;
    let mut validation = Vec::new();
    let losses = training.run(|training, number| {
        if number % 4 == 0 {
            let losses = validate.run(())?; // valid until the next run
            validation.push(training.mean(*losses)?);
        }
        step.run(()).map(drop)
    })?;
    Ok((losses, validation, step.report().graphs.len() + validate.report().graphs.len()))
}

fn main() -> Result<()> {
    let (eager, eager_validation, none) = train(STEPS)?;
    let (replayed, validation, graphs) = train(2)?;
    assert_eq!(eager_validation, validation, "graphs change no bit of the validation either");
    assert_eq!((none, graphs), (0, 2));
    report("whole iteration", &eager, &replayed, graphs);
    Ok(())
}
