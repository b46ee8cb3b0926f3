//! The transposed copy of an 8-bit matrix, byte for byte.

use device::DType;
use device::DType::{F8E4M3, F8E5M2};
use device::ops::TransposeFp8;

use crate::common::checked_bench;

fn check(dtype: DType, [rows, columns]: [usize; 2], offset: usize) {
    let t = checked_bench();
    // All bytes but the NaNs: there may be several of these.
    let byte = |i: usize| (i * 37 % 0x78) as u8 | if i.is_multiple_of(3) { 0x80 } else { 0 };
    let bytes: Vec<u8> = (0..rows * columns).map(byte).collect();
    let put = |bytes: &[u8], shape: [usize; 2]| {
        let padded: Vec<u8> = vec![0x7f; offset].into_iter().chain(bytes.iter().copied()).collect();
        t.put_bytes(&[padded.len()], dtype, &padded).view(offset, shape)
    };
    let (input, output) = (put(&bytes, [rows, columns]), put(&vec![1; rows * columns], [columns, rows]));
    t.run(TransposeFp8 { input, output });
    let found = t.get_bytes(&output);
    for (i, found) in found.iter().enumerate() {
        let (column, row) = (i / rows, i % rows);
        assert_eq!(
            *found,
            bytes[row * columns + column],
            "{dtype} {rows} x {columns} from {offset}: row {row}, column {column}"
        );
    }
}

#[test]
fn every_byte_lies_at_its_transposed_place() {
    for shape in [[128, 128], [256, 144], [16, 16], [272, 400], [1, 16], [130, 33], [7, 1], [129, 256], [0, 16]] {
        for offset in [0, 16, 3] {
            check(F8E4M3, shape, offset);
            check(F8E5M2, shape, offset);
        }
    }
}

#[test]
fn other_types_and_shapes_are_refused() {
    let t = checked_bench();
    let of = |shape: [usize; 2], dtype| t.put_bytes(&shape, dtype, &vec![0; shape[0] * shape[1]]);
    let (input, right) = (of([4, 6], F8E4M3), of([6, 4], F8E4M3));
    let refused = |input, output| {
        let op = device::Op::from(TransposeFp8 { input, output });
        op.check().unwrap_err().to_string()
    };
    assert!(refused(input, of([6, 4], F8E5M2)).contains("one 8-bit floating type"));
    assert!(refused(input, of([4, 6], F8E4M3)).contains("needs (6, 4)"));
    assert!(device::Op::from(TransposeFp8 { input, output: right }).check().is_ok());
}
