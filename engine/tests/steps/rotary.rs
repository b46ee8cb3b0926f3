//! Rotary tables up to position 131,071, beside those of `transformers`.

use engine::model::{RotaryTable, Scaling};
use serde_json::json;

use crate::exchange::{Arrays, reference};

const CONTEXT: usize = 131_072;
const POSITIONS: [usize; 10] = [0, 1, 2, 4095, 8192, 32_767, 40_000, 65_535, 100_003, CONTEXT - 1];

#[test]
fn scaled_frequencies_are_those_of_transformers_at_all_positions_to_128k() {
    // Llama 3.1 and 3.2, Qwen 2.5, a YaRN with numbers of its own that rounds nothing, Gemma 3, and no scaling.
    let llama = |factor| Scaling::Llama3 { factor, low: 1.0, high: 4.0, original_context: 8192.0 };
    let llama_theirs = |factor: f64| {
        json!({ "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192 })
    };
    let yarn = |factor: f64, original_context: usize, beta_fast, beta_slow, rounds| Scaling::Yarn {
        factor,
        original_context: original_context as f64,
        beta_fast,
        beta_slow,
        attention_factor: 0.1 * factor.ln() + 1.0,
        rounds,
    };
    let models = [
        (128, 5e5, Some(llama(8.0)), llama_theirs(8.0)),
        (64, 5e5, Some(llama(32.0)), llama_theirs(32.0)),
        (
            128,
            1e6,
            Some(yarn(4.0, 32_768, 32.0, 1.0, true)),
            json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768 }),
        ),
        (
            64,
            1e4,
            Some(yarn(32.0, 4096, 16.0, 2.0, false)),
            json!({ "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 16.0,
                    "beta_slow": 2.0, "truncate": false }),
        ),
        (256, 1e6, Some(Scaling::Linear { factor: 8.0 }), json!({ "rope_type": "linear", "factor": 8.0 })),
        (128, 5e5, None, serde_json::Value::Null),
    ];
    let theirs = models.iter().map(
        |(head_dim, base, _, scaling)| json!({ "head_dim": head_dim, "base": base, "context": CONTEXT, "scaling": scaling }),
    );
    let case = json!({ "positions": POSITIONS, "models": theirs.collect::<Vec<_>>() });
    let theirs = reference("rotary.py", "rotary", &case, &Arrays::default());
    for (number, (head_dim, base, scaling, _)) in models.into_iter().enumerate() {
        let table = RotaryTable { positions: CONTEXT, head_dim, base, scaling };
        let ours = table.values(POSITIONS.into_iter());
        let [cosines, sines] = ["cos", "sin"].map(|name| &theirs[&format!("{number}.{name}")]);
        assert_eq!(ours.len(), 2 * cosines.len());
        for (at, pair) in ours.chunks(2).enumerate() {
            let (position, channel) = (POSITIONS[at / (head_dim / 2)], at % (head_dim / 2));
            // They compute a frequency, and its product with the position, in f32: the angle is off by some of its last
            // bits. No scaling makes an angle larger than the plain one, the position at a frequency of 1 and less.
            let plain = position as f64 * base.powf(-((2 * channel) as f64) / head_dim as f64);
            let within = 1e-6 + plain * 4.0 * 2f64.powi(-24);
            let off = [f64::from(pair[0]) - cosines[at], f64::from(pair[1]) - sines[at]];
            assert!(
                off.iter().all(|off| off.abs() < within),
                "model {number}, position {position}, channel pair {channel}: off by {off:?}, at most {within:.1e}"
            );
        }
    }
}
