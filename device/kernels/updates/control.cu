// Small blocks that give a step scalars of the host.
#include "common.cuh"

KERNEL(write_sample_record)(const Control* control, u64 offset, SampleRecord* record) {
    begin_kernel();
    record->first_sample = control->first_sample + offset;
    record->step = control->step;
    record->reserved = 0;
}

struct WriteControl {
    Control* control;
    Control value;
};

KERNEL(write_control)(const WriteControl op) {
    begin_kernel();
    *op.control = op.value;
}
