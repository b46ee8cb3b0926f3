//! Copies from the host in stream order.

use crate::common::checked_bench;
use device::DType::{Bf16, F32};
use device::{COPY_BLOCK, CheckError, Error, HostArray, Staging, Tensor, bf16, copy_blocks};

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
