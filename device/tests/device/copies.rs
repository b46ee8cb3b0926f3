//! Copies from the host in stream order.

use crate::common::checked_bench;
use device::DType::F32;
use device::HostArray;

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
