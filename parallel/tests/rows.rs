//! Rows that go straight to the ranks of their experts, and back, against plain references.

use std::time::Duration;

use device::ops::{Collective, CollectiveKind, ExpertRows, PlaceRows, RowsOfRanks, RowsWay, SortByExpert};
use device::{DType, Device, HostOptions};
use parallel::{ThreadRank, ThreadWorld};

const EXPERTS: usize = 3; // of a rank
const TOKENS: usize = 7;
const K: usize = 2;
const WIDTH: usize = 5;

/// The expert of a pair of a rank; one too high if the pair is dropped. The last rank has no tokens for rank 0.
fn chosen(rank: usize, ranks: usize, pair: usize) -> i32 {
    let all = ranks * EXPERTS;
    let expert = (rank * 5 + pair * pair * 3 + pair / 3) % (all + 1);
    if rank + 1 == ranks && expert < EXPERTS { all as i32 } else { expert as i32 }
}

fn value(rank: usize, token: usize, column: usize) -> f32 {
    (rank * 1000 + token * 10 + column) as f32
}

/// The rows of a rank's experts, as rank, pair and expert of each: by expert, then by rank, then by pair.
fn rows_of(rank: usize, ranks: usize) -> Vec<(usize, usize)> {
    let experts = rank * EXPERTS..(rank + 1) * EXPERTS;
    let of = |expert: usize| {
        (0..ranks).flat_map(move |from| {
            (0..TOKENS * K)
                .filter(move |pair| chosen(from, ranks, *pair) == expert as i32)
                .map(move |pair| (from, pair))
        })
    };
    experts.flat_map(of).collect()
}

/// Sends the rows of all tokens to their experts and takes them back. `bound` are the rows for
/// which a rank has memory.
fn round_trip(place: ThreadRank, ranks: usize, bound: usize) {
    let group = place.moving_rows().communicator("expert");
    let (rank, all) = (group.rank(), ranks * EXPERTS);
    assert!(group.moves_rows());
    let device = Device::host(HostOptions { threads: 1, check: true, dry: false }).unwrap();
    let area = device.allocate("rows", 1 << 16).unwrap();
    let mut at = 0;
    let mut tensor = |name: &'static str, shape: &[usize], dtype| {
        let tensor = area.tensor(name, at, device::Shape::new(shape), dtype);
        at += tensor.bytes().next_multiple_of(64);
        tensor
    };
    let pairs = TOKENS * K;
    let choices = tensor("chosen", &[TOKENS, K], DType::I32);
    let order = ExpertRows {
        offsets: tensor("offsets", &[all + 1], DType::I32),
        pairs: tensor("pairs", &[pairs], DType::I32),
        rows: tensor("rows", &[TOKENS, K], DType::I32),
    };
    let offsets = tensor("all offsets", &[ranks, all + 1], DType::I32);
    let places = tensor("places", &[EXPERTS, ranks], DType::I32);
    let here = tensor("offsets here", &[EXPERTS + 1], DType::I32);
    let numbers = tensor("pairs here", &[bound], DType::I32);
    let tokens = tensor("tokens", &[TOKENS, WIDTH], DType::F32);
    let rows = tensor("rows here", &[bound, WIDTH], DType::F32);
    let back = tensor("back", &[pairs, WIDTH], DType::F32);
    let values: Vec<f32> = (0..TOKENS * WIDTH).map(|at| value(rank, at / WIDTH, at % WIDTH)).collect();
    let of_pairs: Vec<i32> = (0..pairs).map(|pair| chosen(rank, ranks, pair)).collect();
    device.upload(&tokens, &values).unwrap();
    device.upload(&choices, &of_pairs).unwrap();
    device.upload(&rows, &vec![-1.0_f32; bound * WIDTH]).unwrap();
    device.upload(&back, &vec![-1.0_f32; pairs * WIDTH]).unwrap();
    let stream = device.stream("compute");
    stream.submit(SortByExpert { chosen: choices, first: 0, order }).unwrap();
    let kind = CollectiveKind::AllGather;
    stream.submit(Collective { kind, communicator: group.clone(), input: order.offsets, output: offsets }).unwrap();
    stream.submit(PlaceRows { all: offsets, rank, places, offsets: here, pairs: numbers, beyond: None }).unwrap();
    let pass = |way, input, output| {
        let kind = CollectiveKind::Rows(RowsOfRanks { way, offsets, places, pairs: order.pairs });
        stream.submit(Collective { kind, communicator: group.clone(), input, output }).unwrap();
    };
    pass(RowsWay::ToExperts, tokens, rows);
    pass(RowsWay::ToTokens, rows, back);
    device.synchronize().unwrap();

    let expected = rows_of(rank, ranks);
    let first = |expert: usize| {
        let before = |(from, pair): &&(usize, usize)| chosen(*from, ranks, *pair) < (rank * EXPERTS + expert) as i32;
        expected.iter().filter(before).count().min(bound) as i32
    };
    let counted: Vec<i32> = (0..=EXPERTS).map(first).collect();
    assert_eq!(device.download::<i32>(&here).unwrap(), counted, "rank {rank}");
    // Places without a row are dropped pairs.
    let number = |row: usize| if row < expected.len() { row as i32 } else { -1 - row as i32 };
    assert_eq!(device.download::<i32>(&numbers).unwrap(), (0..bound).map(number).collect::<Vec<_>>());
    let got = device.download::<f32>(&rows).unwrap();
    for (row, got) in got.chunks(WIDTH).enumerate() {
        let of = |column: usize| expected.get(row).map_or(-1.0, |(from, pair)| value(*from, pair / K, column));
        assert_eq!(got, (0..WIDTH).map(of).collect::<Vec<_>>(), "rank {rank}, row {row}");
    }
    let (back, sorted) = (device.download::<f32>(&back).unwrap(), device.download::<i32>(&order.pairs).unwrap());
    for (pair, got) in sorted.iter().zip(back.chunks(WIDTH)) {
        // The rank of the pair's expert, and its place there.
        let there = |pair: usize| {
            let owner = chosen(rank, ranks, pair) as usize / EXPERTS;
            rows_of(owner, ranks).iter().position(|row| *row == (rank, pair)).unwrap()
        };
        let came = usize::try_from(*pair).is_ok_and(|pair| there(pair) < bound);
        let of = |column: usize| if came { value(rank, *pair as usize / K, column) } else { -1.0 };
        let expected: Vec<f32> = (0..WIDTH).map(of).collect();
        assert!(got == expected || !came && *pair >= 0, "rank {rank}, pair {pair}: {got:?}, not {expected:?}");
    }
}

#[test]
fn rows_go_to_the_places_of_their_experts_and_come_back() {
    for ranks in 1..=4 {
        for bound in [ranks * TOKENS * K, 4] {
            std::thread::scope(|scope| {
                for place in ThreadWorld::ranks(ranks, Duration::from_secs(240)) {
                    scope.spawn(move || round_trip(place, ranks, bound));
                }
            });
        }
    }
}
