//! The peak speed of GPUs, to which the model FLOPs utilization (MFU) refers.

use engine::precision::Precision;

/// The dense matrix peak of a GPU in TFLOP/s, from NVIDIA's data sheets. `None` where it is not known.
pub fn peak_tflops(gpu: &str, precision: Precision) -> Option<f64> {
    const BF16: &[(&str, f64)] = &[
        ("B200", 2250.0),
        ("GH200", 989.4),
        ("H200", 989.4),
        ("H100 PCIe", 756.0),
        ("H100 NVL", 835.0),
        ("H100", 989.4),
        ("A100", 311.9),
        ("L40S", 362.0),
        ("RTX 4090", 165.2),
        ("A10", 125.0),
    ];
    // Whole words are compared: an A10G is not an A10, and an RTX A1000 is not an A100.
    let words = |text: &str| format!(" {} ", text.replace(|c: char| !c.is_ascii_alphanumeric(), " "));
    let gpu = words(gpu);
    let bf16 = BF16.iter().find(|(name, _)| gpu.contains(&words(name))).map(|(_, peak)| *peak)?;
    match precision {
        Precision::Bf16 => Some(bf16),
        Precision::Tf32 => Some(bf16 / 2.0),
        Precision::F32 => None, // f32 runs on other units, whose peak does not follow from that of the matrix units
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
}
