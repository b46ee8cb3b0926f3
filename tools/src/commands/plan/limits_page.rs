//! The reach of a GPU's memory, in `trainer plan --limits`.

use common::format::{bytes, count, counted};
use serde_json::{Value, json};

use super::page::aligned;
use crate::predict::{Card, Largest, Limit, Memory};

/// The limits as JSON.
pub(super) fn json(limits: &[Limit]) -> Value {
    let largest = |largest: &Option<Largest>, name: &str| {
        largest.as_ref().map(|Largest { value, parameters, memory, twice }| {
            json!({
                (name): value,
                "parameters": parameters,
                "memory_bytes": memory.total(),
                "on_host": memory.on_host,
                "memory_bytes_of_twice": twice.as_ref().map(Memory::total),
            })
        })
    };
    let limit = |limit: &Limit| {
        json!({
            "means": limit.means,
            "longest": largest(&limit.longest, "tokens"),
            "largest": largest(&limit.largest, "blocks"),
        })
    };
    limits.iter().map(limit).collect()
}

/// The limits as a table, and what is missing for more. Empty without limits.
pub(super) fn text(card: &Card, limits: &[Limit]) -> String {
    let Some(last) = limits.last() else { return String::new() };
    let gib = |bytes: usize| format!("{:.1}", bytes as f64 / f64::from(1 << 30));
    let head = ["longest sample", "GiB", "host GiB", "most blocks", "parameters", "GiB", "host GiB", "means"];
    let mut rows = vec![head.map(String::from)];
    for Limit { means, longest, largest } in limits {
        let none = || "-".to_string();
        let of = |largest: &Option<Largest>, value: fn(&Largest) -> usize| largest.as_ref().map(value);
        let memory = |largest: &Option<Largest>| {
            [of(largest, |it| it.memory.total()), of(largest, |it| it.memory.on_host)]
                .map(|it| it.map_or_else(none, gib))
        };
        let value = |largest: &Option<Largest>| of(largest, |it| it.value).map_or_else(none, |it| it.to_string());
        let parameters = of(largest, |it| it.parameters).map_or_else(none, |it| count(it as f64));
        let [samples, on_host] = memory(longest);
        let [blocks, beside] = memory(largest);
        let means = if means.is_empty() { "these flags" } else { *means };
        rows.push([value(longest), samples, on_host, value(largest), parameters, blocks, beside, means.into()]);
    }
    let mut page = format!(
        "\nHow far {} goes, with one sample in a microbatch and {} left free\n{}",
        card.name,
        bytes(card.headroom()),
        aligned(&rows)
    );
    for (largest, what) in [(&last.longest, "token"), (&last.largest, "block")] {
        let Some(Largest { value, twice: Some(twice), .. }) = largest else { continue };
        let Memory { weights, gradients, optimizer, activations, on_host, .. } = *twice;
        page.push_str(&format!(
            "  {} would need {}, {} too much: weights {}, gradients {}, optimizer {}, activations {}; of the host {}\n",
            counted(2 * value, what),
            bytes(twice.total()),
            bytes((twice.total() + card.headroom()).saturating_sub(card.room())),
            bytes(weights),
            bytes(gradients),
            bytes(optimizer),
            bytes(activations),
            bytes(on_host)
        ));
    }
    page
}
