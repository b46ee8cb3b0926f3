// Small blocks that tell a step what the host knows.
#include "common.cuh"

struct WriteControl {
    Control* control;
    Control value;
};

KERNEL(write_control)(const WriteControl op) { *op.control = op.value; }

KERNEL(write_sample_record)(const Control* control, u64 offset, SampleRecord* record) {
    record->first_sample = control->first_sample + offset;
    record->step = control->step;
    record->reserved = 0;
}
