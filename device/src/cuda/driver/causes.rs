//! The causes of a driver's error codes and their fixes, for the person running a training.

/// Whether an error says that the GPU or the driver cannot run the machine code or PTX that it was given: no such image, no
/// binary for the GPU, invalid PTX, PTX of a newer version.
pub(in crate::cuda) fn is_of_code(code: u32) -> bool {
    matches!(code, 200 | 209 | 218 | 222)
}

/// Cause and fix, to follow the driver's own words. Empty for codes that only a mistake in this program can raise.
pub(super) fn cause_and_fix(code: u32) -> &'static str {
    match code {
        2 => {
            ". The GPU's memory is full or, if page-locked memory was asked for, the host's. Fix: a smaller \
             micro-batch, more ranks, or fewer other processes"
        }
        46 => ". Another process has the GPU for itself. Fix: end it, or `nvidia-smi -c DEFAULT`",
        code if is_of_code(code) => {
            ". The machine code was compiled for another GPU or for a newer driver. \
             Fix: NVRTC of the driver's CUDA (`trainer doctor` prints both versions), or a newer driver"
        }
        214 => {
            ". The GPU's memory had an error that could not be corrected. Fix: resume from the last checkpoint on another \
             GPU; `nvidia-smi -q -d ECC` counts these errors, and a reset of the GPU takes bad pages out of use"
        }
        700 | 702 | 710 | 714..=719 => {
            ". The cause is earlier work on the GPU, not this call. Fix: to find that work, run the same settings \
             with `--device host --check-graphs`, or on the GPU under `compute-sanitizer`"
        }
        802 => {
            ". The driver is still starting. Fix: if the GPUs are connected by NVSwitch, start nvidia-fabricmanager; else \
             wait and try again"
        }
        803 | 804 => {
            ". The driver's library and the kernel's module are of different versions, as after an update. Fix: reboot the \
             node or load the module again; in a container, leave out its own libcuda.so"
        }
        900..=908 => {
            ". Operations and copies of this library keep the rules of captures, so other code broke one: the call of a \
             custom operation, or code of this thread outside of operations. Fix: see `Operations of your own` in \
             device/README.md; a side stream that such a call forks is joined before it returns"
        }
        999 => {
            ". The driver does not say more. Fix: look for `Xid` in the kernel's log (`dmesg`); reset the GPU or the node"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_that_is_no_mistake_of_ours_has_a_cause_and_a_fix() {
        for code in [2, 46, 200, 209, 214, 218, 222, 700, 702, 719, 802, 803, 900, 904, 999] {
            let text = cause_and_fix(code);
            assert!(text.starts_with(". ") && text.contains(" Fix: ") && !text.contains("  "), "{code}: {text}");
        }
        assert_eq!(cause_and_fix(1), "", "an invalid value is what this program passed");
    }

    #[test]
    fn a_full_memory_or_a_fault_of_earlier_work_is_not_blamed_on_the_machine_code() {
        assert!([200, 209, 218, 222].into_iter().all(is_of_code));
        assert!(![1, 2, 3, 46, 201, 214, 220, 221, 700, 719, 900, 999].into_iter().any(is_of_code));
    }

    #[test]
    fn a_fault_of_earlier_work_is_not_blamed_on_the_call_that_met_it() {
        for code in [700, 719] {
            assert!(cause_and_fix(code).contains("earlier work on the GPU"));
            assert!(
                cause_and_fix(code).contains("--check-graphs") && cause_and_fix(code).contains("compute-sanitizer")
            );
        }
        assert!(!cause_and_fix(2).contains("earlier"));
    }
}
