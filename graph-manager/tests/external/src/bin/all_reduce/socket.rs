//! Sums over two ranks on the host. A thread exchanges the values, so that the device goes on meanwhile.

use std::io::{Read, Result as IoResult, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};

use graph_manager::device::ops::CollectiveKind;
use graph_manager::device::{Communicator, DType, Error, Request, Result, Tensor};

use crate::AnyResult;
use crate::ranks::Other;

type Sum = IoResult<Vec<f32>>;

#[derive(Debug)]
struct SocketRanks {
    rank: usize,
    /// Values to sum, in order, and the way back for the sum.
    to_thread: Sender<(Vec<f32>, Sender<Sum>)>,
}

/// A communicator of rank 0 and rank 1.
pub fn communicator(rank: usize, other: &Other) -> AnyResult<Rc<dyn Communicator>> {
    let mut socket = other.socket.try_clone()?;
    let (to_thread, requests) = channel::<(Vec<f32>, Sender<Sum>)>();
    std::thread::spawn(move || {
        for (values, reply) in requests {
            let _ = reply.send(sum(rank, values, &mut socket)); // nobody waits any more after an error
        }
    });
    Ok(Rc::new(SocketRanks { rank, to_thread }))
}

/// The values of rank 0 plus those of rank 1. One rank writes while the other reads: neither waits for the other's
/// buffer.
fn sum(rank: usize, mut values: Vec<f32>, socket: &mut UnixStream) -> Sum {
    let own: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut theirs = vec![0; own.len()];
    if rank == 0 {
        socket.write_all(&own)?;
    }
    socket.read_exact(&mut theirs)?;
    if rank == 1 {
        socket.write_all(&own)?;
    }
    for (x, bytes) in values.iter_mut().zip(theirs.as_chunks().0) {
        *x += f32::from_le_bytes(*bytes);
    }
    Ok(values)
}

impl SocketRanks {
    fn failed(&self, problem: impl ToString) -> Error {
        let communicator = self.name().into();
        Error::Communication { collective: "all_reduce", communicator, problem: problem.to_string() }
    }
}

impl Communicator for SocketRanks {
    fn name(&self) -> &str {
        "socket"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        2
    }

    fn start(&self, kind: CollectiveKind, input: &Tensor, output: &Tensor) -> Result<Box<dyn Request>> {
        if kind != CollectiveKind::AllReduceSum || input.dtype != DType::F32 {
            return Err(self.failed(format!("{} of {} is not written", kind.name(), input.dtype)));
        }
        // SAFETY: the device checked that the tensor is f32 in live host memory. Nothing writes to it during this call.
        let values = unsafe { std::slice::from_raw_parts(input.address as *const f32, input.elements()) };
        let (reply, sum) = channel();
        self.to_thread.send((values.to_vec(), reply)).map_err(|error| self.failed(error))?;
        Ok(Box::new(UnderWay { sum, output: *output }))
    }
}

/// A sum under way.
struct UnderWay {
    sum: Receiver<Sum>,
    output: Tensor,
}

impl Request for UnderWay {
    fn wait(self: Box<Self>) -> Result<()> {
        let failed =
            |problem: String| Error::Communication { collective: "all_reduce", communicator: "socket".into(), problem };
        let sum =
            self.sum.recv().map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        // SAFETY: as in `start`; the device touches the output only after this call.
        let output = unsafe { std::slice::from_raw_parts_mut(self.output.address as *mut f32, self.output.elements()) };
        output.copy_from_slice(&sum);
        Ok(())
    }
}
