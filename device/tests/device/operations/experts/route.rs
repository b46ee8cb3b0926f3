//! The choice of experts against an f64 reference, and its gradient against finite differences; on the host or with
//! `TEST_DEVICE=cuda` on a GPU.

use crate::common::{Bench, assert_close, checked_bench, finite_differences, numbers};
use device::DType::{Bf16, F32};
use device::ops::*;
use device::{DType, Tensor};

const SIGMOID: Router =
    Router { score: Score::Sigmoid, groups: None, normalise: false, scale: 1.0, forces_balance: false };
const SOFTMAX: Router = Router { score: Score::Softmax, ..SIGMOID };

/// Every score, normalised or not, with a factor.
fn routers() -> Vec<Router> {
    let scaled = [SOFTMAX, SIGMOID].map(|router| Router { scale: 2.5, ..router });
    scaled.into_iter().flat_map(|router| [router, Router { normalise: true, ..router }]).collect()
}

fn logsumexp(logits: &[f64]) -> f64 {
    let highest = logits.iter().fold(f64::MIN, |a, b| a.max(*b));
    highest + logits.iter().map(|x| (x - highest).exp()).sum::<f64>().ln()
}

fn scores(router: &Router, logits: &[f64]) -> Vec<f64> {
    let all = logsumexp(logits);
    let score = |x: &f64| match router.score {
        Score::Softmax => (x - all).exp(),
        Score::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    };
    logits.iter().map(score).collect()
}

/// The experts in order of their keys, of equal ones the lowest first.
fn choice(keys: &[f64], k: usize) -> Vec<i32> {
    let mut experts: Vec<usize> = (0..keys.len()).collect();
    experts.sort_by(|a, b| keys[*b].total_cmp(&keys[*a]));
    experts[..k].iter().map(|expert| *expert as i32).collect()
}

fn weights(router: &Router, scores: &[f64], chosen: &[i32]) -> Vec<f64> {
    let of: Vec<f64> = chosen.iter().map(|expert| scores[*expert as usize]).collect();
    let sum: f64 = if router.normalise { of.iter().sum() } else { 1.0 };
    of.iter().map(|score| f64::from(router.scale) * score / sum).collect()
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    tokens: usize,
    experts: usize,
    k: usize,
}

const SIZES: [Sizes; 6] = [
    Sizes { tokens: 6, experts: 8, k: 2 },
    Sizes { tokens: 3, experts: 5, k: 5 },
    Sizes { tokens: 1, experts: 1, k: 1 },
    Sizes { tokens: 9, experts: 60, k: 4 },
    Sizes { tokens: 21, experts: 128, k: 8 },
    Sizes { tokens: 3, experts: 512, k: 16 },
];

fn logits(s: Sizes) -> Vec<f64> {
    numbers(1, s.tokens * s.experts, F32).iter().map(|x| f64::from((3.0 * x) as f32)).collect()
}

/// Routes the tokens. It returns their choices and weights.
fn route(t: &Bench, router: Router, s: Sizes, logits: &[f64], bias: Option<&[f64]>) -> (Tensor, Vec<i32>, Vec<f64>) {
    let (chosen, weights) = (t.empty_ints(&[s.tokens, s.k]), t.empty(&[s.tokens, s.k], F32));
    let logits = t.put(&[s.tokens, s.experts], F32, logits);
    let bias = bias.map(|bias| t.put(&[s.experts], F32, bias));
    let tokens = SampleTokens::whole(1);
    t.run(Route { router, logits, bias, tokens, chosen, weights });
    (chosen, t.get_ints(&chosen), t.get(&weights))
}

#[test]
fn tokens_choose_the_experts_with_the_highest_scores_and_a_bias_counts_for_the_choice_alone() {
    let t = checked_bench();
    for (s, router) in SIZES.into_iter().flat_map(|s| routers().into_iter().map(move |router| (s, router))) {
        let (logits, bias) = (logits(s), numbers(2, s.experts, F32));
        for bias in [None, Some(&bias[..])] {
            let (_, chosen, of_pairs) = route(&t, router, s, &logits, bias);
            let (mut choices, mut truth) = (Vec::new(), Vec::new());
            for logits in logits.chunks(s.experts) {
                let scores = scores(&router, logits);
                let key = |(at, score): (usize, &f64)| score + bias.map_or(0.0, |bias| bias[at]);
                let mine = choice(&scores.iter().enumerate().map(key).collect::<Vec<_>>(), s.k);
                truth.extend(weights(&router, &scores, &mine));
                choices.extend(mine);
            }
            assert_eq!(chosen, choices, "{s:?}, {router:?}, bias {}", bias.is_some());
            assert_close(&format!("weights of {s:?}, {router:?}"), F32, &of_pairs, &truth);
        }
    }
}

/// The keys of the experts in the groups with the highest scores; the others lowest of all.
fn within(groups: ExpertGroups, keys: &[f64]) -> Vec<f64> {
    let size = keys.len() / groups.count;
    let summed = if groups.score == GroupScore::Highest { 1 } else { 2 };
    let score = |group: &[f64]| choice(group, summed).iter().map(|expert| group[*expert as usize]).sum();
    let scores: Vec<f64> = keys.chunks(size).map(score).collect();
    let kept = choice(&scores, groups.per_token);
    let key = |(at, key): (usize, &f64)| if kept.contains(&((at / size) as i32)) { *key } else { f64::NEG_INFINITY };
    keys.iter().enumerate().map(key).collect()
}

#[test]
fn tokens_choose_within_the_groups_with_the_highest_scores() {
    let t = checked_bench();
    let sizes = [
        (40, 8, 2, 4, 1),
        (40, 8, 4, 4, 2),
        (9, 60, 8, 6, 2),
        (21, 256, 8, 8, 4),
        (5, 512, 16, 32, 3),
        (4, 6, 3, 2, 2),
    ];
    for ((tokens, experts, k, count, per_token), score) in
        sizes.into_iter().flat_map(|sizes| [GroupScore::TwoHighest, GroupScore::Highest].map(|score| (sizes, score)))
    {
        let (s, groups) = (Sizes { tokens, experts, k }, ExpertGroups { count, per_token, score });
        let router = Router { groups: Some(groups), normalise: true, scale: 2.5, ..SIGMOID };
        let (logits, bias) = (logits(s), numbers(2, experts, F32));
        let (_, chosen, of_pairs) = route(&t, router, s, &logits, Some(&bias));
        let (mut choices, mut truth, mut others) = (Vec::new(), Vec::new(), 0);
        for logits in logits.chunks(experts) {
            let scores = scores(&router, logits);
            let keys: Vec<f64> = scores.iter().zip(&bias).map(|(score, bias)| score + bias).collect();
            let mine = choice(&within(groups, &keys), k);
            others += usize::from(mine != choice(&keys, k));
            truth.extend(weights(&router, &scores, &mine));
            choices.extend(mine);
        }
        assert_eq!(chosen, choices, "{s:?}, {groups:?}");
        assert!(others > 0 || per_token == count, "{s:?}: no choice is limited");
        assert_close(&format!("weights of {s:?}"), F32, &of_pairs, &truth);
    }
    // Of equal scores the lowest group is taken, and NaN counts as minus infinity: the second group has the highest
    // sum.
    let s = Sizes { tokens: 3, experts: 6, k: 2 };
    let nan = f64::NAN;
    let logits = [[0.0; 6], [nan, 9.0, -1.0, -1.0, 5.0, nan], [nan; 6]];
    for (score, second) in [(GroupScore::TwoHighest, [2, 3]), (GroupScore::Highest, [1, 0])] {
        let router = Router { groups: Some(ExpertGroups { count: 3, per_token: 1, score }), ..SIGMOID };
        let [first, last] = second;
        assert_eq!(route(&t, router, s, logits.as_flattened(), None).1, [0, 1, first, last, 0, 1]);
    }
}

#[test]
fn of_equal_scores_the_lowest_expert_s_is_taken() {
    let t = checked_bench();
    let s = Sizes { tokens: 4, experts: 70, k: 6 };
    let mut logits = vec![0.0; s.tokens * s.experts];
    // The second token has high ones at the end, the third a low one at the start, the fourth zeros of both signs.
    logits[s.experts + 66] = 1.0;
    logits[s.experts + 33] = 1.0;
    logits[2 * s.experts] = -1.0;
    logits[3 * s.experts] = -0.0;
    for router in routers() {
        let (_, chosen, _) = route(&t, router, s, &logits, None);
        let truth = [[0, 1, 2, 3, 4, 5], [33, 66, 0, 1, 2, 3], [1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5]];
        assert_eq!(chosen, truth.as_flattened(), "{router:?}");
        // All scores and the bias cancel in one expert.
        let mut bias = vec![0.0; s.experts];
        bias[69] = 0.5;
        let (_, chosen, _) = route(&t, router, s, &vec![0.0; s.tokens * s.experts], Some(&bias));
        assert_eq!(chosen[..6], [69, 0, 1, 2, 3, 4], "{router:?}");
    }
}

#[test]
fn a_token_that_is_not_a_number_gets_experts_in_range_and_no_other_token_notices() {
    let t = checked_bench();
    for (s, router) in SIZES.into_iter().flat_map(|s| routers().into_iter().map(move |router| (s, router))) {
        let clean = logits(s);
        let (_, usual, usual_weights) = route(&t, router, s, &clean, None);
        let mut broken = clean.clone();
        broken[..s.experts].fill(f64::NAN);
        let (chosen, choices, weights) = route(&t, router, s, &broken, None);
        assert_eq!(choices[..s.k], (0..s.k as i32).collect::<Vec<_>>(), "{s:?}, {router:?}");
        assert_eq!((&choices[s.k..], &weights[s.k..]), (&usual[s.k..], &usual_weights[s.k..]), "{s:?}, {router:?}");
        // One NaN among numbers: choices are in range, and different.
        broken[..s.experts].copy_from_slice(&clean[..s.experts]);
        broken[s.experts / 2] = f64::NAN;
        let mut choices = route(&t, router, s, &broken, None).1;
        choices.truncate(s.k);
        choices.sort_unstable();
        choices.dedup();
        assert!(choices.len() == s.k && choices.iter().all(|expert| (0..s.experts as i32).contains(expert)));
        // Infinities behave as a softmax of them does, or saturate.
        broken[..s.experts].fill(f64::NEG_INFINITY);
        let (_, choices, _) = route(&t, router, s, &broken, None);
        assert_eq!(choices[..s.k], (0..s.k as i32).collect::<Vec<_>>(), "{s:?}, {router:?}");

        let grad_logits = t.empty(&[s.tokens, s.experts], F32);
        t.run(RouteBackward {
            router,
            logits: t.put(&[s.tokens, s.experts], F32, &broken),
            chosen,
            grad_weights: t.put(&[s.tokens, s.k], F32, &numbers(3, s.tokens * s.k, F32)),
            balance: None,
            z_loss: None,
            tokens: SampleTokens::whole(1),
            real: None,
            control: t.block(&Control::default()),
            adds_gradient: true,
            grad_logits,
        });
        assert!(t.get(&grad_logits)[s.experts..].iter().all(|x| x.is_finite()), "{s:?}, {router:?}");
    }
}

#[test]
fn tokens_take_experts_in_turn_if_the_balance_is_forced() {
    let t = checked_bench();
    for (s, router) in SIZES.into_iter().zip(routers().into_iter().cycle()) {
        let logits = logits(s);
        let (_, chosen, of_pairs) = route(&t, Router { forces_balance: true, ..router }, s, &logits, None);
        let in_turn: Vec<i32> = (0..s.tokens * s.k).map(|pair| (pair % s.experts) as i32).collect();
        assert_eq!(chosen, in_turn, "{s:?}");
        let truth: Vec<f64> = logits
            .chunks(s.experts)
            .zip(in_turn.chunks(s.k))
            .flat_map(|(logits, chosen)| weights(&router, &scores(&router, logits), chosen))
            .collect();
        assert_close(&format!("weights of {s:?}"), F32, &of_pairs, &truth);
    }
}

/// The losses of a router.
#[derive(Clone, Copy, Debug)]
struct Losses {
    /// Groups of the balance loss.
    groups: Option<Groups>,
    z_loss: bool,
    /// Their gradients are added.
    adds: bool,
    /// The last tokens of each sequence are padding.
    padded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Groups {
    Microbatch,
    Sequences,
    /// Each sequence has documents of 1, 2, 1, 2 and so on tokens. Its padding is one more.
    Documents,
}

const BALANCE: f64 = 0.75;
const Z: f64 = 0.125;

/// A token's part of a mean of balance losses over so many groups. Its own has `counted` tokens.
fn balance(scores: &[f64], load: &[f64], (groups, counted): (usize, usize)) -> f64 {
    let (sum, all): (f64, f64) = (scores.iter().sum(), load.iter().sum());
    let product: f64 = scores.iter().zip(load).map(|(score, load)| load / all * score / sum).sum();
    BALANCE * scores.len() as f64 / (groups * counted) as f64 * product
}

fn check_gradient(t: &Bench, router: Router, s: Sizes, losses: Losses) {
    let what = format!("{s:?}, {router:?}, {losses:?}");
    let (logits, grad_weights) = (logits(s), numbers(3, s.tokens * s.k, F32));
    let (chosen, choices, _) = route(t, router, s, &logits, None);
    let control = Control {
        microbatches: 4,
        tokens: 77,
        documents: 9,
        inverse_loss_scale: 0.125,
        grad_scale: 0.25,
        ..Control::default()
    };
    let targets = 1.0 / (0.125 * 0.25);
    let sequences = if s.tokens.is_multiple_of(3) && losses.groups != Some(Groups::Microbatch) { 3 } else { 1 };
    let length = s.tokens / sequences;
    // The tokens of each sequence that are no padding; of the last one all.
    let real: Vec<usize> =
        (1..=sequences).map(|number| if losses.padded { length * number / sequences } else { length }).collect();
    let real_tensor = losses.padded.then(|| t.ints(&[sequences], &real.iter().map(|n| *n as i32).collect::<Vec<_>>()));
    let counts = |token: usize| token % length < real[token / length];
    let position = |token: usize| match counts(token) {
        true => [0, 0, 1][token % length % 3],
        false => token % length - real[token / length],
    };
    let positions: Vec<i32> = (0..s.tokens).map(|token| position(token) as i32).collect();
    let (groups, position_ids) = match losses.groups {
        None | Some(Groups::Microbatch) => (1, None),
        Some(Groups::Sequences) => (sequences, None),
        Some(Groups::Documents) => (s.tokens, Some(t.ints(&[s.tokens], &positions))),
    };
    // The row of loads of a token's group.
    let group = |token: usize| match position_ids {
        Some(_) => token - position(token),
        None => token / (s.tokens / groups),
    };
    let load = t.empty(&[groups, s.experts], F32);
    let tokens = SampleTokens::whole(sequences);
    t.run(CountLoad { chosen, tokens, real: real_tensor, position_ids, load, accumulate: false });
    let mut loads = vec![0.0; groups * s.experts];
    for (pair, expert) in choices.iter().enumerate().filter(|(pair, _)| counts(pair / s.k)) {
        loads[group(pair / s.k) * s.experts + *expert as usize] += 1.0;
    }
    assert_eq!(t.get(&load), loads, "{what}");
    let (balance_losses, z_losses) = (t.empty(&[s.tokens], F32), t.empty(&[s.tokens], F32));
    let grad_logits = t.empty(&[s.tokens, s.experts], F32);
    t.run(RouteBackward {
        router,
        logits: t.put(&[s.tokens, s.experts], F32, &logits),
        chosen,
        grad_weights: t.put(&[s.tokens, s.k], F32, &grad_weights),
        balance: losses.groups.map(|_| Balance {
            load,
            loads: CountedLoads::OfGroups,
            position_ids,
            multiplier: BALANCE as f32,
            losses: balance_losses,
        }),
        z_loss: losses.z_loss.then_some(ZLoss { multiplier: Z as f32, losses: z_losses }),
        tokens,
        real: real_tensor,
        control: t.block(&control),
        adds_gradient: losses.adds,
        grad_logits,
    });
    let (mut truth, mut balance_truth, mut z_truth) = (Vec::new(), Vec::new(), Vec::new());
    for (token, x) in logits.chunks(s.experts).enumerate() {
        let (mine, load) = (&choices[token * s.k..][..s.k], &loads[group(token) * s.experts..][..s.experts]);
        let of_group = (0..s.tokens).filter(|other| group(*other) == group(token) && counts(*other)).count();
        // The groups of the step.
        let all = if position_ids.is_some() { 9 } else { 4 * groups };
        // The weights of a token, then its losses.
        let values = |x: &[f64]| {
            let scores = scores(&router, x);
            let mut values = weights(&router, &scores, mine);
            let (mut of_balance, mut of_z) = (0.0, 0.0);
            if counts(token) {
                of_balance = targets * balance(&scores, load, (all, of_group));
                of_z = targets * Z / 77.0 * logsumexp(x).powi(2);
            }
            values.extend([of_balance, of_z]);
            values
        };
        let factor = |has: bool| if has && losses.adds { 0.25 } else { 0.0 };
        let mut factors = grad_weights[token * s.k..][..s.k].to_vec();
        factors.extend([factor(losses.groups.is_some()), factor(losses.z_loss)]);
        truth.extend(finite_differences(x, &factors, values));
        let values = values(x);
        balance_truth.push(values[s.k]);
        z_truth.push(values[s.k + 1]);
    }
    assert_close(&format!("gradient of {what}"), F32, &t.get(&grad_logits), &truth);
    if losses.groups.is_some() {
        assert_close(&format!("balance losses of {what}"), F32, &t.get(&balance_losses), &balance_truth);
    }
    if losses.z_loss {
        assert_close(&format!("z-losses of {what}"), F32, &t.get(&z_losses), &z_truth);
    }
}

#[test]
fn the_gradient_of_a_choice_and_of_a_router_s_losses_is_that_of_finite_differences() {
    let t = checked_bench();
    for (s, router) in SIZES.into_iter().flat_map(|s| routers().into_iter().map(move |router| (s, router))) {
        for groups in [None, Some(Groups::Microbatch), Some(Groups::Sequences), Some(Groups::Documents)] {
            for (z_loss, adds, padded) in
                [(false, true, false), (true, true, false), (true, false, false), (true, true, true)]
            {
                check_gradient(&t, router, s, Losses { groups, z_loss, adds, padded });
            }
        }
    }
}

/// Ranks that divide samples have the choices, losses and gradients of whole samples, from loads of whole samples.
#[test]
fn tokens_of_a_share_are_those_of_whole_samples() {
    let t = checked_bench();
    let (samples, length, ranks, k, experts) = (2, 12, 3, 2, 5);
    let tokens = samples * length;
    let logits = logits(Sizes { tokens, experts, k });
    let grad_weights = numbers(3, tokens * k, F32);
    let real = t.ints(&[samples], &[12, 7]);
    let positions: Vec<i32> = (0..tokens).map(|token| (token % length % 5) as i32).collect();
    let control = Control { microbatches: 2, tokens: 19, documents: 6, grad_scale: 0.5, ..Control::default() };
    let control = t.block(&Control { inverse_loss_scale: 0.25, ..control });
    let router = Router { forces_balance: true, ..SIGMOID };
    // For each group of losses, the results `(tokens, width)` of the tokens of a share.
    let run = |share: SequenceShare, of: Groups, loads: Option<Tensor>| {
        let here = length / share.ranks;
        let rows: Vec<usize> =
            (0..samples * here).map(|row| row / here * length + share.position(row % here, here)).collect();
        let take = |values: &[f64], width: usize| -> Vec<f64> {
            rows.iter().flat_map(|row| values[row * width..(row + 1) * width].to_vec()).collect()
        };
        let count = rows.len();
        let tokens = SampleTokens { samples, share };
        let logits = t.put(&[count, experts], F32, &take(&logits, experts));
        let (chosen, weights) = (t.empty_ints(&[count, k]), t.empty(&[count, k], F32));
        t.run(Route { router, logits, bias: None, tokens, chosen, weights });
        let position_ids = (of == Groups::Documents)
            .then(|| t.ints(&[count], &rows.iter().map(|row| positions[*row]).collect::<Vec<_>>()));
        let groups = [1, samples, samples * length][of as usize];
        let load = loads.unwrap_or_else(|| {
            let load = t.empty(&[groups, experts], F32);
            t.run(CountLoad { chosen, tokens, real: Some(real), position_ids, load, accumulate: false });
            load
        });
        let (losses, grad_logits) = (t.empty(&[count], F32), t.empty(&[count, experts], F32));
        let z_losses = t.empty(&[count], F32);
        t.run(RouteBackward {
            router,
            logits,
            chosen,
            grad_weights: t.put(&[count, k], F32, &take(&grad_weights, k)),
            balance: Some(Balance { load, loads: CountedLoads::OfGroups, position_ids, multiplier: 0.75, losses }),
            z_loss: Some(ZLoss { multiplier: 0.125, losses: z_losses }),
            tokens,
            real: Some(real),
            control,
            adds_gradient: true,
            grad_logits,
        });
        let choices: Vec<f64> = t.get_ints(&chosen).into_iter().map(f64::from).collect();
        (load, rows, [(k, choices), (1, t.get(&losses)), (1, t.get(&z_losses)), (experts, t.get(&grad_logits))])
    };
    for of in [Groups::Microbatch, Groups::Sequences, Groups::Documents] {
        let (load, _, whole) = run(SequenceShare::WHOLE, of, None);
        for rank in 0..ranks {
            let (_, rows, here) = run(SequenceShare { rank, ranks }, of, Some(load));
            for ((width, here), (_, whole)) in here.iter().zip(&whole) {
                let wanted: Vec<f64> =
                    rows.iter().flat_map(|row| whole[row * width..(row + 1) * width].to_vec()).collect();
                assert_eq!(here, &wanted, "{of:?}, rank {rank}, of width {width}");
            }
        }
    }
}

#[test]
fn shapes_and_types_that_do_not_fit_are_refused() {
    let t = checked_bench();
    let forward = |dtype: DType, bias: usize, chosen: [usize; 2], weights: [usize; 2]| {
        t.refusal(Route {
            router: SOFTMAX,
            logits: t.empty(&[6, 8], dtype),
            bias: Some(t.empty(&[bias], F32)),
            tokens: SampleTokens::whole(1),
            chosen: t.empty_ints(&chosen),
            weights: t.empty(&weights, F32),
        })
    };
    let backward = |grad: usize, load: [usize; 2], losses: usize, z_losses: usize| {
        t.refusal(RouteBackward {
            router: SOFTMAX,
            logits: t.empty(&[6, 8], F32),
            chosen: t.ints(&[6, 2], &[0; 12]),
            grad_weights: t.empty(&[6, 2], F32),
            balance: Some(Balance {
                load: t.empty(&load, F32),
                loads: CountedLoads::OfGroups,
                position_ids: None,
                multiplier: 1.0,
                losses: t.empty(&[losses], F32),
            }),
            z_loss: Some(ZLoss { multiplier: 1.0, losses: t.empty(&[z_losses], F32) }),
            tokens: SampleTokens::whole(2),
            real: None,
            control: t.block(&Control::default()),
            adds_gradient: true,
            grad_logits: t.empty(&[grad, 8], F32),
        })
    };
    for (error, words) in [
        (forward(F32, 8, [5, 2], [6, 2]), "route: `chosen` has shape (5, 2), needs (6, 2)"),
        (forward(F32, 8, [6, 2], [6, 3]), "route: `weights` has shape (6, 3), needs (6, 2)"),
        (forward(F32, 8, [6, 9], [6, 9]), "route: 9 of 8 experts cannot be chosen"),
        (forward(F32, 7, [6, 2], [6, 2]), "route: `bias` of shape (7) has 7 elements, needs 8"),
        (forward(Bf16, 8, [6, 2], [6, 2]), "route: `logits` is bf16, needs f32"),
        (backward(5, [1, 8], 6, 6), "route_backward: `grad_logits` of shape (5, 8)"),
        (backward(6, [1, 7], 6, 6), "route_backward: `load` has shape (1, 7), needs (1, 8)"),
        (backward(6, [4, 8], 6, 6), "route_backward: 4 groups of 2 samples, needs 1, or 2"),
        (backward(6, [2, 8], 3, 6), "route_backward: `losses` of shape (3)"),
        (backward(6, [2, 8], 6, 5), "route_backward: `z_loss.losses` of shape (5)"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_refuses_more_experts_or_choices_than_its_kernels_take() {
    let t = crate::common::cuda_bench();
    let refused = |experts: usize, k: usize| {
        let (logits, chosen, weights) = (t.empty(&[2, experts], F32), t.empty_ints(&[2, k]), t.empty(&[2, k], F32));
        let tokens = SampleTokens::whole(1);
        t.refusal(Route { router: SOFTMAX, logits, bias: None, tokens, chosen, weights })
    };
    assert!(refused(513, 2).contains("a GPU takes at most 512 experts, not 513"));
    assert!(refused(64, 33).contains("on a GPU a token chooses at most 32 experts, not 33"));
}
