//! Several threads of one process, each with devices of its own.

use device::DType;
use device::ops::{Epilogue, Gemm};

use crate::common::{Bench, checked_bench, second_bench};

#[test]
fn threads_capture_and_multiply_each_on_its_gpu_while_devices_of_others_come_and_go() {
    let graphs = |bench: fn() -> Bench| {
        for times in 1..=8 {
            let b = bench();
            let factor = |shape: &[usize]| b.put(shape, DType::F32, &vec![times as f64; shape.iter().product()]);
            let (x, w, out) = (factor(&[4, 8]), factor(&[8, 8]), b.empty(&[4, 8], DType::F32));
            let product = Gemm::linear(x, w, out, Epilogue::None);
            b.run(product.clone());
            b.stream.begin_capture().unwrap();
            b.stream.submit(product).unwrap();
            b.stream.end_capture("product").unwrap().launch(&b.stream).unwrap();
            assert_eq!(b.get(&out), [8.0 * (times * times) as f64; 32]);
        }
    };
    std::thread::scope(|scope| {
        for bench in [checked_bench, second_bench, checked_bench, second_bench] {
            scope.spawn(move || graphs(bench));
        }
    });
}
