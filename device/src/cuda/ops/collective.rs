//! Transfers between ranks: by kernels of our own between GPUs that reach each other's memory, else by the communicator's
//! library.

use crate::communicator::CollectiveKind;
use crate::cuda::ops::rows_of_ranks::exchange_rows;
use crate::cuda::peers::{GATHER, MAX_BLOCKS, Peers, PeersArgs, SUM_BF16, SUM_F32};
use crate::cuda::{
    CudaDevice, CudaOperation, Grid, KernelFile, KernelSet, Queue, StreamHandle, kernel_file, kernel_struct,
};
use crate::ops::Collective;
use crate::submitted::Submitted;
use crate::{DType, Error, Result};

/// Threads of a block. Each moves 16 bytes at a time.
pub(super) const THREADS: usize = 512;

kernel_struct! {
    /// The kernels' struct of the same name in `kernels/transfers/peers.cu`.
    Transfer {
        u64: input, output, bytes, stride;
        PeersArgs: peers;
    }
}

impl CudaOperation for Collective {
    fn files() -> &'static [KernelFile] {
        &[kernel_file!("transfers/peers.cu"), kernel_file!(Experts, "transfers/peer_rows.cu")]
    }

    fn launch(&self, _cuda: &CudaDevice, queue: &Queue<'_>) -> Result<()> {
        let by_peers = self.communicator.peers().filter(|_| self.suits_kernels());
        let by_peers = by_peers.and_then(|peers| Some((peers, peers.channel(queue.stream)?)));
        if let CollectiveKind::Rows(rows) = &self.kind {
            let Some((peers, channel)) = by_peers else {
                let problem = "the GPUs do not reach each other's memory on this stream. Fix: an all-to-all of slots";
                return Err(Error::operation(self.kind.name(), problem));
            };
            return exchange_rows(self, rows, peers, channel, queue);
        }
        match by_peers {
            Some((peers, channel)) => {
                check_place(self, peers.rank())?;
                peer_transfer(self, peers, channel, queue)
            }
            None => {
                let stream = StreamHandle(queue.stream.handle().cast());
                self.communicator.enqueue(self.kind, &self.input, &self.output, stream)
            }
        }
    }

    fn accept(&self, submitted: Submitted, cuda: &CudaDevice) -> Result<()> {
        if submitted == Submitted::ToCapture { Ok(()) } else { self.prepare(cuda) }
    }

    /// Kernels for rows are loaded with those of experts.
    fn prepare(&self, cuda: &CudaDevice) -> Result<()> {
        match self.kind {
            CollectiveKind::Rows(_) => cuda.kernels.load_set(KernelSet::Experts),
            _ => Ok(()),
        }
    }
}

/// Fails if blocks would write pieces of the output while others still show theirs of the input, or if an address does not begin
/// a word of 16 bytes. NCCL cannot step in: another rank may not see it.
fn check_place(op: &Collective, rank: usize) -> Result<()> {
    let (input, output) = (&op.input, &op.output);
    let own = output.address + (rank * input.bytes()) as u64;
    let apart = input.address >= output.address + output.bytes() as u64
        || output.address >= input.address + input.bytes() as u64;
    let clear = match op.kind {
        CollectiveKind::AllReduceSum => apart || input.address == output.address,
        CollectiveKind::AllGather => apart || input.address == own,
        _ => apart,
    };
    let aligned = input.address.is_multiple_of(16) && output.address.is_multiple_of(16);
    let problem = match (clear, aligned) {
        (true, true) => return Ok(()),
        (false, _) => "its input and its output overlap",
        (true, false) => "an address is no multiple of 16",
    };
    Err(Error::operation(op.kind.name(), format!("{problem}. Fix: other tensors, or transfers by NCCL")))
}

/// One or two kernels. Two ranks that both get a sum both add all of it up. If they are more, each adds up a part and
/// gives the others that part. That moves fewer bytes.
fn peer_transfer(op: &Collective, peers: &Peers, channel: usize, queue: &Queue<'_>) -> Result<()> {
    let ranks = peers.ranks() as u64;
    let (input, output) = (op.input.address, op.output.address);
    let bytes = op.input.bytes() as u64;
    let sum = if op.input.dtype == DType::Bf16 { SUM_BF16 } else { SUM_F32 };
    let launch = |kernel, input, output, bytes: u64, stride| {
        let (piece, blocks) = division(bytes, peers.room());
        let transfer = Transfer { input, output, bytes, stride, peers: peers.args(channel, piece) };
        queue.launch_block(kernel, Grid::line(blocks, THREADS), &transfer)
    };
    let part = bytes / ranks;
    match op.kind {
        CollectiveKind::AllGather => launch(GATHER, input, output, bytes, 0),
        CollectiveKind::ReduceScatterSum => launch(sum, input, output, part, part),
        _ if ranks == 2 || !bytes.is_multiple_of(16 * ranks) || part < peers.room() => {
            launch(sum, input, output, bytes, 0)
        }
        _ => {
            let own = output + peers.rank() as u64 * part;
            launch(sum, input, own, part, part)?;
            launch(GATHER, own, output, part, 0)
        }
    }
}

/// Bytes of a piece, and the number of blocks, for a transfer of so many bytes: as few rounds as `room` allows, with pieces of
/// one size.
fn division(bytes: u64, room: u64) -> (u64, usize) {
    let (turn, blocks) = (THREADS as u64 * 16, MAX_BLOCKS as u64);
    let rounds = bytes.div_ceil(blocks * room);
    let piece = bytes.div_ceil(blocks * rounds).next_multiple_of(turn).min(room);
    (piece, bytes.div_ceil(piece).min(blocks) as usize)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use CollectiveKind::{AllGather, AllReduceMax, AllReduceSum, ReduceScatterSum};
    use proptest::prelude::*;

    use super::*;
    use crate::{Communicator, Device, HostOptions, Request, Tensor};

    #[test]
    fn a_transfer_has_as_few_rounds_as_its_slots_allow() {
        assert_eq!(division(16, 64 << 10), (8 << 10, 1));
        assert_eq!(division(1 << 20, 64 << 10), (16 << 10, 64));
        assert_eq!(division(8 << 20, 64 << 10), (64 << 10, 64));
        assert_eq!(division(5 << 20, 64 << 10), (40 << 10, 64));
    }

    /// Two ranks. This is the second.
    #[derive(Debug)]
    struct Two;

    impl Communicator for Two {
        fn name(&self) -> &str {
            "two"
        }

        fn rank(&self) -> usize {
            1
        }

        fn size(&self) -> usize {
            2
        }

        fn start(&self, _: CollectiveKind, _: &Tensor, _: &Tensor) -> Result<Box<dyn Request>> {
            unreachable!("nothing is transferred")
        }
    }

    #[test]
    fn kind_type_and_size_say_whether_kernels_make_a_transfer_and_places_that_they_cannot_use_are_errors() {
        let device = Device::host(HostOptions { threads: 1, check: false, dry: true }).unwrap();
        let tensor = |elements: usize, dtype| device.virtual_tensor("t", [elements], dtype);
        let op = |kind, input, output| Collective { kind, communicator: Rc::new(Two), input, output };
        let (all, other) = (tensor(64, DType::Bf16), tensor(64, DType::Bf16));
        let part = |start: usize, elements: usize| all.view(start, [elements]);
        for (good, kind, input, output) in [
            (true, AllReduceSum, all, all),
            (true, AllReduceSum, all, other),
            (true, AllGather, part(32, 32), all),
            (true, AllGather, part(0, 32), other),
            (true, ReduceScatterSum, all, other.view(0, [32])),
            (false, AllGather, part(0, 32), all),
            (false, ReduceScatterSum, all, part(32, 32)),
            (false, AllReduceSum, part(0, 32), part(8, 32)),
            (false, AllReduceSum, part(4, 8), part(4, 8)),
        ] {
            let op = op(kind, input, output);
            assert!(op.suits_kernels(), "{op:?}");
            assert_eq!(check_place(&op, 1).is_ok(), good, "{op:?}");
        }
        let (eight_bit, twice) = (tensor(64, DType::F8E4M3), tensor(128, DType::F8E4M3));
        assert!(op(AllGather, eight_bit, twice).suits_kernels());
        for (kind, input, output) in [
            (AllReduceSum, part(0, 4), part(0, 4)),
            (AllReduceSum, part(0, 0), part(0, 0)),
            (AllReduceSum, eight_bit, eight_bit),
            (AllReduceMax, all, all),
            (ReduceScatterSum, part(0, 8), other.view(0, [4])),
        ] {
            assert!(!op(kind, input, output).suits_kernels(), "{kind:?} of {input:?}");
        }
    }

    proptest! {
        #[test]
        fn every_block_has_a_piece_and_every_piece_has_room(words in 1_u64..1 << 24, ranks in 2_u32..=8) {
            let (bytes, room) = (words * 16, (128 << 10) / u64::from(ranks).next_power_of_two());
            let (piece, blocks) = division(bytes, room);
            prop_assert!(piece.is_multiple_of(16) && piece <= room && (1..=MAX_BLOCKS).contains(&blocks));
            prop_assert!(blocks as u64 <= bytes.div_ceil(piece));
        }
    }
}
