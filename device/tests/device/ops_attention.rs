//! Attention, dropout, embedding and the update against naive f64 references and finite differences.

use crate::common::{Bench, FLOATS, assert_close, bench, finite_differences, numbers, rounded};
use device::DType::{Bf16, F32};
use device::host::philox::philox4x32_10;
use device::ops::*;
use device::{DType, Tensor};
use proptest::prelude::*;

/// A dropout as its documentation defines it.
#[derive(Clone, Copy)]
struct Place {
    rate: f32,
    seed: u64,
    layer: u16,
    site: u16,
    first_sample: u64,
    step: u32,
}

const PLACE: Place = Place { rate: 0.3, seed: 0x1234_5678_9abc_def0, layer: 3, site: 2, first_sample: 40, step: 7 };

impl Place {
    fn factor(&self, sample: usize, token: usize, channel: usize) -> f64 {
        let place = u32::from(self.layer) << 16 | u32::from(self.site);
        let key = [self.seed as u32, (self.seed >> 32) as u32 ^ place];
        let sample = self.first_sample as u32 + sample as u32;
        let words = philox4x32_10([channel as u32 / 4, token as u32, sample, self.step], key);
        let kept = f64::from(words[channel % 4]) >= (f64::from(self.rate) * 4294967296.0).floor();
        if kept { 1.0 / (1.0 - f64::from(self.rate)) } else { 0.0 }
    }

    fn on(&self, t: &Bench) -> DropoutSite {
        let record = SampleRecord { first_sample: self.first_sample, step: self.step, reserved: 0 };
        let record = t.block(&record);
        DropoutSite {
            rate: self.rate,
            seed: self.seed,
            layer: self.layer,
            site: self.site,
            record,
            part: DropoutPart::default(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Heads {
    batch: usize,
    seq: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    mask: Mask,
    scores: Scores,
    /// Lengths of the documents of a sample, again and again until it is full; the next sample begins with the next
    /// one. Empty: a sample is one document.
    documents: &'static [usize],
}

impl Heads {
    fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    fn documents(&self, t: &Bench) -> Documents {
        Documents { position_ids: t.ints(&[self.batch, self.seq], &self.positions()), most: self.seq }
    }

    /// The position of each token in its document, `(batch, seq)`.
    fn positions(&self) -> Vec<i32> {
        let Heads { batch, seq, documents, .. } = *self;
        let whole = [seq];
        let lengths = if documents.is_empty() { &whole } else { documents };
        let of_sample = |b: usize| lengths.iter().cycle().skip(b).flat_map(|length| 0..*length as i32).take(seq);
        (0..batch).flat_map(of_sample).collect()
    }
}

/// The usual scores, a scale of its own, and caps that bend most scores.
const SCORES: [Scores; 4] = [
    Scores { scale: None, soft_cap: None },
    Scores { scale: Some(0.75), soft_cap: None },
    Scores { scale: None, soft_cap: Some(0.5) },
    Scores { scale: Some(1.25), soft_cap: Some(0.25) },
];

/// Output `(batch, seq, heads * dim)` and log-sum-exp `(batch, heads, seq)`.
fn attention(h: Heads, qkv: &[f64], dropout: Option<Place>) -> (Vec<f64>, Vec<f64>) {
    let Heads { batch, seq, heads, kv_heads, dim, mask, scores, .. } = h;
    let scale = scores.scale.map_or(1.0 / (dim as f64).sqrt(), f64::from);
    let positions = h.positions();
    let at = |b: usize, s: usize, group: usize, c: usize| qkv[(b * seq + s) * h.width() + group * dim + c];
    let mut output = vec![0.0; batch * seq * heads * dim];
    let mut stats = vec![0.0; batch * heads * seq];
    for b in 0..batch {
        for head in 0..heads {
            let kv = head / (heads / kv_heads);
            for q in 0..seq {
                let score = |k: usize| {
                    let dot: f64 = (0..dim).map(|c| at(b, q, head, c) * at(b, k, heads + kv, c)).sum();
                    scores.soft_cap.map(f64::from).map_or(dot * scale, |cap| cap * (dot * scale / cap).tanh())
                };
                let first = mask.window.map_or(0, |window| (q + 1).saturating_sub(window));
                let first = first.max(q - positions[b * seq + q] as usize);
                let lse = (first..=q).map(|k| score(k).exp()).sum::<f64>().ln();
                stats[(b * heads + head) * seq + q] = lse;
                for k in first..=q {
                    let factor = dropout.map_or(1.0, |place| place.factor(b, q, head * seq + k));
                    let p = (score(k) - lse).exp() * factor;
                    for c in 0..dim {
                        output[((b * seq + q) * heads + head) * dim + c] += p * at(b, k, heads + kv_heads + kv, c);
                    }
                }
            }
        }
    }
    (output, stats)
}

fn check_attention(t: &Bench, h: Heads, dropout: Option<Place>, dtype: DType) {
    let Heads { batch, seq, heads, kv_heads, dim, mask, scores, documents } = h;
    let documents = (!documents.is_empty()).then(|| h.documents(t));
    let qkv = numbers(1, batch * seq * h.width(), dtype);
    let qkv_t = t.put(&[batch, seq, h.width()], dtype, &qkv);
    let (output, stats) = (t.empty(&[batch, seq, heads * dim], dtype), t.empty(&[batch, heads, seq], F32));
    let site = dropout.map(|place| place.on(t));
    t.run(Attention { qkv: qkv_t, output, stats, heads, kv_heads, scores, mask, documents, dropout: site });
    let (truth, lse) = attention(h, &qkv, dropout);
    assert_close("output", dtype, &t.get(&output), &truth);
    assert_close("log-sum-exp", F32, &t.get(&stats), &lse);

    let dy = numbers(2, truth.len(), dtype);
    let grad_qkv = t.empty(&[batch, seq, h.width()], dtype);
    t.run(AttentionBackward {
        qkv: qkv_t,
        output,
        stats,
        grad_output: t.put(&[batch, seq, heads * dim], dtype, &dy),
        grad_qkv,
        heads,
        kv_heads,
        scores,
        mask,
        documents,
        dropout: site,
    });
    if qkv.len() <= 1200 {
        let truth = finite_differences(&qkv, &dy, |qkv| attention(h, qkv, dropout).0);
        assert_close("gradient of qkv", dtype, &t.get(&grad_qkv), &truth);
    } else {
        // Too many elements for a difference in each: differences along a few directions.
        let gradient = t.get(&grad_qkv);
        for seed in 0..4 {
            let direction = numbers(100 + seed, qkv.len(), F32);
            let along = |step: f64| -> f64 {
                let moved: Vec<f64> = qkv.iter().zip(&direction).map(|(x, d)| x + step * d).collect();
                attention(h, &moved, dropout).0.iter().zip(&dy).map(|(y, w)| y * w).sum()
            };
            let truth = (along(1e-5) - along(-1e-5)) / 2e-5;
            let ours: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
            let size = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
            let tolerance = if dtype == Bf16 { 6e-3 } else { 1e-5 };
            assert!((ours - truth).abs() < tolerance * size, "gradient along {seed}: {ours}, {truth}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_and_its_gradient_agree_with_f64(
        batch in 1..3usize,
        seq in prop_oneof![Just(1usize), Just(2), Just(7), Just(13)],
        kv_heads in 1..3usize,
        group in 1..4usize,
        dim in prop_oneof![Just(1usize), Just(3), Just(8)],
        window in prop::option::of(1..9usize),
        scores in prop::sample::select(SCORES.to_vec()),
        documents in prop_oneof![Just(&[] as &[usize]), Just(&[1usize, 4, 2] as &[usize]), Just(&[5usize] as &[usize])],
        dropped: bool,
        pick in 0..2usize,
    ) {
        let (heads, mask) = (kv_heads * group, Mask { window });
        let h = Heads { batch, seq, heads, kv_heads, dim, mask, scores, documents };
        check_attention(&bench(2), h, dropped.then_some(PLACE), FLOATS[pick]);
    }

    #[test]
    fn embedding_and_its_gradient_agree_with_f64(
        batch in 1..4usize, seq in 1..9usize, hidden in 1..20usize, vocab in 1..150usize, positions: bool,
        scale in prop_oneof![Just(1.0f32), Just(3.75)], pick in 0..2usize,
    ) {
        check_embedding(&bench(2), [batch, seq, hidden, vocab], positions, scale, FLOATS[pick]);
    }

    #[test]
    fn dropout_is_the_documented_function(
        batch in 1..4usize, seq in 1..6usize, channels in 1..40usize, in_place: bool, pick in 0..2usize,
    ) {
        let (t, dtype) = (bench(2), FLOATS[pick]);
        let shape = [batch, seq, channels];
        let x = numbers(1, batch * seq * channels, dtype);
        let input = t.put(&shape, dtype, &x);
        let output = if in_place { input } else { t.empty(&shape, dtype) };
        t.run(Dropout { input, output, site: PLACE.on(&t) });
        let truth: Vec<f64> = (0..x.len())
            .map(|i| x[i] * PLACE.factor(i / channels / seq, i / channels % seq, i % channels))
            .collect();
        assert_close("dropped", dtype, &t.get(&output), &truth);

        let input = t.put(&shape, dtype, &x);
        let output = if in_place { input } else { t.empty(&shape, dtype) };
        t.run(ReluDropout { input, output, site: PLACE.on(&t) });
        let truth: Vec<f64> = truth.iter().map(|y| y.max(0.0)).collect();
        assert_close("relu, then dropped", dtype, &t.get(&output), &truth);

        let dy = numbers(2, x.len(), dtype);
        let (grad_output, grad_input) = (t.put(&shape, dtype, &dy), t.empty(&shape, dtype));
        let scale = PLACE.on(&t).keep_scale();
        t.run(ReluDropoutBackward { output, grad_output, grad_input, scale });
        let truth: Vec<f64> = (0..x.len())
            .map(|i| match x[i] > 0.0 {
                true => dy[i] * PLACE.factor(i / channels / seq, i / channels % seq, i % channels),
                false => 0.0,
            })
            .collect();
        assert_close("gradient through both", dtype, &t.get(&grad_input), &truth);
    }
}

#[test]
fn relu_with_dropout_lets_nan_through() {
    let t = bench(1);
    let input = t.put(&[1, 1, 64], F32, &[f64::NAN; 64]);
    let output = t.empty(&[1, 1, 64], F32);
    t.run(ReluDropout { input, output, site: PLACE.on(&t) });
    assert!(t.get(&output).iter().all(|y| y.is_nan()));
}

#[test]
fn attention_agrees_with_f64_at_the_borders_of_its_blocks() {
    let one: &[usize] = &[];
    let whole = [(63, None, one), (64, None, one), (65, None, one), (130, None, one)];
    let windows = [(130, Some(1), one), (130, Some(64), one), (130, Some(65), one), (200, Some(70), one)];
    let documents: [(_, _, &[usize]); 3] = [(200, None, &[64, 63, 3]), (200, Some(40), &[90, 1]), (130, None, &[1])];
    for (seq, window, documents) in whole.into_iter().chain(windows).chain(documents) {
        for scores in [SCORES[0], SCORES[3]] {
            let h = Heads { batch: 2, seq, heads: 2, kv_heads: 1, dim: 4, mask: Mask { window }, scores, documents };
            check_attention(&bench(2), h, Some(PLACE), F32);
            check_attention(&bench(1), h, None, Bf16);
        }
    }
}

fn check_embedding(t: &Bench, [batch, seq, hidden, vocab]: [usize; 4], with_positions: bool, scale: f32, dtype: DType) {
    let tokens: Vec<i32> = (0..batch * seq).map(|i| (i * i * 31 % vocab) as i32).collect();
    let tokens_t = t.ints(&[batch, seq], &tokens);
    let (table, positions) = (numbers(1, vocab * hidden, dtype), numbers(2, (seq + 2) * hidden, dtype));
    let output = t.empty(&[batch, seq, hidden], dtype);
    t.run(Embedding {
        tokens: tokens_t,
        table: t.put(&[vocab, hidden], dtype, &table),
        first_token: 0,
        scale,
        positions: with_positions.then(|| t.put(&[seq + 2, hidden], dtype, &positions)),
        position_ids: None,
        output,
    });
    let row = |i: usize| i / hidden;
    let truth: Vec<f64> = (0..batch * seq * hidden)
        .map(|i| {
            let position = if with_positions { positions[row(i) % seq * hidden + i % hidden] } else { 0.0 };
            // What is multiplied has the table's type.
            let embedded = f64::from(scale) * table[tokens[row(i)] as usize * hidden + i % hidden];
            if scale == 1.0 { embedded + position } else { rounded(embedded, dtype) + position }
        })
        .collect();
    assert_close("embedded", dtype, &t.get(&output), &truth);

    let dy = numbers(3, batch * seq * hidden, dtype);
    let (mut table_truth, mut position_truth) = (numbers(4, vocab * hidden, F32), numbers(5, (seq + 2) * hidden, F32));
    let grad_table = t.put(&[vocab, hidden], F32, &table_truth);
    let grad_positions = t.put(&[seq + 2, hidden], F32, &position_truth);
    t.run(EmbeddingBackward {
        tokens: tokens_t,
        grad_output: t.put(&[batch, seq, hidden], dtype, &dy),
        grad_table: Some(grad_table),
        first_token: 0,
        scale,
        grad_positions: Some(grad_positions),
    });
    for (i, dy) in dy.iter().enumerate() {
        table_truth[tokens[row(i)] as usize * hidden + i % hidden] += f64::from(scale) * dy;
        position_truth[row(i) % seq * hidden + i % hidden] += dy;
    }
    assert_close("gradient added to the table", F32, &t.get(&grad_table), &table_truth);
    assert_close("gradient added to the positions", F32, &t.get(&grad_positions), &position_truth);
}

#[test]
fn learned_positions_are_those_in_the_document() {
    let scores = Scores::default();
    let h = Heads { batch: 2, seq: 7, heads: 1, kv_heads: 1, dim: 1, mask: Mask::CAUSAL, scores, documents: &[3, 2] };
    let t = bench(2);
    let ids = h.positions();
    assert_eq!(ids, [0, 1, 2, 0, 1, 0, 1, 0, 1, 0, 1, 2, 0, 1]);
    let (table, positions) = (numbers(1, 4 * 5, F32), numbers(2, 7 * 5, F32));
    let output = t.empty(&[2, 7, 5], F32);
    let position_ids = t.ints(&[2, 7], &ids);
    t.run(Embedding {
        tokens: t.ints(&[2, 7], &[2; 14]),
        table: t.put(&[4, 5], F32, &table),
        first_token: 0,
        scale: 1.0,
        positions: Some(t.put(&[7, 5], F32, &positions)),
        position_ids: Some(position_ids),
        output,
    });
    let truth: Vec<f64> = ids
        .iter()
        .flat_map(|id| (0..5).map(|c| (c, *id as usize)))
        .map(|(c, id)| table[10 + c] + positions[id * 5 + c])
        .collect();
    assert_close("embedded", F32, &t.get(&output), &truth);
}

fn dropped(t: &Bench, place: Place, batch: usize) -> Vec<f64> {
    let ones = t.put(&[batch, 8, 64], F32, &vec![1.0; batch * 8 * 64]);
    let output = t.empty(&[batch, 8, 64], F32);
    t.run(Dropout { input: ones, output, site: place.on(t) });
    t.get(&output)
}

#[test]
fn a_mask_follows_the_global_sample_and_every_part_of_its_place() {
    let t = bench(1);
    let four = dropped(&t, PLACE, 4);
    let later = Place { first_sample: PLACE.first_sample + 2, ..PLACE };
    assert_eq!(four[..1024], dropped(&t, PLACE, 2));
    assert_eq!(four[1024..], dropped(&t, later, 2));
    for other in [
        Place { step: 8, ..PLACE },
        Place { layer: 4, ..PLACE },
        Place { site: 1, ..PLACE },
        Place { seed: PLACE.seed + 1, ..PLACE },
        Place { seed: PLACE.seed ^ 1 << 40, ..PLACE },
        later,
    ] {
        assert_ne!(dropped(&t, other, 4), four);
    }
    let kept = four.iter().filter(|x| **x > 0.0).count() as f64 / four.len() as f64;
    assert!((kept - 0.7).abs() < 0.03, "{kept} were kept at rate 0.3");
}

#[test]
fn a_sample_record_is_the_control_blocks_step_and_the_offset_sample() {
    let t = bench(1);
    let control = t.block(&Control::default());
    let record = t.block(&SampleRecord::default());
    t.run(WriteControl { control, value: Control { step: 9, first_sample: 1 << 33, ..Control::default() } });
    t.run(WriteSampleRecord { control, offset: 5, record });
    let expected = SampleRecord { first_sample: (1 << 33) + 5, step: 9, reserved: 0 };
    assert_eq!(t.get_block::<SampleRecord>(&record), expected);
}

/// Parameters, their reference values and a status block, for several steps of an optimizer.
struct Update {
    t: Bench,
    control: Tensor,
    status: Tensor,
    square_sum: Tensor,
}

const SIZE: usize = 300;
const CLIP: f64 = 4.0;
/// The learning rate of all parameters, and what it is multiplied by for those of the tests.
const RATE: f64 = 0.01;
const MULTIPLIER: f64 = 0.5;

impl Update {
    fn new() -> Update {
        let t = bench(2);
        let control = t.block(&Control::default());
        let status = t.block(&Status::default());
        let square_sum = t.empty(&[1], F32);
        Update { t, control, status, square_sum }
    }

    /// Clips a gradient into `grad` on the device. Returns the reference's factor, `None` for a gradient that is not
    /// finite.
    fn clip(&self, step: u32, grad: &Tensor, values: &[f64]) -> Option<f64> {
        self.t.device.upload(grad, &values.iter().map(|x| *x as f32).collect::<Vec<_>>()).unwrap();
        let value = Control {
            step,
            learning_rate: RATE as f32,
            clip: CLIP as f32,
            inverse_loss_scale: 0.5,
            ..Control::default()
        };
        self.t.run(WriteControl { control: self.control, value });
        self.t.run(SquareSum { inputs: [*grad].into(), total: self.square_sum });
        self.t.run(ClipScale { square_sum: self.square_sum, control: self.control, status: self.status });
        let norm = values.iter().map(|x| x * x).sum::<f64>().sqrt() * 0.5;
        let status: Status = self.t.get_block(&self.status);
        assert_eq!(status.finite == 1, norm.is_finite());
        if !norm.is_finite() {
            return None;
        }
        assert!((f64::from(status.grad_norm) / norm - 1.0).abs() < 1e-6, "norm {} not {norm}", status.grad_norm);
        Some((CLIP / (norm + 1e-6)).min(1.0) * 0.5)
    }
}

/// Gradients of five steps: one large, one small, one that is not finite, and two more.
fn gradients() -> Vec<Vec<f64>> {
    let mut all: Vec<Vec<f64>> = (0..5).map(|step| numbers(10 + step, SIZE, F32)).collect();
    all[1].iter_mut().for_each(|x| *x *= 0.01);
    all[2][17] = f64::NAN;
    all
}

#[test]
fn adamw_agrees_with_f64_over_steps_of_which_one_is_skipped() {
    let u = Update::new();
    let (mut w, mut m, mut v) = (numbers(1, SIZE, F32), vec![0.0; SIZE], vec![0.0; SIZE]);
    let zeros = || u.t.put(&[SIZE], F32, &vec![0.0; SIZE]);
    let (master, compute) = (u.t.put(&[SIZE], F32, &w), u.t.put(&[SIZE], Bf16, &w));
    let (grad, exp_avg, exp_avg_sq) = (zeros(), zeros(), zeros());
    let (beta1, beta2, eps, decay) = (0.9, 0.95, 1e-8, 0.1);
    let tensors = AdamWTensors {
        master,
        compute: Some(compute),
        grad,
        exp_avg,
        exp_avg_sq,
        weight_decay: 0.1,
        lr_multiplier: MULTIPLIER as f32,
    };
    let mut applied = 0;
    for (step, values) in gradients().iter().enumerate() {
        let factor = u.clip(step as u32, &grad, values);
        u.t.run(AdamW {
            tensors: [tensors.clone()].into(),
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            control: u.control,
            status: u.status,
        });
        if let Some(factor) = factor {
            applied += 1;
            for i in 0..SIZE {
                let g = values[i] * factor;
                m[i] = beta1 * m[i] + (1.0 - beta1) * g;
                v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
                let (mean, square) = (m[i] / (1.0 - beta1.powi(applied)), v[i] / (1.0 - beta2.powi(applied)));
                w[i] -= RATE * MULTIPLIER * (decay * w[i] + mean / (square.sqrt() + eps));
            }
        }
        assert_close("weights", F32, &u.t.get(&master), &w);
        assert_close("second moment", F32, &u.t.get(&exp_avg_sq), &v);
    }
    let status: Status = u.t.get_block(&u.status);
    assert_eq!((status.applied, status.skipped), (4, 1));
    let rounded: Vec<f64> = u.t.get(&master).into_iter().map(|x| rounded(x, Bf16)).collect();
    assert_eq!(u.t.get(&compute), rounded, "what layers compute with is the master, rounded");
}

#[test]
fn lion_agrees_with_f64_and_a_weight_without_direction_only_decays() {
    let u = Update::new();
    let (mut w, mut m) = (numbers(1, SIZE, F32), vec![0.0; SIZE]);
    let zeros = || u.t.put(&[SIZE], F32, &vec![0.0; SIZE]);
    let (master, grad, exp_avg) = (u.t.put(&[SIZE], F32, &w), zeros(), zeros());
    let compute = u.t.empty(&[SIZE], Bf16);
    let tensors = LionTensors {
        master,
        compute: Some(compute),
        grad,
        exp_avg,
        weight_decay: 0.1,
        lr_multiplier: MULTIPLIER as f32,
    };
    for (step, mut values) in gradients().into_iter().enumerate() {
        values[0] = if values[0].is_finite() { 0.0 } else { values[0] };
        let factor = u.clip(step as u32, &grad, &values);
        let tensors = [tensors.clone()].into();
        u.t.run(Lion { tensors, beta1: 0.9, beta2: 0.99, control: u.control, status: u.status });
        if let Some(factor) = factor {
            for i in 0..SIZE {
                let g = values[i] * factor;
                let direction: f64 = 0.9 * m[i] + 0.1 * g;
                let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
                w[i] -= RATE * MULTIPLIER * (sign + 0.1 * w[i]);
                m[i] = 0.99 * m[i] + 0.01 * g;
            }
        }
        assert_close("weights", F32, &u.t.get(&master), &w);
        assert_close("moment", F32, &u.t.get(&exp_avg), &m);
    }
    let rounded: Vec<f64> = u.t.get(&master).into_iter().map(|x| rounded(x, Bf16)).collect();
    assert_eq!(u.t.get(&compute), rounded, "what layers compute with is the master, rounded");
}

#[test]
fn moments_in_bf16_update_weights_as_the_same_values_in_f32_and_are_then_rounded() {
    let u = Update::new();
    let (weights, of) = (numbers(1, SIZE, F32), |seed| numbers(seed, SIZE, Bf16));
    let squares: Vec<f64> = of(4).iter().map(|x| rounded(x * x, Bf16)).collect();
    let grad = u.t.put(&[SIZE], F32, &vec![0.0; SIZE]);
    u.clip(0, &grad, &numbers(2, SIZE, F32));
    // Master weights and moments after a step, with moments of these types.
    let adamw = |first, second| {
        let (master, exp_avg) = (u.t.put(&[SIZE], F32, &weights), u.t.put(&[SIZE], first, &of(3)));
        let exp_avg_sq = u.t.put(&[SIZE], second, &squares);
        let tensors =
            [AdamWTensors { master, compute: None, grad, exp_avg, exp_avg_sq, weight_decay: 0.1, lr_multiplier: 1.0 }]
                .into();
        u.t.run(AdamW { tensors, beta1: 0.9, beta2: 0.95, eps: 1e-8, control: u.control, status: u.status });
        [master, exp_avg, exp_avg_sq].map(|tensor| u.t.get(&tensor))
    };
    let lion = |first| {
        let (master, exp_avg) = (u.t.put(&[SIZE], F32, &weights), u.t.put(&[SIZE], first, &of(3)));
        let tensors =
            [LionTensors { master, compute: None, grad, exp_avg, weight_decay: 0.1, lr_multiplier: 1.0 }].into();
        u.t.run(Lion { tensors, beta1: 0.9, beta2: 0.99, control: u.control, status: u.status });
        [master, exp_avg].map(|tensor| u.t.get(&tensor))
    };
    let as_type = |values: &[f64], dtype| values.iter().map(|x| rounded(*x, dtype)).collect::<Vec<f64>>();
    let exact = adamw(F32, F32);
    for (first, second) in [(Bf16, Bf16), (Bf16, F32), (F32, Bf16)] {
        let expected = [exact[0].clone(), as_type(&exact[1], first), as_type(&exact[2], second)];
        assert_eq!(adamw(first, second), expected, "{first} {second}");
    }
    let exact = lion(F32);
    assert_eq!(lion(Bf16), [exact[0].clone(), as_type(&exact[1], Bf16)]);
}

#[test]
fn sgd_agrees_with_f64_with_and_without_momentum() {
    for momentum in [0.0, 0.9] {
        let u = Update::new();
        let (mut w, mut buffer) = (numbers(1, SIZE, F32), vec![0.0; SIZE]);
        let zeros = || u.t.put(&[SIZE], F32, &vec![0.0; SIZE]);
        let (master, grad, momentum_t) = (u.t.put(&[SIZE], F32, &w), zeros(), zeros());
        let tensors = SgdTensors {
            master,
            compute: None,
            grad,
            momentum: (momentum != 0.0).then_some(momentum_t),
            weight_decay: 0.1,
            lr_multiplier: MULTIPLIER as f32,
        };
        for (step, values) in gradients().iter().enumerate() {
            let factor = u.clip(step as u32, &grad, values);
            let tensors = [tensors.clone()].into();
            u.t.run(Sgd { tensors, momentum: momentum as f32, control: u.control, status: u.status });
            if let Some(factor) = factor {
                for i in 0..SIZE {
                    buffer[i] = momentum * buffer[i] + values[i] * factor + 0.1 * w[i];
                    w[i] -= RATE * MULTIPLIER * buffer[i];
                }
            }
            assert_close("weights", F32, &u.t.get(&master), &w);
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let run = |threads: usize| -> Vec<Vec<f64>> {
        let t = bench(threads);
        let mask = Mask { window: Some(20) };
        let scores = SCORES[3];
        let h = Heads { batch: 3, seq: 70, heads: 4, kv_heads: 2, dim: 8, mask, scores, documents: &[30, 7] };
        let qkv = t.put(&[3, 70, h.width()], F32, &numbers(1, 3 * 70 * h.width(), F32));
        let dy = t.put(&[3, 70, 32], F32, &numbers(2, 3 * 70 * 32, F32));
        let (output, stats) = (t.empty(&[3, 70, 32], F32), t.empty(&[3, 4, 70], F32));
        let grad_qkv = t.empty(&[3, 70, h.width()], F32);
        let (dropout, documents) = (Some(PLACE.on(&t)), Some(h.documents(&t)));
        let (heads, kv_heads, grad_output) = (4, 2, dy);
        t.run(Attention { qkv, output, stats, heads, kv_heads, scores, mask, documents, dropout });
        t.run(AttentionBackward {
            qkv,
            output,
            stats,
            grad_output,
            grad_qkv,
            heads,
            kv_heads,
            scores,
            mask,
            documents,
            dropout,
        });
        let tokens: Vec<i32> = (0..210).map(|i| i * 7 % 100).collect();
        let grad_table = t.put(&[100, 32], F32, &vec![0.0; 3200]);
        let tokens = t.ints(&[3, 70], &tokens);
        t.run(EmbeddingBackward {
            tokens,
            grad_output,
            grad_table: Some(grad_table),
            first_token: 0,
            scale: 1.0,
            grad_positions: None,
        });
        let big = t.put(&[200_003], F32, &numbers(3, 200_003, F32));
        let total = t.empty(&[1], F32);
        t.run(SquareSum { inputs: [big, dy].into(), total });
        [output, stats, grad_qkv, grad_table, total].iter().map(|tensor| t.get(tensor)).collect()
    };
    let one = run(1);
    assert!(one.iter().flatten().all(|x| x.is_finite()));
    assert_eq!(one, run(2));
    assert_eq!(one, run(3));
}
