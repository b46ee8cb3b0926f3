//! Tests for every communicator, whatever its library.

use device::ops::CollectiveKind::{
    AllGather, AllReduceMax, AllReduceSum, AllToAll, Broadcast, Receive, ReduceScatterSum, ReduceSum, Send, ToNext,
};
use device::{BufferId, Communicator, DType, Element, Float, Request, Shape, Tensor, bf16};

/// The tensor with the memory of `values`.
pub fn tensor<T: Element>(values: &mut [T]) -> Tensor {
    let address = values.as_mut_ptr() as u64;
    Tensor { address, shape: Shape::new(&[values.len()]), dtype: T::DTYPE, buffer: BufferId::NOTHING }
}

/// Numbers of several magnitudes, so that the order of a sum shows in its bits.
pub fn value(rank: usize, transfer: usize, index: usize) -> f32 {
    let hash = (rank * 7919 + transfer * 104_729 + index * 1_299_709) % 10_007;
    (hash as f32 - 5003.0) * [1.0, 1e-3, 1e3][hash % 3]
}

/// The values that `rank` contributes to a transfer.
pub fn values<T: Float>(rank: usize, transfer: usize, length: usize) -> Vec<T> {
    (0..length).map(|index| T::from_f32(value(rank, transfer, index))).collect()
}

/// Fails unless `got` is the sum over ranks from index `first` on, up to the rounding that the order of the terms can
/// change.
fn assert_summed<T: Float>(size: usize, transfer: usize, first: usize, got: &[T]) {
    for (index, got) in got.iter().enumerate() {
        let terms = (0..size).map(|rank| f64::from(T::from_f32(value(rank, transfer, first + index)).to_f32()));
        let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
        let rounding = if T::DTYPE == DType::Bf16 { sum.abs() / 256.0 } else { 0.0 };
        let allowed = magnitude * f64::from(f32::EPSILON) * size as f64 + rounding;
        assert!((f64::from(got.to_f32()) - sum).abs() <= allowed, "{transfer}[{index}] is {}, not {sum}", got.to_f32());
    }
}

fn bits<T: Float>(values: &[T]) -> Vec<u32> {
    values.iter().map(|x| x.to_f32().to_bits()).collect()
}

/// Does every kind of transfer with tensors of type `T`, several under way at a time, and checks the result of each.
pub fn assert_all_kinds_are_right<T: Float>(group: &dyn Communicator) {
    let (rank, size) = (group.rank(), group.size());
    for (transfer, length) in [1, 3, 0, 17_001, 100].into_iter().enumerate() {
        let mine: Vec<T> = values(rank, transfer, length);
        let start = |kind, input: &Tensor, output: &Tensor| group.start(kind, input, output).unwrap();

        let (mut sum, mut gathered) = (mine.clone(), vec![T::zeroed(); size * length]);
        let mut input = mine.clone();
        let sum_tensor = tensor(&mut sum);
        let requests: Vec<Box<dyn Request>> = vec![
            start(AllReduceSum, &sum_tensor, &sum_tensor),
            start(AllGather, &tensor(&mut input), &tensor(&mut gathered)),
        ];
        requests.into_iter().for_each(|request| request.wait().unwrap());
        assert_summed(size, transfer, 0, &sum);
        for index in 0..length {
            for other in 0..size {
                let theirs = T::from_f32(value(other, transfer, index)).to_f32();
                assert_eq!(gathered[other * length + index].to_f32(), theirs, "of rank {other}");
            }
        }
        assert_eq!(bits(&input), bits(&mine), "an input is left alone");

        let mut largest = mine.clone();
        let tensor_of_largest = tensor(&mut largest);
        start(AllReduceMax, &tensor_of_largest, &tensor_of_largest).wait().unwrap();
        for (index, largest) in largest.iter().enumerate() {
            let of_rank = |rank| T::from_f32(value(rank, transfer, index)).to_f32();
            assert_eq!(largest.to_f32(), (0..size).map(of_rank).fold(f32::MIN, f32::max), "largest of {index}");
        }

        let (mut scattered, mut whole) = (vec![T::zeroed(); length], values::<T>(rank, transfer, length * size));
        start(ReduceScatterSum, &tensor(&mut whole), &tensor(&mut scattered)).wait().unwrap();
        assert_summed(size, transfer, rank * length, &scattered);
        start(AllGather, &tensor(&mut sum), &tensor(&mut gathered)).wait().unwrap();
        for other in 0..size {
            let theirs = &gathered[other * length..(other + 1) * length];
            assert_eq!(bits(theirs), bits(&sum), "sums have other bits on rank {other}");
        }
        let (mut sent, mut received) = (values::<T>(rank, transfer, size * length), vec![T::zeroed(); size * length]);
        start(AllToAll, &tensor(&mut sent), &tensor(&mut received)).wait().unwrap();
        for (other, part) in received.chunks(length.max(1)).enumerate() {
            let theirs = &values::<T>(other, transfer, size * length)[rank * length..(rank + 1) * length];
            assert_eq!(bits(part), bits(theirs), "the part for rank {rank} of rank {other}");
        }
        for root in 0..size {
            let (mut reduced, mut of_root, mut here) = (mine.clone(), mine.clone(), vec![T::zeroed(); length]);
            let in_place = tensor(&mut reduced);
            start(ReduceSum { to: root }, &in_place, &in_place).wait().unwrap();
            let expected = if rank == root { &sum } else { &mine };
            assert_eq!(bits(&reduced), bits(expected), "the sum is on rank {root} alone");
            let output = tensor(&mut here);
            let input = if rank == root { tensor(&mut of_root) } else { output };
            start(Broadcast { from: root }, &input, &output).wait().unwrap();
            assert_eq!(bits(&here), bits(&values::<T>(root, transfer, length)), "of rank {root}");
        }
        let mut of_last = vec![T::zeroed(); length];
        start(ToNext, &tensor(&mut input), &tensor(&mut of_last)).wait().unwrap();
        assert_eq!(
            bits(&of_last),
            bits(&values::<T>((rank + size - 1) % size, transfer, length)),
            "of the rank before"
        );
    }
    assert_whole_numbers_travel(group);
    assert_sums_have_one_order::<T>(group);
    if size > 1 {
        assert_messages_arrive::<T>(group);
    }
}

/// Whole numbers of any bits arrive as they were sent.
fn assert_whole_numbers_travel(group: &dyn Communicator) {
    let (rank, size) = (group.rank() as i32, group.size());
    // As f32 some would be no number.
    let of = |rank: i32| [rank, -1 - rank, i32::MAX - rank];
    let (mut mine, mut gathered) = (of(rank), vec![0; 3 * size]);
    group.start(AllGather, &tensor(&mut mine), &tensor(&mut gathered)).unwrap().wait().unwrap();
    assert_eq!(gathered, (0..size as i32).flat_map(of).collect::<Vec<_>>());
    let bytes = |rank: usize| -> Vec<u8> { (0..=u8::MAX).map(|byte| byte.wrapping_add(rank as u8)).collect() };
    let (mut mine, mut gathered) = (bytes(group.rank()), vec![0; 256 * size]);
    group.start(AllGather, &tensor(&mut mine), &tensor(&mut gathered)).unwrap().wait().unwrap();
    assert_eq!(gathered, (0..size).flat_map(bytes).collect::<Vec<_>>());
}

/// Fails unless a sum has the same bits as an all-reduce, as a reduce-scatter, and as part of a longer all-reduce. Open
/// MPI has other algorithms for long sums than for short ones.
fn assert_sums_have_one_order<T: Float>(group: &dyn Communicator) {
    let (rank, size) = (group.rank(), group.size());
    for part in [64, 5000, 64_000] {
        let summed = |length: usize| {
            let mut values = values::<T>(rank, 1, length);
            let tensor = tensor(&mut values);
            group.start(AllReduceSum, &tensor, &tensor).unwrap().wait().unwrap();
            bits(&values)
        };
        let length = part * size;
        let whole = summed(length);
        let (mut mine, mut scattered) = (values::<T>(rank, 1, length), vec![T::zeroed(); part]);
        group.start(ReduceScatterSum, &tensor(&mut mine), &tensor(&mut scattered)).unwrap().wait().unwrap();
        let differing = |a: &[u32], b: &[u32]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        let others = differing(&bits(&scattered), &whole[rank * part..(rank + 1) * part]);
        assert_eq!(others, 0, "elements of {part} with other bits by reduce-scatter than by all-reduce");
        for shorter in [part, length - 1] {
            let others = differing(&summed(shorter), &whole);
            assert_eq!(others, 0, "elements of {shorter} with other bits than among {length}");
        }
    }
}

/// A ring: all ranks send and receive at once. Then two messages from first to last rank, of other lengths, in order.
fn assert_messages_arrive<T: Float>(group: &dyn Communicator) {
    let (rank, size) = (group.rank(), group.size());
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let (mut sent, mut got) = (values::<T>(rank, 1, 50), vec![T::zeroed(); 50]);
    let (outgoing, arriving) = (tensor(&mut sent), tensor(&mut got));
    let requests = [(Send { to }, outgoing), (Receive { from }, arriving)]
        .map(|(kind, one)| group.start(kind, &one, &one).unwrap());
    requests.into_iter().for_each(|request| request.wait().unwrap());
    assert_eq!(bits(&got), bits(&values::<T>(from, 1, 50)));
    let messages = [7, 3000];
    if rank == 0 {
        let mut buffers = messages.map(|length| values::<T>(0, length, length));
        let requests = buffers.each_mut().map(|buffer| {
            let tensor = tensor(buffer);
            group.start(Send { to: size - 1 }, &tensor, &tensor).unwrap()
        });
        requests.into_iter().for_each(|request| request.wait().unwrap());
    } else if rank == size - 1 {
        for length in messages {
            let mut buffer = vec![T::zeroed(); length];
            let tensor = tensor(&mut buffer);
            group.start(Receive { from: 0 }, &tensor, &tensor).unwrap().wait().unwrap();
            assert_eq!(bits(&buffer), bits(&values::<T>(0, length, length)));
        }
    }
}

/// Both types.
pub fn assert_right(group: &dyn Communicator) {
    assert_all_kinds_are_right::<f32>(group);
    assert_all_kinds_are_right::<bf16>(group);
}
