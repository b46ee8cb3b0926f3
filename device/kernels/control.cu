// Small blocks that give a step scalars of the host.
#include "common.cuh"

KERNEL(write_sample_record)(const Control* control, u64 offset, SampleRecord* record) {
    begin_kernel();
    record->first_sample = control->first_sample + offset;
    record->step = control->step;
    record->reserved = 0;
}
