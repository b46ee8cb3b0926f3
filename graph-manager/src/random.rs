//! The state of random numbers for captured work.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::rc::Rc;

use crate::words::counted;
use device::ops::{Control, DropoutPart, DropoutSite, SampleRecord, WriteControl, WriteSampleRecord};
use device::{Area, DType, Tensor};

use crate::error::{Error, Result};
use crate::pool::Pool;

/// The input of dropout on the device, instead of the state of a generator. A mask is a function of (seed, number of
/// the draw, sample, token, channel). The number lies in a record in device memory, so a graph drops other values at
/// every draw.
///
/// Each microbatch in flight has a record of its own. So its backward drops the same values as its forward, even if
/// other microbatches begin in between.
///
/// A program may have several, such as one for each generator of a model that it ports, or one for each microbatch. Each
/// counts its own draws. Those with different seeds drop other values at the same place of a model; those with the same
/// seed drop the same ones at the same draw. One graph may use any of them.
pub struct RandomState {
    seed: u64,
    control: Tensor,
    records: Vec<Record>,
    /// The number of the next draw.
    next: u32,
    pool: Pool,
    _areas: Vec<Area>,
}

struct Record {
    tensor: Tensor,
    in_flight: Rc<Cell<bool>>,
}

/// The masks of one microbatch. Keep them from the beginning of its forward to the end of its backward: as long as they
/// are there, nothing else is drawn into their record.
#[must_use = "dropped masks give their record to the next draw: keep them until the microbatch's backward is submitted"]
pub struct Masks {
    in_flight: Rc<Cell<bool>>,
}

impl Drop for Masks {
    fn drop(&mut self) {
        self.in_flight.set(false);
    }
}

impl RandomState {
    /// Records for so many microbatches in flight, for work on the pool's stream. Until the first draw they have the
    /// masks of draw 0. Let seeds differ in their low 32 bits.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(pool: &Pool, seed: u64, in_flight: NonZeroUsize) -> Result<RandomState> {
        let mut areas = Vec::new();
        let mut block = |name, bytes| -> Result<Tensor> {
            let tensor = pool.device().allocate_tensor(&mut areas, name, [bytes], DType::U8)?;
            pool.device().zero(&tensor)?;
            Ok(tensor)
        };
        let control = block("random control", size_of::<Control>())?;
        let mut record =
            |_| Ok(Record { tensor: block("random state", size_of::<SampleRecord>())?, in_flight: Rc::default() });
        let records = (0..in_flight.get()).map(&mut record).collect::<Result<_>>()?;
        Ok(RandomState { seed, control, records, next: 0, pool: pool.clone(), _areas: areas })
    }

    /// The site of dropouts with the masks of a record, for the forward and the backward of a microbatch. Records are
    /// counted from 0. Its rate is 0: give it the rate, the layer, and the number of the dropout within the layer.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use device::{Device, HostOptions, ops::DropoutSite};
    /// # use graph_manager::{Pool, RandomState};
    /// # let device = Device::host(HostOptions::default())?;
    /// let random = RandomState::new(&Pool::new(device.stream("compute")), 1234, NonZeroUsize::MIN)?;
    /// let site = DropoutSite { rate: 0.1, layer: 3, site: 1, ..random.site(0)? };
    /// # Ok::<(), graph_manager::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such record.
    pub fn site(&self, record: usize) -> Result<DropoutSite> {
        let record = self.of(record)?.tensor;
        Ok(DropoutSite { rate: 0.0, seed: self.seed, layer: 0, site: 0, record, part: DropoutPart::default() })
    }

    /// Draws the next masks into a record, for the next microbatch. Call it before the microbatch's forward, outside of
    /// captures.
    ///
    /// # Errors
    /// [`Error::Usage`] if the record still has the masks of another microbatch, and within a region that is captured;
    /// errors of the device.
    pub fn draw(&mut self, record: usize) -> Result<Masks> {
        let Record { tensor, in_flight } = self.of(record)?;
        if in_flight.get() {
            let problem = format!(
                "masks were drawn into record {record} while its microbatch is in flight: the backward would drop other values \
                 than the forward"
            );
            return Err(Error::usage(problem, "draw into another record, or drop its Masks after the backward"));
        }
        if self.pool.is_nested() {
            let problem = "masks were drawn inside a region: a graph would draw the same at every replay";
            return Err(Error::usage(problem, "call RandomState::draw before the step"));
        }
        let (compute, value) = (self.pool.compute(), Control { step: self.next, ..Control::default() });
        compute.submit(WriteControl { control: self.control, value })?;
        compute.submit(WriteSampleRecord { control: self.control, offset: 0, record: *tensor })?;
        in_flight.set(true);
        let masks = Masks { in_flight: in_flight.clone() };
        self.next += 1;
        Ok(masks)
    }

    /// The number of the next draw, for a checkpoint.
    pub fn next_draw(&self) -> u32 {
        self.next
    }

    /// Gives the next draw this number, such as that of a checkpoint. Masks in flight stay.
    pub fn seek(&mut self, draw: u32) {
        self.next = draw;
    }

    fn of(&self, record: usize) -> Result<&Record> {
        self.records.get(record).ok_or_else(|| {
            let problem = format!("record {record} was asked for, of {}", counted(self.records.len(), "record"));
            Error::usage(problem, "give RandomState::new the largest number of microbatches in flight")
        })
    }
}
