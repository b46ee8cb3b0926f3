//! The state of random numbers for captured work.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::rc::Rc;

use crate::words::{counted, tell};
use device::ops::{Control, DropoutPart, DropoutSite, SampleRecord, WriteControl, WriteSampleRecord};
use device::{Area, BufferId, DType, Tensor};

use crate::error::{Error, Result};
use crate::keys::StepKey;
use crate::manager::CudaGraphManager;
use crate::memory::Pool;
use crate::policy::Policy;
use crate::program::Program;

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
    draws: Rc<Draws>,
}

/// The draws into a record.
struct Draws {
    /// The record, counted from 0.
    record: usize,
    count: Cell<u64>,
    in_flight: Cell<bool>,
    /// Whether a message said that a step repeats a draw.
    told: Cell<bool>,
}

thread_local! {
    /// The records of this thread's states. Lists name them by their buffers.
    static RECORDS: RefCell<HashMap<BufferId, Rc<Draws>>> = RefCell::default();
}

/// The records among some buffers.
fn records_among(buffers: &[BufferId]) -> Vec<(BufferId, Rc<Draws>)> {
    RECORDS.with_borrow(|records| {
        buffers.iter().filter_map(|buffer| Some((*buffer, records.get(buffer)?.clone()))).collect()
    })
}

/// The masks of one microbatch. Keep them from the beginning of its forward to the end of its backward: as long as they
/// are there, nothing else is drawn into their record.
#[must_use = "dropped masks give their record to the next draw: keep them until the microbatch's backward is submitted"]
pub struct Masks {
    draws: Rc<Draws>,
}

impl Drop for Masks {
    fn drop(&mut self) {
        self.draws.in_flight.set(false);
    }
}

impl Drop for RandomState {
    fn drop(&mut self) {
        let mine = |buffer: &BufferId| self.records.iter().any(|record| record.tensor.buffer == *buffer);
        // Threads that end drop their records first.
        let _ = RECORDS.try_with(|records| records.borrow_mut().retain(|buffer, _| !mine(buffer)));
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
        let mut record = |record| -> Result<Record> {
            let tensor = block("random state", size_of::<SampleRecord>())?;
            let (count, in_flight, told) = (Cell::new(0), Cell::new(false), Cell::new(false));
            let draws = Rc::new(Draws { record, count, in_flight, told });
            RECORDS.with_borrow_mut(|records| records.insert(tensor.buffer, draws.clone()));
            Ok(Record { tensor, draws })
        };
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
        let Record { tensor, draws } = self.of(record)?;
        if draws.in_flight.get() {
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
        draws.in_flight.set(true);
        draws.count.update(|count| count + 1);
        let masks = Masks { draws: draws.clone() };
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

impl<P: Policy> CudaGraphManager<P> {
    /// Before a step: tells once of each record that the step uses and that nothing was drawn into since it last did.
    pub(crate) fn tell_of_repeated_draws(&mut self, key: StepKey<P::Mode>, microbatches: usize) {
        let used = records_among(self.states[&key].programs[&microbatches].outside());
        for (buffer, draws) in used {
            let before = self.state_mut(key).draws.insert(buffer, draws.count.get());
            if before == Some(draws.count.get()) && !draws.told.replace(true) {
                let record = draws.record;
                tell(&format!(
                    "a step uses record {record} of a RandomState again, and nothing was drawn into it since: it drops the same \
                     values. Fix: call RandomState::draw before each microbatch"
                ));
            }
        }
    }

    /// Fails if microbatches that are in flight at once use the same record.
    pub(crate) fn refuse_shared_records(&self, program: &Program<P::Region>) -> Result<()> {
        for (buffer, draws) in records_among(program.outside()) {
            let Some([one, other]) = program.in_flight_with(buffer) else { continue };
            let record = draws.record;
            let problem = format!(
                "{one} and {other} are in flight at once, and both use record {record} of a RandomState: a draw for one changes \
                 the values that the other's backward drops"
            );
            let fix = "give RandomState::new the number in flight, and each microbatch a record \
                       (RandomState::site, StepContext::microbatch)";
            return Err(Error::usage(problem, fix));
        }
        Ok(())
    }
}
