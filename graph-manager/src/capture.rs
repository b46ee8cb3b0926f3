//! A piece of GPU work captured by hand, as `torch.cuda.graph` does.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::Deref;

use crate::words::counted;
use device::Tensor;
use device::ops::Copy;

use crate::code::StepContext;
use crate::error::{Error, Result};
use crate::inputs::{Input, in_words, inputs};
use crate::manager::{CudaGraphManager, check_warm_up};
use crate::memory::Pool;
use crate::options::{CheckReplays, ManagerOptions};
use crate::policy::Policy;
use crate::report::{GraphDot, Report};
use crate::tensor_tree::{TensorTree, structure};
use crate::verify::{Verification, Verified};

/// The structure, names, shapes and types of a capture's inputs, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature(u64);

/// The policy of a [`Capture`]: one region, captured for each [`Signature`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ByHand;

impl Policy for ByHand {
    type Region = &'static str;
    type Mode = Signature;
}

/// The work of a capture.
type Code<I, O> = Box<dyn for<'m> FnMut(&mut StepContext<'m, ByHand>, I) -> Result<O>>;

/// A piece of GPU work that becomes a graph: forward, loss, backward, update, or any part of them.
///
/// Each [`Capture::run`] does the work once. The first runs are eager and warm up, then one captures, the later ones
/// launch the graph. Inputs are copied into buffers of the capture, so they may lie anywhere. An input of another shape
/// has a plan and a graph of its own, within a bound.
///
/// Tensors that the code names itself, such as weights or static buffers, are read and written in place. Fill a static
/// buffer before each run with [`device::Stream::write`].
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use device::ops::Add;
/// use device::{DType, Device, HostOptions, Tensor};
/// use graph_manager::{Capture, Pool};
///
/// let device = Device::host(HostOptions::default())?;
/// let area = device.allocate("x", 4 * 4)?;
/// let x = area.tensor("x", 0, [4], DType::F32);
/// let pool = Pool::new(device.stream("compute"));
/// let mut double = Capture::new(&pool, "double", 1, NonZeroUsize::MIN, |cx, x: Tensor| {
///     let output = cx.tensor("output", x.shape, DType::F32)?;
///     cx.run(Add { a: x, b: x, output })?;
///     Ok(output)
/// })?;
/// for value in [1.0_f32, 2.0, 3.0] {
///     device.upload(&x, &[value; 4])?;
///     let output = double.run(x)?; // eager, captured, replayed
///     assert_eq!(device.download::<f32>(&output)?, [2.0 * value; 4]);
/// }
/// assert_eq!(double.report().graphs.len(), 1);
/// # Ok::<(), graph_manager::Error>(())
/// ```
pub struct Capture<I: TensorTree, O: TensorTree> {
    name: &'static str,
    manager: CudaGraphManager<ByHand>,
    code: Code<I, O>,
    /// The inputs that plans were made with.
    shapes: BTreeMap<Signature, Planned>,
}

/// The inputs that a plan was made with.
struct Planned {
    /// Shapes and types of the tensors.
    words: String,
    tensors: Vec<Tensor>,
}

impl Planned {
    /// An input with the recorded tensors in place of the caller's. The code gets copies, so its list is the same
    /// wherever later inputs lie.
    fn in_place_of<I: TensorTree>(&self, input: &I) -> Result<I> {
        let mut recorded = self.tensors.iter().copied();
        input.map(&mut |_, tensor| Ok(recorded.next().unwrap_or(tensor)))
    }
}

/// The result of a [`Capture::run`]. The next run overwrites its tensors, so it borrows the capture until then:
///
/// ```compile_fail,E0499
/// # use device::{DType, Device, HostOptions, Tensor};
/// # use graph_manager::{Capture, Pool, Result};
/// # fn compare(device: &Device, double: &mut Capture<Tensor, Tensor>, a: Tensor, b: Tensor) -> Result<bool> {
/// let first = double.run(a)?;
/// let second = double.run(b)?; // error: cannot borrow `*double` as mutable more than once at a time
/// Ok(device.download::<f32>(&first)? == device.download::<f32>(&second)?)
/// # }
/// ```
///
/// Use the first result before the second run, or copy it with [`Capture::run_into`]. A tensor is a plain value: `*first`
/// takes it out of the borrow, and whoever does so sees to the order.
#[derive(Debug)]
pub struct RunOutput<'c, O> {
    output: O,
    capture: PhantomData<&'c mut ()>,
}

impl<O> Deref for RunOutput<'_, O> {
    type Target = O;

    fn deref(&self) -> &O {
        &self.output
    }
}

impl<I: TensorTree, O: TensorTree> Capture<I, O> {
    /// A capture. Its graphs run on the pool's stream and share the pool's scratch. `warm_up` runs, at least one, are
    /// eager for each shape of input; at most `shapes` shapes have graphs at a time. `code` owns the tensors that it
    /// uses: move copies into it.
    ///
    /// # Errors
    /// [`Error::Usage`] without a warm-up run.
    pub fn new(
        pool: &Pool,
        name: &'static str,
        warm_up: usize,
        shapes: NonZeroUsize,
        code: impl for<'m> FnMut(&mut StepContext<'m, ByHand>, I) -> Result<O> + 'static,
    ) -> Result<Capture<I, O>> {
        check_warm_up(&format!("the capture `{name}` has a `warm_up`"), warm_up)?;
        let options = ManagerOptions { plan_limit: shapes, ..ManagerOptions::for_one_plan(warm_up) };
        let manager = CudaGraphManager::in_pool(pool, options, ByHand)?;
        Ok(Capture { name, manager, code: Box::new(code), shapes: BTreeMap::new() })
    }

    /// Does the work. Its result stays until the next run overwrites it; [`Capture::run_into`] keeps it longer.
    ///
    /// Inside a region of a manager's step, or in the code of another `Capture`, its operations join the list that is
    /// recorded there. In a capture that was begun on the stream by hand ([`device::Stream::begin_capture`]) the graph
    /// becomes a child of the other graph, and is refused if it has a [`StepContext::when`]: CUDA takes no such child. In
    /// both cases it needs its graph before. Inside a region it also needs a [`Pool`] of its own, on the region's stream.
    ///
    /// # Errors
    /// Errors of the work; [`Error::Usage`] inside another region of the same pool, or inside a region of another pool
    /// before this shape has its graph.
    pub fn run(&mut self, input: I) -> Result<RunOutput<'_, O>> {
        let given = inputs(&input)?;
        let signature = Signature::of(&structure(&input)?, &given);
        let pool = &self.manager.pool;
        pool.check_free()?;
        if pool.is_nested() && !self.manager.is_settled(signature, 1) {
            return Err(self.no_graph_yet(&given));
        }
        if !self.manager.is_planned(signature, 1) {
            let Capture { manager, shapes, .. } = self;
            let tensors = given.iter().map(|input| input.tensor).collect();
            shapes.retain(|shape, _| manager.is_planned(*shape, 1));
            shapes.insert(signature, Planned { words: shapes_in_words(&given), tensors });
        }
        let as_recorded = self.shapes[&signature].in_place_of(&input)?;
        let (name, code) = (self.name, &mut self.code);
        let step = &mut |cx: &mut StepContext<'_, ByHand>| cx.region(name, as_recorded.clone(), &mut *code);
        // Regions inside have inputs of their own.
        let input = |visit, number: usize, own| if visit == 0 { given[number].tensor } else { own };
        let output = self.manager.step_from(signature, 1, step, &input)?;
        Ok(RunOutput { output, capture: PhantomData })
    }

    /// The error for inputs without a graph, inside another region, where only a graph can run.
    fn no_graph_yet(&self, given: &[Input]) -> Error {
        let settled = self.shapes.iter().filter(|(shape, _)| self.manager.is_settled(**shape, 1));
        let graphs: Vec<&str> = settled.map(|(_, planned)| &*planned.words).collect();
        let graphs =
            if graphs.is_empty() { "no graph at all".into() } else { format!("graphs for {}", graphs.join("; ")) };
        let (name, now) = (self.name, shapes_in_words(given));
        let problem = format!("the capture `{name}` was run inside another region on {now}, and has {graphs}");
        Error::usage(problem, "run it before, once more than it has warm-up runs, on inputs of this shape")
    }

    /// Does the work, and copies the result to `output`. Later runs do not overwrite `output`.
    ///
    /// # Errors
    /// As [`Capture::run`]; shapes or numbers of tensors that do not fit.
    pub fn run_into(&mut self, input: I, output: &O) -> Result<()> {
        let (from, to) = (inputs(&*self.run(input)?)?, inputs(output)?);
        let name = self.name;
        let refuse = |problem| Err(Error::usage(problem, "give an output of the shapes and types that are returned"));
        if from.len() != to.len() {
            let (returned, given) = (counted(from.len(), "tensor"), counted(to.len(), "tensor"));
            return refuse(format!("the capture `{name}` returns {returned}, and `output` has {given}"));
        }
        for (number, (from, to)) in from.iter().zip(&to).enumerate() {
            let [is, wanted] = [from, to].map(|of| in_words((of.tensor.shape, of.tensor.dtype)));
            if is != wanted {
                let problem =
                    format!("tensor {number} that the capture `{name}` returns is {is}, and in `output` {wanted}");
                return refuse(problem);
            }
        }
        let compute = self.manager.pool.compute();
        let copies = from.into_iter().zip(to).map(|(from, to)| Copy { input: from.tensor, output: to.tensor });
        copies.into_iter().try_for_each(|copy| Ok(compute.submit(copy)?))
    }

    /// Compares the work's graph for such inputs with the same operations, submitted from the same state: what the code
    /// returns, and all memory of the caller's that it writes. Afterwards the state is as before.
    ///
    /// # Errors
    /// As [`CudaGraphManager::verify`].
    pub fn verify(&mut self, input: I, how: &Verification<'_>) -> Result<Verified> {
        let given = inputs(&input)?;
        let signature = Signature::of(&structure(&input)?, &given);
        let Some(planned) = self.shapes.get(&signature) else { return Ok(Verified::NotYet) };
        let as_recorded = planned.in_place_of(&input)?;
        let (name, code) = (self.name, &mut self.code);
        let step = &mut |cx: &mut StepContext<'_, ByHand>| cx.region(name, as_recorded.clone(), &mut *code);
        let input = |visit, number: usize, own| if visit == 0 { given[number].tensor } else { own };
        self.manager.verify_from(signature, 1, how, step, &input)
    }

    /// When the code is called again, without work, and compared with the graph. Without this call, once. A run fails
    /// with [`Error::Frozen`] if the code would now do something else. Runs inside another region are not compared.
    pub fn check_replays(&mut self, when: CheckReplays) {
        self.manager.options.check_replays = when;
    }

    /// The report on all graphs captured so far. The mode of each is the shapes and types of its inputs.
    pub fn report(&self) -> Report {
        let mut report = self.manager.report();
        let modes: BTreeMap<String, &String> =
            self.shapes.iter().map(|(shape, planned)| (format!("{shape:?}"), &planned.words)).collect();
        let graphs = report.graphs.iter_mut().map(|graph| &mut graph.mode);
        for mode in graphs.chain(report.steps.iter_mut().map(|step| &mut step.mode)) {
            if let Some(words) = modes.get(mode) {
                mode.clone_from(words);
            }
        }
        report
    }

    /// All graphs captured so far as drawings. See [`CudaGraphManager::dots`].
    ///
    /// # Errors
    /// As [`CudaGraphManager::dots`].
    pub fn dots(&self) -> Result<Vec<GraphDot>> {
        self.manager.dots()
    }

    /// Forgets all graphs and gives the graphs' memory back. The next run begins anew.
    ///
    /// # Errors
    /// As [`CudaGraphManager::reset`].
    pub fn reset(&mut self) -> Result<()> {
        self.manager.reset()
    }
}

impl Signature {
    fn of(structure: &[usize], inputs: &[Input]) -> Signature {
        let mut hasher = DefaultHasher::new();
        structure.hash(&mut hasher);
        for Input { name, tensor } in inputs {
            (name, tensor.shape, tensor.dtype).hash(&mut hasher);
        }
        Signature(hasher.finish())
    }
}

fn shapes_in_words(inputs: &[Input]) -> String {
    let words: Vec<String> = inputs.iter().map(|Input { tensor, .. }| in_words((tensor.shape, tensor.dtype))).collect();
    if words.is_empty() { "no input".into() } else { words.join(" and ") }
}
