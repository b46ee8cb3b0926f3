// Small blocks that give a step scalars of the host.
#include "common.cuh"

KERNEL(write_sample_record)(const Control* control, u64 offset, SampleRecord* record) {
    begin_kernel();
    record->first_sample = control->first_sample + offset;
    record->step = control->step;
    record->reserved = 0;
}

// The block is passed by value, as four words.
KERNEL(write_control)(u64 first, u64 second, u64 third, u64 fourth, u64* control) {
    begin_kernel();
    control[0] = first;
    control[1] = second;
    control[2] = third;
    control[3] = fourth;
}
