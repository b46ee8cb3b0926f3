//! A layer with products in 8 bits through the fronts: copies of its weight are made once a step, and the scales of its
//! input and of its output's gradient are delayed.

use device::ops::{Fp8Matrix, Gemm, MakeScale, Quantize, QuantizeSource, Scale, UpdateScales};
use device::{Area, DType, Device, Stream, Tensor};
use graph_manager::{
    CallOrder, CudaGraphManager, Layer, ManagerOptions, Policy, Pool, Result, StepContext, TrainingPolicy,
    TrainingRegion, graph_callables,
};

use crate::toy::checked_device;

const BATCH: usize = 16;
const OF: usize = 32;
const TO: usize = 48;
const MICROBATCHES: usize = 3;
/// Scales begin at multiples of 16 bytes.
const STRIDE: usize = 4;

/// `output = input @ weight^T` in 8 bits.
#[derive(Clone, Copy)]
struct EightBits {
    /// `(out, in)`, f32, as its gradient.
    weight: Tensor,
    weight_grad: Tensor,
    /// The copies of the weight: `(out, in)` and `(in, out)`.
    rows: Fp8Matrix,
    columns: Fp8Matrix,
    /// Of the input, and of the output's gradient.
    scales: Tensor,
    amax: Tensor,
    history: Tensor,
    largest: Tensor,
}

impl EightBits {
    fn new(device: &Device, areas: &mut Vec<Area>) -> EightBits {
        let mut tensor = |name: &str, sizes: &[usize], dtype: DType| {
            let tensor = device.allocate_tensor(areas, name, device::Shape::new(sizes), dtype).unwrap();
            device.zero(&tensor).unwrap();
            tensor
        };
        let copy_scale = Scale::Tensor(tensor("copy scale", &[1], DType::F32));
        let copy = |values| Fp8Matrix { values, scale: copy_scale };
        let layer = EightBits {
            weight: tensor("weight", &[TO, OF], DType::F32),
            weight_grad: tensor("weight_grad", &[TO, OF], DType::F32),
            rows: copy(tensor("rows", &[TO, OF], DType::F8E4M3)),
            columns: copy(tensor("columns", &[OF, TO], DType::F8E4M3)),
            scales: tensor("scales", &[2 * STRIDE], DType::F32),
            amax: tensor("amax", &[2 * STRIDE], DType::F32),
            history: tensor("history", &[2 * STRIDE, 3], DType::F32),
            largest: tensor("largest", &[2 * STRIDE], DType::F32),
        };
        device.upload(&layer.scales, &[1.0_f32; 2 * STRIDE]).unwrap();
        let types = [DType::F8E4M3, DType::F8E5M2];
        let largest: Vec<f32> = types.iter().flat_map(|dtype| [dtype.largest_fp8(); STRIDE]).collect();
        device.upload(&layer.largest, &largest).unwrap();
        layer
    }

    /// The two copies of an activation or gradient `(rows, columns)`, with the delayed scale of that number.
    fn copies<P: Policy>(
        &self,
        cx: &mut StepContext<'_, P>,
        of: Tensor,
        dtype: DType,
        number: usize,
    ) -> Result<[Fp8Matrix; 2]> {
        let [scale, amax] = [self.scales, self.amax].map(|all| all.view(number * STRIDE, [1]));
        let (height, width) = (of.shape.rows(), of.shape.last());
        let mut matrix = |name, shape: [usize; 2]| -> Result<Fp8Matrix> {
            Ok(Fp8Matrix { values: cx.tensor(name, shape, dtype)?, scale: Scale::Tensor(scale) })
        };
        let (rows, columns) = (matrix("rows", [height, width])?, matrix("columns", [width, height])?);
        let (source, amax) = (QuantizeSource::Stored(of), Some(amax));
        cx.run(Quantize { source, rows: Some(rows), columns: Some(columns), amax, sums: None, accumulate: false })?;
        Ok([rows, columns])
    }

    /// The end of a step: scales for the next one, and other weights.
    fn update(&self, device: &Device, compute: &Stream, step: usize) {
        let EightBits { amax, history, largest, scales: scale, .. } = *self;
        let update = UpdateScales { amax, history, largest, scale, margin: 0, default: 1.0 };
        compute.submit(update).unwrap();
        device.upload(&self.weight, &noise(100 + step, TO * OF)).unwrap();
    }
}

impl<P: Policy> Layer<P> for EightBits {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    /// The input's transposed copy.
    type Saved = Fp8Matrix;

    fn forward(&self, cx: &mut StepContext<'_, P>, input: Tensor) -> Result<(Tensor, Fp8Matrix)> {
        if cx.is_first_microbatch() {
            let (source, rows, columns) = (QuantizeSource::Stored(self.weight), Some(self.rows), Some(self.columns));
            let scale = self.rows.scale.tensor();
            cx.run(MakeScale { source, dtype: DType::F8E4M3, scale, keep_known: false })?;
            cx.run(Quantize { source, rows, columns, amax: None, sums: None, accumulate: false })?;
        }
        let [rows, columns] = self.copies(cx, input, DType::F8E4M3, 0)?;
        let output = cx.tensor("output", [BATCH, TO], DType::F32)?;
        cx.run(Gemm::fp8(rows, self.rows, output, false))?;
        Ok((output, columns))
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, input: Fp8Matrix, grad: Tensor) -> Result<Tensor> {
        let accumulate = !cx.is_first_microbatch();
        let [rows, columns] = self.copies(cx, grad, DType::F8E5M2, 1)?;
        let input_grad = cx.tensor("input_grad", [BATCH, OF], DType::F32)?;
        cx.run(Gemm::fp8(rows, self.columns, input_grad, false))?;
        cx.run(Gemm { accumulate, ..Gemm::fp8(columns, input, self.weight_grad, false) })?;
        Ok(input_grad)
    }
}

fn noise(seed: usize, count: usize) -> Vec<f32> {
    let hash = |i: usize| ((seed * count + i) as u32).wrapping_mul(2_654_435_761);
    (0..count).map(|i| hash(i) as f32 / u32::MAX as f32 - 0.5).collect()
}

/// The device, the layer, and an input and a gradient for each microbatch.
struct Bench {
    device: Device,
    compute: Stream,
    layer: EightBits,
    inputs: Vec<Tensor>,
    grads: Vec<Tensor>,
    _areas: Vec<Area>,
}

/// The outputs of a step, and the weight gradients and scales after it.
type Left = [Vec<f32>; 3];

impl Bench {
    fn new() -> Bench {
        let (device, mut areas) = (checked_device(), Vec::new());
        let layer = EightBits::new(&device, &mut areas);
        device.upload(&layer.weight, &noise(99, TO * OF)).unwrap();
        let mut data = |name: &str, width: usize| -> Vec<Tensor> {
            let tensors = (0..MICROBATCHES).map(|microbatch| {
                let tensor = device.allocate_tensor(&mut areas, name, [BATCH, width], DType::F32).unwrap();
                device.upload(&tensor, &noise(microbatch, BATCH * width)).unwrap();
                tensor
            });
            tensors.collect()
        };
        let (inputs, grads) = (data("input", OF), data("grad", TO));
        Bench { compute: device.stream("compute"), device, layer, inputs, grads, _areas: areas }
    }

    /// Runs four steps. Each returns its outputs.
    fn steps(&self, mut step: impl FnMut() -> Vec<f32>) -> Vec<Left> {
        let left = (0..4).map(|number| {
            // Magnitudes that grow.
            let inputs: Vec<f32> = noise(number, BATCH * OF).iter().map(|x| x * (1 + number) as f32).collect();
            self.device.upload(&self.inputs[1], &inputs).unwrap();
            let outputs = step();
            self.layer.update(&self.device, &self.compute, number);
            let [grad, scales] = [self.layer.weight_grad, self.layer.scales];
            [outputs, self.device.download(&grad).unwrap(), self.device.download(&scales).unwrap()]
        });
        left.collect()
    }

    fn eagerly(&self) -> Vec<Left> {
        let off = ManagerOptions { enable: false, ..ManagerOptions::default() };
        let mut manager = CudaGraphManager::new(self.compute.clone(), off, TrainingPolicy::default()).unwrap();
        self.steps(|| {
            let step = manager.step("train", MICROBATCHES, &mut |cx| {
                let (mut outputs, mut all) = (Vec::new(), Vec::new());
                for (microbatch, input) in self.inputs.iter().enumerate() {
                    let region = TrainingRegion::forward(0, microbatch);
                    let (output, saved) = cx.region(region, *input, |cx, input| self.layer.forward(cx, input))?;
                    outputs.push(output);
                    all.push(saved);
                }
                for (microbatch, saved) in all.into_iter().enumerate() {
                    let (region, grad) = (TrainingRegion::backward(0, microbatch), self.grads[microbatch]);
                    cx.region(region, grad, |cx, grad| self.layer.backward(cx, saved, grad))?;
                }
                Ok(outputs)
            });
            step.unwrap().iter().flat_map(|output| self.device.download::<f32>(output).unwrap()).collect()
        })
    }
}

#[test]
fn delayed_scales_and_weight_copies_in_graphed_layers_give_the_bits_of_eager_steps() {
    let expected = Bench::new().eagerly();
    let all_change = |pair: &[Left]| pair[0].iter().zip(&pair[1]).all(|(before, after)| before != after);
    assert!(expected.windows(2).all(all_change), "outputs, gradients and scales change from step to step");
    let bench = Bench::new();
    let pool = Pool::new(bench.compute.clone());
    let order = CallOrder::signed(&[1.0, 1.0, 1.0, -1.0, -1.0, -1.0], &[1]).unwrap();
    let before = bench.device.download::<f32>(&bench.layer.amax).unwrap();
    let mut graphed = graph_callables(&pool, vec![bench.layer], &bench.inputs[..1], 2, Some(order)).unwrap();
    assert_eq!(bench.device.download::<f32>(&bench.layer.amax).unwrap(), before, "samples leave no magnitude");
    let report = &graphed.reports()[0];
    let operations = |microbatch: usize| {
        let name = format!("forward of layer 0, microbatch {microbatch}");
        let graph = report.graphs.iter().find(|graph| graph.name == name).unwrap();
        graph.nodes.iter().map(|node| node.rsplit('/').next().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(operations(0), ["make_scale", "quantize", "quantize", "gemm"]);
    assert_eq!([operations(1), operations(2)], [["quantize", "gemm"]; 2], "the copies are made once a step");
    let left = bench.steps(|| {
        let mut outputs = Vec::new();
        for input in &bench.inputs {
            let output = graphed.forward(0, *input).unwrap();
            outputs.extend(bench.device.download::<f32>(&output).unwrap());
        }
        for grad in &bench.grads {
            graphed.backward(0, *grad).unwrap();
        }
        outputs
    });
    assert_eq!(left, expected);
}

#[test]
fn without_an_order_the_same_layer_has_a_graph_with_its_copies_and_one_without() {
    let bench = Bench::new();
    let pool = Pool::new(bench.compute.clone());
    let mut graphed = graph_callables(&pool, vec![bench.layer], &bench.inputs[..1], 1, None).unwrap();
    let nodes: Vec<usize> = graphed.reports()[0].graphs.iter().map(|graph| graph.nodes.len()).collect();
    assert_eq!(nodes, [4, 3, 2, 3], "forward and backward, first and later");
    // The order of forwards and backwards is another one, and gives the same sums.
    let left = bench.steps(|| {
        let mut outputs = Vec::new();
        for (microbatch, (input, grad)) in bench.inputs.iter().zip(&bench.grads).enumerate() {
            let output = match microbatch {
                0 => graphed.forward(0, *input).unwrap(),
                _ => graphed.forward_later(0, *input).unwrap(),
            };
            outputs.extend(bench.device.download::<f32>(&output).unwrap());
            graphed.backward(0, *grad).unwrap();
        }
        outputs
    });
    assert_eq!(left, Bench::new().eagerly());
}
