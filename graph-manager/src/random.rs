//! The state of random numbers that captured work draws.

use device::ops::{Control, SampleRecord, WriteControl, WriteSampleRecord};
use device::{Area, DType, Tensor};

use crate::error::Result;
use crate::pool::Pool;

/// What dropout reads on the device instead of the state of a generator: a mask is a function of (seed, step, sample,
/// token, channel). A graph that drops out draws new masks at every replay, because the step lies in device memory.
pub struct RandomState {
    control: Tensor,
    record: Tensor,
    step: u32,
    pool: Pool,
    _areas: Vec<Area>,
}

impl RandomState {
    /// The state of step 0, for work on the pool's stream.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(pool: &Pool) -> Result<RandomState> {
        let mut areas = Vec::new();
        let mut block = |name, bytes| pool.device().allocate_tensor(&mut areas, name, [bytes], DType::U8);
        let control = block("random control", size_of::<Control>())?;
        let record = block("random state", size_of::<SampleRecord>())?;
        let mut state = RandomState { control, record, step: 0, pool: pool.clone(), _areas: areas };
        state.seek(0)?;
        Ok(state)
    }

    /// What [`device::ops::DropoutSite::record`] takes.
    pub fn record(&self) -> Tensor {
        self.record
    }

    /// Goes on to the next step's masks. Call it before each replay, outside of captures.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn advance(&mut self) -> Result<()> {
        self.seek(self.step + 1)
    }

    /// Goes to the masks of a step, such as that of a checkpoint.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn seek(&mut self, step: u32) -> Result<()> {
        self.step = step;
        let compute = self.pool.compute();
        compute.submit(WriteControl { control: self.control, value: Control { step, ..Control::default() } })?;
        Ok(compute.submit(WriteSampleRecord { control: self.control, offset: 0, record: self.record })?)
    }
}
