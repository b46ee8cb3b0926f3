//! A model that continues a text: it reads a prompt, and then one token after another through a graph.

use std::rc::Rc;

use device::{Area, DType, Device, Stream, Tensor, bf16};
use engine::graph_options::{GraphOptions, Scope};
use engine::model::{Cursor, Decoder, GptShape};
use engine::params::Params;
use engine::regions::{Mode, Region};
use engine::step_policy::{StepContext, StepPolicy, StepShape};
use graph_manager::{CudaGraphManager, Mempool, Report, Result};

use super::Sampler;

/// Reads a text of any length and gives the logits of the next token. Its cache keeps as much of the text as fits the model's
/// context.
///
/// Reading a prompt and reading a token are two modes of a [`CudaGraphManager`]. Each is recorded, run once eagerly, then
/// captured whole and replayed. The first prompt runs eagerly: a capture needs loaded kernels and chosen algorithms, so the
/// prompt would have to run twice, and most texts have one prompt. Fields drop in order: graphs, then memory.
pub struct Generator {
    graphs: CudaGraphManager<StepPolicy>,
    compute: Stream,
    decoder: Rc<Decoder>,
    cursor: Cursor,
    /// `(1, longest prompt)`, i32.
    prompt: Tensor,
    /// `(1, 1)`, i32.
    token: Tensor,
    /// `(1, padded vocab)`.
    logits: Tensor,
    vocab: usize,
    /// Tokens that fit the cache.
    context: usize,
    /// The tokens in the cache, of which some are read again when the cache is full.
    read: Vec<i32>,
    _areas: Vec<Area>,
}

impl Generator {
    /// A generator for a model with loaded weights, which stay in memory as long as the generator. A prompt has at most
    /// `longest` tokens, and `longest` is at most the model's context.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &Device, shape: &GptShape, params: &Params, longest: usize) -> Result<Generator> {
        let mut areas = Vec::new();
        let compute = device.stream("compute");
        let start = device.allocate_tensor(&mut areas, "start", [1], DType::I32)?;
        let wanted = device.allocate_tensor(&mut areas, "wanted", [1], DType::I32)?;
        let prompt = device.allocate_tensor(&mut areas, "prompt", [1, longest], DType::I32)?;
        let token = device.allocate_tensor(&mut areas, "token", [1, 1], DType::I32)?;
        let logits =
            device.allocate_tensor(&mut areas, "logits", [1, shape.padded_vocab], shape.precision.activations())?;
        let options = GraphOptions { scope: Scope::FullIteration, mempool: Mempool::Single, ..GraphOptions::default() };
        let mut generator = Generator {
            graphs: StepPolicy::manager(compute.clone(), &options, StepShape::default())?,
            decoder: Rc::new(Decoder::new(device, shape, params)?),
            compute,
            cursor: Cursor { start, wanted },
            prompt,
            token,
            logits,
            vocab: shape.vocab,
            context: shape.max_seq_len,
            read: Vec::new(),
            _areas: areas,
        };
        // Both modes are recorded before either runs, because memory is planned for both together.
        for mode in [Mode::Prefill, Mode::Decode] {
            let mut body = generator.body(mode);
            generator.graphs.record(mode.into(), 1, &mut body)?;
        }
        Ok(generator)
    }

    /// Bytes of the cache.
    pub fn cache_bytes(&self) -> usize {
        self.decoder.cache_bytes()
    }

    /// The forward pass of a mode, as the only region of a step.
    fn body(&self, mode: Mode) -> impl FnMut(&mut StepContext<'_>) -> Result<()> + use<> {
        let tokens = if mode == Mode::Prefill { self.prompt } else { self.token };
        let (decoder, cursor, logits) = (self.decoder.clone(), self.cursor, self.logits);
        move |cx| cx.region(Region::Step, (), |cx, ()| decoder.forward(cx, tokens, cursor, logits))
    }

    fn forward(&mut self, mode: Mode, start: usize, wanted: usize) -> Result<Vec<f32>> {
        self.compute.write(&self.cursor.start, &[start as i32])?;
        self.compute.write(&self.cursor.wanted, &[wanted as i32])?;
        let mut body = self.body(mode);
        self.graphs.step(mode.into(), 1, &mut body)?;
        let mut logits: Vec<f32> = match self.logits.dtype {
            DType::F32 => self.compute.read(&self.logits)?.wait()?,
            _ => self.compute.read::<bf16>(&self.logits)?.wait()?.into_iter().map(bf16::to_f32).collect(),
        };
        logits.truncate(self.vocab);
        Ok(logits)
    }

    /// Starts a new text with the text's first tokens: at least one, and at most the longest prompt. Returns the logits
    /// `(vocab)` of the next token.
    ///
    /// # Errors
    /// Device errors.
    pub fn start(&mut self, tokens: &[i32]) -> Result<Vec<f32>> {
        // Any token will do behind the prompt: its cache entries are overwritten before they are read.
        let mut padded = tokens.to_vec();
        padded.resize(self.prompt.elements(), 0);
        self.compute.write(&self.prompt, &padded)?;
        self.read = tokens.to_vec();
        self.forward(Mode::Prefill, 0, tokens.len().saturating_sub(1))
    }

    /// Reads one more token; returns the logits `(vocab)` of the next one. If the context is full, the older half is dropped,
    /// and the newer half is read again from the start.
    ///
    /// # Errors
    /// Device errors.
    pub fn read(&mut self, token: i32) -> Result<Vec<f32>> {
        let position = self.read.len();
        self.read.push(token);
        if position == self.context {
            let newer = self.read.split_off(self.read.len() - kept(self.context).min(self.prompt.elements()));
            return self.start(&newer);
        }
        self.compute.write(&self.token, &[token])?;
        self.forward(Mode::Decode, position, 0)
    }

    /// Continues a text by up to `count` tokens below `vocab`. Passes each token to `each` as it is chosen, and stops when
    /// `each` returns false.
    ///
    /// # Errors
    /// Device errors, or those of `each`.
    pub fn generate<E: From<graph_manager::Error>>(
        &mut self,
        prompt: &[i32],
        (count, vocab): (usize, usize),
        sampler: Sampler,
        mut each: impl FnMut(u32) -> std::result::Result<bool, E>,
    ) -> std::result::Result<(), E> {
        let logits = self.start(prompt)?;
        self.write(logits, (count, vocab), sampler, &mut each)
    }

    /// Reads a text of at least one token that fits the context. The beginning that it has in common with the text read
    /// before is not read again. Returns the logits `(vocab)` of the next token.
    ///
    /// # Errors
    /// Device errors.
    pub fn read_on(&mut self, tokens: &[i32]) -> Result<Vec<f32>> {
        let same = self.read.iter().zip(tokens).take_while(|(read, token)| read == token).count();
        // The last token is read in any case, for its logits.
        self.read.truncate(same.min(tokens.len() - 1));
        let (rows, mut logits) = (self.prompt.elements(), Vec::new());
        while self.read.len() < tokens.len() {
            let start = self.read.len();
            let rest = &tokens[start..];
            if start + rows > self.context {
                logits = self.read(rest[0])?;
                continue;
            }
            let part = &rest[..rest.len().min(rows)];
            let mut padded = part.to_vec();
            padded.resize(rows, 0);
            self.compute.write(&self.prompt, &padded)?;
            self.read.extend(part);
            logits = self.forward(Mode::Prefill, start, part.len() - 1)?;
        }
        Ok(logits)
    }

    /// Goes on after the text that was read; `logits` are the text's last logits. As [`Generator::generate`].
    ///
    /// # Errors
    /// Device errors, or those of `each`.
    pub fn write<E: From<graph_manager::Error>>(
        &mut self,
        mut logits: Vec<f32>,
        (count, vocab): (usize, usize),
        sampler: Sampler,
        mut each: impl FnMut(u32) -> std::result::Result<bool, E>,
    ) -> std::result::Result<(), E> {
        for n in 0..count {
            logits.truncate(vocab);
            let token = sampler.choose(&logits, n as u64);
            if !each(token as u32)? || n + 1 == count {
                break;
            }
            logits = self.read(token as i32)?;
        }
        Ok(())
    }

    /// A report of all graphs so far.
    pub fn report(&self) -> Report {
        self.graphs.report()
    }
}

/// The number of tokens that are read again when the context is full.
fn kept(context: usize) -> usize {
    (context / 2).max(1)
}

/// The longest prompt that a [`Generator`] must have room for, to continue `prompt` tokens by `count`: the prompt itself, or
/// the tokens that are read again when the context is full.
pub fn longest_prompt(prompt: usize, count: usize, context: usize) -> usize {
    // The last token is chosen, but never read.
    if prompt + count.saturating_sub(1) > context { prompt.max(kept(context)) } else { prompt }
}
