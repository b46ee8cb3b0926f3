//! The peak speed of GPUs. The model FLOPs utilization (MFU) is a share of it.

use engine::precision::Precision;

/// The peaks of a GPU, by words of the GPU's name: its dense bf16 peak in TFLOP/s, and its memory's in GB (1e9 bytes) a
/// second. From NVIDIA's data sheets. A name with more words comes before one with fewer.
const PEAKS: &[(&str, f64, f64)] = &[
    ("B200", 2250.0, 8000.0),
    ("GH200", 989.4, 4000.0),
    ("H200", 989.4, 4800.0),
    ("H100 PCIe", 756.0, 2000.0),
    ("H100 NVL", 835.0, 3938.0),
    ("H100", 989.4, 3350.0),
    ("A100", 311.9, 2039.0),
    ("L40S", 362.0, 864.0),
    ("RTX 4090", 165.2, 1008.0),
    ("A10", 125.0, 600.0),
];

fn known(gpu: &str) -> Option<&'static (&'static str, f64, f64)> {
    // Whole words are compared: an A10G is not an A10, and an RTX A1000 is not an A100.
    let words = |text: &str| format!(" {} ", text.replace(|c: char| !c.is_ascii_alphanumeric(), " "));
    let gpu = words(gpu);
    PEAKS.iter().find(|(name, ..)| gpu.contains(&words(name)))
}

/// The dense matrix peak of a GPU in TFLOP/s. `None` if it is not known.
pub fn peak_tflops(gpu: &str, precision: Precision) -> Option<f64> {
    let (_, bf16, _) = known(gpu)?;
    match precision {
        Precision::Bf16 => Some(*bf16),
        Precision::Tf32 => Some(bf16 / 2.0),
        Precision::F32 => None, // f32 runs on other units; the peak of the matrix units says nothing about theirs
    }
}

/// The best speeds of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Dense products of bf16, TFLOP/s.
    pub bf16_tflops: f64,
    /// Bytes read and written, GB a second.
    pub gb_per_s: f64,
}

impl Peaks {
    /// The peaks of a GPU, by the driver's name of the GPU. `None` if they are not known.
    pub fn of(gpu: &str) -> Option<Peaks> {
        known(gpu).map(|(_, bf16_tflops, gb_per_s)| Peaks { bf16_tflops: *bf16_tflops, gb_per_s: *gb_per_s })
    }

    /// The least milliseconds for FLOPs on factors of a type, by the type's name. 8-bit products have twice the rate of
    /// bf16, and f32 that is rounded to TF32 has half of it. `None` for f32 as it is: its peak is not known.
    pub fn flops_ms(&self, flops: f64, dtype: &str, tf32: bool) -> Option<f64> {
        let times_bf16 = match dtype {
            "f32" if tf32 => 0.5,
            "f32" => return None,
            _ if dtype.starts_with("fp8") => 2.0,
            _ => 1.0,
        };
        Some(flops / (self.bf16_tflops * times_bf16 * 1e9))
    }

    /// The least milliseconds to read and write so many bytes.
    pub fn bytes_ms(&self, bytes: f64) -> f64 {
        bytes / (self.gb_per_s * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_name_of_a_gpu_decides_its_peak() {
        assert_eq!(peak_tflops("NVIDIA H100 PCIe", Precision::Bf16), Some(756.0));
        assert_eq!(peak_tflops("NVIDIA H100 80GB HBM3", Precision::Bf16), Some(989.4));
        assert_eq!(peak_tflops("NVIDIA H200", Precision::Tf32), Some(494.7));
        assert_eq!(peak_tflops("NVIDIA A100-SXM4-80GB", Precision::Bf16), Some(311.9));
        for other in ["Tesla T4", "NVIDIA RTX A1000", "NVIDIA A10G", "NVIDIA GB200"] {
            assert_eq!(peak_tflops(other, Precision::Bf16), None, "{other}");
        }
    }

    #[test]
    fn a_limit_follows_from_the_factors_type_and_the_bytes() {
        let peaks = Peaks::of("NVIDIA H200").unwrap();
        assert_eq!(Peaks::of("NVIDIA GeForce RTX 2080"), None);
        let least = |dtype, tf32| peaks.flops_ms(989.4e9, dtype, tf32).map(|least| (least * 1e6).round() / 1e6);
        assert_eq!((least("bf16", false), least("fp8-e4m3", false)), (Some(1.0), Some(0.5)));
        assert_eq!((least("f32", true), least("f32", false)), (Some(2.0), None));
        assert!((peaks.bytes_ms(4.8e9) - 1.0).abs() < 1e-9);
    }
}
