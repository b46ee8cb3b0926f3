//! Chooses a token from logits.

use device::philox;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Divides the logits. Below 1 likely tokens become likelier, above 1 less likely. 0 always takes the likeliest.
    pub temperature: f64,
    /// The number of likeliest tokens to choose from. `None` for all.
    pub top_k: Option<usize>,
    /// The share of the probability that the likeliest tokens to choose from have together: as few of them as reach it, after
    /// `top_k`. `None` for all.
    pub top_p: Option<f64>,
    /// The `n`-th choice is a function of the seed and of `n`.
    pub seed: u64,
}

impl Sampler {
    /// The `n`-th token of a text, from the logits of all tokens. Of equal logits the first counts as likelier.
    ///
    /// # Panics
    /// Without logits.
    pub fn choose(&self, logits: &[f32], n: u64) -> usize {
        let mut likeliest: Vec<usize> = (0..logits.len()).collect();
        let kept = if self.temperature == 0.0 { 1 } else { self.top_k.unwrap_or(logits.len()).clamp(1, logits.len()) };
        likeliest.select_nth_unstable_by(kept - 1, |&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        likeliest.truncate(kept);
        if kept == 1 {
            return likeliest[0];
        }
        let highest = likeliest.iter().map(|&token| f64::from(logits[token])).fold(f64::NEG_INFINITY, f64::max);
        let weight = |token: usize| ((f64::from(logits[token]) - highest) / self.temperature).exp();
        if let Some(share) = self.top_p {
            likeliest.sort_unstable_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let mut left = share * likeliest.iter().map(|&token| weight(token)).sum::<f64>();
            let mut kept = 0;
            while left > 0.0 && kept < likeliest.len() {
                left -= weight(likeliest[kept]);
                kept += 1;
            }
            likeliest.truncate(kept.max(1));
        }
        likeliest.sort_unstable(); // so that the order of the sum does not depend on the selection
        let total: f64 = likeliest.iter().map(|&token| weight(token)).sum();
        let mut left = uniform(self.seed, n) * total;
        for &token in &likeliest {
            left -= weight(token);
            if left < 0.0 {
                return token;
            }
        }
        likeliest[likeliest.len() - 1]
    }
}

/// A number in [0, 1) that is a function of (seed, n), with 52 bits.
fn uniform(seed: u64, n: u64) -> f64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let [low, high, ..] = philox::philox4x32_10([n as u32, (n >> 32) as u32, 0, 2], key);
    (u64::from(high) << 32 | u64::from(low)) as f64 / 18_446_744_073_709_551_616.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -1.0];

    /// How often each token is chosen in `choices` choices.
    fn counts(sampler: Sampler, choices: u64) -> [u64; 5] {
        let mut counts = [0; 5];
        (0..choices).for_each(|n| counts[sampler.choose(&LOGITS, n)] += 1);
        counts
    }

    #[test]
    fn temperature_0_and_top_1_take_the_first_of_the_likeliest() {
        for (temperature, top_k) in [(0.0, None), (0.0, Some(3)), (1.0, Some(1))] {
            assert_eq!(counts(Sampler { temperature, top_k, top_p: None, seed: 1 }, 50), [0, 50, 0, 0, 0]);
        }
    }

    #[test]
    fn tokens_are_chosen_as_often_as_their_softmax_at_the_temperature_says() {
        for (temperature, top_k) in [(1.0, None), (0.5, None), (2.0, Some(3))] {
            let kept = |token: usize| top_k.is_none() || [1, 2, 3].contains(&token);
            let weight = |token: usize| if kept(token) { (f64::from(LOGITS[token]) / temperature).exp() } else { 0.0 };
            let total: f64 = (0..5).map(weight).sum();
            let choices = 40_000;
            for (token, count) in
                counts(Sampler { temperature, top_k, top_p: None, seed: 7 }, choices).into_iter().enumerate()
            {
                let (expected, got) = (weight(token) / total, count as f64 / choices as f64);
                // Four standard deviations. A token outside of the top k never comes.
                let slack = 4.0 * (expected * (1.0 - expected) / choices as f64).sqrt();
                assert!((got - expected).abs() <= slack, "{temperature} {top_k:?} {token}: {got} for {expected}");
            }
        }
    }

    #[test]
    fn top_p_keeps_as_few_of_the_likeliest_tokens_as_have_that_share() {
        // Softmax of LOGITS: 0.053, 0.391, 0.144, 0.391, 0.019.
        for (top_p, kept) in
            [(0.3, &[1][..]), (0.5, &[1, 3]), (0.8, &[1, 2, 3]), (0.95, &[0, 1, 2, 3]), (1.0, &[0, 1, 2, 3, 4])]
        {
            let counts = counts(Sampler { temperature: 1.0, top_k: None, top_p: Some(top_p), seed: 3 }, 4000);
            let chosen: Vec<usize> = (0..5).filter(|&token| counts[token] > 0).collect();
            assert_eq!(chosen, kept, "{top_p}");
        }
        // Of the tokens that top_k leaves.
        let both = Sampler { temperature: 1.0, top_k: Some(2), top_p: Some(0.6), seed: 3 };
        assert!(counts(both, 200)[1] > 0 && counts(both, 200)[3] > 0);
    }

    #[test]
    fn top_k_keeps_the_first_of_equal_logits() {
        let logits = [1.0, 3.0, 3.0, 3.0];
        let sampler = Sampler { temperature: 1.0, top_k: Some(2), top_p: None, seed: 1 };
        let chosen: std::collections::BTreeSet<usize> = (0..100).map(|n| sampler.choose(&logits, n)).collect();
        assert_eq!(chosen, [1, 2].into());
    }

    #[test]
    fn another_seed_chooses_otherwise_and_the_same_one_the_same() {
        let text = |seed| -> Vec<usize> {
            let sampler = Sampler { temperature: 1.0, top_k: None, top_p: None, seed };
            (0..40).map(|n| sampler.choose(&LOGITS, n)).collect()
        };
        assert_eq!(text(3), text(3));
        assert_ne!(text(3), text(4));
        assert_ne!(text(3), text(3 + (1 << 32)));
    }
}
