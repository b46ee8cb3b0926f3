//! Copies from the host in stream order.

use crate::common::checked_bench;
use device::DType::{Bf16, F8E4M3, F32};
use device::{COPY_BLOCK, CheckError, Error, HostArray, Snapshot, Staging, Tensor, bf16, copy_blocks};

#[test]
fn columns_of_an_array_arrive_row_by_row_from_any_memory() {
    let t = checked_bench();
    let (rows, width) = (6, 7);
    let value = |row: usize, column: usize| (row * 100 + column) as f32;
    let values: Vec<f32> = (0..rows * width).map(|i| value(i / width, i % width)).collect();
    let staging = t.device.staging([rows * width * 4]).unwrap();
    let staged: HostArray<f32> = staging
        .array(rows * width, |memory: &mut [f32]| {
            memory.copy_from_slice(&values);
            Ok::<(), std::convert::Infallible>(())
        })
        .unwrap();
    for array in [HostArray::from(values), staged] {
        for (first, count) in [(0, 7), (0, 3), (2, 4), (6, 1)] {
            let tensor = t.empty(&[2, 3, count], F32);
            t.stream.send_columns(&tensor, &array, width, first).unwrap();
            t.stream.synchronize().unwrap();
            let expected: Vec<f64> = (0..rows * count).map(|i| value(i / count, first + i % count).into()).collect();
            assert_eq!(t.get(&tensor), expected, "columns {first}..{}", first + count);
        }
    }
}

#[test]
fn columns_that_an_array_does_not_have_are_refused() {
    let t = checked_bench();
    let array = HostArray::from(vec![0.0f32; 12]);
    let tensor = t.empty(&[3, 2], F32);
    t.stream.send_columns(&tensor, &array, 4, 2).unwrap();
    for (width, first, problem) in
        [(4, 3, "columns 3..5 of rows of 4"), (3, 0, "12 f32 for 3 rows of 3"), (5, 0, "12 f32 for 3 rows of 5")]
    {
        let error = t.stream.send_columns(&tensor, &array, width, first).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn a_copy_of_tensors_has_their_bytes_whatever_block_they_lie_in() {
    let t = checked_bench();
    let (few, many) = (t.empty(&[3], Bf16), t.empty(&[COPY_BLOCK / 4 + 5], F32));
    let numbers: Vec<f32> = (0..many.elements()).map(|i| i as f32).collect();
    let halves: Vec<bf16> = [1.0f32, -2.0, 3.0].map(bf16::from_f32).to_vec();
    t.device.upload(&few, &halves).unwrap();
    t.device.upload(&many, &numbers).unwrap();
    let part = many.view(1000, [2000]);
    let copy = t.stream.copy_out(&[part, many, few], &Staging::default()).unwrap();
    let blocks = copy_blocks(&[part, many, few]);
    assert!(blocks.len() == 2 && blocks[0] == COPY_BLOCK, "whichever lies first: {blocks:?}");
    // Any thread may wait for it.
    let bytes = move |tensor: Tensor| -> Vec<Vec<u8>> {
        copy.pieces(&tensor).unwrap().map(|piece| piece.unwrap().as_ref().to_vec()).collect()
    };
    let [few, many, part] = std::thread::spawn(move || [few, many, part].map(bytes)).join().unwrap();
    assert_eq!(few, [bytemuck::cast_slice::<bf16, u8>(&halves)]);
    assert_eq!(many.len(), 2, "it lies in both blocks");
    assert!(many.concat() == bytemuck::cast_slice::<f32, u8>(&numbers));
    assert_eq!(part.concat(), bytemuck::cast_slice::<f32, u8>(&numbers[1000..3000]));
}

#[test]
fn a_copy_and_a_write_that_does_not_wait_for_it_are_a_race() {
    let t = checked_bench();
    let tensor = t.empty(&[4], F32);
    let copies = t.device.stream("copies");
    t.device.upload(&tensor, &[1.0f32; 4]).unwrap();
    let copied = t.device.event();
    let _copy = copies.copy_out(&[tensor], &Staging::default()).unwrap();
    copies.record(&copied).unwrap();
    let error = t.stream.write(&tensor, &[2.0f32; 4]).unwrap_err();
    assert!(matches!(error, Error::Check(CheckError::Race { .. })), "{error}");
    t.stream.wait(&copied).unwrap();
    t.stream.write(&tensor, &[2.0f32; 4]).unwrap();
}

#[test]
fn a_snapshot_brings_its_bytes_back_and_its_memory_serves_a_smaller_one() {
    let t = checked_bench();
    let odd: Vec<u8> = (0..1001).map(|i| (i * 7 % 251) as u8).collect();
    let (bytes, numbers) = (t.put_bytes(&[1001], F8E4M3, &odd), t.put(&[3], F32, &[1.0, 2.0, 3.0]));
    let mut snapshot = Snapshot::default();
    t.device.snapshot(&mut snapshot, [bytes, numbers]).unwrap();
    for _ in 0..2 {
        t.device.zero(&bytes).unwrap();
        t.device.zero(&numbers).unwrap();
        t.device.restore(&snapshot).unwrap();
        assert_eq!(t.get_bytes(&bytes), odd);
        assert_eq!(t.get(&numbers), [1.0, 2.0, 3.0]);
    }
    t.device.snapshot(&mut snapshot, [numbers]).unwrap();
    t.device.zero(&bytes).unwrap();
    t.device.zero(&numbers).unwrap();
    t.device.restore(&snapshot).unwrap();
    assert_eq!((t.get_bytes(&bytes), t.get(&numbers)), (vec![0; 1001], vec![1.0, 2.0, 3.0]));
}

/// The sum of all words of 8 bytes, each with its place, mixed by SplitMix64's last steps: in wide numbers.
fn digest(bytes: &[u8]) -> u64 {
    let low = |x: u128| x & u128::from(u64::MAX);
    let word = |(at, chunk): (usize, &[u8])| {
        let word = chunk.iter().rev().fold(0u128, |word, byte| word << 8 | u128::from(*byte));
        let mut x = low(word + low((at as u128 + 1) * 0x9e37_79b9_7f4a_7c15));
        x = low((x ^ x >> 30) * 0xbf58_476d_1ce4_e5b9);
        x = low((x ^ x >> 27) * 0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    };
    low(bytes.chunks(8).enumerate().map(word).sum()) as u64
}

#[test]
fn digests_are_of_the_bytes_wherever_they_begin_and_end() {
    let t = checked_bench();
    // More than all blocks of a launch read in one turn.
    let all: Vec<u8> = (0..9_000_003_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let whole = t.put_bytes(&[all.len()], F8E4M3, &all);
    let parts = [(0, all.len()), (0, 8), (8, 16), (1, 100), (3, 5), (7, 8_999_001)];
    let tensors: Vec<Tensor> = parts.iter().map(|(first, count)| whole.view(*first, [*count])).collect();
    let expected: Vec<u64> = parts.iter().map(|(first, count)| digest(&all[*first..first + count])).collect();
    assert_eq!(t.device.digests(&tensors).unwrap(), expected);
    // More tensors than are read at once.
    let many = vec![tensors[3]; 2050];
    assert_eq!(t.device.digests(&many).unwrap(), vec![expected[3]; 2050]);
    let mut other = all[1..101].to_vec();
    other.swap(20, 28);
    assert_ne!(digest(&other), expected[3], "words that trade places");
}
