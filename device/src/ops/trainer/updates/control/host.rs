//! A step's scalars.

use crate::host::{HostKernel, Pool, view};
use crate::ops::{Control, SampleRecord, WriteControl, WriteSampleRecord};

impl HostKernel for WriteControl {
    fn run(&self, _pool: &Pool) {
        view::write_block(&self.control, &self.value);
    }
}

impl HostKernel for WriteSampleRecord {
    fn run(&self, _pool: &Pool) {
        let control: Control = view::read_block(&self.control);
        let record = SampleRecord { first_sample: control.first_sample + self.offset, step: control.step, reserved: 0 };
        view::write_block(&self.record, &record);
    }
}
